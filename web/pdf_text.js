// Takes the text out of a PDF: what its pages show with fonts, in the order in which they show it.
// Pictures of text (scans) hold none.

import { END, Lexer, Name, Pdf, Word } from "./pdf.js";

const PAGES_MAX = 5000;
const TEXT_MAX = 16 << 20; // characters of output
const FORMS_MAX = 8; // forms in forms
const SHOWN_MAX = 4000; // forms that are drawn, in all
const CODES_MAX = 70000; // of a font, counted as often as its tables name them
const NODES_MAX = 200000; // of the tree of pages
const UNKNOWN = "\ufffd";

// ---- fonts ----

const ACCENTS = {
  grave: "\u0300", acute: "\u0301", circumflex: "\u0302", tilde: "\u0303", dieresis: "\u0308", ring: "\u030a",
  caron: "\u030c", cedilla: "\u0327", macron: "\u0304", breve: "\u0306", ogonek: "\u0328", dotaccent: "\u0307",
  hungarumlaut: "\u030b",
};
const GLYPHS = new Map(
  (
    "space  |exclam !|quotedbl \"|numbersign #|dollar $|percent %|ampersand &|quotesingle '|quoteright ’|quoteleft ‘|" +
    "parenleft (|parenright )|asterisk *|plus +|comma ,|hyphen -|minus −|period .|slash /|zero 0|one 1|two 2|three 3|" +
    "four 4|five 5|six 6|seven 7|eight 8|nine 9|colon :|semicolon ;|less <|equal =|greater >|question ?|at @|" +
    "bracketleft [|backslash \\|bracketright ]|asciicircum ^|underscore _|grave `|braceleft {|braceright }|" +
    "asciitilde ~|quotedblleft “|quotedblright ”|quotedblbase „|quotesinglbase ‚|endash –|emdash —|bullet •|" +
    "ellipsis …|fi fi|fl fl|ff ff|ffi ffi|ffl ffl|germandbls ß|ae æ|AE Æ|oe œ|OE Œ|oslash ø|Oslash Ø|aring å|" +
    "Aring Å|dotlessi ı|eth ð|thorn þ|section §|paragraph ¶|degree °|plusminus ±|multiply ×|divide ÷|mu µ|Euro €|" +
    "sterling £|yen ¥|cent ¢|copyright ©|registered ®|trademark ™|guillemotleft «|guillemotright »|" +
    "guilsinglleft ‹|guilsinglright ›|dagger †|daggerdbl ‡|periodcentered ·|alpha α|beta β|gamma γ|delta δ|" +
    "epsilon ε|lambda λ|pi π|sigma σ|theta θ|omega ω|phi φ|infinity ∞|summation ∑|integral ∫|radical √|" +
    "partialdiff ∂|lessequal ≤|greaterequal ≥|notequal ≠|approxequal ≈|arrowright →|arrowleft ←|element ∈|nbspace  "
  )
    .split("|")
    .map((pair) => [pair.slice(0, pair.indexOf(" ")), pair.slice(pair.indexOf(" ") + 1)]),
);

// Returns the text of the glyph called @name; U+FFFD if its name does not tell.
export function glyphText(name) {
  const plain = name.slice(0, 40).split(".")[0];
  if (GLYPHS.has(plain)) return GLYPHS.get(plain);
  if (/^[A-Za-z]$/.test(plain)) return plain;
  const hex = /^(?:uni|u)([0-9A-F]{4,6})$/.exec(plain);
  if (hex && parseInt(hex[1], 16) < 0x110000) return String.fromCodePoint(parseInt(hex[1], 16));
  const accent = /^[A-Za-z][a-z]{3,}$/.test(plain) && ACCENTS[plain.slice(1)];
  return accent ? (plain[0] + accent).normalize("NFC") : UNKNOWN;
}

const WINDOWS = "€\ufffd‚ƒ„…†‡ˆ‰Š‹Œ\ufffdŽ\ufffd\ufffd‘’“”•–—˜™š›œ\ufffdžŸ"; // of windows-1252, from 128 on

function utf16(text) {
  let out = "";
  for (let i = 0; i + 1 < text.length; i += 2)
    out += String.fromCharCode((text.charCodeAt(i) << 8) | text.charCodeAt(i + 1));
  return out;
}

function codeOf(text) {
  let n = 0;
  for (const c of text.slice(0, 4)) n = n * 256 + c.charCodeAt(0);
  return n;
}

