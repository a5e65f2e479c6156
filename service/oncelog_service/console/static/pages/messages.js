// Messages of one topic: from a place on, by key, or as they come.

import { useMemo, useRef, useState, useEffect } from "../vendor/htm-preact.js";
import { call, Problem, topicPath, useLive, useLoad } from "../api.js";
import { count, hex, shown, time, toBytes } from "../format.js";
import { FORMATS, Payload } from "../payload.js";
import { go, href } from "../route.js";
import { ChooseTopic, TopicBar } from "../topics.js";
import { ask, Badge, Choice, Empty, Facts, Field, html, Panel, Refusal } from "../ui.js";
import { momentOf, wholeOf } from "./topics.js";

export const title = "Messages";

const PAGE = 50;
const SCANNED = 2000; // messages that one request of a search looks at
const MOST_FOUND = 200;
const TAIL = 200; // messages that a live tail keeps …
const TAIL_BYTES = 16 << 20; // … and bytes of their payloads
const WAIT = 20_000;

export function Page({ args: [namespace, topic], query }) {
  if (!topic) return html`<${ChooseTopic} page="messages" what="Messages of" />`;
  return html`<${TopicBar} page="messages" namespace=${namespace} topic=${topic} />
    <${Browse} namespace=${namespace} topic=${topic} query=${query} />`;
}

const FROM = [["newest", "the newest"], ["oldest", "the oldest"], ["offset", "an offset"], ["id", "a message id"], ["time", "a time"],
  ["key", "those of a key"], ["live", "as they come"]];
const ASKED = { offset: "Offset", id: "Message id, 40 hex digits", time: "Time, as 2026-11-24 16:00, or ms", key: "Key: text, or 0x and hex" };

/** Where the address says to begin; what is no such word, as the name of a part of every object, says nothing. */
const beginning = (query) => (FROM.some(([each]) => each === query.from) ? query.from : "newest");

function Browse({ namespace, topic, query }) {
  const [from, setFrom] = useState(beginning(query));
  const [value, setValue] = useState(query.value ?? "");
  const [as, setAs] = useState("auto");
  const [pasted, setPasted] = useState("");
  useEffect(() => {
    setFrom(beginning(query));
    setValue(query.value ?? "");
  }, [query.from, query.value]);
  const schema = useMemo(() => schemaOf(pasted), [pasted]);
  const submit = (event) => {
    event.preventDefault();
    go("messages", namespace, topic, { from, value: from in ASKED ? value.trim() : undefined });
  };
  const shownAs = { as, schema: schema.found };
  const place = { from: beginning(query), value: query.value ?? "" };
  const at = topicPath(namespace, topic);
  const Found = { key: Search, live: Tail }[place.from] ?? Listed;
  return html`
    <form class="row" onSubmit=${submit} aria-label="What is shown">
      <${Choice} label="Show" value=${from} onChange=${setFrom} options=${FROM} />
      ${from in ASKED && html`<${Field} label=${ASKED[from]} filter=${true} value=${value} onChange=${setValue} required />`}
      <button type="submit" class="primary">Show</button>
      <${Choice} label="Payload" value=${as} onChange=${setAs} options=${FORMATS} />
    </form>
    ${as === "avro" && html`<div class="field"><label for="schema">Avro schema of the payloads, in JSON; container files carry theirs</label>
      <textarea id="schema" value=${pasted} spellcheck=${false} onInput=${(event) => setPasted(event.target.value)} /></div>
      ${schema.wrong && html`<p class="refusal" role="status">${schema.wrong}</p>`}`}
    <${Found} key=${`${place.from} ${place.value}`} at=${at} namespace=${namespace} topic=${topic} place=${place} shown=${shownAs} />`;
}

function schemaOf(pasted) {
  if (!pasted.trim()) return { found: null };
  try {
    return { found: JSON.parse(pasted) };
  } catch (failure) {
    return { found: null, wrong: `The schema is no JSON: ${failure.message}` };
  }
}

