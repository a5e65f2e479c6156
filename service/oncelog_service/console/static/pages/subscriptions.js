// Subscriptions of one topic.

import { ChooseTopic, TopicBar } from "../topics.js";
import { Empty, html, Panel } from "../ui.js";

export const title = "Subscriptions";

export function Page({ args: [namespace, topic] }) {
  if (!topic) return html`<${ChooseTopic} page="subscriptions" what="Subscriptions of" />`;
  return html`<${TopicBar} page="subscriptions" namespace=${namespace} topic=${topic} />
    <${Panel} title="Subscriptions"><${Empty}>Nothing is here.<//><//>`;
}
