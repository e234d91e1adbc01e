// Writes the text of a paragraph, with what its marks mean, into an element: code, emphasis, links,
// formulas, line breaks. Inline.set() may be called again with a text that has grown.

import { h } from "./dom.js";
import { FORMULA_MAX, formula } from "./math.js";

const DEPTH_MAX = 12;
const LOOK_MAX = 2000; // characters from a mark within which its end is looked for
const TOKEN_MAX = 4000; // characters of a token, and of a link's label and target together

const TOKEN = new RegExp(
  [
    "(?<math>\\\\[(\\[]|\\$\\$?)",
    "(?<escape>\\\\[!-/:-@\\[-`{-~])",
    "(?<ticks>`+)",
    "(?<bracket>!?\\[)",
    "(?<auto><(?:https?://|mailto:)[^\\s<>]{1,2000}>)",
    "(?<url>https?://[^\\s<>()\\[\\]]{1,2000}" +
      "(?:\\([^\\s<>()]{0,200}\\)[^\\s<>()\\[\\]]{0,200}){0,4})",
    "(?<mark>\\*{1,3}|_{1,3}|~~)",
    "(?<br>(?:(?<! ) {2,}|\\\\)\\n)",
  ].join("|"),
  "g",
);

const TAGS = {
  "*": ["em"],
  _: ["em"],
  "**": ["strong"],
  __: ["strong"],
  "***": ["strong", "em"],
  ___: ["strong", "em"],
  "~~": ["del"],
};

const MATH = { "\\(": "\\)", "\\[": "\\]", $: "$", $$: "$$" };

// Returns whether the dollar at @i may end a formula: not that of a price, nor one of two. A dollar that
// may not leaves the one before it as it is: in "$5 or $x$" only x is a formula.
function closesDollar(text, i) {
  return !/[\s\\$]/.test(text[i - 1] ?? " ") && !/[\d$]/.test(text[i + 1] ?? " ");
}

export class Inline {
  // @element gets the text behind the children that it has.
  constructor(element) {
    this.element = element;
    this.text = "";
    this.at = 0; // what is before it in the text cannot change while the text grows
    this.kept = this.first = element.childNodes.length; // children for the text before `at`
  }

  // Brings the element to @text, from the first place on that may have changed.
  set(text) {
    const { element } = this;
    if (!text.startsWith(this.text)) {
      this.at = 0;
      this.kept = this.first;
    }
    this.text = text;
    while (element.childNodes.length > this.kept) element.lastChild.remove();
    const { at, n } = write(element, text, this.at, settledEnd(text), 0, true);
    this.at = at;
    this.kept += n;
  }
}

// Returns where the last word of @text, with the space before it, begins: the text before that is
// shown alike however @text goes on, except for marks whose end may still come.
function settledEnd(text) {
  const word = text.slice(-2 * TOKEN_MAX).match(/(?<!\s)\s+\S*$/);
  return word ? text.length - word[0].length : Math.max(0, text.length - 2 * TOKEN_MAX);
}

// Appends @text from @from on to @element. Returns what stays when more text comes, which is within
// @edge: the length of that text (at), and how many of the nodes appended stand for it (n).
function write(element, text, from, edge, depth, links) {
  const ends = new Ends(text);
  const regex = new RegExp(TOKEN);
  let settled = null;
  let plain = "";
  let n = 0;
  const add = (node) => {
    if (plain) element.append(plain);
    n += plain ? 1 : 0;
    plain = "";
    if (node) {
      element.append(node);
      n++;
    }
  };
  const settle = (at) => {
    add(null);
    settled = { at, n };
  };
  for (let at = from; at < text.length; ) {
    regex.lastIndex = at;
    const m = regex.exec(text);
    const stop = m ? m.index : text.length;
    if (!settled && stop > edge) {
      const cut = Math.max(at, edge);
      plain += text.slice(at, cut);
      settle(cut);
      at = cut;
    }
    plain += text.slice(at, stop);
    if (!m) break;
    const made = depth > DEPTH_MAX ? null : token(text, m, ends, depth, links);
    if (!settled && (made ? made.end > edge : stop + TOKEN_MAX + 10 > text.length)) settle(stop);
    if (made?.element) add(made.element);
    else plain += made ? made.text : m[0];
    at = made ? made.end : stop + m[0].length;
  }
  add(null);
  return settled ?? { at: text.length, n };
}

