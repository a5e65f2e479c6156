// Where the logs of topics begin and end, for tables that show many of them: asked for when a row is seen, six at a time.

import { useEffect } from "./vendor/htm-preact.js";
import { call, topicPath } from "./api.js";
import { store, useStore } from "./store.js";

const AT_ONCE = 6;
const GOOD_FOR = 10_000; // ms

const known = new Map(); // address → {found: store of {data, error}, at}
const waiting = [];
let busy = 0;

function entry(address) {
  if (!known.has(address)) known.set(address, { found: store({ data: null, error: null }), at: 0 });
  return known.get(address);
}

async function work() {
  if (busy >= AT_ONCE || !waiting.length) return;
  busy++;
  const address = waiting.pop(); // what came into sight last is what is looked at
  const { found } = entry(address);
  try {
    found.set({ data: await call("GET", `${address}/stats`), error: null });
  } catch (error) {
    found.set({ data: null, error });
  }
  busy--;
  work();
}

/** {data, error} of a topic's stats; data is null until they are there. */
export function useStats(namespace, topic) {
  const address = topicPath(namespace, topic);
  const each = entry(address);
  useEffect(() => {
    if (Date.now() - each.at > GOOD_FOR) {
      each.at = Date.now();
      waiting.push(address);
      work();
    }
    return () => {
      const at = waiting.indexOf(address);
      if (at >= 0) {
        waiting.splice(at, 1);
        each.at = 0;
      }
    };
  }, [address]);
  return useStore(each.found);
}
