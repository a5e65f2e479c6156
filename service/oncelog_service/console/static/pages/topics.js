// All topics, and one of them: where its log begins and ends, what holds it, its properties, and what may be done with it.

import { useRef, useState } from "../vendor/htm-preact.js";
import { call, path, topicPath, useLive, useLoad } from "../api.js";
import { ago, bytes, count, rate, time, unknown } from "../format.js";
import { go, href } from "../route.js";
import { TopicBar } from "../topics.js";
import { announce, ask, Badge, Empty, Facts, Field, html, Panel, Table, Wrong } from "../ui.js";

export const title = "Topics";

export function Page({ args: [namespace, topic] }) {
  return topic ? html`<${One} namespace=${namespace} topic=${topic} />` : html`<${All} />`;
}

// --- all of them

const PAGE = 1000; // topics of one request
const FEW = 1000; // topics that are asked about every few seconds; more are once a minute

const nameOf = (each) => `${each.namespace}/${each.name}`;
const held = (each) => (each.upcomingOffset === null ? null : each.upcomingOffset - each.earliestOffset);
const numbered = (name, value) => ({ name, number: true, sort: value, cell: (each) => count(value(each)) });

const COLUMNS = [
  { name: "Topic", head: true, sort: nameOf, cell: (each) => html`<a href=${href("topics", each.namespace, each.name)}>${nameOf(each)}</a>` },
  numbered("Offsets", held),
  { ...numbered("Size", (each) => each.bytes), cell: (each) => bytes(each.bytes) },
  numbered("From", (each) => each.earliestOffset),
  numbered("Up to", (each) => each.upcomingOffset),
  numbered("Producers", (each) => each.producers),
  { ...numbered("Subscriptions", (each) => each.subscriptions),
    cell: (each) => (each.subscriptions ? html`<a href=${href("subscriptions", each.namespace, each.name)}>${count(each.subscriptions)}</a>` : count(each.subscriptions)) },
  numbered("Lag", (each) => each.largestLag),
  { name: "State", sort: (each) => each.heldMessages ?? 0, cell: (each) => html`<${State} of=${each} />` },
  { name: "See", cell: (each) => html`<a href=${href("messages", each.namespace, each.name)} aria-label=${`Messages of ${nameOf(each)}`}>messages</a>` },
];

function State({ of }) {
  if (of.damage) return html`<${Badge} kind="critical">damaged</> <small>${of.damage}</small>`;
  if (of.heldMessages) return html`<${Badge} kind="warning">${count(of.heldMessages)} held</>`;
  return of.open ? "open" : html`<span class="empty">not open here</span>`;
}

/** All topics, a page after the other; what has come is shown meanwhile. */
function useAll() {
  const [come, setCome] = useState([]);
  const shown = useRef(0);
  const all = useLive(async (signal) => {
    const found = [];
    for (const namespace of await call("GET", "/v1/namespaces", { signal })) {
      for (let after = "", page = null; page === null || page.length === PAGE; after = page.at(-1)?.name) {
        page = await call("GET", path`/v1/namespaces/${namespace}/stats`, { signal, query: { after, limit: PAGE } });
        found.push(...page.map((each) => ({ ...each, namespace })));
        if (shown.current < found.length) setCome([...found]);
      }
    }
    shown.current = found.length;
    return found;
  }, [], { every: shown.current > FEW ? 60_000 : 5_000 });
  return { ...all, data: all.data ?? (come.length ? come : null) };
}

function All() {
  const topics = useAll();
  const [part, setPart] = useState("");
  const all = topics.data ?? [];
  const fits = part ? all.filter((each) => nameOf(each).includes(part)) : all;
  return html`<${Panel} title=${topics.data ? `Topics (${part ? `${count(fits.length)} of ` : ""}${count(all.length)})` : "Topics"} of=${topics}
      actions=${html`<button type="button" onClick=${() => create(topics.reload)}>Create a topic</button>`}>
    <div class="row"><${Field} label="Part of the name" filter=${true} value=${part} onChange=${setPart} /></div>
    <${Table} key=${part} caption="Topics" page=${50} columns=${COLUMNS} rows=${fits} rowKey=${nameOf}
      empty=${all.length ? "No name has this in it." : "There are no topics that you may see."} />
  <//>`;
}

function create(reload) {
  ask({
    title: "Create a topic", action: "Create", said: "The topic is there.",
    text: "Empty properties are as the namespace and the service have them.",
    fields: [
      { name: "namespace", label: "Namespace", value: "default", required: true },
      { name: "topic", label: "Name", required: true },
      ...PROPERTIES.map(([name, hint]) => ({ name, label: name, hint })),
    ],
    run: async ({ namespace, topic, ...rest }) => {
      const properties = Object.fromEntries(Object.entries(rest).filter(([, value]) => value.trim() !== ""));
      await call("PUT", topicPath(namespace.trim(), topic.trim()), { body: properties });
      return [namespace.trim(), topic.trim()];
    },
    done: (made) => { reload(); go("topics", ...made); },
  });
}

