// The console's frame: navigation, sign-in, the banner while the service is gone, theme, keys. It draws the page that the address names.
//
// How a page is made: a module in pages/ that exports `title` and a component, and a line in PAGES below.
//
//   import { html, Panel, Table } from "../ui.js";            parts; see there
//   import { call, useLive, useLoad, path } from "../api.js";  asking the service; see there
//   export const title = "Cluster";
//   export function Page({ args, query }) {                    what the address says: #/cluster/arg?name=value
//     const cluster = useLive((signal) => call("GET", "/v1/cluster", { signal }), [], { every: 5000 });
//     return html`<${Panel} title="Instances" of=${cluster}>
//       <${Table} caption="Instances" columns=${COLUMNS} rows=${cluster.data?.instances ?? []} rowKey=${(each) => each.id} />
//     <//>`;
//   }
//
// A panel says itself that its request is not allowed (403) or failed; a page shows its other panels all the same. What changes
// something goes through ask() in ui.js. A page of one topic begins with <${TopicBar}> or, without a name, <${ChooseTopic}> (topics.js).
// Children of a <${Panel} of=…> are made before `of.data` is there: write `of.data?.…`, or put them into a component of their own.

import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { begin, gone, hasToken, refused, session, signIn, signOut } from "./api.js";
import { clock } from "./format.js";
import { href, route } from "./route.js";
import { useStore } from "./store.js";
import { applyTheme, nextTheme, theme } from "./theme.js";
import { announced, Dialog, Field } from "./ui.js";
import { OF_A_TOPIC } from "./topics.js";
import * as atomic from "./pages/atomic.js";
import * as cluster from "./pages/cluster.js";
import * as messages from "./pages/messages.js";
import * as overview from "./pages/overview.js";
import * as producers from "./pages/producers.js";
import * as subscriptions from "./pages/subscriptions.js";
import * as tokens from "./pages/tokens.js";
import * as topics from "./pages/topics.js";
import * as transactions from "./pages/transactions.js";

/** By the first word of their addresses, in the order of the navigation. */
const PAGES = { overview, topics, messages, producers, subscriptions, transactions, atomic, cluster, tokens };
const NOWHERE = { title: "Not found", Page: () => html`<p>There is no such page. <a href=${href("overview")}>Overview</a></p>` };

function App() {
  const state = useStore(session);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <${Gone} />
    ${state === "in" ? html`<${Frame} />` : html`<${SignIn} asking=${state === "asking"} />`}
    <p class="announced" role="status" aria-live="polite">${useStore(announced)}</p>
    <${Dialog} />`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

// --- the frame

function Frame() {
  const { page, args, query } = useStore(route);
  const { title, Page } = Object.hasOwn(PAGES, page) ? PAGES[page] : NOWHERE;
  const heading = useRef(null);
  const first = useRef(true);
  const subject = args.length ? ` ${args.join("/")}` : "";
  const key = [page, ...args].join("/");
  useEffect(() => {
    document.title = `${title}${subject} · oncelog`;
    if (!first.current) heading.current.focus(); // whoever uses a screen reader hears where the link led
    first.current = false;
  }, [key]);
  const ofTopic = OF_A_TOPIC.some(([name]) => name === page) && args.length >= 2 ? args.slice(0, 2) : [];
  return html`<div class="frame">
    <header class="bar" role="banner"><a class="name" href=${href("overview")}><img src="/console/icon.svg" alt="" width="22" height="22" />oncelog</a>
      <span class="spring"></span><${Theme} />
      ${hasToken() && html`<button type="button" onClick=${signOut}>Sign out</button>`}</header>
    <nav class="pages" aria-label="Pages">${Object.entries(PAGES).map(([name, each]) => html`<a
      href=${href(name, ...(OF_A_TOPIC.some(([of]) => of === name) && name !== "topics" ? ofTopic : []))}
      aria-current=${name === page ? "page" : undefined}>${each.title}</a>`)}</nav>
    <main id="main" tabindex="-1">
      <h1 ref=${heading} tabindex="-1">${title}${subject && html`<span class="subject">${subject}</span>`}</h1>
      <${Page} key=${key} args=${args} query=${query} />
    </main>
  </div>`;
}

function Theme() {
  const now = useStore(theme);
  return html`<button type="button" onClick=${nextTheme} title="Light, dark, or as the system has it">
    Theme: ${{ light: "light", dark: "dark", auto: "system" }[now]}</button>`;
}

// --- signing in

function SignIn({ asking }) {
  const [token, setToken] = useState("");
  const why = useStore(refused);
  useEffect(() => {
    document.title = "Sign in · oncelog";
  }, []);
  const submit = (event) => {
    event.preventDefault();
    signIn(token.trim());
    setToken("");
  };
  return html`<main id="main" class="sign-in" tabindex="-1">
    <h1><img src="/console/icon.svg" alt="" width="32" height="32" />oncelog</h1>
    ${asking ? html`<p role="status">Asking the service …</p>` : html`<form onSubmit=${submit}>
      <p>The service wants a token. It is kept in this tab until it is closed.</p>
      <${Field} label="Token" type="password" value=${token} onChange=${setToken} required autofocus />
      ${why && html`<p class="refusal" role="alert">${why}</p>`}
      <button type="submit" class="primary">Sign in</button>
    </form>`}
  </main>`;
}

// --- the service is gone

function Gone() {
  const since = useStore(gone);
  return html`<div class="gone-place" role="alert">${since !== null && html`<p class="gone"><strong>The service does not answer</strong>
    since ${clock(since)}. What is shown is from before; it is asked again by itself.</p>`}</div>`;
}

// --- keys

addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, textarea, select, dialog")) return;
  const filter = document.querySelector("[data-filter]");
  if (filter) {
    event.preventDefault();
    filter.focus();
    filter.select();
  }
});

applyTheme();
render(html`<${App} />`, document.getElementById("app"));
begin();
