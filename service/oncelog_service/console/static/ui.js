// The parts that pages are made of. Everything said by the service or its clients goes through htm, which writes it as text: no part
// of the console sets innerHTML.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { Problem } from "./api.js";
import { store, useId, useStore } from "./store.js";

export { html };

// --- one panel of a page, and what stands in it while there is nothing to show

/** A section with a heading. `of`: what useLoad or useLive gave; while that has an error, the error is said in this panel alone. */
export function Panel({ title, of, actions, children, id, quiet }) {
  const own = useId();
  const name = id ?? own;
  const error = of?.error;
  return html`<section class="panel" aria-labelledby=${name} aria-busy=${of?.loading ? "true" : "false"}>
    <header><h2 id=${name}>${title}</h2>${actions && html`<div class="actions">${actions}</div>`}</header>
    ${error && !(error.status === 0 && of.data !== null)
      ? html`<${Refusal} error=${error} again=${of.reload} />`
      : of && of.data === null && !quiet
        ? html`<p class="empty" role="status">Loading …</p>`
        : children}
  </section>`;
}

/** Why something is not shown, or was not done. Of a 403: which grant is missing. */
export function Refusal({ error, again }) {
  if (error instanceof Problem && error.code === "not_allowed") {
    const { principal, right } = error.problem;
    return html`<div class="refusal" role="status">
      <p><strong>Not allowed.</strong> ${principal ? html`<code>${principal}</code> lacks` : "What is missing:"} the grant
        ${" "}<code class="right">${right ?? "?"}</code>.</p></div>`;
  }
  return html`<div class="refusal" role="alert">
    <p>${error.message}${error.code && html` <code>${error.code}</code>`}</p>
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

/** Facts as a list of names and values: [["Name", value], …]. */
export function Facts({ of }) {
  return html`<dl class="facts">${of.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value ?? "–"}</dd></div>`)}</dl>`;
}

