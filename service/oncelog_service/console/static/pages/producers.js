// Producers of one topic.

import { ChooseTopic, TopicBar } from "../topics.js";
import { Empty, html, Panel } from "../ui.js";

export const title = "Producers";

export function Page({ args: [namespace, topic] }) {
  if (!topic) return html`<${ChooseTopic} page="producers" what="Producers of" />`;
  return html`<${TopicBar} page="producers" namespace=${namespace} topic=${topic} />
    <${Panel} title="Producers"><${Empty}>Nothing is here.<//><//>`;
}
