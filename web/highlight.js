// Colours code, coarsely and alike for all languages: comments, strings, numbers, keywords. Works
// by lines, so that a text that grows is coloured as it comes.

import { h } from "./dom.js";

const WORDS = new Set(
  (
    "abstract and as assert async await auto bool boolean break byte case catch char class const constexpr continue def default defer del delete do double elif else " +
    "end enum except export extends extern false False final finally float fn for foreach from func function go goto if impl implements import in include inline int " +
    "interface is lambda let long loop match mod module move mut namespace new nil None not null nullptr operator or override package pass private proc protected pub " +
    "public raise ref require return select self short signed sizeof static struct super switch template then this throw throws trait true True try type typedef " +
    "typename typeof union unsigned until unsafe use using val var virtual void volatile when where while with yield SELECT FROM WHERE INSERT INTO UPDATE DELETE CREATE " +
    "TABLE JOIN LEFT INNER ON GROUP BY ORDER LIMIT AND OR NOT NULL VALUES SET fi done esac echo local"
  ).split(" "),
);
const HASH = new Set(
  "bash sh shell zsh python py ruby rb perl yaml yml toml ini conf make makefile dockerfile r elixir nix".split(
    " ",
  ),
);
const DASH = new Set("sql lua haskell hs ada".split(" "));
const PLAIN = new Set(["", "text", "txt", "plain", "markdown", "md", "output", "log"]);
const LENGTH_MAX = 60000; // characters that are coloured
const LINE_MAX = 2000; // a longer line is not

// How texts that may go on over lines begin and end.
const BLOCKS = new Map([
  ["/*", "*/"],
  ["<!--", "-->"],
  ['"""', '"""'],
  ["`", "`"],
]);
const TOKEN = // the beginnings of BLOCKS, of comments and strings, numbers, words
  /\/\*|<!--|\/\/|--|#|"""|["'`]|\b(?:0x[\da-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b|[A-Za-z_$][\w$]*/g;

// Writes code into an element. set() may be called again with a text that has grown: lines that are
// complete stay.
export class Highlighter {
  constructor(element, language) {
    const name = language.toLowerCase();
    this.element = element;
    this.plain = PLAIN.has(name);
    this.comment = HASH.has(name) ? "#" : DASH.has(name) ? "--" : "//";
    this.reset();
  }

  reset() {
    this.done = ""; // the text of the complete lines
    this.kept = 0; // nodes for it
    this.end = null; // what ends the text that goes on over lines here, or null
  }

  set(text) {
    const { element } = this;
    if (!text.startsWith(this.done)) this.reset();
    while (element.childNodes.length > this.kept) element.lastChild.remove();
    const complete = text.lastIndexOf("\n") + 1;
    let at = this.done.length;
    while (at < complete) {
      const next = text.indexOf("\n", at) + 1;
      this.end = this.line(text.slice(at, next), at);
      at = next;
    }
    this.done = text.slice(0, complete);
    this.kept = element.childNodes.length;
    if (at < text.length) this.line(text.slice(at), at);
  }

  // Appends a line, which begins at @from, and returns what ends the text that it leaves open.
  line(line, from) {
    if (this.plain || from > LENGTH_MAX || line.length > LINE_MAX) {
      this.element.append(line);
      return this.end;
    }
    let { end } = this;
    let at = 0; // appended so far
    const colour = (kind, begin, stop) => {
      if (begin > at) this.element.append(line.slice(at, begin));
      const text = line.slice(begin, stop);
      if (text) this.element.append(h("span", { class: `hl-${kind}` }, text));
      at = stop;
    };
    if (end) {
      const stop = endOf(line, 0, end);
      colour(kindOf(end), 0, stop < 0 ? line.length : stop);
      if (stop < 0) return end;
      end = null;
    }
    const regex = new RegExp(TOKEN);
    const unclosed = new Set(); // quotes without an end on this line
    regex.lastIndex = at;
    for (let m; (m = regex.exec(line)); ) {
      const t = m[0];
      const after = m.index + t.length;
      let kind = "";
      let stop = after;
      if (t === this.comment) {
        kind = "c";
        stop = line.length - (line.endsWith("\n") ? 1 : 0);
      } else if (BLOCKS.has(t) && (this.comment === "//" || t === '"""')) {
        const block = BLOCKS.get(t);
        stop = endOf(line, after, block);
        if (stop < 0) end = block;
        if (stop < 0) stop = line.length;
        kind = kindOf(block);
      } else if (t === '"' || t === "'") {
        stop = unclosed.has(t) ? -1 : endOf(line, after, t);
        if (stop < 0) unclosed.add(t);
        else kind = "s";
      } else if (/^\d/.test(t)) {
        kind = "n";
      } else if (/^[A-Za-z_$]/.test(t)) {
        kind = WORDS.has(t) ? "k" : line[after] === "(" ? "f" : "";
      }
      if (kind) colour(kind, m.index, stop);
      regex.lastIndex = kind ? stop : after;
    }
    if (at < line.length) this.element.append(line.slice(at));
    return end;
  }
}

function kindOf(end) {
  return end === "*/" || end === "-->" ? "c" : "s";
}

// Returns the place behind @end in @line, from @from on, or -1. In strings a backslash hides what
// follows it.
function endOf(line, from, end) {
  if (end.length > 1) {
    const found = line.indexOf(end, from);
    return found < 0 ? -1 : found + end.length;
  }
  for (let i = from; i < line.length; i++) {
    if (line[i] === "\\") i++;
    else if (line[i] === end) return i + 1;
  }
  return -1;
}
