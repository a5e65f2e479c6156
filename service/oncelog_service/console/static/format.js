// Numbers, times and bytes as people read them.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** 1234567 → 1,234,567; also of text, as long numbers are. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "string" ? WHOLE.format(BigInt(value)) : WHOLE.format(value);
}

/** A number a second. */
export const rate = (value) => (value === null || value === undefined ? "–" : `${SHORT.format(value)}/s`);

/** 123456 → 121 KiB */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1000 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
  return `${SHORT.format(value)} ${units[at]}`;
}

/** 0.0123 s → 12.3 ms */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${SHORT.format(value * 1e6)} µs`;
  if (value < 1) return `${SHORT.format(value * 1000)} ms`;
  if (value < 120) return `${SHORT.format(value)} s`;
  if (value < 7200) return `${SHORT.format(value / 60)} min`;
  return value < 172800 ? `${SHORT.format(value / 3600)} h` : `${SHORT.format(value / 86400)} days`;
}

/** ms since 1970 → 16:02:03, in the browser's zone */
export const clock = (ms) => time(ms).slice(11, 19);

/** ms since 1970 → 2026-11-24 16:02:03.456, in the browser's zone */
export function time(ms) {
  if (ms === null || ms === undefined) return "–";
  const at = new Date(Number(ms));
  if (Number.isNaN(at.getTime())) return String(ms);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${day} ${clock}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** Of a write pointer that the transaction service does not know: those in the upper half of a millisecond are its own. */
export const unknown = (pointer) => (BigInt(pointer) % 1000000n < 500000n ? "not known here" : "not known any more");

let ahead = 0; // ms that the service's clock is ahead of the browser's

/** What a service's answer says of its clock, in whole seconds: times are its own, so how long ago they were is told by it. */
export function noteClock(date) {
  const at = Date.parse(date);
  if (Number.isNaN(at)) return;
  const found = at + 500 - Date.now();
  ahead = Math.abs(found) > 2000 ? found : 0;
}

/** ms since 1970, by the service's clock. */
export const now = () => Date.now() + ahead;

/** How long ago, by the service's clock. */
export const ago = (ms) => (ms === null || ms === undefined ? "–" : `${seconds(Math.max(0, (now() - ms) / 1000))} ago`);

/** What the service sends as text of characters U+0000 to U+00FF, as bytes. */
export function toBytes(text) {
  const found = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) found[at] = text.charCodeAt(at);
  return found;
}

export const hex = (data) => Array.from(data, (each) => each.toString(16).padStart(2, "0")).join("");

/** Bytes as UTF-8 text, or null if they are none. */
export function utf8(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    return null;
  }
}

/** A key or another short value in bytes: as text where it is text, else in hex. */
export function shown(text) {
  if (text === null || text === undefined) return "–";
  const data = toBytes(text);
  return utf8(data) ?? `0x${hex(data)}`;
}
