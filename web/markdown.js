// Renders Markdown as elements, for text that cannot be trusted: every character of it ends up in
// a text node or in an attribute that cannot run code. HTML is shown as it is written, pictures
// become links, and links go to http, https and mailto only.
//
// A model can write any text, so parsing takes linear time: no regular expression has two ways to
// match the same characters, and a search for the end of a mark is bounded (inline.js).
//
// An answer that is being written is rendered again with each piece of it. An element keeps, in its
// property `md`, the source it was made of. Elements of an unchanged source stay, and the last
// block is extended in place: code by lines, a list by items, a table by rows, a paragraph from its
// first mark whose end may still come. So a piece builds only what is new, and the elements are the
// same as for the whole text at once.

import { h, iconButton } from "./dom.js";
import { Highlighter } from "./highlight.js";
import { Inline } from "./inline.js";
import { FORMULA_MAX, formula } from "./math.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?=\s)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}$/; // of a line without space at its end
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:(\s+)([^]*))?$/;
const QUOTE = /^ {0,3}> ?([^]*)$/;
const DEPTH_MAX = 12;

// Brings the children of @container to @text. Call it again as the text grows.
export function render(container, text) {
  let state = container.md;
  const last = state?.elements?.at(-1);
  if (!state?.elements || last?.parentNode !== container || !text.startsWith(state.settled)) {
    container.replaceChildren();
    state = container.md = { settled: "", n: 0, elements: [] };
  }
  const lines = text.slice(state.settled.length).split("\n");
  const blocks = split(lines);
  update(container, blocks, 0, state.n);
  // What ends before a block whose first two lines are complete cannot change any more.
  let k = blocks.length - 1;
  while (k > 0 && blocks[k].from + 2 >= lines.length) k--;
  if (k <= 0) return;
  const length = lines.slice(0, blocks[k].from).reduce((sum, line) => sum + line.length + 1, 0);
  state.settled = text.slice(0, state.settled.length + length);
  state.n += k;
}

// ---- blocks ----

function isRule(line) {
  return RULE.test(line.trimEnd());
}

// Returns {mark, info} of a line that opens a block of code, or null.
function fenceOf(line) {
  const m = line.match(FENCE);
  const info = m && line.slice(m[0].length);
  return m && !info.includes("`") ? { mark: m[1], info: info.trim() } : null;
}

function closesFence(line, mark) {
  const m = line.match(FENCE);
  return m && m[1].startsWith(mark) && !line.slice(m[0].length).trim();
}

// Returns {level, text} of a line that is a heading, or null.
function headingOf(line) {
  const m = line.match(HEADING);
  if (!m) return null;
  const text = line.slice(m[0].length).trim();
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end--;
  return { level: m[1].length, text: text.slice(0, end).trimEnd() };
}

// Returns {indent, mark, space, text} of a line that begins an item of a list, or null.
function itemOf(line) {
  const m = line.match(ITEM);
  if (!m) return null;
  return { indent: m[1].length, mark: m[2], ordered: m[2].length > 1, text: m[4] ?? "" };
}

// Returns whether @line is the second line of a table: "|---|:--:|".
function isTableRule(line) {
  return (
    line.includes("-") && /^ {0,3}\S/.test(line) && cells(line).every((c) => /^:?-+:?$/.test(c))
  );
}

function isTable(lines, i) {
  return i + 1 < lines.length && lines[i].includes("|") && isTableRule(lines[i + 1]);
}

// Returns the mark that ends the formula whose block @line begins, or null.
function formulaMark(line) {
  const text = line.trim();
  const mark = text.startsWith("$$") ? "$$" : text.startsWith("\\[") ? "\\]" : null;
  const close = mark ? text.indexOf(mark, 2) : -1;
  return close < 0 || close === text.length - 2 ? mark : null;
}

// Returns the line after the formula that begins at line @i: a blank line ends it, too.
function formulaEnd(lines, i, mark) {
  let k = i;
  while (k < lines.length && lines[k].trim()) {
    const text = lines[k++].trimEnd();
    if (text.endsWith(mark) && (k > i + 1 || text.trim().length >= 4)) break;
  }
  return k;
}