// --- asking for messages

/** Messages of a page, as they are shown: numbers and bytes instead of Avro's JSON. */
async function poll(at, body, signal) {
  const found = await call("POST", `${at}/poll`, { body, signal });
  return found.map((each) => ({
    id: hex(toBytes(each.id)),
    offset: each.offset,
    producer: untagged(each.producer),
    sequenceId: untagged(each.sequenceId),
    key: untagged(each.key),
    properties: untagged(each.properties) ?? {},
    ttl: untagged(each.ttl),
    payload: toBytes(each.payload),
    writePointer: untagged(each.writePointer),
    state: untagged(each.state),
  }));
}

/** {"long": 5} is 5. */
function untagged(value) {
  return value !== null && typeof value === "object" ? Object.values(value)[0] : value ?? null;
}

/** When a message was published: its id begins with that. */
const publishedMs = (id) => Number.parseInt(id.slice(0, 16), 16);

async function startOf(at, { from, value }, signal) {
  switch (from) {
    case "oldest": return { startFrom: null };
    case "offset": return { startOffset: wholeOf(value) };
    case "id": return { startFrom: value };
    case "time": return { startFrom: momentOf(value) };
    default: {
      const stats = await call("GET", `${at}/stats`, { signal });
      return { startOffset: Math.max(stats.earliestOffset, stats.upcomingOffset - PAGE) };
    }
  }
}

// --- a page of them

function Listed({ at, namespace, topic, place, shown }) {
  const [wrong, setWrong] = useState(null);
  const found = useLoad(async (signal) => {
    setWrong(null);
    let start;
    try {
      start = await startOf(at, place, signal);
    } catch (failure) {
      if (failure instanceof Problem || failure.name === "AbortError") throw failure;
      setWrong(failure);
      return [];
    }
    const messages = await poll(at, { ...start, limit: PAGE }, signal);
    return place.from === "newest" ? messages.reverse() : messages;
  }, [at, place.from, place.value]);
  const messages = found.data ?? [];
  const offsets = messages.map((each) => each.offset);
  const first = Math.min(...offsets);
  const last = Math.max(...offsets);
  const to = (text, offset, name) => html`<a href=${href("messages", namespace, topic, { from: "offset", value: offset })} aria-label=${name}>${text}</a>`;
  return html`<${Panel} title="Messages" of=${found} actions=${html`
      ${messages.length > 0 && first > 0 && to("← older", Math.max(0, first - PAGE), "Older messages")}
      ${messages.length > 0 && to("newer →", last + 1, "Newer messages")}
      <button type="button" onClick=${found.reload}>Again</button>`}>
    ${wrong && html`<${Refusal} error=${wrong} />`}
    ${messages.length ? html`<${Messages} at=${at} of=${messages} shown=${shown} again=${found.reload} />` : html`<${Empty}>No messages from there on.<//>`}
  <//>`;
}

// --- those of a key

function Search({ at, place, shown }) {
  const wanted = useMemo(() => keyOf(place.value), [place.value]);
  const [found, setFound] = useState([]);
  const [state, setState] = useState({ looked: 0, all: null, done: false, error: null });
  const stop = useRef(null);
  const begin = () => {
    const ending = new AbortController();
    stop.current = ending;
    setFound([]);
    setState({ looked: 0, all: null, done: false, error: null });
    search(at, wanted, ending.signal, setFound, setState);
    return () => ending.abort();
  };
  useEffect(begin, [at, wanted]);
  const { looked, all, done, error } = state;
  return html`<${Panel} title="Messages of a key" actions=${done || error
      ? html`<button type="button" onClick=${begin}>Again</button>`
      : html`<button type="button" onClick=${() => stop.current.abort()}>Stop</button>`}>
    <p role="status">${done ? "Looked at" : "Looking at"} ${count(looked)} of ${all === null ? "…" : count(all)} messages from the oldest on:
      ${" "}${count(found.length)} found${found.length >= MOST_FOUND ? ", and no further ones looked for" : ""}.</p>
    ${!done && html`<progress value=${looked} max=${all ?? 1} aria-label="How far the search is"></progress>`}
    ${error && html`<${Refusal} error=${error} />`}
    ${found.length > 0 && html`<${Messages} at=${at} of=${found} shown=${shown} again=${begin} />`}
  <//>`;
}

