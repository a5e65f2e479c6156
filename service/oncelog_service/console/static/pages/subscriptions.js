// Subscriptions, of all topics or of one: how far behind each is and whether its consumer lives; moving and deleting one.

import { useState } from "../vendor/htm-preact.js";
import { call, path, topicPath } from "../api.js";
import { ago, count, time } from "../format.js";
import { More, nonce, nothing, usePaged } from "../paged.js";
import { href } from "../route.js";
import { TopicBar } from "../topics.js";
import { ask, Badge, Field, html, Panel, Table } from "../ui.js";
import { momentOf, wholeOf } from "./topics.js";

export const title = "Subscriptions";

export function Page({ args: [namespace, topic], query: { name } }) {
  return topic ? html`<${OfTopic} namespace=${namespace} topic=${topic} name=${name} />` : html`<${OfAll} />`;
}

function OfAll() {
  const found = usePaged("/v1/subscriptions", (each) => `${each.namespace}/${each.topic}/${each.name}`, { every: 6000 });
  return html`<${List} found=${found} title="Subscriptions of all topics" ofAll=${true} />`;
}

function OfTopic({ namespace, topic, name }) {
  const found = usePaged(`${topicPath(namespace, topic)}/subscriptions`, (each) => each.name, { name });
  const placed = (each) => ({ ...each, namespace, topic });
  return html`<${TopicBar} page="subscriptions" namespace=${namespace} topic=${topic} />
    <${List} found=${{ ...found, data: found.data?.map(placed) ?? null, named: found.named && placed(found.named) }} title="Subscriptions" part=${name} />`;
}

const named = (each) => `${each.namespace}/${each.topic}`;

function columns(ofAll, reload) {
  return [
    ...(ofAll ? [{ name: "Topic", sort: named,
      cell: (each) => html`<a href=${href("subscriptions", each.namespace, each.topic)}>${named(each)}</a>` }] : []),
    { name: "Subscription", head: true, sort: (each) => each.name, cell: (each) => each.name },
    { name: "Lag", number: true, sort: (each) => each.lag, cell: (each) => (each.lag ? html`<strong>${count(each.lag)}</strong>` : "0") },
    { name: "Oldest waits", sort: (each) => -(each.oldestMs ?? Infinity),
      cell: (each) => html`<span title=${time(each.oldestMs)}>${each.oldestMs === null ? "–" : ago(each.oldestMs).replace(" ago", "")}</span>` },
    { name: "Consumer heard", sort: (each) => each.heardMs ?? 0, cell: (each) => (each.heardMs === null
      ? html`<${Badge} kind=${each.lag ? "warning" : ""}><span title="No consumer since the topic was opened here, or since it was moved">not yet</span><//>`
      : html`<span title=${time(each.heardMs)}>${ago(each.heardMs)}</span>`) },
    { name: "Cursor", number: true, cell: (each) => html`<a title="See the next message"
      href=${href("messages", each.namespace, each.topic, { from: "offset", value: each.cursor })}>${count(each.cursor)}</a>` },
    { name: "End", number: true, cell: (each) => html`<span title=${`stable up to ${count(each.stableOffset)}`}>${count(each.upcomingOffset)}</span>` },
    { name: "Lost", number: true, sort: (each) => each.lost, cell: (each) => (each.lost ? html`<${Badge} kind="critical">${count(each.lost)}<//>` : "0") },
    { name: "Epoch", number: true, cell: (each) => count(each.epoch) },
    { name: "Held by", cell: (each) => (each.heldBy === null ? "–" : html`<a href=${href("transactions", each.heldBy)}
      title=${`from offset ${count(each.stableOffset)} on, since ${time(each.heldSinceMs)}`}><code>${each.heldBy}</code></a>`) },
    { name: "Actions", cell: (each) => html`<span class="actions">
        <button type="button" class="small" aria-label=${`Move ${each.name} of ${named(each)}`} onClick=${() => seek(each, reload)}>Move</button>
        <button type="button" class="small" aria-label=${`Delete ${each.name} of ${named(each)}`} onClick=${() => remove(each, reload)}>Delete</button></span>` },
  ];
}

function List({ found, title: heading, ofAll = false, part: first = "" }) {
  const [part, setPart] = useState(first);
  const all = found.data ?? [];
  const rows = [...all, ...(found.named ? [found.named] : [])].filter((each) => (ofAll ? `${named(each)}/${each.name}` : each.name).includes(part));
  if (ofAll) rows.sort((a, b) => b.lag - a.lag); // who lags most stands first
  const lagging = all.filter((each) => each.lag).length;
  return html`<${Panel} title=${found.data ? `${heading} (${count(all.length)}${found.more ? " and more" : ""})` : heading} of=${found}>
    <div class="row"><${Field} label="Part of the name" filter=${true} value=${part} onChange=${setPart} />
      <p class="empty">${count(lagging)}${found.more ? " of these" : ""} with a lag. It counts offsets up to the end, also of messages that are not decided.</p></div>
    <${Table} key=${part} caption=${heading} page=${50} columns=${columns(ofAll, found.reload)} rows=${rows}
      rowKey=${(each) => `${named(each)}/${each.name}`} empty=${nothing(found, part, "There are none that you may see.")} />
    <${More} of=${found} what="subscriptions, by topic and name," />
  <//>`;
}

const place = ({ namespace, topic, name }) => topicPath(namespace, topic) + path`/subscriptions/${name}`;

const TO = [["offset", "an offset"], ["timestamp", "a time"], ["earliest", "the oldest message"], ["latest", "the end"]];

function seek(each, reload) {
  const of = nonce(); // drawn once: sent again, it moves nothing again
  ask({
    title: `Move subscription ${each.name} of ${named(each)}?`, danger: true, action: "Move",
    text: `It stands at offset ${count(each.cursor)}. Its consumer is fenced, and what it acknowledges from then on does not count; ` +
      "the next one goes on at the new place. Backwards, messages are delivered again; forwards, those between are never delivered.",
    fields: [
      { name: "to", label: "To", value: "offset", options: TO },
      { name: "value", label: "Offset, or time", hint: "a number, or a time as 2026-11-24 16:00; not needed for the oldest and the end" },
    ],
    run: ({ to, value }) => call("POST", `${place(each)}/seek`, { body: {
      to: to === "offset" ? { offset: wholeOf(value) } : to === "timestamp" ? { timestamp: momentOf(value) } : { at: to }, nonce: of,
      generation: each.generation,
    } }),
    said: `Subscription ${each.name} is moved.`, done: reload,
  });
}

function remove(each, reload) {
  ask({
    title: `Delete subscription ${each.name} of ${named(each)}?`, danger: true, action: "Delete", typed: each.name,
    text: "How far it has come is forgotten, and its consumer is fenced. Opened again, it is a new one. Messages stay.",
    run: () => call("DELETE", place(each), { query: { generation: each.generation } }), said: `Subscription ${each.name} is deleted.`,
    done: reload,
  });
}
