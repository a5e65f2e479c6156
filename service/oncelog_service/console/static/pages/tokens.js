// Tokens: who may do what. Made, listed, revoked; the secret of one that was made is shown once.

import { useRef, useState } from "../vendor/htm-preact.js";
import { call, hasToken, path, signIn, useLoad } from "../api.js";
import { ago, count, now, seconds, time } from "../format.js";
import { announce, ask, Badge, Field, html, Panel, Table, Wrong } from "../ui.js";

export const title = "Tokens";

export function Page() {
  const found = useLoad((signal) => call("GET", "/v1/tokens", { signal }), []);
  const [made, setMade] = useState(null);
  const [part, setPart] = useState("");
  const all = found.data ?? [];
  const rows = all.filter((each) => each.name.includes(part) || each.grants.some((grant) => grant.includes(part)));
  const create = () => make((token) => {
    // The first one locks the service: asked again without a token, it would show the sign-in instead of the secret.
    const first = !hasToken() && !all.length;
    setMade({ ...token, first });
    if (!first) found.reload();
  }, all.length === 0);
  return html`
    ${made && html`<${Made} of=${made} done=${() => { setMade(null); found.reload(); }} />`}
    <${Panel} title=${found.data ? `Tokens (${count(all.length)})` : "Tokens"} of=${found}
        actions=${found.data && !made?.first && html`<button type="button" onClick=${create}>Make a token</button>`}>
      ${all.length > 8 && html`<div class="row"><${Field} label="Part of a name or a grant" filter=${true} value=${part} onChange=${setPart} /></div>`}
      <${Table} key=${part} caption="Tokens" page=${50} rows=${rows} rowKey=${(each) => each.id} columns=${columns(found.reload)}
        empty=${part ? "No token has this in it." : "There is no token: whoever reaches the service may do everything."} />
    <//>`;
}

const expired = (each) => each.expiresMs !== null && each.expiresMs <= now();

function columns(reload) {
  return [
    { name: "Name", head: true, sort: (each) => each.name, cell: (each) => html`${each.name}${each.name.startsWith("cert:")
      && html` <${Badge}><span title="Its client certificate is its secret">certificate<//><//>`}` },
    { name: "Grants", cell: (each) => each.grants.map((grant, at) => html`${at > 0 && " "}<${Badge} kind=${grant === "admin" ? "warning" : ""}><code>${grant}</code><//>`) },
    { name: "Made", sort: (each) => each.createdMs, cell: (each) => html`<span title=${time(each.createdMs)}>${ago(each.createdMs)}</span>` },
    { name: "Expires", sort: (each) => each.expiresMs ?? Infinity, cell: (each) => (each.expiresMs === null ? "never"
      : expired(each) ? html`<${Badge} kind="critical">expired<//>`
        : html`<span title=${time(each.expiresMs)}>in ${seconds((each.expiresMs - now()) / 1000)}</span>`) },
    { name: "Id", cell: (each) => html`<code>${each.id}</code>` },
    { name: "Actions", cell: (each) => html`<button type="button" class="small" aria-label=${`Revoke ${each.id} of ${each.name}`}
      onClick=${() => revoke(each, reload)}>Revoke</button>` },
  ];
}

/** The secret of a token that has just been made. It is nowhere else: not in the address, not in what the tab keeps. */
function Made({ of, done }) {
  const place = useRef(null);
  const copy = async () => {
    if (await copied(of.secret, place.current)) announce("The secret is copied.");
    else announce("It could not be copied: it is selected.");
  };
  if (of.secret === null) {
    return html`<${Panel} title=${`Token ${of.name} is made`}><p>It has no secret of its own: its name is a client certificate's.</p>
      <button type="button" onClick=${done}>Close</button><//>`;
  }
  return html`<${Panel} title=${`The secret of ${of.name}`}>
    <p><strong>It is shown now and never again:</strong> the service keeps a hash of it alone.</p>
    <pre ref=${place} class="secret" tabindex="0" aria-label="Secret">${of.secret}</pre>
    <p class="actions"><button type="button" class="primary" onClick=${copy}>Copy</button>
      ${of.first ? html`<button type="button" onClick=${() => signIn(of.secret).then(done)}>Sign in with it</button>`
        : html`<button type="button" onClick=${done}>I have it</button>`}</p>
    ${of.first && html`<p>From now on every request needs a token: copy this one, then sign in with it.</p>`}<//>`;
}

/** Browsers have a clipboard on safe origins alone; elsewhere what is selected can be copied. */
async function copied(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(shown);
    return document.execCommand("copy");
  }
}

function make(done, first) {
  ask({
    title: "Make a token", action: "Make",
    text: first ? "It is the first one, and needs the grant admin and no end: from then on every request needs a token."
      : "Its secret is shown once, when it is made.",
    fields: [
      { name: "name", label: "Name", required: true, hint: "of who carries it; cert: and a name for a client certificate, jwt: and a subject for a signed token" },
      { name: "grants", label: "Grants", required: true, value: first ? "admin" : "",
        hint: "with spaces between them: read:orders/* write:default/load-*:loader-* manage:*/* observe operate admin service" },
      { name: "days", label: "Days until it expires", hint: "empty: it does not" },
    ],
    run: ({ name, grants, days }) => call("POST", "/v1/tokens", { body: {
      name: name.trim(), grants: grants.split(/[\s,]+/).filter(Boolean), expiresInMs: daysOf(days),
    } }),
    said: "The token is made.", done,
  });
}

function daysOf(text) {
  if (text.trim() === "") return null;
  const days = Number(text);
  if (!(days > 0 && days < 100_000)) throw new Wrong(`${text} is no number of days`);
  return Math.round(days * 86_400_000);
}

function revoke({ id, name }, done) {
  ask({
    title: `Revoke token ${id} of ${name}?`, danger: true, action: "Revoke",
    text: "Whoever carries it is refused from now on, at other instances within a second. If you have signed in with it, you are signed out.",
    run: () => call("DELETE", path`/v1/tokens/${id}`), said: "The token is revoked.", done,
  });
}
