// Light, dark, or as the system has it: remembered in this browser.

import { store } from "./store.js";

const KEY = "oncelog.theme";
const ORDER = ["auto", "light", "dark"];

function kept() {
  try {
    const found = localStorage.getItem(KEY);
    return ORDER.includes(found) ? found : "auto";
  } catch {
    return "auto";
  }
}

export const theme = store(kept());
/** Counts changes of what is seen: the switch, and the system's own. Charts are drawn anew. */
export const painted = store(0);

export function applyTheme() {
  document.documentElement.dataset.theme = theme.get();
  painted.set(painted.get() + 1);
}

export function nextTheme() {
  theme.set(ORDER[(ORDER.indexOf(theme.get()) + 1) % ORDER.length]);
  try {
    localStorage.setItem(KEY, theme.get());
  } catch {
    // It holds for this page alone.
  }
  applyTheme();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
