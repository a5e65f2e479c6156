// Transactions: those in progress, with what they hold; what topics hold back; the invalid ones. One of them, and ending it.

import { useState } from "../vendor/htm-preact.js";
import { call, long, topicPath, useLive } from "../api.js";
import { ago, count, now, seconds, time, unknown } from "../format.js";
import { More, usePaged } from "../paged.js";
import { go, href } from "../route.js";
import { ask, Badge, Empty, Facts, Field, html, Panel, Table } from "../ui.js";
import { momentOf } from "./topics.js";

export const title = "Transactions";

export function Page({ args: [pointer] }) {
  return pointer ? html`<${One} pointer=${pointer} />` : html`<${All} />`;
}

const STATES = { in_progress: "", committed: "good", aborted: "", invalid: "critical" };

const link = (pointer) => html`<a href=${href("transactions", pointer)}><code>${pointer}</code></a>`;
const left = (ms) => (ms === null ? "–" : html`<span title=${time(ms)}>${ms <= now() ? "now" : `in ${seconds((ms - now()) / 1000)}`}</span>`);
const since = (ms) => html`<span title=${time(ms)}>${ago(ms).replace(" ago", "")}</span>`;
const owned = (owner) => owner ?? html`<span class="empty" title="It was begun while the service asked for no token">nobody</span>`;

export function Topics({ of }) {
  return of.length ? html`${of.slice(0, 8).map(([namespace, topic], at) => html`${at > 0 && ", "}<a href=${href("topics", namespace, topic)}>${namespace}/${topic}</a>`)}
    ${of.length > 8 && ` and ${of.length - 8} more`}` : "–";
}

/** Of "<store id>:<namespace>/<topic>/<generation>". */
function participants(transaction) {
  return transaction.participants.map((each) => each.slice(each.indexOf(":") + 1).split("/").slice(0, 2));
}

const pointers = (transaction) => [transaction.writePointer, ...transaction.checkpoints].map(String);

// --- all of them

function All() {
  const open = usePaged("/v1/transactions", (each) => each.writePointer, { every: 3000 });
  const invalid = usePaged("/v1/transactions", (each) => each.writePointer, { query: { state: "invalid" }, every: 8000 });
  const held = useLive((signal) => call("GET", "/v1/held", { query: { limit: 1000 }, signal }), [], { every: 3000 });
  const reload = () => [open, invalid, held].forEach((each) => each.reload());
  return html`<${LookUp} />
    <${InProgress} found=${open} held=${held.data ?? []} reload=${reload} />
    <${HeldBack} found=${held} reload=${reload} />
    <${Invalid} found=${invalid} reload=${reload} />`;
}

function LookUp() {
  const [pointer, setPointer] = useState("");
  const submit = (event) => {
    event.preventDefault();
    go("transactions", pointer.trim());
  };
  return html`<form class="row" role="search" onSubmit=${submit}>
    <${Field} label="Write pointer" value=${pointer} onChange=${setPointer} filter=${true} inputmode="numeric" pattern="\\s*[0-9]+\\s*" required />
    <button type="submit">Show</button></form>`;
}

function InProgress({ found, held, reload }) {
  const holds = new Map();
  for (const each of held) {
    const key = String(each.writePointer);
    holds.set(key, (holds.get(key) ?? 0) + each.messages);
  }
  const messages = (each) => pointers(each).reduce((sum, pointer) => sum + (holds.get(pointer) ?? 0), 0);
  return html`<${Panel} title=${found.data ? `In progress (${count(found.data.length)}${found.more ? " and more" : ""})` : "In progress"} of=${found}>
    <${Table} caption="Transactions in progress" page=${50} rows=${found.data ?? []} rowKey=${(each) => each.writePointer} empty="None."
      columns=${[
        { name: "Write pointer", head: true, cell: (each) => link(each.writePointer) },
        { name: "Owner", sort: (each) => each.owner ?? "", cell: (each) => owned(each.owner) },
        { name: "State", cell: (each) => state(each) },
        { name: "Open for", sort: (each) => -(each.startedMs ?? 0), cell: (each) => since(each.startedMs) },
        { name: "Times out", sort: (each) => each.expiresMs ?? 0, cell: (each) => left(each.expiresMs) },
        { name: "Topics", cell: (each) => html`<${Topics} of=${participants(each)} />` },
        { name: "Holds", number: true, sort: messages, cell: (each) => count(messages(each)) },
        { name: "Actions", cell: (each) => html`<${Ends} of=${each} done=${reload} />` },
      ]} />
    <${More} of=${found} what="transactions, by write pointer," />
  <//>`;
}

