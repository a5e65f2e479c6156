// Reads Avro as far as showing a message needs: one value by a schema that was pasted, or a container file, which carries its own.
// Bounded: what a hostile payload says of lengths is believed only as far as there are bytes; all that comes of one payload – values,
// the names of fields, what is inflated – is paid for out of one budget, however many blocks it has.

import { hex, utf8 } from "./format.js";

const MAGIC = [0x4f, 0x62, 0x6a, 0x01]; // Obj, 1
const BUDGET = 4 << 20; // about the characters that are shown of one payload at most
const VALUE = 40; // what a value costs beside its bytes
const DEEPEST = 64;

export const isContainer = (data) => MAGIC.every((each, at) => data[at] === each);

class TooMuch extends Error {}

class Budget {
  left = BUDGET;

  pay(cost) {
    this.left -= cost;
    if (this.left < 0) throw new TooMuch("it is more than is shown");
  }
}

class Input {
  constructor(data, budget = new Budget()) {
    this.data = data;
    this.at = 0;
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.budget = budget;
  }

  take(size) {
    if (!(size >= 0) || size > this.data.length - this.at) throw new Error("the bytes end within a value");
    this.at += size;
    return this.data.subarray(this.at - size, this.at);
  }

  /** A long; one that a number cannot hold is text. */
  long() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const [byte] = this.take(1);
      value |= BigInt(byte & 0x7f) << shift;
      if (!(byte & 0x80)) {
        value = BigInt.asIntN(64, (value >> 1n) ^ -(value & 1n));
        return value >= -(2n ** 53n) && value <= 2n ** 53n ? Number(value) : value.toString();
      }
    }
    throw new Error("a number has no end");
  }

  size() {
    const size = this.long();
    if (typeof size !== "number" || size < 0) throw new Error("a length is below 0");
    return size;
  }

  text() {
    const data = this.take(this.size());
    return utf8(data) ?? `0x${hex(data)}`;
  }
}

/** The value, as JSON would have it; bytes as text where they are UTF-8, else in hex. Throws Error. */
export function decodeValue(data, schema) {
  const input = new Input(data);
  const value = read(input, schema, new Map(), 0);
  if (input.at !== data.length) throw new Error(`${data.length - input.at} bytes are left behind the value: it is of another schema`);
  return value;
}

/** All values of a container file. */
export async function decodeContainer(data) {
  const input = new Input(data);
  input.take(MAGIC.length);
  const meta = read(input, { type: "map", values: "bytes" }, new Map(), 0);
  const mark = hex(input.take(16));
  const schema = JSON.parse(meta["avro.schema"]);
  const codec = meta["avro.codec"] ?? "null";
  if (codec !== "null" && codec !== "deflate") throw new Error(`the codec ${codec} is not read here`);
  const values = [];
  while (input.at < data.length) {
    const count = input.size();
    const packed = input.take(input.size());
    const block = new Input(codec === "null" ? packed : await inflated(packed, input.budget), input.budget);
    for (let n = 0; n < count; n++) values.push(read(block, schema, new Map(), 0));
    if (hex(input.take(16)) !== mark) throw new Error("a block does not end in the file's mark");
  }
  return { schema, values };
}

/** Some writers (fastavro) leave of zlib's checksum behind a block all but its last byte. */
async function inflated(data, budget) {
  const before = budget.left;
  for (const behind of [0, 3, 4]) {
    budget.left = before;
    try {
      return await inflatedAll(data.subarray(0, data.length - behind), budget);
    } catch (failure) {
      if (failure instanceof TooMuch) throw failure;
    }
  }
  throw new Error("a block cannot be inflated");
}

async function inflatedAll(data, budget) {
  const reader = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts = [];
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      budget.pay(part.value.length);
      parts.push(part.value);
    }
  } catch (failure) {
    reader.cancel().catch(() => {});
    throw failure;
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

function read(input, schema, names, depth) {
  input.budget.pay(VALUE);
  if (depth > DEEPEST) throw new Error("it is nested too deeply");
  if (Array.isArray(schema)) {
    const branch = schema[input.size()];
    if (branch === undefined) throw new Error("it names a branch that the union does not have");
    return read(input, branch, names, depth + 1);
  }
  if (typeof schema === "string") return names.has(schema) ? read(input, names.get(schema), names, depth + 1) : simple(input, schema);
  if (schema === null || typeof schema !== "object") throw new Error("that is no schema");
  if (schema.name) names.set(schema.name, schema);
  if (schema.name && schema.namespace) names.set(`${schema.namespace}.${schema.name}`, schema);
  switch (schema.type) {
    case "record":
      return Object.fromEntries(schema.fields.map((each) => {
        input.budget.pay(String(each.name).length); // it stands there once, and is shown with each record
        return [each.name, read(input, each.type, names, depth + 1)];
      }));
    case "enum": {
      const symbol = schema.symbols[input.size()];
      if (symbol === undefined) throw new Error("it names a symbol that the enum does not have");
      input.budget.pay(String(symbol).length);
      return symbol;
    }
    case "fixed":
      return `0x${hex(input.take(schema.size))}`;
    case "array":
      return [...blocks(input, () => read(input, schema.items, names, depth + 1))];
    case "map":
      return Object.fromEntries(blocks(input, () => [input.text(), read(input, schema.values, names, depth + 1)]));
    default:
      return read(input, schema.type, names, depth + 1);
  }
}

function* blocks(input, item) {
  for (;;) {
    let count = input.long();
    if (count === 0) return;
    if (typeof count !== "number") throw new Error("a length is too large");
    if (count < 0) {
      count = -count;
      input.size();
    }
    for (let n = 0; n < count; n++) yield item();
  }
}

function simple(input, type) {
  switch (type) {
    case "null": return null;
    case "boolean": return input.take(1)[0] !== 0;
    case "int":
    case "long": return input.long();
    case "float": return input.view.getFloat32(input.take(4).byteOffset - input.data.byteOffset, true);
    case "double": return input.view.getFloat64(input.take(8).byteOffset - input.data.byteOffset, true);
    case "bytes":
    case "string": return input.text();
    default: throw new Error(`the schema names ${type}, which it does not define`);
  }
}
