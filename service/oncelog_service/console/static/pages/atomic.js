// Atomic commits: those in progress, what became of one, and who commits under a name in a group.

import { useState } from "../vendor/htm-preact.js";
import { call, path, useLive } from "../api.js";
import { ago, count, now, seconds, time } from "../format.js";
import { More, usePaged } from "../paged.js";
import { go, href } from "../route.js";
import { ask, Badge, Facts, Field, html, Panel, Refusal, Table } from "../ui.js";
import { Topics } from "./transactions.js";

export const title = "Atomic commits";

export function Page({ args: [id] }) {
  return id ? html`<${One} id=${id} />` : html`<${All} />`;
}

const STATES = { in_progress: "", committed: "good", duplicate: "good", aborted: "critical" };
const link = (id) => html`<a href=${href("atomic", id)}>${id}</a>`;
const state = (each) => html`<${Badge} kind=${STATES[each.state]}>${each.state.replace("_", " ")}<//>${each.reason && html` <small>${each.reason}</small>`}`;
const owned = (owner) => owner ?? html`<span class="empty" title="It was begun while the service asked for no token">nobody</span>`;

// --- all of them

function All() {
  const [group, setGroup] = useState("");
  const [id, setId] = useState("");
  const found = usePaged("/v1/atomic", (each) => each.id, { query: { group }, every: 3000 });
  const submit = (event) => {
    event.preventDefault();
    go("atomic", id.trim());
  };
  return html`
    <form class="row" role="search" onSubmit=${submit}>
      <${Field} label="Id" value=${id} onChange=${setId} filter=${true} required /><button type="submit">Show</button></form>
    <${Panel} title=${found.data ? `In progress (${count(found.data.length)}${found.more ? " and more" : ""})` : "In progress"} of=${found}>
      <${Group} of=${group} set=${setGroup} />
      <${Table} caption="Atomic commits in progress" page=${50} rows=${found.data ?? []} rowKey=${(each) => each.id} empty="None."
        columns=${[
          { name: "Id", head: true, cell: (each) => link(each.id) },
          { name: "Group", sort: (each) => each.group, cell: (each) => each.group },
          { name: "Owner", sort: (each) => each.owner ?? "", cell: (each) => owned(each.owner) },
          { name: "Branch of", cell: (each) => (each.of === null ? "–" : link(each.of)) },
          { name: "Open for", sort: (each) => -each.beganMs, cell: (each) => html`<span title=${time(each.beganMs)}>${ago(each.beganMs).replace(" ago", "")}</span>` },
          { name: "Times out", sort: (each) => each.expiresMs, cell: (each) => html`<span title=${time(each.expiresMs)}>in ${seconds(Math.max(0, each.expiresMs - now()) / 1000)}</span>` },
          { name: "Staged on", cell: (each) => html`<${Topics} of=${each.topics.map(({ namespace, topic }) => [namespace, topic])} />` },
          { name: "Actions", cell: (each) => html`<button type="button" class="small" aria-label=${`Abort ${each.id}`}
            onClick=${() => abort(each, found.reload)}>Abort</button>` },
        ]} />
      <${More} of=${found} what="atomic commits, oldest first," />
    <//>
    <${Producer} />`;
}

/** Only those of one group: asked of the service, when it is typed to the end. */
function Group({ of, set }) {
  const [typed, setTyped] = useState(of);
  const submit = (event) => {
    event.preventDefault();
    set(typed.trim());
  };
  return html`<form class="row" onSubmit=${submit}><${Field} label="Only of group" value=${typed} onChange=${setTyped} />
    <button type="submit">Filter</button></form>`;
}

