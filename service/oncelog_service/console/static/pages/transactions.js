// Transactions.

import { Empty, html, Panel } from "../ui.js";

export const title = "Transactions";

export function Page() {
  return html`<${Panel} title="Transactions"><${Empty}>Nothing is here.<//><//>`;
}