// Reads a table of codes to text (a ToUnicode CMap): {map, bytes of a code}.
export function readMap(text) {
  const lexer = new Lexer(text);
  const map = new Map();
  const budget = { left: CODES_MAX };
  let bytes = 0;
  let values = [];
  for (let v = lexer.token(); v !== END; v = lexer.token()) {
    if (!(v instanceof Word)) {
      values.push(v);
      continue;
    }
    if (v.text === "endcodespacerange" && typeof values[0] === "string")
      bytes = Math.max(bytes, values[0].length);
    if (v.text === "endbfchar")
      for (let i = 0; i + 1 < values.length; i += 2)
        if (typeof values[i + 1] === "string") map.set(codeOf(String(values[i])), utf16(values[i + 1]));
    if (v.text === "endbfrange")
      for (let i = 0; i + 2 < values.length; i += 3) addRange(map, budget, ...values.slice(i, i + 3));
    values = [];
  }
  return { map, bytes: Math.min(bytes || 1, 4) };
}

function addRange(map, budget, low, high, to) {
  const [first, last] = [codeOf(String(low)), codeOf(String(high))];
  for (let code = first; code <= last && budget.left-- > 0; code++) {
    const i = code - first;
    if (Array.isArray(to)) {
      if (typeof to[i] === "string") map.set(code, utf16(to[i]));
    } else if (typeof to === "string" && to.length >= 2) {
      const text = utf16(to);
      map.set(code, text.slice(0, -1) + String.fromCharCode(text.charCodeAt(text.length - 1) + i));
    }
  }
}

// Returns the texts of the 256 codes of a font of one byte.
function simpleCodes(pdf, font) {
  const encoding = pdf.member(font, "Encoding");
  const base = encoding instanceof Name ? encoding : pdf.member(encoding, "BaseEncoding");
  const mac = base instanceof Name && base.text === "MacRomanEncoding";
  const decoder = new TextDecoder("macintosh");
  const texts = [...Array(256).keys()].map((c) =>
    c < 32
      ? UNKNOWN
      : mac
        ? decoder.decode(Uint8Array.of(c))
        : c >= 128 && c < 160
          ? WINDOWS[c - 128]
          : String.fromCharCode(c),
  );
  let code = 0;
  const differences = pdf.member(encoding, "Differences");
  for (const v of Array.isArray(differences) ? differences : []) {
    if (typeof v === "number") code = v;
    else if (v instanceof Name && code >= 0 && code < 256) texts[code++] = glyphText(v.text);
  }
  return texts;
}

// Returns the widths of the codes of @font in thousandths of its size: (code) => number.
function widthsOf(pdf, font, wide) {
  const widths = new Map();
  if (!wide) {
    const first = Number(pdf.member(font, "FirstChar")) || 0;
    const list = pdf.member(font, "Widths");
    if (Array.isArray(list)) list.forEach((w, i) => widths.set(first + i, Number(pdf.get(w))));
    return (code) => widths.get(code) || 500;
  }
  const below = pdf.member(font, "DescendantFonts");
  const inner = pdf.get(Array.isArray(below) ? below[0] : null);
  const usual = Number(pdf.member(inner, "DW") ?? 1000);
  const list = pdf.member(inner, "W");
  let left = CODES_MAX;
  for (let i = 0; Array.isArray(list) && i + 1 < list.length; ) {
    const [from, next] = [Number(pdf.get(list[i])), pdf.get(list[i + 1])];
    if (Array.isArray(next)) {
      next.forEach((w, k) => widths.set(from + k, Number(pdf.get(w))));
      i += 2;
    } else {
      for (let c = from; c <= next && left-- > 0; c++)
        widths.set(c, Number(pdf.get(list[i + 2])));
      i += 3;
    }
  }
  return (code) => widths.get(code) ?? usual;
}

// Builds what is needed of a font: {decode(string): [{text, width, space}]}.
async function fontOf(pdf, value) {
  const font = pdf.get(value);
  const subtype = pdf.member(font, "Subtype");
  const wide = subtype instanceof Name && subtype.text === "Type0";
  const unicode = font instanceof Map ? await pdf.content(pdf.object(font.get("ToUnicode"))) : "";
  const { map, bytes } = readMap(unicode);
  const texts = wide ? null : simpleCodes(pdf, font);
  const width = widthsOf(pdf, font, wide);
  const step = wide ? (map.size ? Math.max(bytes, 1) : 2) : 1;
  return (string) => {
    const glyphs = [];
    for (let i = 0; i < string.length; i += step) {
      const code = codeOf(string.slice(i, i + step));
      glyphs.push({ text: map.get(code) ?? texts?.[code] ?? UNKNOWN, width: width(code), space: step === 1 && code === 32 });
    }
    return glyphs;
  };
}