const PROPERTIES = [
  ["ttl", "seconds that messages live"],
  ["deduplication", "true or false"],
  ["transactional", "both, only or none"],
  ["check.expected.offsets", "true or false"],
  ["max.messages.per.second", "a whole number"],
  ["max.bytes.per.second", "a whole number"],
  ["max.bytes", "a whole number: what its messages may take"],
  ["max.bytes.policy", "refuse or trim"],
];

// --- one of them

function One({ namespace, topic }) {
  const at = topicPath(namespace, topic);
  const before = useRef(null);
  const stats = useLive(async (signal) => {
    const found = await call("GET", `${at}/stats`, { signal });
    const now = performance.now();
    const was = before.current;
    before.current = { now, upcoming: found.upcomingOffset, generation: found.generation };
    const goesOn = was !== null && was.generation === found.generation;
    return { ...found, rate: goesOn ? ((found.upcomingOffset - was.upcoming) * 1000) / (now - was.now) : null };
  }, [at], { every: 3000 });
  const properties = useLoad((signal) => call("GET", at, { signal }), [at]);
  const generation = stats.data?.generation ?? properties.data?.properties.generation; // of one that is damaged, too
  return html`
    <${TopicBar} page="topics" namespace=${namespace} topic=${topic} />
    <${Panel} title="Log" of=${stats} actions=${html`
        <button type="button" disabled=${!stats.data} onClick=${() => trim(at, namespace, topic, stats)}>Trim</button>
        <button type="button" disabled=${generation === undefined} onClick=${() => remove(at, namespace, topic, generation)}>Delete</button>`}>
      ${stats.data && html`<${Log} found=${stats.data} />`}<//>
    <${Holding} at=${at} namespace=${namespace} topic=${topic} />
    <div class="columns">
      <${Stable} namespace=${namespace} topic=${topic} />
      <${Properties} at=${at} of=${properties} name=${`${namespace}/${topic}`} />
      <${Subscribed} at=${at} namespace=${namespace} topic=${topic} />
    </div>`;
}

function Log({ found }) {
  return html`<${Facts} of=${[
    ["Offsets", count(found.upcomingOffset - found.earliestOffset)],
    ["Size", found.maxBytes === null ? bytes(found.bytes) : html`${bytes(found.bytes)} of at most ${bytes(found.maxBytes)}`],
    ["From", count(found.earliestOffset)],
    ["Up to", count(found.upcomingOffset)],
    ["New now", rate(found.rate)],
    ["Held messages", found.heldMessages ? html`<${Badge} kind="warning">${count(found.heldMessages)}</> under ${count(found.heldWritePointers)}
      ${" "}${found.heldWritePointers === 1 ? "write pointer" : "write pointers"}` : "0"],
    ["Producers", count(found.producers)],
    ["Deduplication", found.deduplication ? "on" : "off"],
    ["Generation", count(found.generation)],
    ["Newest snapshot at", count(found.snapshotOffset)],
    ["Messages in memory", count(found.cachedMessages)],
    ["Newest message", found.lastMessageId && html`<code>${found.lastMessageId}</code>`],
  ]} />`;
}

/** Up to where everything is decided, and what stands there. */
function Stable({ namespace, topic }) {
  const found = useLive(async (signal) => {
    const all = await call("POST", path`/v1/namespaces/${namespace}/offsets`, { signal, body: { topics: { [topic]: {} }, wait: 0 } });
    return all[topic];
  }, [namespace, topic], { every: 3000 });
  return html`<${Panel} title="Stable" of=${found}>${found.data && html`<${Facts} of=${[
    ["Oldest that lives", count(found.data.earliest)],
    ["Stable up to", count(found.data.stable)],
  ]} /><p class="empty">Below it every message is durable and every transaction decided.</p>`}<//>`;
}

const STATES = { in_progress: "warning", committed: "good", aborted: "", invalid: "critical" };

const HELD = (namespace, topic, at, reload) => [
  { name: "Write pointer", head: true, cell: (each) => html`<a href=${href("transactions", each.writePointer)}><code>${each.writePointer}</code></a>` },
  { name: "State", cell: (each) => (each.state ? html`<${Badge} kind=${STATES[each.state]}>${each.state.replace("_", " ")}</>` : html`<${Badge}>${unknown(each.writePointer)}</>`) },
  { name: "Since", cell: (each) => html`<span title=${time(each.sinceMs)}>${ago(each.sinceMs)}</span>` },
  { name: "From offset", number: true, cell: (each) => html`<a href=${href("messages", namespace, topic, { from: "offset", value: each.firstOffset })}>${count(each.firstOffset)}</a>` },
  { name: "Messages", number: true, cell: (each) => count(each.messages) },
  { name: "Producers", cell: (each) => each.producers.join(", ") || "–" },
  { name: "End it", cell: (each) => each.state === null
    ? html`<span class="actions"><button type="button" class="small" onClick=${() => endHeld(at, each, true, reload)}>Commit</button>
        <button type="button" class="small" onClick=${() => endHeld(at, each, false, reload)}>Roll back</button></span>`
    : html`<a href=${href("transactions", each.writePointer)} aria-label=${`End ${each.writePointer}`}>transaction</a>` },
];

