// Reads the objects of a PDF: numbers, names, strings, lists, dictionaries and streams. The file is
// scanned from its begin to its end, without its table of references, so that damaged files are read
// as far as they go. Each byte is looked at a bounded number of times, and what streams unpack to has
// a limit.

export const PDF_MAX = 32 << 20; // bytes of a file
const UNPACKED_MAX = 64 << 20; // bytes of all streams together
const READ_COST = 1000; // bytes that reading any stream counts as, at least
const DEPTH_MAX = 64; // of lists and dictionaries in each other

export class Name {
  constructor(text) {
    this.text = text;
  }
}

export class Ref {
  constructor(number) {
    this.number = number;
  }
}

// A word that is none of these values: an operator, "obj", "true".
export class Word {
  constructor(text) {
    this.text = text;
  }
}

export const END = new Word("");

const SPACE = new Set([0, 9, 10, 12, 13, 32]);
const DELIMITER = new Set([..."()<>[]{}/%"].map((c) => c.charCodeAt(0)));
const TOO_MUCH = "it unpacks to too much. Attach the pages that matter";
const ESCAPES = { n: "\n", r: "\r", t: "\t", b: "\b", f: "\f" };

function isDigit(c) {
  return c >= 48 && c <= 57;
}

// Splits the string @text, whose characters are bytes, into values.
export class Lexer {
  constructor(text, at = 0) {
    this.text = text;
    this.at = at;
  }

  skipSpace() {
    const { text } = this;
    for (; this.at < text.length; this.at++) {
      const c = text.charCodeAt(this.at);
      if (c === 37) {
        while (this.at < text.length && !"\r\n".includes(text[this.at])) this.at++;
        this.at--;
      } else if (!SPACE.has(c)) break;
    }
  }

  // Returns the regular characters from here on.
  regular() {
    const begin = this.at;
    for (; this.at < this.text.length; this.at++) {
      const c = this.text.charCodeAt(this.at);
      if (SPACE.has(c) || DELIMITER.has(c)) break;
    }
    return this.text.slice(begin, this.at);
  }

  // Returns the next value; a Word where it is none, END at the end. "1 0 R" is read by value().
  token(depth = 0) {
    this.skipSpace();
    const { text } = this;
    if (this.at >= text.length) return END;
    const c = text[this.at];
    if (c === "/") {
      this.at++;
      return new Name(hexInName(this.regular()));
    }
    if (c === "(") return this.literal();
    if (c === "<") {
      if (text[this.at + 1] !== "<") return this.hex();
      this.at += 2;
      return this.dictionary(depth);
    }
    if (c === "[") {
      this.at++;
      return this.list(depth);
    }
    if (DELIMITER.has(text.charCodeAt(this.at))) {
      const two = text.startsWith(">>", this.at);
      this.at += two ? 2 : 1;
      return new Word(two ? ">>" : c);
    }
    const word = this.regular();
    if (isDigit(word.charCodeAt(0)) || "+-.".includes(word[0])) {
      const n = Number(word.slice(0, 40));
      return Number.isFinite(n) ? n : 0;
    }
    return new Word(word);
  }

  // Returns the next value, where a number may begin a reference.
  value(depth = 0) {
    const first = this.token(depth);
    if (!Number.isInteger(first) || first < 0) return first;
    const after = this.at;
    this.skipSpace();
    if (isDigit(this.text.charCodeAt(this.at))) {
      const second = this.token();
      this.skipSpace();
      if (Number.isInteger(second) && this.text[this.at] === "R") {
        const word = this.regular();
        if (word === "R") return new Ref(first);
      }
    }
    this.at = after;
    return first;
  }

  list(depth) {
    const values = [];
    while (depth < DEPTH_MAX) {
      const v = this.value(depth + 1);
      if (v === END || (v instanceof Word && v.text === "]")) break;
      values.push(v);
    }
    return values;
  }

  dictionary(depth) {
    const map = new Map();
    while (depth < DEPTH_MAX) {
      const key = this.token(depth + 1);
      if (key === END || (key instanceof Word && key.text === ">>")) break;
      if (!(key instanceof Name)) continue;
      const v = this.value(depth + 1);
      if (v === END || (v instanceof Word && v.text === ">>")) break;
      map.set(key.text, v);
    }
    return map;
  }