// ---- pages ----

// Returns a times b, both [a b c d e f].
function product(a, b) {
  return [
    a[0] * b[0] + a[1] * b[2],
    a[0] * b[1] + a[1] * b[3],
    a[2] * b[0] + a[3] * b[2],
    a[2] * b[1] + a[3] * b[3],
    a[4] * b[0] + a[5] * b[2] + b[4],
    a[4] * b[1] + a[5] * b[3] + b[5],
  ];
}

const UNIT = [1, 0, 0, 1, 0, 0];

// Writes text as it is shown, with spaces and lines by its place on the page.
class Output {
  parts = [];
  size = 0;
  unknown = 0;
  known = 0;
  last = null; // {x, y}: the end of what was shown last

  // Adds @text, which is shown from the matrix @m on and ends at @end; @height: of its font.
  add(text, m, end, height) {
    const scale = Math.hypot(m[0], m[1]) || 1;
    if (this.last && this.size) {
      const [dx, dy] = [m[4] - this.last.x, m[5] - this.last.y];
      const along = (dx * m[0] + dy * m[1]) / scale;
      const across = Math.abs(dy * m[0] - dx * m[1]) / scale;
      if (across > 1.7 * height) this.put("\n\n");
      else if (across > 0.5 * height || along < -2 * height) this.put("\n");
      else if (along > 0.17 * height) this.put(" ");
    }
    this.put(text);
    this.last = { x: end[4], y: end[5] };
  }

  put(text) {
    const before = this.parts.at(-1)?.at(-1) ?? "\n";
    if (!text || (text === " " && (before === " " || before === "\n"))) return;
    this.parts.push(text);
    this.size += text.length;
    for (const c of text) {
      if (c === UNKNOWN) this.unknown++;
      else if (c > " ") this.known++;
    }
  }
}

class Page {
  constructor(pdf, output) {
    this.pdf = pdf;
    this.output = output;
    this.fonts = new Map();
    this.forms = 0;
  }

  async font(resources, name) {
    const value = this.pdf.member(resources, "Font")?.get?.(name);
    const key = value?.number ?? value ?? null;
    if (!this.fonts.has(key)) this.fonts.set(key, await fontOf(this.pdf, value));
    return this.fonts.get(key);
  }

  // Shows what the content @text draws, with the matrix @ctm.
  async run(text, resources, ctm, depth) {
    const lexer = new Lexer(text);
    const state = { ctm, font: null, size: 1, leading: 0, spacing: 0, words: 0, stretch: 1, rise: 0 };
    const job = { state, saved: [], tm: UNIT, line: UNIT, resources, depth };
    let values = [];
    for (let v = lexer.token(); v !== END && this.output.size < TEXT_MAX; v = lexer.token()) {
      if (v instanceof Word) {
        if (v.text === "ID") skipPicture(lexer);
        else await this.operator(job, v.text, values);
        values = [];
      } else if (values.length < 64) values.push(v);
    }
  }

  async operator(job, name, values) {
    const s = job.state;
    const n = (i) => (typeof values[i] === "number" ? values[i] : 0);
    if (name === "q" && job.saved.length < 256) job.saved.push({ ...s });
    else if (name === "Q") job.state = job.saved.pop() ?? s;
    else if (name === "cm") s.ctm = product([0, 1, 2, 3, 4, 5].map(n), s.ctm);
    else if (name === "BT") job.tm = job.line = UNIT;
    else if (name === "Tf") {
      s.font = values[0] instanceof Name ? await this.font(job.resources, values[0].text) : null;
      s.size = n(1);
    } else if (name === "TL") s.leading = n(0);
    else if (name === "Tc") s.spacing = n(0);
    else if (name === "Tw") s.words = n(0);
    else if (name === "Tz") s.stretch = n(0) / 100;
    else if (name === "Tm") job.tm = job.line = [0, 1, 2, 3, 4, 5].map(n);
    else if (name === "Td" || name === "TD") {
      if (name === "TD") s.leading = -n(1);
      this.move(job, n(0), n(1));
    } else if (name === "T*") this.move(job, 0, -s.leading);
    else if (name === "Tj") this.show(job, values[0]);
    else if (name === "'" || name === '"') {
      this.move(job, 0, -s.leading);
      this.show(job, values.at(-1));
    } else if (name === "TJ" && Array.isArray(values[0])) for (const v of values[0]) this.show(job, v);
    else if (name === "Do" && values[0] instanceof Name) await this.form(job, values[0].text);
  }

