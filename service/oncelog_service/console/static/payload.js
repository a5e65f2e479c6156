// A payload as text, JSON, Avro or hex. What it says is text wherever it goes.

import { decodeContainer, decodeValue, isContainer } from "./avro.js";
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { bytes, utf8 } from "./format.js";

export const FORMATS = [["auto", "as it looks"], ["text", "text"], ["json", "JSON"], ["avro", "Avro"], ["hex", "hex"]];

const ONE_LINE = 110; // characters of JSON that are left as they are, unless JSON is asked for
const FIRST = 20_000; // characters, until somebody asks for more
const MOST = 2_000_000; // characters: a browser lays these out in about half a second, and 34 million of them in eight
const SPREAD = 1 << 20; // characters of JSON that are given breaks and indents
const DEEPEST_INDENT = 40; // levels: what is nested by the thousand must not become megabytes of spaces

/** `data`: bytes; `as`: one of FORMATS; `schema`: a parsed Avro schema, or null; `name`: of the file they are saved to. */
export function Payload({ data, as, schema, name }) {
  const [found, setFound] = useState({ kind: "", text: "" });
  const [most, setMost] = useState(FIRST);
  useEffect(() => {
    let stopped = false;
    shownAs(data, as, schema, most).then((each) => stopped || setFound(each));
    return () => { stopped = true; };
  }, [data, as, schema, most]);
  const cut = found.text.length > most;
  return html`<div class="payload">
    ${found.wrong && html`<p class="refusal" role="status">${found.wrong}</p>`}
    <div class="body">${data.length > 0 && html`<pre tabindex="0" role="group" aria-label="Payload">${cut ? `${found.text.slice(0, most)} …` : found.text}</pre>`}
      <small>${found.kind}${found.kind && ", "}${bytes(data.length)}</small></div>
    ${cut && most < MOST && html`<button type="button" class="small" onClick=${() => setMost(MOST)}>Show more</button> `}
    ${cut && html`<button type="button" class="small" onClick=${() => save(data, name)}>Save all bytes</button>`}</div>`;
}

function save(data, name) {
  const url = URL.createObjectURL(new Blob([data]));
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

/** {kind, text, wrong}: wrong says why it is not shown as it was to be. Hex is made of no more bytes than fill `most` characters. */
export async function shownAs(data, as, schema, most) {
  const hex = () => ({ kind: "hex", text: dump(data.subarray(0, most / 4)) });
  try {
    if (as === "avro" || (as === "auto" && (schema || isContainer(data)))) return { kind: "Avro", text: await avro(data, schema) };
    if (as === "hex") return hex();
    const text = utf8(data);
    if (text === null) return as === "auto" ? hex() : { ...hex(), wrong: "These bytes are no UTF-8." };
    if (as === "json" || (as === "auto" && /^\s*[[{]/.test(text))) {
      const spread = pretty(text);
      return { kind: "JSON", text: as === "auto" && text.length <= ONE_LINE ? text : spread };
    }
    return { kind: "text", text };
  } catch (failure) {
    const text = utf8(data);
    const wrong = as === "auto" && !schema ? undefined : `It is no ${as === "json" ? "JSON" : "Avro of this kind"}: ${failure.message}.`;
    return { ...(text === null ? hex() : { kind: "text", text }), wrong };
  }
}

async function avro(data, schema) {
  if (isContainer(data)) {
    const { values } = await decodeContainer(data);
    return JSON.stringify(values.length === 1 ? values[0] : values, null, 2);
  }
  if (!schema) throw new Error("it is no container file; paste its schema");
  return JSON.stringify(decodeValue(data, schema), null, 2);
}

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** JSON with breaks and indents; every name, number and text stays as it was sent. What is very long is left as it is. Throws
 * SyntaxError. */
export function pretty(text) {
  JSON.parse(text);
  if (text.length > SPREAD) return text;
  const indent = (depth) => `\n${"  ".repeat(Math.min(depth, DEEPEST_INDENT))}`;
  let made = "";
  let depth = 0;
  let before = "";
  for (const [token] of text.matchAll(TOKEN)) {
    if ("}]".includes(token)) {
      depth--;
      made += "{[".includes(before) ? token : `${indent(depth)}${token}`;
    } else {
      if (before !== "" && "{[,".includes(before)) made += indent(depth);
      made += token === ":" ? ": " : token;
      if ("{[".includes(token)) depth++;
    }
    before = token;
  }
  return made;
}

/** 16 bytes a line: where, in hex, and as letters. */
export function dump(data) {
  const found = [];
  for (let at = 0; at < data.length; at += 16) {
    const line = data.subarray(at, at + 16);
    const pairs = Array.from(line, (each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const letters = Array.from(line, (each) => (each >= 0x20 && each < 0x7f ? String.fromCharCode(each) : ".")).join("");
    found.push(`${at.toString(16).padStart(6, "0")}  ${pairs}  ${letters}`);
  }
  return found.join("\n");
}

