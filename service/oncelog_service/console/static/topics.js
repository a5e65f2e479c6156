// Which topic a page is about: its namespace and name are in the address, and are chosen here.

import { html, useState } from "./vendor/htm-preact.js";
import { call, path, useLoad } from "./api.js";
import { href, go } from "./route.js";
import { useId } from "./store.js";
import { Panel } from "./ui.js";

/** The pages of one topic, in the order of their links. */
export const OF_A_TOPIC = [
  ["topics", "Topic"],
  ["messages", "Messages"],
  ["producers", "Producers"],
  ["subscriptions", "Subscriptions"],
];

const SUGGESTED = 200;

/** All topics that who has signed in may know: [{namespace, topic}], sorted. */
export function useTopics() {
  return useLoad(async (signal) => {
    const namespaces = await call("GET", "/v1/namespaces", { signal });
    const lists = await Promise.all(namespaces.map((each) => call("GET", path`/v1/namespaces/${each}/topics`, { signal })));
    return namespaces.flatMap((namespace, at) => lists[at].map((topic) => ({ namespace, topic })));
  }, []);
}

/** Above the panels of a page of one topic: its name, and links to its other pages. */
export function TopicBar({ page, namespace, topic }) {
  return html`<nav class="tabs" aria-label=${`Pages of ${namespace}/${topic}`}>
    ${OF_A_TOPIC.map(([name, title]) => html`<a href=${href(name, namespace, topic)} aria-current=${name === page ? "page" : undefined}>${title}</a>`)}
    <a class="other" href=${href(page)}>Another topic</a>
  </nav>`;
}

/** A page of one topic whose address names none: asks which. */
export function ChooseTopic({ page, what }) {
  const topics = useTopics();
  const [typed, setTyped] = useState("");
  const list = useId();
  const field = useId();
  const names = (topics.data ?? []).map((each) => `${each.namespace}/${each.topic}`);
  const fits = names.filter((each) => each.includes(typed)).slice(0, SUGGESTED);
  const open = (event) => {
    event.preventDefault();
    const chosen = names.includes(typed) ? typed : fits.length === 1 ? fits[0] : typed;
    const [namespace, topic] = chosen.split("/");
    if (namespace && topic) go(page, namespace, topic);
  };
  return html`<${Panel} title="Which topic?" of=${topics}>
    <form class="row" onSubmit=${open}>
      <div class="field"><label for=${field}>${what}</label>
        <input id=${field} list=${list} value=${typed} data-filter="" autocomplete="off" spellcheck=${false} placeholder="namespace/topic"
          onInput=${(event) => setTyped(event.target.value)} /></div>
      <datalist id=${list}>${fits.map((each) => html`<option value=${each} />`)}</datalist>
      <button type="submit" class="primary">Open</button>
    </form>
    <ul class="choices">${fits.slice(0, 50).map((each) => html`<li><a href=${href(page, ...each.split("/"))}>${each}</a></li>`)}</ul>
    ${names.length > 50 && html`<p class="empty">${names.length} topics; type a part of a name.</p>`}
  <//>`;
}