function state(each) {
  if (each.state !== "in_progress") return html`<${Badge} kind=${STATES[each.state]}>${each.state}<//>`;
  return each.resource !== null
    ? html`<${Badge} kind="warning"><span title="A database decides it, and may have committed">prepared<//><//> <small>${each.resource}</small>`
    : html`<${Badge}>in progress<//> <small>${each.type}${each.checkpoints.length ? `, ${count(each.checkpoints.length)} checkpoints` : ""}</small>`;
}

function HeldBack({ found, reload, title: heading = "What topics hold back" }) {
  return html`<${Panel} title=${heading} of=${found}>
    <${Table} caption="Held messages, by topic and write pointer" page=${50} rows=${found.data ?? []} rowKey=${(each) => `${each.namespace}/${each.topic}/${each.writePointer}`}
      empty="Nothing: on every topic that is open all messages are decided."
      columns=${[
        { name: "Topic", head: true, sort: (each) => `${each.namespace}/${each.topic}`,
          cell: (each) => html`<a href=${href("topics", each.namespace, each.topic)}>${each.namespace}/${each.topic}</a>` },
        { name: "Write pointer", cell: (each) => link(each.writePointer) },
        { name: "State", cell: (each) => (each.state === null ? html`<${Badge} kind="warning">${unknown(each.writePointer)}<//>`
          : html`<${Badge} kind=${STATES[each.state]}>${each.state.replace("_", " ")}<//>`) },
        { name: "Held for", sort: (each) => -each.sinceMs, cell: (each) => since(each.sinceMs) },
        { name: "From offset", number: true, cell: (each) => html`<a
          href=${href("messages", each.namespace, each.topic, { from: "offset", value: each.firstOffset })}>${count(each.firstOffset)}</a>` },
        { name: "Messages", number: true, sort: (each) => each.messages, cell: (each) => count(each.messages) },
        { name: "Producers", cell: (each) => each.producers.join(", ") || "–" },
        ...(found.data ?? []).every((each) => each.state !== null) ? [] : [{ name: "Actions", cell: (each) => each.state === null && html`<span class="actions">
          ${[true, false].map((committed) => html`<button type="button" class="small"
            aria-label=${`${committed ? "Commit" : "Roll back"} ${each.writePointer} on ${each.namespace}/${each.topic}`}
            onClick=${() => endHeld(each, committed, reload)}>${committed ? "Commit" : "Roll back"}</button>`)}</span>` }],
      ]} /><//>`;
}

function Invalid({ found, reload }) {
  return html`<${Panel} title=${found.data ? `Invalid (${count(found.data.length)}${found.more ? " and more" : ""})` : "Invalid"} of=${found}
      actions=${html`<button type="button" onClick=${() => pruneBefore(reload)}>Forget old ones</button>`}>
    <${Table} caption="Invalid transactions" page=${20} rows=${found.data ?? []} rowKey=${(each) => each.writePointer}
      empty="None: none has timed out or was given up since they were last forgotten."
      columns=${[
        { name: "Write pointer", head: true, cell: (each) => link(each.writePointer) },
        { name: "Owner", sort: (each) => each.owner ?? "", cell: (each) => owned(each.owner) },
        { name: "Still to be rolled back on", cell: (each) => html`<${Topics} of=${participants(each)} />` },
        { name: "Actions", cell: (each) => html`<button type="button" class="small" aria-label=${`Forget ${each.writePointer}`}
          onClick=${() => prune(each.writePointer, reload)}>Forget</button>` },
      ]} />
    <${More} of=${found} what="transactions, by write pointer," />
  <//>`;
}

// --- one of them