  literal() {
    const parts = [];
    let depth = 1;
    for (this.at++; this.at < this.text.length; this.at++) {
      let c = this.text[this.at];
      if (c === "\\") {
        parts.push(this.escape());
        continue;
      }
      if (c === "(") depth++;
      else if (c === ")" && --depth === 0) break;
      if (c === "\r") {
        c = "\n";
        if (this.text[this.at + 1] === "\n") this.at++;
      }
      parts.push(c);
    }
    this.at++;
    return parts.join("");
  }

  // Returns what the escape at @at stands for; @at is then its last character.
  escape() {
    const c = this.text[++this.at] ?? "";
    if (c >= "0" && c <= "7") {
      let n = Number(c);
      for (let i = 0; i < 2 && /^[0-7]$/.test(this.text[this.at + 1] ?? ""); i++)
        n = 8 * n + Number(this.text[++this.at]);
      return String.fromCharCode(n & 255);
    }
    if (c === "\r" && this.text[this.at + 1] === "\n") this.at++;
    return c === "\r" || c === "\n" ? "" : (ESCAPES[c] ?? c);
  }

  hex() {
    const end = this.text.indexOf(">", this.at);
    const digits = this.text.slice(this.at + 1, end < 0 ? this.text.length : end);
    this.at = end < 0 ? this.text.length : end + 1;
    return fromHex(digits);
  }
}

function hexInName(text) {
  return text.replace(/#([0-9a-f]{2})/gi, (_, hex) => String.fromCharCode(parseInt(hex, 16)));
}

function fromHex(text) {
  const digits = text.replace(/[^0-9a-f]/gi, "");
  const bytes = [];
  for (let i = 0; i < digits.length; i += 2)
    bytes.push(String.fromCharCode(parseInt(digits.slice(i, i + 2).padEnd(2, "0"), 16)));
  return bytes.join("");
}

// Returns @bytes as a string with one character for each.
export function binary(bytes) {
  const parts = [];
  for (let at = 0; at < bytes.length; at += 8192)
    parts.push(String.fromCharCode(...bytes.subarray(at, at + 8192)));
  return parts.join("");
}

function toBytes(text) {
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// Unpacks @bytes (zlib) to at most @max bytes. A stream that is cut or damaged gives what comes before.
async function inflate(bytes, max) {
  const stream = new DecompressionStream("deflate");
  const writer = stream.writable.getWriter();
  writer.write(bytes).catch(() => {});
  writer.close().catch(() => {});
  const reader = stream.readable.getReader();
  const parts = [];
  let size = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      size += value.length;
      if (size > max) break;
      parts.push(binary(value));
    }
  } catch {
    // The rest is damaged.
  }
  if (size > max) {
    reader.cancel().catch(() => {});
    throw new Error(TOO_MUCH);
  }
  return parts.join("");
}

function ascii85(text) {
  const out = [];
  let group = [];
  const flush = (n) => {
    let v = 0;
    for (let i = 0; i < 5; i++) v = v * 85 + (group[i] ?? 84);
    for (let i = 0; i < n; i++) out.push(String.fromCharCode(Math.floor(v / 256 ** (3 - i)) & 255));
    group = [];
  };
  for (const c of text) {
    if (c === "~") break;
    if (c === "z" && !group.length) out.push("\0\0\0\0");
    if (c < "!" || c > "u") continue;
    group.push(c.charCodeAt(0) - 33);
    if (group.length === 5) flush(4);
  }
  if (group.length > 1) flush(group.length - 1);
  return out.join("");
}

// The objects of a file. read() first.
export class Pdf {
  objects = new Map(); // number: {value, begin?, end?} where a stream stands in the file
  root = null;
  encrypted = false;
  unpacked = 0;

  constructor(bytes) {
    this.bytes = bytes;
    this.text = binary(bytes);
  }

  async read() {
    this.scan();
    const packed = [...this.objects.values()].filter((o) => this.kind(o.value) === "ObjStm");
    if (!this.encrypted) for (const o of packed) await this.unpack(o);
    return this;
  }

  kind(value) {
    const type = value instanceof Map ? value.get("Type") : null;
    return type instanceof Name ? type.text : "";
  }