// Returns whether line @i ends the paragraph before it.
function begins(line) {
  const item = itemOf(line);
  return (
    fenceOf(line) !== null ||
    headingOf(line) !== null ||
    isRule(line) ||
    QUOTE.test(line) ||
    formulaMark(line) !== null ||
    (item !== null && item.text !== "" && item.indent < 4 && (!item.ordered || parseInt(item.mark) === 1))
  );
}

// Returns the blocks of @lines: [{kind, from, lines, source}].
function split(lines) {
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    if (!lines[i].trim()) {
      i++;
      continue;
    }
    const { kind, end } = blockAt(lines, i);
    const own = lines.slice(i, end);
    blocks.push({ kind, from: i, lines: own, source: own.join("\n") });
    i = end;
  }
  return blocks;
}

// Returns the kind of the block that begins at line @i, and the line after it.
function blockAt(lines, i) {
  const fence = fenceOf(lines[i]);
  let k = i + 1;
  if (fence) {
    while (k < lines.length && !closesFence(lines[k], fence.mark)) k++;
    return { kind: "code", end: Math.min(k + 1, lines.length) };
  }
  if (headingOf(lines[i])) return { kind: "heading", end: k };
  if (isRule(lines[i])) return { kind: "rule", end: k };
  const mark = formulaMark(lines[i]);
  if (mark) return { kind: "formula", end: formulaEnd(lines, i, mark) };
  if (QUOTE.test(lines[i])) {
    while (k < lines.length && lines[k].trim() && (QUOTE.test(lines[k]) || !begins(lines[k]))) k++;
    return { kind: "quote", end: k };
  }
  const item = itemOf(lines[i]);
  if (item) return { kind: "list", end: listEnd(lines, i, item) };
  if (isTable(lines, i)) {
    for (k = i + 2; k < lines.length && lines[k].includes("|"); k++);
    return { kind: "table", end: k };
  }
  while (k < lines.length && lines[k].trim() && !begins(lines[k]) && !isTable(lines, k)) k++;
  return { kind: "text", end: k };
}