/** The newest commit under a name: what is at or below its sequence id is a duplicate. */
function Producer() {
  const [group, setGroup] = useState("");
  const [name, setName] = useState("");
  const [found, setFound] = useState(null);
  const submit = async (event) => {
    event?.preventDefault();
    try {
      setFound({ data: await call("GET", producerPath(group.trim(), name.trim())) });
    } catch (error) {
      setFound({ error });
    }
  };
  return html`<${Panel} title="Producer of a group">
    <form class="row" onSubmit=${submit}>
      <${Field} label="Group" value=${group} onChange=${setGroup} required />
      <${Field} label="Producer" value=${name} onChange=${setName} required />
      <button type="submit" class="primary">Show</button>
    </form>
    <div aria-live="polite">${found?.error && html`<${Refusal} error=${found.error} />`}
    ${found?.data && html`<${Facts} of=${[
      ["Producer", html`${found.data.producer} <small>of group ${found.data.group}</small>`],
      ["Newest sequence id", count(found.data.sequenceId)],
      ["Committed by", link(found.data.transaction)],
      ["Messages", count(found.data.messages)],
      ["Incarnation", found.data.incarnation],
      ["Owner", owned(found.data.owner)],
      ["Checksum", found.data.checksum],
    ]} /><button type="button" onClick=${() => forget(found.data, submit)}>Forget</button>`}</div>
  <//>`;
}

const producerPath = (group, name) => path`/v1/atomic/groups/${group}/producers/${name}`;

// --- one of them

function One({ id }) {
  const found = useLive((signal) => call("GET", path`/v1/atomic/${id}`, { signal }), [id], { every: 3000 });
  const open = found.data?.state === "in_progress";
  return html`<p><a href=${href("atomic")}>All atomic commits</a></p>
    <${Panel} title=${`Atomic commit ${id}`} of=${found} actions=${open && html`<button type="button" onClick=${() => abort(found.data, found.reload)}>Abort</button>`}>
      ${found.data && html`<${Outcome} of=${found.data} />`}<//>`;
}

function Outcome({ of }) {
  return html`<${Facts} of=${[
      ["State", state(of)],
      ["Why", of.detail],
      ["Group", of.group],
      ["Owner", owned(of.owner)],
      ["Began", of.beganMs === null ? "–" : html`${time(of.beganMs)} <small>${ago(of.beganMs)}</small>`],
      ["Times out", of.expiresMs === null ? "–" : `in ${seconds(Math.max(0, of.expiresMs - now()) / 1000)}`],
      ["Messages", count(of.messages)],
      ["Producer", of.producer === null ? "–" : `${of.producer}, sequence id ${count(of.sequenceId)}`],
      ["Incarnation", of.incarnation],
      ["Branch of", of.of === null ? "–" : link(of.of)],
      ["Branches", of.branches.length ? of.branches.map((each, at) => html`${at > 0 && ", "}${link(each)}`) : "none"],
      ["Original", of.original === null ? "–" : link(of.original)],
    ]} />
    <h3>${of.state === "in_progress" ? "Staged on" : "Messages on"}</h3>
    <${Table} caption="Its messages, by topic" rows=${of.topics} rowKey=${(each) => `${each.namespace}/${each.topic}`} empty="No topic."
      columns=${[
        { name: "Topic", head: true, cell: (each) => html`<a href=${href("topics", each.namespace, each.topic)}>${each.namespace}/${each.topic}</a>` },
        { name: "Messages", number: true, cell: (each) => (of.state === "in_progress" ? "staged" : count(each.messages)) },
        { name: "First offset", number: true, cell: (each) => (each.firstOffset === null ? "–" : html`<a
          href=${href("messages", each.namespace, each.topic, { from: "offset", value: each.firstOffset })}>${count(each.firstOffset)}</a>`) },
        { name: "Generation", number: true, cell: (each) => count(each.generation) },
      ]} />`;
}

function abort(of, done) {
  ask({
    title: `Abort atomic commit ${of.id}?`, danger: true, action: "Abort",
    text: `What it has staged is dropped and never seen, and its client cannot commit it any more.${of.owner === null ? "" : ` It belongs to ${of.owner}.`}`,
    run: () => call("POST", path`/v1/atomic/${of.id}/abort`), said: "The atomic commit is aborted.", done,
  });
}

function forget({ group, producer, sequenceId }, done) {
  ask({
    title: `Forget producer ${producer} of group ${group}?`, danger: true, action: "Forget", typed: producer,
    text: `That it has committed up to sequence id ${count(sequenceId)} is forgotten: what it commits again is stored again. Its messages stay.`,
    run: () => call("DELETE", producerPath(group, producer)), said: `Producer ${producer} is forgotten.`,
    done: () => done(),
  });
}
