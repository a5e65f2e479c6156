// The first page: what is wrong, and how the service is doing. It hangs on GET /v1/overview, which answers with each new sample.

import { call, useLive } from "../api.js";
import { Chart } from "../chart.js";
import { bytes, count, rate, seconds, time } from "../format.js";
import { href } from "../route.js";
import { useTopics } from "../topics.js";
import { Badge, Empty, html, Panel, Table } from "../ui.js";

export const title = "Overview";

const KEPT = 400; // samples: half an hour
const WAIT = 20_000;

async function next(signal, last) {
  const after = last?.sample?.number;
  const found = await call("GET", "/v1/overview", { signal, query: after === undefined ? {} : { after, wait: WAIT } });
  const goesOn = last !== null && found.startedMs === last.startedMs && found.url === last.url;
  const history = goesOn ? [...last.history, ...found.history.filter((each) => each.number > (after ?? 0))] : found.history;
  return { ...found, history: history.slice(-KEPT) };
}

export function Page() {
  const overview = useLive(next, []);
  return html`
    <${Panel} title="Alarms" of=${overview}>${overview.data && html`<${Alarms} alarms=${overview.data.alarms} />`}<//>
    ${overview.data && html`<${Numbers} found=${overview.data} />`}
    ${overview.error?.status === 403 ? html`<${Known} />` : overview.data && html`<${Busiest} topics=${overview.data.topics} />`}`;
}

// --- alarms

const KIND = { critical: "critical", warning: "warning", info: "" };

function Alarms({ alarms }) {
  if (!alarms.length) return html`<p role="status"><${Badge} kind="good">all well</> Nothing is wrong.</p>`;
  return html`<ul class="alarms" aria-live="polite" aria-relevant="additions">${alarms.map((each) => html`
    <li key=${`${each.code} ${each.subject} ${each.instance}`} class=${each.severity}>
      <p class="head"><${Badge} kind=${KIND[each.severity]}>${each.severity}</> <strong><${Subject} alarm=${each} /></strong>
        ${each.sinceMs !== null && html`<small>since ${time(each.sinceMs).slice(0, 19)}</small>`}
        ${each.instance && html`<small>says ${each.instance}</small>`}</p>
      <p class="what">${each.what}</p>
      <p class="mend">${each.mend}</p>
      ${each.commands.length > 0 && html`<details><summary>Commands</summary><pre tabindex="0" role="group" aria-label="Commands">${each.commands.join("\n")}</pre>
        <small>The documentation says more in ${each.docs}.</small></details>`}
    </li>`)}</ul>`;
}

/** Leads to the page of what an alarm is about. */
function Subject({ alarm }) {
  const where = pageOf(alarm.about ?? {});
  return where ? html`<a href=${where}>${alarm.subject}</a>` : alarm.subject;
}

export function pageOf(about) {
  const { namespace, topic } = about;
  if (namespace && topic && about.subscription) return href("subscriptions", namespace, topic, { name: about.subscription });
  if (namespace && topic && about.producer) return href("producers", namespace, topic, { name: about.producer });
  if (namespace && topic) return href("topics", namespace, topic);
  if (about.token) return href("tokens");
  if (about.instance) return href("cluster");
  return null;
}

// --- numbers

const STATUS = { ok: "good", failing: "warning", full: "critical", damaged: "critical", closed: "critical" };

const flow = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);
const milliseconds = (value) => seconds(value === null || value === undefined ? null : value / 1000);

/** Title, how a value is said, and lines: label and name in a sample. What nobody can tell has no chart. */
const CHARTS = [
  ["Messages", rate, [["in", "messagesIn"], ["out", "messagesOut"], ["duplicates", "duplicates"]]],
  ["Payload", flow, [["in", "bytesIn"], ["out", "bytesOut"]]],
  ["Sync", milliseconds, [["median", "syncP50Ms"], ["p99", "syncP99Ms"]]],
  ["Memory", bytes, [["resident", "memoryBytes"]]],
  ["Free disk", bytes, [["free", "diskFreeBytes"]]],
  ["Connections", count, [["open", "connections"]]],
  ["Largest lag", count, [["messages", "largestLag"]]],
];

