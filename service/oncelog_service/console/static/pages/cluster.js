// Cluster.

import { Empty, html, Panel } from "../ui.js";

export const title = "Cluster";

export function Page() {
  return html`<${Panel} title="Cluster"><${Empty}>Nothing is here.<//><//>`;
}
