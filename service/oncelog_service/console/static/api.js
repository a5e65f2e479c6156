// How the console asks the service: as every other client does, over /v1, with the token of who has signed in.
//
//   call(method, path, {body, query, signal})   one request; resolves to its JSON, or throws a Problem
//   useLoad(load, [what it depends on])         in a component: {data, error, loading, reload}; asks once, and again on reload()
//   useLive(load, [...], {every})               the same, and again and again while the page is seen: load(signal, last) is called
//                                               at once when it has answered (a long poll), or after `every` ms
//
// The token is kept in sessionStorage: one tab, until it is closed. It travels in the Authorization header alone.

import { useCallback, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { noteClock } from "./format.js";
import { store } from "./store.js";

const TOKEN = "oncelog.token";

/** "asking" (the first request is under way), "in", or "out": the service wants a token. */
export const session = store("asking");
/** Since when the service does not answer (ms), or null. */
export const gone = store(null);
/** Why the sign-in was refused, or null. */
export const refused = store(null);

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** What the service answers to one who may not, or to what cannot be: its problem+json. `status` 0: it does not answer. */
export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the service answered ${status}`);
    Object.assign(this, { status, code: problem.code ?? null, title: problem.title ?? "", problem });
  }
}

/** A path of names: each is encoded. path`/v1/namespaces/${namespace}/topics` */
export function path(parts, ...names) {
  return parts.reduce((made, part, at) => made + encodeURIComponent(names[at - 1]) + part);
}

export const topicPath = (namespace, topic) => path`/v1/namespaces/${namespace}/topics/${topic}`;

// Write pointers and sequence ids go up to 2^63, numbers in JavaScript to 2^53: longer ones stay text.
const LONG = /(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g;
const MAY_BE_LONG = /\d{16}/;

export function parse(text) {
  if (!MAY_BE_LONG.test(text)) return JSON.parse(text);
  let made = "";
  for (let at = 0; at < text.length; ) {
    const string = text.indexOf('"', at);
    const between = text.slice(at, string < 0 ? undefined : string);
    at = string < 0 ? text.length : endOfString(text, string);
    made += between.replace(LONG, (found) => (Number.isSafeInteger(+found) ? found : `"${found}"`));
    if (string >= 0) made += text.slice(string, at);
  }
  return JSON.parse(made);
}

/** Where a string ends that begins here. By hand: a regular expression has no stack for one of megabytes, as payloads are. */
function endOfString(text, begin) {
  for (let end = text.indexOf('"', begin + 1); end >= 0; end = text.indexOf('"', end + 1)) {
    let escapes = 0;
    while (text[end - 1 - escapes] === "\\") escapes++;
    if (escapes % 2 === 0) return end + 1;
  }
  return text.length;
}

/** JSON of a value in which `long(text)` stands for a number that JavaScript cannot hold. */
export function encode(value) {
  return JSON.stringify(value, (_, each) => (each instanceof Long ? `\u0000${each.text}\u0000` : each))
    .replace(/"\\u0000(-?\d+)\\u0000"/g, "$1");
}

class Long {
  constructor(text) {
    this.text = text;
  }
}

export const long = (text) => (/^-?\d+$/.test(String(text)) ? new Long(String(text)) : text);

/** Sends one request. Resolves to the JSON of the answer, null if it has none; throws a Problem, or an AbortError. */
export async function call(method, target, { body, query, signal, text = false } = {}) {
  const asked = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const url = asked.length ? `${target}?${new URLSearchParams(asked)}` : target;
  const headers = { accept: "application/json", "oncelog-route": "proxy" };
  const token = sessionStorage.getItem(TOKEN);
  if (token !== null) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer, said;
  try {
    const sent = body === undefined ? undefined : encode(body);
    answer = await fetch(url, { method, headers, body: sent, signal, cache: "no-store", credentials: "same-origin", redirect: "error" });
    said = await answer.text();
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    lost();
    throw new Problem(0, { code: "unreachable", detail: "The service does not answer." });
  }
  found();
  noteClock(answer.headers.get("date"));
  if (answer.ok) return text ? said : said.trim() ? parse(said) : null;
  const problem = problemOf(said);
  if (answer.status === 401 && token === sessionStorage.getItem(TOKEN)) signedOut(token === null ? null : problem.detail);
  throw new Problem(answer.status, problem);
}

function problemOf(said) {
  try {
    const found = parse(said);
    return found !== null && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}

/** The last line of an answer of lines of JSON (verify, backup); `tell` is given each one before it. */
export async function lines(method, target, options) {
  const said = await call(method, target, { ...options, text: true });
  return said.trim().split("\n").map(parse);
}

// --- who has signed in

/** Finds out whether the service answers without a token: on loopback, or under a client certificate. */
export async function begin() {
  for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
    try {
      await call("GET", "/v1/namespaces");
      refused.set(null);
      return session.set("in");
    } catch (error) {
      if (error.status === 401) return session.set("out");
      if (error.status !== 0) return session.set("in"); // it answers, perhaps that its store is closed: the pages say what is wrong
      await sleep(wait);
    }
  }
}

export async function signIn(token) {
  if (!/^[\x21-\x7e]+$/.test(token)) return refused.set("A token has no spaces and no letters beyond ASCII.");
  refused.set(null);
  sessionStorage.setItem(TOKEN, token);
  return begin();
}

/** Forgets the token, here and in this tab. */
export function signOut() {
  sessionStorage.removeItem(TOKEN);
  refused.set(null);
  session.set("asking");
  return begin();
}

function signedOut(why) {
  sessionStorage.removeItem(TOKEN);
  refused.set(why);
  session.set("out");
}

// --- is it there

function lost() {
  if (gone.get() === null) gone.set(Date.now());
}

function found() {
  gone.set(null);
}

export function sleep(ms, signal) {
  return new Promise((done, stop) => {
    const ended = () => {
      clearTimeout(timer);
      stop(new DOMException("ended", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", ended);
      done();
    }, ms);
    if (signal?.aborted) ended();
    else signal?.addEventListener("abort", ended, { once: true });
  });
}

/** Resolves when the tab is seen. */
function seen(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done, stop) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", () => {
      document.removeEventListener("visibilitychange", look);
      stop(new DOMException("ended", "AbortError"));
    });
  });
}

// --- in components

/** Asks once, and again when what it depends on changes or reload() is called. What is there stays while it asks again. */
export function useLoad(load, on) {
  return useAsking(load, on, false, 0);
}

/** Asks again and again while the tab is seen. After a failure it waits longer and longer, up to 15 s. */
export function useLive(load, on, { every = 0 } = {}) {
  return useAsking(load, on, true, every);
}

const SHORTEST = 250; // ms from one request to the next, where each is answered at once
const LONGEST = 15_000; // ms until a request that failed is repeated

function useAsking(load, on, again, every) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const [round, setRound] = useState(0);
  const key = JSON.stringify(on);
  const before = useRef(key);
  const current = useRef(null);
  current.current = { load, every };
  const reload = useCallback(() => setRound((n) => n + 1), []);
  useEffect(() => {
    const stop = new AbortController();
    let last = null;
    let pause = 1000;
    setState((was) => ({ ...(before.current === key ? was : { data: null, error: null }), loading: true }));
    before.current = key;
    const ask = async () => {
      for (let more = true; more; ) {
        more = again;
        try {
          await seen(stop.signal);
          const began = performance.now();
          last = await current.current.load(stop.signal, last);
          if (stop.signal.aborted) return;
          setState({ data: last, error: null, loading: false });
          pause = 1000;
          const rest = Math.max(current.current.every, SHORTEST - (performance.now() - began));
          if (again && rest > 0) await sleep(rest, stop.signal);
        } catch (error) {
          if (stop.signal.aborted || error.name === "AbortError") return;
          if (!(error instanceof Problem)) console.error(error);
          if (error.status === 401) return; // the sign-in is shown
          setState((was) => ({ data: error.status === 0 ? was.data : null, error, loading: false }));
          more = again || error.status === 0;
          last = null;
          if (more) await sleep(error.status === 403 ? LONGEST : pause, stop.signal).catch(() => {});
          if (stop.signal.aborted) return;
          pause = Math.min(pause * 2, LONGEST);
        }
      }
    };
    ask();
    return () => stop.abort();
  }, [key, round]);
  return { ...state, reload };
}
