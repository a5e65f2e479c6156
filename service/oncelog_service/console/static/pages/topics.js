// All topics, and one of them.

import { count } from "../format.js";
import { href } from "../route.js";
import { TopicBar, useTopics } from "../topics.js";
import { html, Panel, Table } from "../ui.js";

export const title = "Topics";

export function Page({ args: [namespace, topic] }) {
  return topic ? html`<${TopicBar} page="topics" namespace=${namespace} topic=${topic} />` : html`<${All} />`;
}

const COLUMNS = [
  { name: "Topic", head: true, cell: (each) => html`<a href=${href("topics", each.namespace, each.topic)}>${each.namespace}/${each.topic}</a>` },
];

function All() {
  const topics = useTopics();
  return html`<${Panel} title=${`Topics${topics.data ? ` (${count(topics.data.length)})` : ""}`} of=${topics}>
    <${Table} caption="Topics" columns=${COLUMNS} rows=${topics.data ?? []} rowKey=${(each) => `${each.namespace}/${each.topic}`} />
  <//>`;
}