function listEnd(lines, i, { indent, ordered }) {
  let fence = null;
  for (let k = i + 1; k < lines.length; k++) {
    const line = lines[k];
    const mark = line.trim().match(/^(`{3,}|~{3,})/);
    if (fence) {
      if (mark && mark[1].startsWith(fence)) fence = null;
      continue;
    }
    const item = itemOf(line);
    const depth = line.search(/\S/);
    if (depth < 0) {
      const blank = k;
      while (k < lines.length && !lines[k].trim()) k++;
      if (k === lines.length || !goesOn(lines[k], indent, ordered)) return blank;
      k--; // the line after the blank ones is looked at next
      continue;
    }
    if (isRule(line) && depth <= indent) return k;
    if (item && depth <= indent && item.ordered !== ordered) return k;
    if (!item && depth <= indent && (fenceOf(line) || headingOf(line) || QUOTE.test(line)))
      return k;
    if (mark && depth > indent) fence = mark[1];
  }
  return lines.length;
}

// Returns whether @line, after a blank one, belongs to a list of this indent.
function goesOn(line, indent, ordered) {
  const item = itemOf(line);
  return (
    line.search(/\S/) > indent ||
    (item !== null && item.indent >= indent && item.ordered === ordered)
  );
}

// ---- elements ----

// Brings the elements of @parent from number @at on to @blocks.
function update(parent, blocks, depth, at = 0) {
  const elements = parent.md.elements;
  for (let i = 0; i < blocks.length; i++) {
    const block = blocks[i];
    const old = elements[at + i];
    if (old?.md.source === block.source && old.md.kind === block.kind) continue;
    if (old?.md.kind === block.kind && extend(old, block, depth)) {
      old.md.source = block.source;
      continue;
    }
    const made = build(block, depth);
    made.md.source = block.source;
    if (old) old.replaceWith(made);
    else parent.append(made);
    elements[at + i] = made;
  }
  for (const old of elements.splice(at + blocks.length)) old.remove();
}

function withState(element, kind, more) {
  element.md = { kind, ...more };
  return element;
}

function build(block, depth) {
  const { lines, kind } = block;
  if (kind === "code") return code(block);
  if (depth > DEPTH_MAX) return withState(h("p", null, block.source), kind);
  if (kind === "heading") {
    const { level } = headingOf(lines[0]);
    return fill(withState(h(`h${Math.min(level + 2, 6)}`), kind, { level }), block, depth);
  }
  if (kind === "rule") return withState(h("hr"), kind);
  if (kind === "formula") return display(block);
  if (kind === "quote")
    return fill(withState(h("blockquote"), kind, { elements: [] }), block, depth);
  if (kind === "list") return list(block, depth);
  if (kind === "table") return table(block);
  return fill(withState(h("p"), kind), block, depth);
}

// Extends an element to its grown source. Returns false where it has to be made anew.
function extend(element, block, depth) {
  const { md } = element;
  if (block.kind === "code") return extendCode(element, block);
  if (depth > DEPTH_MAX) return false;
  if (block.kind === "heading" && headingOf(block.lines[0]).level !== md.level) return false;
  if (block.kind === "formula") return false;
  if (block.kind === "list") return extendList(element, block, depth);
  if (block.kind === "table") return extendTable(element, block);
  fill(element, block, depth);
  return true;
}

// Writes what is inside a heading, a paragraph or a quote.
function fill(element, { kind, lines }, depth) {
  const { md } = element;
  if (kind === "quote") {
    const inner = lines.map((line) => line.match(QUOTE)?.[1] ?? line);
    update(element, split(inner), depth + 1);
  } else if (kind !== "rule") {
    md.inline ??= new Inline(element);
    md.inline.set(kind === "heading" ? headingOf(lines[0]).text : paragraph(lines));
  }
  return element;
}

function paragraph(lines) {
  return lines.map((line) => line.trimStart()).join("\n");
}

// Builds a formula of its own block; its text, while it has no end.
function display({ lines, source }) {
  const text = source.trim();
  const closed = text.length >= 4 && text.endsWith(formulaMark(lines[0])) && text.length <= FORMULA_MAX;
  return withState(h("p", null, closed ? formula(text.slice(2, -2), text, true) : source), "formula");
}

// ---- code ----

function codeText(lines, mark) {
  const closed = lines.length > 1 && closesFence(lines.at(-1), mark);
  return lines.slice(1, closed ? -1 : undefined).join("\n");
}

function code({ lines }) {
  const fence = fenceOf(lines[0]);
  const language = fence.info.split(/\s/)[0].slice(0, 30);
  const element = h("code");
  const copy = iconButton("copy", "Copy the code", async () => {
    await navigator.clipboard?.writeText(element.textContent);
    copy.classList.add("done");
    setTimeout(() => copy.classList.remove("done"), 1500);
  });
  const highlighter = new Highlighter(element, language);
  highlighter.set(codeText(lines, fence.mark));
  return withState(
    h(
      "div",
      { class: "code" },
      h("div", { class: "code-head" }, h("span", null, language || "text"), copy),
      h(
        "pre",
        { tabindex: "0", role: "region", "aria-label": language ? `Code, ${language}` : "Code" },
        element,
      ),
    ),
    "code",
    { first: lines[0], mark: fence.mark, highlighter },
  );
}

function extendCode({ md }, { lines }) {
  if (lines[0] !== md.first) return false;
  md.highlighter.set(codeText(lines, md.mark));
  return true;
}

// ---- lists ----

// Returns the items of a list, {lines, source}, and whether blank lines stand between them.
function itemsOf(lines) {
  const first = itemOf(lines[0]);
  const items = [];
  let loose = false;
  for (const line of lines) {
    const item = itemOf(line);
    if (item && item.indent <= first.indent + 1) {
      items.push({ width: item.indent + item.mark.length + 1, lines: [item.text] });
    } else {
      const at = items.at(-1);
      const space = line.search(/\S/);
      at.lines.push(space < 0 ? "" : line.slice(Math.min(space, at.width)));
    }
  }
  for (const item of items) {
    while (item.lines.length > 1 && !item.lines.at(-1)) {
      item.lines.pop();
      loose ||= item !== items.at(-1);
    }
    item.source = item.lines.join("\n");
  }
  return { first, items, loose };
}

function list({ lines }, depth) {
  const { first, items, loose } = itemsOf(lines);
  const element = first.ordered ? h("ol", { start: first.mark.slice(0, -1) }) : h("ul");
  withState(element, "list", { mark: first.mark, loose, elements: [] });
  updateItems(element, items, depth);
  return element;
}

function extendList(element, { lines }, depth) {
  const { first, items, loose } = itemsOf(lines);
  const { md } = element;
  if (first.mark !== md.mark || loose !== md.loose) return false;
  updateItems(element, items, depth);
  return true;
}

function updateItems(element, items, depth) {
  const { elements, loose } = element.md;
  items.forEach((item, i) => {
    const old = elements[i];
    if (old?.md.source === item.source) return;
    const made = old && extendItem(old, item, loose, depth) ? old : listItem(item, loose, depth);
    made.md.source = item.source;
    if (!old) element.append(made);
    else if (made !== old) old.replaceWith(made);
    elements[i] = made;
  });
  for (const old of elements.splice(items.length)) old.remove();
}

// Returns the blocks of an item without its box, and the box: " " or "x" in "[x] ", or null.
function itemBlocks({ lines }) {
  const box = lines[0].match(/^\[([ xX])\]\s/);
  const own = box ? [lines[0].slice(box[0].length).trimStart(), ...lines.slice(1)] : lines;
  return { box: box && box[1], blocks: split(own) };
}

// The first paragraph of a tight item has no element of its own.
function listItem(item, loose, depth) {
  const { box, blocks } = itemBlocks(item);
  const element = withState(h("li"), "item", { box, lead: null, elements: [] });
  if (box !== null) {
    const done = box !== " ";
    element.className = "task";
    element.append(
      h("input", {
        type: "checkbox",
        disabled: true,
        checked: done,
        "aria-label": done ? "done" : "open",
      }),
    );
  }
  if (!loose && blocks[0]?.kind === "text" && depth < DEPTH_MAX) {
    element.md.lead = blocks[0].source;
    element.md.inline = new Inline(element);
    element.md.inline.set(paragraph(blocks.shift().lines));
  }
  update(element, blocks, depth + 1);
  return element;
}

function extendItem(element, item, loose, depth) {
  const { md } = element;
  const { box, blocks } = itemBlocks(item);
  const tight = !loose && blocks[0]?.kind === "text" && depth < DEPTH_MAX;
  if (box !== md.box || tight !== (md.lead !== null)) return false;
  const lead = tight ? blocks.shift() : null;
  if (lead && lead.source !== md.lead) {
    if (md.elements.length > 0) return false; // what follows stands behind it in the same element
    md.inline.set(paragraph(lead.lines));
    md.lead = lead.source;
  }
  update(element, blocks, depth + 1);
  return true;
}

// ---- tables ----

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((c) => c.trim().replace(/\\\|/g, "|"));
}

function alignOf(line) {
  return cells(line).map((c) => {
    if (!c.endsWith(":")) return "start";
    return c.startsWith(":") ? "center" : "end";
  });
}

function row(line, align, tag) {
  const own = cells(line).slice(0, align.length);
  return h(
    "tr",
    null,
    own.map((c, i) => {
      const cell = h(tag, { class: `align-${align[i]}` });
      new Inline(cell).set(c);
      return cell;
    }),
  );
}

function table({ lines }) {
  const align = alignOf(lines[1]);
  const body = h("tbody");
  const element = h(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    h("table", null, h("thead", null, row(lines[0], align, "th")), body),
  );
  withState(element, "table", { head: lines.slice(0, 2).join("\n"), align, body, rows: [] });
  updateRows(element.md, lines);
  return element;
}

function extendTable({ md }, { lines }) {
  if (lines.slice(0, 2).join("\n") !== md.head) return false;
  updateRows(md, lines);
  return true;
}

function updateRows({ body, rows, align }, lines) {
  let n = 0;
  while (n < rows.length && rows[n].line === lines[n + 2]) n++;
  for (const old of rows.splice(n)) old.element.remove();
  for (const line of lines.slice(n + 2)) {
    const element = row(line, align, "td");
    body.append(element);
    rows.push({ line, element });
  }
}
