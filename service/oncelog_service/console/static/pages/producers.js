// Producers of one topic: how far each has come, why a message was dropped, and forgetting one.

import { useState } from "../vendor/htm-preact.js";
import { call, path, topicPath } from "../api.js";
import { ago, count, time } from "../format.js";
import { More, nothing, usePaged } from "../paged.js";
import { href } from "../route.js";
import { ChooseTopic, TopicBar } from "../topics.js";
import { ask, Badge, Facts, Field, html, Panel, Refusal, Table } from "../ui.js";

export const title = "Producers";

export function Page({ args: [namespace, topic], query: { name } }) {
  if (!topic) return html`<${ChooseTopic} page="producers" what="Producers of" />`;
  return html`<${TopicBar} page="producers" namespace=${namespace} topic=${topic} />
    <${Producers} namespace=${namespace} topic=${topic} name=${name} />`;
}

const atOffset = (namespace, topic, offset) =>
  offset === null ? "–" : html`<a href=${href("messages", namespace, topic, { from: "offset", value: offset })}>${count(offset)}</a>`;

function columns(namespace, topic, explain, reload) {
  return [
    { name: "Producer", head: true, sort: (each) => each.name, cell: (each) => html`${each.name}${each.assigned
      && html` <${Badge}><span title="The service gave the name; it ends with its producer">assigned</span><//>`}` },
    { name: "Pushed", number: true, cell: (each) => count(each.lastPushed) },
    { name: "Persisted", number: true, cell: (each) => html`${count(each.lastPersisted)}${each.lastPushed !== each.lastPersisted
      && html` <${Badge} kind="warning">in flight<//>`}` },
    { name: "At offset", number: true, sort: (each) => each.lastOffset, cell: (each) => atOffset(namespace, topic, each.lastOffset) },
    { name: "Last message", sort: (each) => each.lastPublishedMs,
      cell: (each) => html`<span title=${time(each.lastPublishedMs)}>${ago(each.lastPublishedMs)}</span>` },
    { name: "Epoch", number: true, cell: (each) => (each.epoch === null ? html`<span title="Named in publishes, never opened">–</span>` : count(each.epoch)) },
    { name: "Gaps", cell: (each) => (each.gaps === "refuse" ? html`<${Badge}>refused<//>` : "allowed") },
    { name: "Actions", cell: (each) => html`<span class="actions">
        <button type="button" class="small" aria-label=${`Why, of ${each.name}`} onClick=${() => explain(each)}>Why</button>
        <button type="button" class="small" aria-label=${`Forget ${each.name}`} onClick=${() => forget(namespace, topic, each, reload)}>Forget</button></span>` },
  ];
}

function Producers({ namespace, topic, name }) {
  const found = usePaged(`${topicPath(namespace, topic)}/producers`, (each) => each.name, { name });
  const [part, setPart] = useState(name ?? "");
  const [asked, setAsked] = useState({ name: name ?? "", id: "" });
  const rows = [...(found.data ?? []), ...(found.named ? [found.named] : [])].filter((each) => each.name.includes(part));
  const explain = (each) => {
    setAsked({ name: each.name, id: String(each.lastPersisted ?? 0), at: Date.now() });
    setTimeout(() => document.querySelector("[data-why]")?.focus(), 50);
  };
  return html`
    <${Panel} title=${found.data ? `Producers (${count(found.data.length)}${found.more ? " and more" : ""})` : "Producers"} of=${found}>
      <div class="row"><${Field} label="Part of the name" filter=${true} value=${part} onChange=${setPart} /></div>
      <${Table} key=${part} caption="Producers" page=${50} columns=${columns(namespace, topic, explain, found.reload)} rows=${rows}
        rowKey=${(each) => each.name} empty=${nothing(found, part, "Nobody has published under a name here.")} />
      <${More} of=${found} what="producers, by name," />
    <//>
    <${Why} key=${`${asked.name} ${asked.at}`} namespace=${namespace} topic=${topic} of=${asked} />`;
}

const VERDICTS = { new: "good", in_flight: "warning", duplicate: "critical", not_judged: "" };

/** What the service would make of a message under this number, and where the one lies that has it. Changes nothing. */
function Why({ namespace, topic, of }) {
  const [name, setName] = useState(of.name);
  const [id, setId] = useState(of.id);
  const [found, setFound] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      setFound({ data: await call("GET", topicPath(namespace, topic) + path`/producers/${name.trim()}/why`, { query: { sequenceId: id.trim() } }) });
    } catch (error) {
      setFound({ error });
    }
  };
  return html`<${Panel} title="Why was a message dropped?">
    <form class="row" onSubmit=${submit}>
      <${Field} label="Producer" value=${name} onChange=${setName} required />
      <${Field} label="Sequence id" value=${id} onChange=${setId} inputmode="numeric" pattern="[0-9]+" required data-why="" />
      <button type="submit" class="primary">Ask</button>
    </form>
    <div aria-live="polite">${found?.error && html`<${Refusal} error=${found.error} />`}
    ${found?.data && html`<p><${Badge} kind=${VERDICTS[found.data.verdict]}>${found.data.verdict.replace("_", " ")}<//> A message of
        ${" "}<code>${found.data.producer}</code> with sequence id ${count(found.data.sequenceId)}: ${found.data.reason}.</p>
      ${found.data.offset !== null && html`<${Facts} of=${[
        ["Stored at offset", atOffset(namespace, topic, found.data.offset)],
        ["Message id", html`<code>${found.data.messageId}</code>`],
      ]} />`}`}</div>
  <//>`;
}

function forget(namespace, topic, { name, lastPersisted }, reload) {
  // That of now: a topic that is made anew while the question stands keeps its producer of this name.
  const stats = call("GET", `${topicPath(namespace, topic)}/stats`);
  stats.catch(() => {}); // said when it is answered
  ask({
    title: `Forget producer ${name} of ${namespace}/${topic}?`, danger: true, action: "Forget", typed: name,
    text: `That its messages up to sequence id ${count(lastPersisted)} are stored is forgotten: what it sends again is stored again. ` +
      "Whoever publishes under this name now is fenced. Its messages stay.",
    run: async () => call("DELETE", topicPath(namespace, topic) + path`/producers/${name}`, { query: { generation: (await stats).generation } }),
    said: `Producer ${name} is forgotten.`,
    done: reload,
  });
}