function Holding({ at, namespace, topic }) {
  const held = useLive((signal) => call("GET", `${at}/held`, { signal, query: { limit: 100 } }), [at], { every: 3000 });
  const first = held.data?.[0];
  return html`<${Panel} title="What holds it" of=${held}>
    ${first ? html`<p><strong>Nothing is consumed from offset ${count(first.firstOffset)} on</strong> until write pointer
        ${" "}<code>${first.writePointer}</code> is ended: ${ago(first.sinceMs)} its first message was published.</p>
      <${Table} caption="What holds it" columns=${HELD(namespace, topic, at, held.reload)} rows=${held.data} rowKey=${(each) => each.writePointer} />`
    : html`<${Empty}>Nothing: every message is decided.<//>`}<//>`;
}

function endHeld(at, each, committed, reload) {
  ask({
    title: `${committed ? "Commit" : "Roll back"} ${each.writePointer} on this topic?`, danger: true, action: committed ? "Commit" : "Roll back",
    text: `The transaction service here does not know this write pointer. Its ${count(each.messages)} messages on this topic ` +
      `${committed ? "count from then on" : "are rolled back, and nobody is given them"}. Find out first how it ended where it began: this cannot be undone.`,
    run: () => call("POST", `${at}/held/${each.writePointer}`, { body: { committed } }),
    done: reload,
  });
}

function Properties({ at, of, name }) {
  const found = of.data?.properties ?? {};
  return html`<${Panel} title="Properties" of=${of} actions=${html`<button type="button" onClick=${() => change(at, found, name, of.reload)}
      disabled=${!of.data}>Change</button>`}>
    <${Facts} of=${Object.entries(found)} /><//>`;
}

function change(at, found, name, reload) {
  ask({
    title: `Properties of ${name}`, action: "Replace",
    text: "They replace all properties. Empty ones are as the namespace and the service have them. A shorter ttl lets messages go.",
    fields: [...new Map([...Object.keys(found).filter((each) => each !== "generation").map((each) => [each]), ...PROPERTIES])]
      .map(([each, hint]) => ({ name: each, label: each, hint, value: found[each] ?? "" })),
    run: (values) => call("PUT", `${at}/properties`,
      { query: { expected: JSON.stringify(found) },
        body: Object.fromEntries(Object.entries(values)
          .map(([each, value]) => [each, value === inField(found[each]) ? found[each] : value])
          .filter(([each, value]) => value === found[each] || value.trim() !== "")) })
      .catch((failure) => { reload(); throw failure; }), // who opens the question again sees what they are by then
    done: reload, said: "The properties are replaced.",
  });
}

const inField = (text) => text?.replace(/[\r\n]/g, ""); // as a field has it: what nobody has touched stays as it is

function Subscribed({ at, namespace, topic }) {
  const found = useLoad((signal) => call("GET", `${at}/subscriptions`, { signal }), [at]);
  return html`<${Panel} title="Subscriptions" of=${found}>
    <${Table} caption="Subscriptions" page=${20} rows=${found.data ?? []} rowKey=${(each) => each.name} empty="None." columns=${[
      { name: "Subscription", head: true, sort: (each) => each.name, cell: (each) => html`<a href=${href("subscriptions", namespace, topic)}>${each.name}</a>` },
      { name: "Lag", number: true, sort: (each) => each.lag, cell: (each) => count(each.lag) },
      { name: "Cursor", number: true, cell: (each) => count(each.cursor) },
    ]} /><//>`;
}

function trim(at, namespace, topic, stats) {
  ask({
    title: `Trim ${namespace}/${topic}?`, danger: true, action: "Trim", typed: topic,
    text: "Every message before the offset, or published before the time, is gone for all readers and for good. Offsets do not change.",
    fields: [
      { name: "by", label: "Everything before", value: "beforeOffset", options: [["beforeOffset", "an offset"], ["beforeTime", "a time"]] },
      { name: "value", label: "Offset, or time", required: true, hint: "a number, or a time as 2026-11-24 16:00" },
    ],
    run: ({ by, value }) => call("POST", `${at}/trim`, { body: {
      [by]: by === "beforeTime" ? momentOf(value) : wholeOf(value), generation: stats.data.generation,
    } }),
    done: (found) => { announce(`The topic begins at offset ${found.earliestOffset} now.`); stats.reload(); },
  });
}

/** A time as people write it, or in ms. */
export function momentOf(text) {
  const at = /^\d+$/.test(text.trim()) ? Number(text) : new Date(text.trim().replace(" ", "T")).getTime();
  if (Number.isNaN(at)) throw new Wrong(`${text} is no time`);
  return at;
}

export function wholeOf(text) {
  if (!/^\s*\d+\s*$/.test(text)) throw new Wrong(`${text} is no whole number`);
  return Number(text);
}

function remove(at, namespace, topic, generation) {
  ask({
    title: `Delete ${namespace}/${topic}?`, danger: true, action: "Delete", typed: topic,
    text: "The topic is gone with its messages, producers and subscriptions, at once and for good.",
    run: () => call("DELETE", at, { query: { generation } }), said: "The topic is deleted.",
    done: () => go("topics"),
  });
}