  // Takes over what the trailer @map says.
  trailer(map) {
    if (map.has("Encrypt")) this.encrypted = true;
    this.root = map.get("Root") ?? this.root;
  }

  scan() {
    const { text } = this;
    let noEnd = false;
    for (let at = text.indexOf("obj"); at >= 0; at = text.indexOf("obj", at)) {
      const number = this.numberBefore(at);
      at += 3;
      if (number === null) continue;
      const lexer = new Lexer(text, at);
      const object = { value: lexer.value() };
      this.objects.set(number, object);
      at = Math.max(at, lexer.at);
      lexer.skipSpace();
      if (!(object.value instanceof Map) || !text.startsWith("stream", lexer.at)) continue;
      at = lexer.at + 6;
      if (text[at] === "\r") at++;
      if (text[at] === "\n") at++;
      const length = object.value.get("Length");
      let end = Number.isInteger(length) ? at + length : -1;
      if (end < 0 || !/^\s{0,2}endstream/.test(text.slice(end, end + 11)))
        end = noEnd ? -1 : text.indexOf("endstream", at);
      noEnd = end < 0;
      object.begin = at;
      object.end = at = noEnd ? text.length : end;
      if (this.kind(object.value) === "XRef") this.trailer(object.value);
    }
    for (let at = text.indexOf("trailer"); at >= 0; at = text.indexOf("trailer", at)) {
      const lexer = new Lexer(text, at + 7);
      const value = lexer.value();
      if (value instanceof Map) this.trailer(value);
      at = lexer.at;
    }
  }

  // Returns the number of the object whose "obj" stands at @at; null: it is none.
  numberBefore(at) {
    const m = /(?:^|[^0-9])([0-9]{1,9})\s{1,3}[0-9]{1,5}\s{0,3}$/.exec(this.text.slice(Math.max(0, at - 24), at));
    return m ? Number(m[1]) : null;
  }

  // Takes the objects out of the stream @o.
  async unpack(o) {
    const text = await this.content(o);
    const n = Math.min(Number(this.get(o.value.get("N"))) || 0, text.length);
    const first = Number(this.get(o.value.get("First"))) || 0;
    const heads = new Lexer(text.slice(0, first));
    for (let i = 0; i < n; i++) {
      const number = heads.token();
      const at = heads.token();
      if (!Number.isInteger(number) || !Number.isInteger(at)) break;
      const end = new Lexer(text, first + at);
      this.objects.set(number, { value: end.value() });
    }
  }

  // Returns the object that @value refers to; @value itself if it is no reference.
  object(value) {
    let o = { value };
    for (let i = 0; o?.value instanceof Ref && i < 16; i++) o = this.objects.get(o.value.number);
    return o ?? { value: null };
  }

  get(value) {
    return this.object(value).value;
  }

  // Returns the member @key of the dictionary @map, or null.
  member(map, key) {
    return map instanceof Map ? (this.get(map.get(key)) ?? null) : null;
  }

  // Returns the unpacked content of the stream @o (an object); "" if it is none or is packed in a way
  // that holds no text (pictures).
  async content(o) {
    if (o?.begin === undefined) return "";
    const filter = this.member(o.value, "Filter");
    const filters = (Array.isArray(filter) ? filter : [filter]).map((f) => this.get(f));
    let text = null;
    for (const f of filters.filter((x) => x instanceof Name).slice(0, 4)) {
      if (f.text === "FlateDecode" || f.text === "Fl") {
        const from = text === null ? this.bytes.subarray(o.begin, o.end) : toBytes(text);
        text = await inflate(from, UNPACKED_MAX - this.unpacked);
      } else if (f.text === "ASCII85Decode" || f.text === "A85") {
        text = ascii85((text ?? this.text.slice(o.begin, o.end)).replace(/^<~/, ""));
      } else if (f.text === "ASCIIHexDecode" || f.text === "AHx") {
        text = fromHex(text ?? this.text.slice(o.begin, o.end));
      } else return "";
    }
    text ??= this.text.slice(o.begin, o.end);
    this.unpacked += Math.max(text.length, READ_COST);
    if (this.unpacked > UNPACKED_MAX) throw new Error(TOO_MUCH);
    return text;
  }
}