/** There is no index of keys: every message is looked at, here, page by page. */
async function search(at, wanted, signal, setFound, setState) {
  try {
    const stats = await call("GET", `${at}/stats`, { signal });
    const all = stats.upcomingOffset - stats.earliestOffset;
    setState((was) => ({ ...was, all }));
    let body = { startFrom: null, limit: SCANNED, generation: stats.generation };
    let found = [];
    for (;;) {
      const page = await poll(at, body, signal);
      const last = page.at(-1);
      const ended = last === undefined || last.offset >= stats.upcomingOffset - 1;
      found = [...found, ...page.filter((each) => each.key === wanted && each.offset < stats.upcomingOffset)].slice(0, MOST_FOUND);
      const done = ended || found.length >= MOST_FOUND;
      setFound(found);
      setState({ looked: ended ? all : last.offset + 1 - stats.earliestOffset, all, done, error: null });
      if (done) return;
      body = { ...body, startFrom: last.id, inclusive: false };
    }
  } catch (error) {
    if (error.name === "AbortError") setState((was) => ({ ...was, done: true }));
    else setState((was) => ({ ...was, error }));
  }
}

/** A key as the service sends it, a character for each byte. */
function keyOf(text) {
  const digits = /^0x((?:[0-9a-f]{2})+)$/i.exec(text)?.[1];
  const data = digits ? digits.match(/../g).map((each) => Number.parseInt(each, 16)) : new TextEncoder().encode(text);
  return Array.from(data, (each) => String.fromCharCode(each)).join("");
}

// --- as they come

function Tail({ at, shown }) {
  const [on, setOn] = useState(true);
  const [kept, setKept] = useState([]);
  return html`<${Panel} title="Messages as they come" actions=${html`<button type="button" aria-pressed=${on} onClick=${() => setOn(!on)}>
      ${on ? "Stop" : "Go on"}</button>`}>
    ${on && html`<${Arriving} at=${at} add=${(more) => setKept((was) => newest([...more].reverse().concat(was)))} />`}
    <div role="log" aria-label="The newest first">${kept.length
      ? html`<${Messages} at=${at} of=${kept} shown=${shown} again=${() => {}} />` : html`<${Empty}>None since you look.<//>`}</div>
  <//>`;
}

/** So many as a tab can keep, however long it is open; the newest one in any case. */
function newest(messages) {
  let size = 0;
  return messages.filter((each, at) => at === 0 || (at < TAIL && (size += each.payload.length) <= TAIL_BYTES));
}

function Arriving({ at, add }) {
  const last = useRef(null);
  const [left, setLeft] = useState(0);
  const live = useLive(async (signal) => {
    const upcoming = async () => (await call("GET", `${at}/stats`, { signal })).upcomingOffset;
    last.current ??= { startOffset: await upcoming() };
    const found = await poll(at, { ...last.current, wait: WAIT, limit: TAIL }, signal);
    if (!found.length || signal.aborted) return true;
    add(found);
    last.current = { startFrom: found.at(-1).id, inclusive: false };
    if (found.length === TAIL) { // more come than are shown: go on with the newest ones
      const next = found.at(-1).offset + 1;
      const start = Math.max(next, (await upcoming()) - TAIL);
      last.current = { startOffset: start };
      setLeft((was) => was + start - next);
    }
    return true;
  }, [at]);
  if (live.error && live.error.status !== 0) return html`<${Refusal} error=${live.error} again=${live.reload} />`;
  return html`<p class="empty" role="status">Waiting for messages …${left > 0 && ` ${count(left)} came too fast and are left out.`}</p>`;
}