function One({ pointer }) {
  const found = useLive((signal) => call("GET", `/v1/transactions/${encodeURIComponent(pointer)}`, { signal }), [pointer], { every: 3000 });
  const held = useLive((signal) => call("GET", "/v1/held", { query: { limit: 2000 }, signal }), [], { every: 3000 });
  const reload = () => [found, held].forEach((each) => each.reload());
  const ended = found.data && found.data.state !== "in_progress";
  const mine = found.data ? pointers(found.data) : [pointer];
  const holds = (held.data ?? []).filter((each) => mine.includes(String(each.writePointer)));
  return html`<p><a href=${href("transactions")}>All transactions</a></p>
    <${Panel} title=${`Transaction ${pointer}`} of=${found} actions=${found.data && !ended && html`<${Ends} of=${found.data} done=${reload} />`}>
      ${found.data && html`<${Facts} of=${[
        ["State", state(found.data)],
        ["Owner", owned(found.data.owner)],
        ["Began", found.data.startedMs === null ? "–" : html`${time(found.data.startedMs)} <small>${ago(found.data.startedMs)}</small>`],
        ["Times out", left(found.data.expiresMs)],
        ["Decided by", found.data.resource],
        ["Checkpoints", found.data.checkpoints.length ? found.data.checkpoints.join(", ") : "none"],
        ["Store", found.data.storeId && html`<code>${found.data.storeId}</code>`],
        [ended ? "Still to be told" : "Topics", html`<${Topics} of=${participants(found.data)} />`],
      ]} />`}
      ${ended && html`<${Empty}>It has ended; of that only what stands here is kept.<//>`}
    <//>
    <${HeldBack} found=${{ ...held, data: held.data && holds }} reload=${reload} title="What topics hold back of it" />`;
}

// --- ending one

/** The ways in which one in progress can be ended. */
function Ends({ of, done }) {
  const prepared = of.resource !== null;
  return html`<span class="actions">
    ${prepared && html`<button type="button" class="small" aria-label=${`Commit ${of.writePointer}`} onClick=${() => commit(of, done)}>Commit</button>`}
    <button type="button" class="small" aria-label=${`Abort ${of.writePointer}`} onClick=${() => abort(of, done)}>Abort</button>
    <button type="button" class="small" aria-label=${`Give up ${of.writePointer}`} onClick=${() => giveUp(of, done)}>Give up</button></span>`;
}

const at = (of) => `/v1/transactions/${of.writePointer}`;
const whose = (of) => (of.owner === null ? "" : ` It belongs to ${of.owner}.`);
const MAY_HAVE = (of) => `It is prepared: the database ${of.resource} decides it, and may have committed. Look there first: ` +
  "if it has, its rows are there and its messages are then lost.";

function abort(of, done) {
  const prepared = of.resource !== null;
  ask({
    title: `Abort transaction ${of.writePointer}?`, danger: true, action: "Abort", typed: prepared ? String(of.writePointer) : undefined,
    text: `Its messages are rolled back, and its client cannot commit it any more.${whose(of)} ${prepared ? MAY_HAVE(of) : ""}`,
    // Of one that has been prepared meanwhile nothing is done: then its database decides.
    run: () => call("POST", `${at(of)}/abort`, { body: { unlessPrepared: !prepared } }), said: "The transaction is aborted.", done,
  });
}

function giveUp(of, done) {
  const prepared = of.resource !== null;
  ask({
    title: `Give transaction ${of.writePointer} up?`, danger: true, action: "Give up", typed: prepared ? String(of.writePointer) : undefined,
    text: `As an abort, and it stays in the list of invalid ones until it is forgotten there.${whose(of)} ${prepared ? MAY_HAVE(of) : ""}`,
    run: () => call("POST", `${at(of)}/invalidate`), said: "The transaction is given up.", done,
  });
}

function commit(of, done) {
  ask({
    title: `Commit transaction ${of.writePointer}?`, danger: true, action: "Commit", typed: String(of.writePointer),
    text: `The database ${of.resource} decides it: commit only if it has committed there, else its messages are seen without its rows.${whose(of)}`,
    run: () => call("POST", `${at(of)}/commit`, { body: {} }), said: "The transaction is committed.", done,
  });
}

function endHeld({ namespace, topic, writePointer, messages }, committed, done) {
  ask({
    title: `${committed ? "Commit" : "Roll back"} ${writePointer} on ${namespace}/${topic}?`, danger: true, action: committed ? "Commit" : "Roll back",
    text: `The transaction service here does not know this write pointer. Its ${count(messages)} messages on this topic ` +
      `${committed ? "count from then on" : "are rolled back"}. Find out first how it ended where it began: this cannot be undone.`,
    run: () => call("POST", `${topicPath(namespace, topic)}/held/${writePointer}`, { body: { committed } }), done,
  });
}

const prune = (pointer, done) => ask({
  title: `Forget invalid transaction ${pointer}?`, action: "Forget",
  text: "It leaves the list of invalid ones. While topics still have messages of it to roll back, it stays.",
  run: () => call("POST", "/v1/transactions/prune", { body: { writePointers: [long(pointer)] } }), done,
});

const pruneBefore = (done) => ask({
  title: "Forget old invalid transactions", action: "Forget",
  text: "Those leave the list that began before this time and whose messages are all rolled back.",
  fields: [{ name: "before", label: "Begun before", required: true, hint: "a time as 2026-11-24 16:00" }],
  run: ({ before }) => call("POST", "/v1/transactions/prune", { body: { beforeMs: momentOf(before) } }), done,
});
