// The instances over a shared store: which are alive, who serves what, and handing a topic over.

import { useState } from "../vendor/htm-preact.js";
import { call, useLive } from "../api.js";
import { count, seconds } from "../format.js";
import { href } from "../route.js";
import { ask, Badge, Facts, Field, html, Panel, Table } from "../ui.js";

export const title = "Cluster";

export function Page() {
  const cluster = useLive(async (signal) => {
    try {
      return await everything(signal);
    } catch (error) {
      if (error.code !== "not_supported") throw error;
      return { alone: true, instances: [], leases: [] };
    }
  }, [], { every: 3000 });
  const { instances, leases, alone, instance } = cluster.data ?? { instances: [], leases: [] };
  if (alone) return html`<${Alone} />`;
  const held = new Map();
  for (const each of leases) held.set(each.instance, (held.get(each.instance) ?? 0) + 1);
  return html`
    <${Panel} title=${cluster.data ? `Instances (${count(instances.length)})` : "Instances"} of=${cluster}>
      <${Table} caption="Instances" rows=${instances} rowKey=${(each) => each.id} columns=${[
        { name: "URL", head: true, sort: (each) => each.url, cell: (each) => html`${each.url}${each.id === instance && html` <${Badge}>answers here<//>`}` },
        { name: "Id", cell: (each) => html`<code title=${each.id}>${each.id.slice(0, 8)}</code>` },
        { name: "Serves", number: true, sort: (each) => held.get(each.id) ?? 0, cell: (each) => count(held.get(each.id) ?? 0) },
        { name: "Leases end", number: true, cell: (each) => html`<span title="unless it is heard of before: it renews them all the time">in ${seconds(each.expiresInMs / 1000)}</span>` },
      ]} />
    <//>
    <${Serves} of=${cluster} />`;
}

const LEASES = 2000; // the service answers no more at once

/** The instances, with all leases. */
async function everything(signal) {
  const whole = await call("GET", "/v1/cluster", { signal, query: { limit: LEASES } });
  for (let page = whole; page.leases.length === LEASES;) {
    page = await call("GET", "/v1/cluster", { signal, query: { limit: LEASES, after: what(page.leases.at(-1)) } });
    whole.leases.push(...page.leases);
  }
  return whole;
}

/** A service that has its store for itself. */
function Alone() {
  const found = useLive((signal) => call("GET", "/healthz", { signal }), [], { every: 5000 });
  return html`<${Panel} title="One instance" of=${found}>
    <p>This service has its store for itself: there are no others, no leases, and nothing to hand over.
      Several instances share a store on PostgreSQL.</p>
    ${found.data && html`<${Facts} of=${[
      ["Status", html`<${Badge} kind=${found.data.status === "ok" ? "good" : "critical"}>${found.data.status}<//>`],
      ["Open topics", count(found.data.openTopics)],
      ["Version", found.data.version],
      ["Address", location.origin],
    ]} />`}<//>`;
}

const what = (each) => (each.topic === null ? each.resource : `${each.namespace}/${each.topic}`);

function Serves({ of }) {
  const [part, setPart] = useState("");
  const { instances, leases } = of.data ?? { instances: [], leases: [] };
  const rows = leases.filter((each) => what(each).includes(part) || (each.url ?? each.instance).includes(part));
  return html`<${Panel} title=${of.data ? `Who serves what (${count(leases.length)})` : "Who serves what"} of=${of} quiet=${true}>
    <div class="row"><${Field} label="Part of a topic or a URL" filter=${true} value=${part} onChange=${setPart} /></div>
    <${Table} key=${part} caption="Who serves what" page=${100} rows=${rows} rowKey=${what}
      empty=${part ? "Nothing has this in it." : "No topic has been used yet: each is taken by an instance when it is."}
      columns=${[
        { name: "What", head: true, sort: what, cell: (each) => (each.topic === null ? html`<strong>${each.resource}</strong>`
          : html`<a href=${href("topics", each.namespace, each.topic)}>${what(each)}</a>`) },
        { name: "Served by", sort: (each) => each.url ?? "", cell: (each) => each.url
          ?? html`<${Badge} kind="warning">gone<//> <code>${each.instance.slice(0, 8)}</code>` },
        { name: "Lease number", number: true, sort: (each) => each.epoch, cell: (each) => count(each.epoch) },
        { name: "Actions", cell: (each) => each.topic !== null && instances.length > 1 && html`<button type="button" class="small"
          aria-label=${`Hand ${what(each)} over`} onClick=${() => handOver(each, instances, of.reload)}>Hand over</button>` },
      ]} /><//>`;
}

function handOver(each, instances, done) {
  const others = instances.filter(({ id }) => id !== each.instance);
  ask({
    title: `Hand ${what(each)} over?`, action: "Hand over",
    text: "What is in flight is finished first; clients follow by themselves. A topic that belongs elsewhere is moved back soon: to empty an instance, stop it.",
    fields: [{ name: "instance", label: "To", value: others[0].id, options: others.map(({ id, url }) => [id, `${url} (${id.slice(0, 8)})`]) }],
    run: ({ instance }) => call("POST", "/v1/cluster/hand-over", { body: { namespace: each.namespace, topic: each.topic, instance } }),
    said: `${what(each)} is handed over.`, done,
  });
}