function writeAll(element, text, depth, links) {
  write(element, text, 0, text.length, depth, links);
}

// Finds where marks end. All searches of one text together take linear time: each list is made
// once, and the places asked for grow.
class Ends {
  constructor(text) {
    this.text = text;
    this.lists = new Map(); // of a mark: {places, next}
    this.tickLists = null; // of a run's length
    this.brackets = null; // of where a label begins
  }

  // Returns the first place of @list that is not before @from, within LOOK_MAX, or -1.
  static after(list, from) {
    if (!list) return -1;
    while (list.next < list.places.length && list.places[list.next] < from) list.next++;
    const place = list.places[list.next];
    return place !== undefined && place - from <= LOOK_MAX ? place : -1;
  }

  // Returns where the next run of exactly @n ticks begins.
  ticks(n, from) {
    if (!this.tickLists) {
      const runs = /`+/g;
      this.tickLists = new Map();
      runs.lastIndex = from;
      for (let m; (m = runs.exec(this.text)); ) {
        const list = this.tickLists.get(m[0].length) ?? { places: [], next: 0 };
        list.places.push(m.index);
        this.tickLists.set(m[0].length, list);
      }
    }
    return Ends.after(this.tickLists.get(n), from);
  }

  // Returns the place of the bracket that closes the one before @from, within LOOK_MAX, or -1.
  bracket(from) {
    const { text } = this;
    if (!this.brackets) {
      const open = [];
      this.brackets = new Map();
      for (let i = from - 1; i < text.length; i++) {
        if (text[i] === "\\") i++;
        else if (text[i] === "[") open.push(i + 1);
        else if (text[i] === "]" && open.length > 0) this.brackets.set(open.pop(), i);
      }
    }
    const close = this.brackets.get(from) ?? -1;
    return close - from <= LOOK_MAX ? close : -1;
  }

  // Returns where an emphasis that @mark began ends.
  mark(mark, from) {
    let list = this.lists.get(mark);
    if (!list) this.lists.set(mark, (list = { places: this.closing(mark, from), next: 0 }));
    return Ends.after(list, from);
  }

  // Returns where a formula that @open began ends.
  formula(open, from) {
    const mark = MATH[open];
    let list = this.lists.get(mark);
    if (!list) {
      list = { places: [], next: 0 };
      for (let i = this.text.indexOf(mark, from); i >= 0; i = this.text.indexOf(mark, i + 1))
        if (mark !== "$" || this.text[i - 1] !== "\\") list.places.push(i);
      this.lists.set(mark, list);
    }
    const place = Ends.after(list, from);
    if (mark === "$" && !closesDollar(this.text, place)) return -1;
    return place - from <= FORMULA_MAX ? place : -1;
  }

  closing(mark, from) {
    const { text } = this;
    const places = [];
    for (let i = text.indexOf(mark, from); i >= 0; i = text.indexOf(mark, i + 1)) {
      const before = text[i - 1] ?? " ";
      const after = text[i + mark.length] ?? " ";
      if (/\s/.test(before) || before === "\\" || after === mark[0]) continue;
      if (mark[0] === "_" && /[\p{L}\p{N}]/u.test(after)) continue;
      if (mark.length === 1 && before === mark) continue;
      places.push(i);
    }
    return places;
  }
}

// Returns what stands at match @m and where it ends: {element, end} or {text, end}; null where the
// characters stand for themselves.
function token(text, m, ends, depth, links) {
  const g = m.groups;
  if (!links && (g.auto || g.url || g.bracket)) return null;
  const end = m.index + m[0].length;
  if (g.math) return math(text, m.index, g.math, ends);
  if (g.escape) return { text: g.escape[1], end };
  if (g.br) return { element: h("br"), end };
  if (g.auto)
    return link(g.auto.slice(1, -1), g.auto.slice(1, -1).replace(/^mailto:/, ""), end, depth);
  if (g.url) {
    const url = trimUrl(g.url);
    return link(url, url, m.index + url.length, depth);
  }
  if (g.ticks) {
    const close = ends.ticks(g.ticks.length, end);
    if (close < 0) return null;
    const inner = text.slice(end, close).replaceAll("\n", " ");
    const padded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "";
    return {
      element: h("code", null, padded ? inner.slice(1, -1) : inner),
      end: close + g.ticks.length,
    };
  }
  if (g.bracket) return bracket(text, end, ends, depth);
  return emphasis(text, m, ends, depth, links);
}

// Reads the formula that @open begins at @at.
function math(text, at, open, ends) {
  const begin = at + open.length;
  if (open === "$" && /\s/.test(text[begin] ?? " ")) return null;
  const close = ends.formula(open, begin);
  if (close <= begin) return null;
  const end = close + open.length;
  return { element: formula(text.slice(begin, close), text.slice(at, end), open === "$$" || open === "\\["), end };
}

// Drops the punctuation that ends the sentence around an address.
function trimUrl(url) {
  let end = url.length;
  while (".,;:!?'\"*_~".includes(url[end - 1])) end--;
  return url.slice(0, end);
}

// Reads [label](target "title") whose label begins at @from; a picture is a link to it.
function bracket(text, from, ends, depth) {
  const close = ends.bracket(from);
  const target = close >= 0 && text[close + 1] === "(" ? targetAt(text, close + 2) : null;
  return target && link(target.text, text.slice(from, close), target.end, depth);
}

// Reads `target "title")` from @from on. Returns {text, end} or null.
function targetAt(text, from) {
  const stop = Math.min(text.length, from + LOOK_MAX);
  const skip = (i) => {
    while (i < stop && /\s/.test(text[i])) i++;
    return i;
  };
  let i = skip(from);
  let target;
  if (text[i] === "<") {
    const begin = i + 1;
    for (i = begin; i < stop && !"<>\n".includes(text[i]); i++);
    if (text[i] !== ">") return null;
    target = text.slice(begin, i++);
  } else {
    const begin = i;
    let level = 0;
    for (; i < stop && !/\s/.test(text[i]); i++) {
      if (text[i] === "(" && ++level > 1) return null;
      if (text[i] === ")" && level-- === 0) break;
    }
    if (level > 0) return null;
    target = text.slice(begin, i);
  }
  const gap = i;
  i = skip(i);
  if (i > gap && (text[i] === '"' || text[i] === "'")) {
    const close = text.slice(i + 1, stop).indexOf(text[i]);
    if (close < 0) return null;
    i = skip(i + close + 2);
  }
  return i < stop && text[i] === ")" ? { text: target, end: i + 1 } : null;
}

function safe(target) {
  try {
    const url = new URL(target);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(target, label, end, depth) {
  const href = safe(target);
  if (!href) return { text: label, end };
  const a = h("a", { href, target: "_blank", rel: "noopener noreferrer nofollow", title: href });
  if (label === target) a.append(label);
  else writeAll(a, label || href, depth + 1, false);
  return { element: a, end };
}

function emphasis(text, m, ends, depth, links) {
  const mark = m[0];
  const begin = m.index + mark.length;
  const before = text[m.index - 1] ?? " ";
  if (/\s/.test(text[begin] ?? " ")) return null;
  if (mark[0] === "_" && /[\p{L}\p{N}]/u.test(before)) return null;
  const close = ends.mark(mark, begin + 1);
  if (close < 0) return null;
  const [outer, inner] = TAGS[mark].map((t) => h(t));
  writeAll(inner ?? outer, text.slice(begin, close), depth + 1, links);
  if (inner) outer.append(inner);
  return { element: outer, end: close + mark.length };
}
