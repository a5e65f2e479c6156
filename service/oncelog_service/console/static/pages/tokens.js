// Tokens.

import { Empty, html, Panel } from "../ui.js";

export const title = "Tokens";

export function Page() {
  return html`<${Panel} title="Tokens"><${Empty}>Nothing is here.<//><//>`;
}
