// Messages of one topic.

import { ChooseTopic, TopicBar } from "../topics.js";
import { Empty, html, Panel } from "../ui.js";

export const title = "Messages";

export function Page({ args: [namespace, topic] }) {
  if (!topic) return html`<${ChooseTopic} page="messages" what="Messages of" />`;
  return html`<${TopicBar} page="messages" namespace=${namespace} topic=${topic} />
    <${Panel} title="Messages"><${Empty}>Nothing is here.<//><//>`;
}