// --- one of them

function Messages({ at, of, shown, again }) {
  return html`<ol class="messages">${of.map((each) => html`<${Message} key=${each.id} at=${at} message=${each} look=${shown} again=${again} />`)}</ol>`;
}

const STATES = { in_progress: "warning", committed: "good", rolled_back: "", invalid: "critical", unknown: "" };
const ERASED = "oncelog.erased";

function Message({ at, message, look, again }) {
  const { id, offset, producer, sequenceId, key, properties, ttl, payload, writePointer, state } = message;
  const [row, setRow] = useState(false);
  const names = Object.keys(properties).filter((each) => each !== ERASED);
  return html`<li class="message">
    <div class="head"><span class="offset">${count(offset)}</span>
      <span>${time(publishedMs(id))}</span>
      ${key !== null && html`<span>key <strong>${trimmed(key)}</strong></span>`}
      ${producer !== null && html`<span>${producer} <strong>#${count(sequenceId)}</strong></span>`}
      ${ttl !== null && html`<span>ttl ${count(ttl)} s</span>`}
      ${writePointer !== null && html`<span>in <a href=${href("transactions", writePointer)}><code>${writePointer}</code></a>
        ${" "}<${Badge} kind=${STATES[state]}>${String(state).replace("_", " ")}</></span>`}
      <span class="spring"></span>
      <button type="button" class="small" aria-expanded=${row} aria-label=${`Row at offset ${offset}`} onClick=${() => setRow(!row)}>Row</button>
      <button type="button" class="small" aria-label=${`Erase the message at offset ${offset}`} onClick=${() => erase(at, message, again)}>Erase</button>
    </div>
    ${names.length > 0 && html`<p class="mono">${names.map((name) => html`<span class="property">${name} = ${properties[name]}</span> `)}</p>`}
    ${properties[ERASED] !== undefined ? html`<p><${Badge}>erased</> ${time(properties[ERASED])}</p>` : html`<${Payload} data=${payload} name=${`message-${offset}.bin`} ...${look} />`}
    ${row && html`<${Row} at=${at} message=${message} />`}
  </li>`;
}

const LONGEST = 200;

function trimmed(key) {
  const text = shown(key);
  return text.length > LONGEST ? `${text.slice(0, LONGEST)} …` : text;
}

/** The row as it lies in the log, and what became of its transaction. */
function Row({ at, message }) {
  const found = useLoad(async (signal) => (await call("GET", `${at}/rows`, { signal, query: { first: message.offset, limit: 1 } }))[0] ?? {}, [at, message.offset]);
  return html`<${Panel} title=${`Row at offset ${message.offset}`} of=${found}>${found.data && html`<${Facts} of=${[
    ["Message id", html`<code>${found.data.messageId}</code>`],
    ["Messages", count(found.data.messages)],
    ["Stands for a group", found.data.group ? "yes" : "no"],
    ["Write pointer", found.data.writePointer === null ? "none" : html`<code>${found.data.writePointer}</code>`],
    ["What became of it", found.data.state === null ? "of no transaction" : html`<${Badge} kind=${STATES[found.data.state]}>${String(found.data.state).replace("_", " ")}</>`],
    ["Payload bytes", count(found.data.payloadBytes)],
  ]} />`}<//>`;
}

function erase(at, message, again) {
  ask({
    title: `Erase the message at offset ${message.offset}?`, danger: true, action: "Erase", typed: String(message.offset),
    text: "Its payload and properties are gone for good, also from the store's files. Its place, id, key and producer stay.",
    run: () => call("POST", `${at}/erase`, { body: { messageId: message.id } }),
    done: again, said: "The message is erased.",
  });
}
