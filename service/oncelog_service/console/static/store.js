// A value that components show, and that changes: set it, and those that use it are drawn again.

import { useEffect, useState } from "./vendor/htm-preact.js";

/** Makes a value with get(), set(value) and subscribe(told), which returns how to unsubscribe. */
export function store(value) {
  const told = new Set();
  return {
    get: () => value,
    set(next) {
      if (next !== value) {
        value = next;
        for (const tell of [...told]) tell(value);
      }
    },
    subscribe(tell) {
      told.add(tell);
      return () => told.delete(tell);
    },
  };
}

/** The value of a store, in a component. */
export function useStore(from) {
  const [, again] = useState(0);
  const drawn = from.get();
  useEffect(() => {
    const tell = () => again((n) => n + 1);
    if (from.get() !== drawn) tell(); // an effect comes after the drawing, and it may have changed between
    return from.subscribe(tell);
  }, [from]);
  return drawn;
}

let ids = 0;

/** An id that no other element has, the same each time a component is drawn. */
export function useId() {
  return useState(() => `id-${++ids}`)[0];
}
