// The address of a page stands behind the #, which no server is sent: #/page/argument/argument?name=value

import { store } from "./store.js";

function read() {
  const [where, asked = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...args] = where.split("/").filter(Boolean).map(decoded);
  return { page: page ?? "overview", args, query: Object.fromEntries(new URLSearchParams(asked)) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** {page, args, query} of the address. */
export const route = store(read());
addEventListener("hashchange", () => route.set(read()));

/** The address of a page, for a link. An object at the end is its query. */
export function href(page, ...args) {
  const query = typeof args.at(-1) === "object" ? args.pop() : {};
  const asked = Object.entries(query).filter(([, value]) => value !== undefined && value !== "" && value !== null);
  return `#/${[page, ...args].map(encodeURIComponent).join("/")}${asked.length ? `?${new URLSearchParams(asked)}` : ""}`;
}

export function go(page, ...args) {
  location.hash = href(page, ...args);
}