function Numbers({ found }) {
  const { sample, history } = found;
  const figures = [
    ["Status", html`<${Badge} kind=${STATUS[found.status]}>${found.status}</> <small>${found.version}</small>`],
    ["Messages in", rate(sample?.messagesIn)],
    ["Messages out", rate(sample?.messagesOut)],
    ["Duplicates", rate(sample?.duplicates)],
    ["Sync p99", milliseconds(sample?.syncP99Ms)],
    ["Free disk", bytes(sample?.diskFreeBytes)],
    ["Memory", bytes(sample?.memoryBytes)],
    ["Connections", count(sample?.connections)],
    ["Open topics", count(sample?.openTopics)],
    ["Held topics", count(sample?.heldTopics)],
    ["Transactions", html`<a href=${href("transactions")}>${count(sample?.transactions)}</a>`],
    ["Atomic commits", html`<a href=${href("atomic")}>${count(sample?.atomicCommits)}</a>`],
    ["Largest lag", count(sample?.largestLag)],
    ["Up for", seconds((found.nowMs - found.startedMs) / 1000)],
  ];
  const times = history.map((each) => each.atMs);
  return html`
    <section aria-label="Numbers"><dl class="figures">${figures.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl></section>
    <section class="charts" aria-label="The last half hour">
      ${CHARTS.map(([title, format, lines]) => [title, format, lines.map(([label, name]) => ({ label, values: history.map((each) => each[name] ?? null) }))])
        .filter(([, , series]) => series.some(({ values }) => values.some((each) => each !== null)))
        .map(([title, format, series]) => html`<${Chart} key=${title} title=${title} times=${times} series=${series} format=${format}
          binary=${format === bytes || format === flow} />`)}
    </section>`;
}

// --- topics

const COLUMNS = [
  { name: "Topic", head: true, sort: (each) => `${each.namespace}/${each.name}`,
    cell: (each) => html`<a href=${href("topics", each.namespace, each.name)}>${each.namespace}/${each.name}</a>` },
  { name: "In", number: true, sort: (each) => each.messagesIn, cell: (each) => rate(each.messagesIn) },
  { name: "Out", number: true, sort: (each) => each.messagesOut, cell: (each) => rate(each.messagesOut) },
  { name: "Bytes in", number: true, sort: (each) => each.bytesIn, cell: (each) => flow(each.bytesIn) },
  { name: "Duplicates", number: true, sort: (each) => each.duplicates, cell: (each) => rate(each.duplicates) },
  { name: "Lag", number: true, sort: (each) => each.lag,
    cell: (each) => html`<a href=${href("subscriptions", each.namespace, each.name)}>${count(each.lag)}</a>` },
  { name: "State", cell: (each) => each.held && html`<${Badge} kind="warning">held</>` },
];

function Busiest({ topics }) {
  return html`<${Panel} title="Busiest topics">
    <${Table} caption="Busiest topics" columns=${COLUMNS} rows=${topics} rowKey=${(each) => `${each.namespace}/${each.name}`}
      empty=${html`No topic is open. <a href=${href("topics")}>All topics</a>`} /><//>`;
}

/** For who may not see the numbers: what they may see. */
function Known() {
  const topics = useTopics();
  const found = topics.data ?? [];
  return html`<${Panel} title="Your topics" of=${topics}>
    ${found.length ? html`<ul class="choices">${found.slice(0, 60).map((each) => html`<li>
      <a href=${href("topics", each.namespace, each.topic)}>${each.namespace}/${each.topic}</a></li>`)}</ul>` : html`<${Empty}>None.<//>`}
    ${found.length > 60 && html`<p><a href=${href("topics")}>All ${count(found.length)}</a></p>`}<//>`;
}
