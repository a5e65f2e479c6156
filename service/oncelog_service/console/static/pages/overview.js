// The first page: what is wrong, and how the service is doing.

import { Empty, html, Panel } from "../ui.js";

export const title = "Overview";

export function Page() {
  return html`<${Panel} title="Alarms"><${Empty}>Nothing is here.<//><//>`;
}