  move(job, x, y) {
    job.tm = job.line = product([1, 0, 0, 1, x, y], job.line);
  }

  // Shows a string, or moves by a number of thousandths.
  show(job, v) {
    const s = job.state;
    const advance = (x) => (job.tm = product([1, 0, 0, 1, x * s.stretch, 0], job.tm));
    if (typeof v === "number") advance((-v / 1000) * s.size);
    if (typeof v !== "string" || !s.font) return;
    let text = "";
    let x = 0;
    for (const g of s.font(v)) {
      text += g.text;
      x += (g.width / 1000) * s.size + s.spacing + (g.space ? s.words : 0);
    }
    const from = product(job.tm, s.ctm);
    advance(x);
    const height = Math.abs(s.size) * Math.hypot(from[2], from[3]);
    this.output.add(text, from, product(job.tm, s.ctm), height);
  }

  async form(job, name) {
    const { pdf } = this;
    const o = pdf.object(pdf.member(job.resources, "XObject")?.get?.(name));
    const subtype = pdf.member(o.value, "Subtype");
    if (!(subtype instanceof Name) || subtype.text !== "Form") return;
    if (job.depth >= FORMS_MAX || this.forms++ >= SHOWN_MAX) return;
    const matrix = pdf.member(o.value, "Matrix");
    const m = Array.isArray(matrix) && matrix.length === 6 ? matrix.map(Number) : UNIT;
    const own = pdf.member(o.value, "Resources") ?? job.resources;
    await this.run(await pdf.content(o), own, product(m, job.state.ctm), job.depth + 1);
  }
}

// Skips the bytes of a picture in a content: @lexer stands behind "ID".
function skipPicture(lexer) {
  const end = /[\s]EI(?=[\s]|$)/g;
  end.lastIndex = lexer.at;
  lexer.at = end.exec(lexer.text) ? end.lastIndex : lexer.text.length;
}

// Returns the pages in their order: [{page, resources}].
function pagesOf(pdf) {
  const root = pdf.get(pdf.root) ?? [...pdf.objects.values()].find((o) => pdf.kind(o.value) === "Catalog")?.value;
  const pages = [];
  const seen = new Set();
  let left = NODES_MAX;
  const stack = [{ node: pdf.member(root, "Pages"), resources: null }];
  while (stack.length && pages.length < PAGES_MAX) {
    const { node, resources } = stack.pop();
    if (!(node instanceof Map) || seen.has(node)) continue;
    seen.add(node);
    const own = pdf.member(node, "Resources") ?? resources;
    const kids = pdf.member(node, "Kids");
    if (Array.isArray(kids))
      for (let i = kids.length - 1; i >= 0 && left-- > 0; i--) stack.push({ node: pdf.get(kids[i]), resources: own });
    else pages.push({ page: node, resources: own });
  }
  if (pages.length) return pages;
  return [...pdf.objects.values()]
    .filter((o) => pdf.kind(o.value) === "Page")
    .slice(0, PAGES_MAX)
    .map((o) => ({ page: o.value, resources: pdf.member(o.value, "Resources") }));
}

// Returns {text, pages} of the PDF @bytes. Throws an Error that says why there is no text.
export async function pdfText(bytes) {
  const pdf = await new Pdf(bytes).read();
  if (pdf.encrypted) throw new Error("it is encrypted. Save it without a password first");
  const pages = pagesOf(pdf);
  const output = new Output();
  const reader = new Page(pdf, output);
  for (const { page, resources } of pages) {
    if (output.size) output.put("\n\n");
    output.last = null;
    const contents = pdf.member(page, "Contents");
    const streams = Array.isArray(contents) ? contents : [page.get("Contents")];
    const parts = [];
    for (const s of streams) parts.push(await pdf.content(pdf.object(s)));
    await reader.run(parts.join("\n"), resources, UNIT, 0);
  }
  if (!pages.length) throw new Error("no pages can be found in it: it may be damaged");
  if (!output.known && !output.unknown)
    throw new Error("it holds no text, only pictures: it may be a scan, which needs OCR first");
  if (output.unknown > output.known)
    throw new Error("its fonts do not say which characters they show. Attach its text: pdftotext FILE.pdf");
  return { text: output.parts.join("").trim() + "\n", pages: pages.length };
}