/** A word in a coloured frame; `kind`: good, warning, critical, or none. The word says it, not the colour alone. */
export const Badge = ({ kind = "", children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;

// --- tables

/** A table of rows. columns: [{name, cell: row => …, number: true, sort: row => value, head: true}]; `head`: the cell that names the
 * row. Sorted by its head where `sort` is given. With more than `page` rows only so many are drawn, and buttons page. */
export function Table({ caption, columns, rows, rowKey, page = 100, empty = "Nothing is here." }) {
  const [sorting, setSorting] = useState(null); // [index of the column, 1 or -1]
  const [at, setAt] = useState(0);
  const sorted = useMemo(() => {
    if (!sorting) return rows;
    const [column, way] = sorting;
    const value = columns[column].sort;
    return [...rows].sort((a, b) => way * compare(value(a), value(b)));
  }, [rows, sorting]);
  const pages = Math.max(1, Math.ceil(sorted.length / page));
  const here = Math.min(at, pages - 1);
  const shown = sorted.slice(here * page, here * page + page);
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  const sortBy = (index) => {
    setSorting([index, order(index) === "ascending" ? -1 : 1]);
    setAt(0);
  };
  const order = (index) => (sorting?.[0] !== index ? "none" : sorting[1] > 0 ? "ascending" : "descending");
  return html`<div class="wide" tabindex="0" role="group" aria-label=${caption}><table>
      <caption>${caption}</caption>
      <thead><tr>${columns.map((column, index) => html`<th scope="col" class=${column.number ? "number" : ""}
        aria-sort=${column.sort ? order(index) : undefined}>${column.sort
          ? html`<button type="button" class="sort" onClick=${() => sortBy(index)}>
              ${column.name}<span aria-hidden="true">${{ none: "", ascending: " ▲", descending: " ▼" }[order(index)]}</span></button>`
          : column.name}</th>`)}</tr></thead>
      <tbody>${shown.map((row) => html`<tr key=${rowKey(row)}>${columns.map((column) => column.head
        ? html`<th scope="row">${column.cell(row)}</th>`
        : html`<td class=${column.number ? "number" : ""}>${column.cell(row)}</td>`)}</tr>`)}</tbody>
    </table></div>
    ${pages > 1 && html`<nav class="pager" aria-label=${`Pages of ${caption}`}>
      <button type="button" disabled=${here === 0} onClick=${() => setAt(here - 1)}>Previous</button>
      <span role="status">${here * page + 1} to ${here * page + shown.length} of ${sorted.length}</span>
      <button type="button" disabled=${here >= pages - 1} onClick=${() => setAt(here + 1)}>Next</button>
    </nav>`}`;
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}

// --- fields

/** A field with its label. `filter`: "/" leads here. `onChange` is given the value. */
export function Field({ label, value, onChange, type = "text", filter, hint, list, ...more }) {
  const id = useId();
  return html`<div class="field"><label for=${id}>${label}</label>
    <input id=${id} type=${type} value=${value} onInput=${(event) => onChange(event.target.value)} autocomplete="off"
      spellcheck=${false} data-filter=${filter ? "" : undefined} list=${list} aria-describedby=${hint ? `${id}-hint` : undefined} ...${more} />
    ${hint && html`<small id=${`${id}-hint`}>${hint}</small>`}</div>`;
}

/** One of several: [[value, text], …]. */
export function Choice({ label, value, onChange, options }) {
  const id = useId();
  return html`<div class="field"><label for=${id}>${label}</label>
    <select id=${id} value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([each, text]) => html`<option value=${each} selected=${each === value}>${text}</option>`)}
    </select></div>`;
}

// --- asking before something is changed

/** What was typed is not what is asked for. */
export class Wrong extends Error {}

const question = store(null);
let questions = 0;
/** What a screen reader is told, and is shown for a moment. */
export const announced = store("");

let forgetting = 0;

export function announce(text) {
  announced.set("");
  setTimeout(() => announced.set(text), 20);
  clearTimeout(forgetting);
  forgetting = setTimeout(() => announced.set(""), 8000);
}

/**
 * Asks before something is changed. `title` names what will be done ("Delete topic default/orders?"), `text` what comes of it, `action`
 * is on the button, `run(values)` does it: an error is said in the dialog, which stays. `typed`: what one types first, for what cannot
 * be undone. `fields`: [{name, label, value, hint, type, required, options}]; run is given their values. `done`: told when it worked.
 */
export function ask(asked) {
  question.set({ danger: false, fields: [], number: ++questions, ...asked });
}

export function Dialog() {
  const asked = useStore(question);
  return asked && html`<${Question} key=${asked.number} asked=${asked} />`;
}

function Question({ asked }) {
  const dialog = useRef(null);
  const [typed, setTyped] = useState("");
  const [values, setValues] = useState(() => Object.fromEntries(asked.fields.map((each) => [each.name, each.value ?? ""])));
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => dialog.current.showModal(), []);
  const close = () => {
    dialog.current?.close(); // which gives the focus back
    question.set(null);
  };
  const run = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const result = await asked.run(values);
      close();
      announce(asked.said ?? "Done.");
      asked.done?.(result);
    } catch (failure) {
      if (!(failure instanceof Problem || failure instanceof Wrong)) console.error(failure);
      setError(failure);
      setBusy(false);
    }
  };
  const ready = !busy && (asked.typed === undefined || typed === asked.typed) &&
    asked.fields.every((each) => !each.required || String(values[each.name]).trim() !== "");
  const set = (name) => (value) => setValues((was) => ({ ...was, [name]: value }));
  // A browser closes it at the second Escape whatever is said to that: while something is under way, it is shown again.
  const closed = () => (busy ? dialog.current?.showModal() : close());
  return html`<dialog ref=${dialog} aria-labelledby="question" onClose=${closed} onCancel=${(event) => { event.preventDefault(); if (!busy) close(); }}>
    <form onSubmit=${run}>
      <h2 id="question">${asked.title}</h2>
      ${asked.text && html`<p>${asked.text}</p>`}
      ${asked.fields.map((each) => each.options
        ? html`<${Choice} label=${each.label} value=${values[each.name]} onChange=${set(each.name)} options=${each.options} />`
        : html`<${Field} label=${each.label} type=${each.type ?? "text"} hint=${each.hint} value=${values[each.name]}
            onChange=${set(each.name)} />`)}
      ${asked.typed !== undefined && html`<${Field} label=${html`Type <code>${asked.typed}</code> to go on`} value=${typed} onChange=${setTyped} />`}
      ${error && html`<${Refusal} error=${error} />`}
      <footer>
        <button type="button" onClick=${close} disabled=${busy}>Cancel</button>
        <button type="submit" class=${asked.danger ? "danger" : "primary"} disabled=${!ready}>${asked.action}</button>
      </footer>
    </form>
  </dialog>`;
}
