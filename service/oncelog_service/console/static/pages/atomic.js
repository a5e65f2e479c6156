// Atomic commits.

import { Empty, html, Panel } from "../ui.js";

export const title = "Atomic commits";

export function Page() {
  return html`<${Panel} title="Atomic commits"><${Empty}>Nothing is here.<//><//>`;
}
