// Long lists: so much of one as is looked at, asked for page by page, and again every few seconds while the tab is seen.

import { useRef } from "./vendor/htm-preact.js";
import { call, path, useLive } from "./api.js";
import { count } from "./format.js";
import { html } from "./ui.js";

const FIRST = 200;
const FURTHER = 1000; // the service answers 2,000 at most

/** {data, error, loading, reload, more}: the beginning of a list. `after` is what the next page is asked behind; `more()` asks for a
 * longer beginning, and is null once all of it is there. `named`: the one of this `name`, where it lies behind the beginning. */
export function usePaged(target, after, { query = {}, every = 4000, name = "" } = {}) {
  const wanted = useRef(FIRST);
  const load = async (signal) => {
    const found = await beginning(target, after, query, wanted.current, signal);
    const further = name && !found.whole && !found.rows.some((each) => each.name === name);
    return { ...found, named: further ? await one(target + path`/${name}`, signal) : null };
  };
  const found = useLive(load, [target, query, name], { every });
  const more = () => {
    wanted.current += FURTHER;
    found.reload();
  };
  return { ...found, data: found.data?.rows ?? null, named: found.data?.named ?? null, more: found.data === null || found.data.whole ? null : more };
}

async function one(target, signal) {
  try {
    return await call("GET", target, { signal });
  } catch (error) {
    if (error.status === 404 || error.status === 400) return null; // there is none, or no such name
    throw error;
  }
}

async function beginning(target, after, query, wanted, signal) {
  const rows = [];
  while (rows.length < wanted) {
    const behind = rows.length ? { after: after(rows.at(-1)) } : {};
    const limit = Math.min(wanted - rows.length, FURTHER);
    const page = await call("GET", target, { query: { ...query, ...behind, limit }, signal });
    rows.push(...page);
    if (page.length < limit) return { rows, whole: true };
  }
  return { rows, whole: false };
}

/** Below a list that is not there as a whole. */
export function More({ of, what }) {
  return of.more && html`<p class="pager"><span role="status">The first ${count(of.data.length)} ${what} are shown.</span>
    <button type="button" onClick=${of.more}>Show more</button></p>`;
}

/** What an empty table of such a list says: that nothing of its beginning has this part in its name is not that nothing has. */
export function nothing(of, part, none) {
  if (!part) return none;
  return of.more ? `None of the first ${count(of.data.length)} has this in its name; there are more.` : "No name has this in it.";
}

/** A number as the service wants one that names a request: 32 hex digits that nobody else has drawn. */
export function nonce() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) => each.toString(16).padStart(2, "0")).join("");
}
