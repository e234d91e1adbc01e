// Markdown to elements, for text that cannot be trusted: every character of it ends up in a text
// node or in an attribute that cannot run code. HTML is shown as it is written, pictures become
// links, and links go to http, https and mailto only.
//
// render() may be called again and again with a text that grows: blocks whose source is the same
// keep their elements.

import { h, iconButton } from "./dom.js";
import { highlight } from "./highlight.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEPTH_MAX = 12;

export function render(container, text) {
  const blocks = split(text.split("\n"));
  const old = [...container.children];
  let i = 0;
  for (; i < blocks.length && i < old.length && old[i].source === blocks[i]; i++);
  for (let k = old.length - 1; k >= i; k--) old[k].remove();
  for (; i < blocks.length; i++) {
    const element = build(blocks[i].split("\n"), 0);
    element.source = blocks[i];
    container.append(element);
  }
}

// ---- blocks ----

// The sources of the blocks at the top.
function split(lines) {
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    if (!lines[i].trim()) {
      i++;
      continue;
    }
    const end = blockEnd(lines, i);
    blocks.push(lines.slice(i, end).join("\n"));
    i = end;
  }
  return blocks;
}

function isTable(lines, i) {
  return (
    i + 1 < lines.length &&
    lines[i].includes("|") &&
    lines[i + 1].includes("-") &&
    TABLE_RULE.test(lines[i + 1])
  );
}

function begins(lines, i) {
  const line = lines[i];
  const item = line.match(ITEM);
  return (
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    QUOTE.test(line) ||
    (item && item[4] && item[1].length < 4 && !/^\d/.test(item[2]))
  );
}

// The line after the block that begins at @i.
function blockEnd(lines, i) {
  const fence = lines[i].match(FENCE);
  let k = i + 1;
  if (fence) {
    const closing = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
    while (k < lines.length && !closing.test(lines[k])) k++;
    return Math.min(k + 1, lines.length);
  }
  if (HEADING.test(lines[i]) || RULE.test(lines[i])) return k;
  if (QUOTE.test(lines[i])) {
    while (k < lines.length && lines[k].trim() && (QUOTE.test(lines[k]) || !begins(lines, k))) k++;
    return k;
  }
  const item = lines[i].match(ITEM);
  if (item) return listEnd(lines, i, item);
  if (isTable(lines, i)) {
    for (k = i + 2; k < lines.length && lines[k].includes("|"); k++);
    return k;
  }
  while (k < lines.length && lines[k].trim() && !begins(lines, k) && !isTable(lines, k)) k++;
  return k;
}

function listEnd(lines, i, first) {
  const indent = first[1].length;
  const ordered = /^\d/.test(first[2]);
  let k = i + 1;
  let fence = null;
  for (; k < lines.length; k++) {
    const line = lines[k];
    const mark = line.trim().match(/^(`{3,}|~{3,})/);
    if (fence) {
      if (mark && mark[1].startsWith(fence)) fence = null;
      continue;
    }
    if (!line.trim()) {
      const next = lines.slice(k).findIndex((l) => l.trim());
      if (next < 0) return k;
      const after = lines[k + next];
      const item = after.match(ITEM);
      const depth = after.search(/\S/);
      if (depth > indent || (item && item[1].length >= indent && /^\d/.test(item[2]) === ordered))
        continue;
      return k;
    }
    const item = line.match(ITEM);
    const depth = line.search(/\S/);
    if (RULE.test(line) && depth <= indent) return k;
    if (item && depth <= indent && /^\d/.test(item[2]) !== ordered) return k;
    if (!item && depth <= indent && (FENCE.test(line) || HEADING.test(line) || QUOTE.test(line)))
      return k;
    if (mark && depth > indent) fence = mark[1];
  }
  return k;
}

function buildAll(parent, lines, depth) {
  for (const block of split(lines)) parent.append(build(block.split("\n"), depth + 1));
  return parent;
}

function build(lines, depth) {
  const fence = lines[0].match(FENCE);
  if (fence) return code(lines, fence);
  if (depth > DEPTH_MAX) return h("p", null, lines.join("\n"));
  const heading = lines[0].match(HEADING);
  if (heading) return inline(h(`h${Math.min(heading[1].length + 2, 6)}`), heading[2]);
  if (RULE.test(lines[0])) return h("hr");
  if (QUOTE.test(lines[0]))
    return buildAll(
      h("blockquote"),
      lines.map((l) => l.match(QUOTE)?.[1] ?? l),
      depth,
    );
  if (ITEM.test(lines[0])) return list(lines, depth);
  if (isTable(lines, 0)) return table(lines);
  return inline(h("p"), lines.map((l) => l.replace(/^\s+/, "")).join("\n"));
}

function code(lines, fence) {
  const closing =
    lines.length > 1 &&
    new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`).test(lines.at(-1));
  const text = lines.slice(1, closing ? -1 : undefined).join("\n");
  const language = fence[2].trim().split(/\s+/)[0].slice(0, 30);
  const copy = iconButton("copy", "Copy the code", async () => {
    await navigator.clipboard?.writeText(text);
    copy.classList.add("done");
    setTimeout(() => copy.classList.remove("done"), 1500);
  });
  const pre = h(
    "pre",
    { tabindex: "0", role: "region", "aria-label": language ? `Code, ${language}` : "Code" },
    highlight(h("code"), text, language),
  );
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-head" }, h("span", null, language || "text"), copy),
    pre,
  );
}

function list(lines, depth) {
  const first = lines[0].match(ITEM);
  const ordered = /^\d/.test(first[2]);
  const indent = first[1].length;
  const items = [];
  let loose = false;
  for (const line of lines) {
    const item = line.match(ITEM);
    if (item && item[1].length <= indent + 1 && !(RULE.test(line) && items.length === 0)) {
      items.push({ width: item[1].length + item[2].length + 1, lines: [item[4]] });
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
  }
  const element = ordered ? h("ol", { start: first[2].replace(/\D/g, "") }) : h("ul");
  for (const item of items) element.append(listItem(item.lines, loose, depth));
  return element;
}

function listItem(lines, loose, depth) {
  const element = h("li");
  const task = lines[0].match(/^\[([ xX])\]\s+(.*)$/);
  if (task) {
    element.className = "task";
    element.append(
      h("input", {
        type: "checkbox",
        disabled: true,
        checked: task[1] !== " ",
        "aria-label": task[1] !== " " ? "done" : "open",
      }),
    );
    lines = [task[2], ...lines.slice(1)];
  }
  const blocks = split(lines);
  blocks.forEach((block, i) => {
    const child = build(block.split("\n"), depth + 1);
    if (i === 0 && !loose && child.tagName === "P") element.append(...child.childNodes);
    else element.append(child);
  });
  return element;
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((c) => c.trim().replace(/\\\|/g, "|"));
}

function table(lines) {
  const align = cells(lines[1]).map((c) =>
    /^:-*:$/.test(c) ? "center" : /-:$/.test(c) ? "end" : "start",
  );
  const row = (line, tag) =>
    h(
      "tr",
      null,
      cells(line)
        .slice(0, align.length)
        .map((c, i) => inline(h(tag, { class: `align-${align[i]}` }), c)),
    );
  const body = h(
    "tbody",
    null,
    lines.slice(2).map((l) => row(l, "td")),
  );
  return h(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    h("table", null, h("thead", null, row(lines[0], "th")), body),
  );
}

// ---- text ----

const INLINE = new RegExp(
  [
    "(?<escape>\\\\[!-/:-@\\[-`{-~])",
    "(?<ticks>`+)",
    "(?<picture>!?\\[)",
    "(?<auto><(?:https?://|mailto:)[^\\s<>]+>)",
    "(?<url>https?://[^\\s<>()\\[\\]]+(?:\\([^\\s<>()]*\\)[^\\s<>()\\[\\]]*)*)",
    "(?<mark>\\*{1,3}|_{1,3}|~~)",
    "(?<br>(?: {2,}|\\\\)\\n)",
  ].join("|"),
  "g",
);

// Appends @text, with what its marks mean, to @element.
function inline(element, text, depth = 0, links = true) {
  let plain = "";
  const flush = () => {
    if (plain) element.append(plain);
    plain = "";
  };
  const regex = new RegExp(INLINE);
  for (let at = 0; at < text.length; ) {
    regex.lastIndex = at;
    const m = regex.exec(text);
    if (!m) {
      plain += text.slice(at);
      break;
    }
    plain += text.slice(at, m.index);
    const made = depth > DEPTH_MAX ? null : token(text, m, depth, links);
    if (made?.element) {
      flush();
      element.append(made.element);
    } else {
      plain += made ? made.text : m[0];
    }
    at = made ? made.end : m.index + m[0].length;
  }
  flush();
  return element;
}

// What stands at match @m: an element, or a text, and where it ends; null: these characters.
function token(text, m, depth, links) {
  const g = m.groups;
  if (!links && (g.auto || g.url || g.picture)) return null;
  const end = m.index + m[0].length;
  if (g.escape) return { text: g.escape[1], end };
  if (g.br) return { element: h("br"), end };
  if (g.auto)
    return link(g.auto.slice(1, -1), g.auto.slice(1, -1).replace(/^mailto:/, ""), end, depth);
  if (g.url) {
    const url = g.url.replace(/[.,;:!?'"*_~]+$/, "");
    return link(url, url, m.index + url.length, depth);
  }
  if (g.ticks) {
    let close = text.indexOf(g.ticks, end);
    while (close >= 0 && (text[close + g.ticks.length] === "`" || text[close - 1] === "`"))
      close = text.indexOf(g.ticks, close + 1);
    if (close < 0) return null;
    const inner = text.slice(end, close).replace(/\n/g, " ");
    return {
      element: h("code", null, /^ .*\S.* $/.test(inner) ? inner.slice(1, -1) : inner),
      end: close + g.ticks.length,
    };
  }
  if (g.picture) return bracket(text, m.index + g.picture.length, depth);
  return emphasis(text, m, end, depth, links);
}

// [label](target "title"); a picture is a link to it.
function bracket(text, from, depth) {
  let level = 1;
  let i = from;
  for (; i < text.length && level > 0; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "[") level++;
    else if (text[i] === "]") level--;
  }
  if (level > 0) return null;
  const rest = text
    .slice(i)
    .match(/^\(\s*(<[^<>\n]*>|(?:[^\s()]|\([^\s()]*\))*)(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/);
  if (!rest) return null;
  return link(rest[1].replace(/^<|>$/g, ""), text.slice(from, i - 1), i + rest[0].length, depth);
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
  else inline(a, label || href, depth + 1, false);
  return { element: a, end };
}

const TAGS = {
  "*": ["em"],
  _: ["em"],
  "**": ["strong"],
  __: ["strong"],
  "***": ["strong", "em"],
  ___: ["strong", "em"],
  "~~": ["del"],
};

function emphasis(text, m, end, depth, links) {
  const mark = m.groups.mark;
  const before = text[m.index - 1] ?? " ";
  if (/\s/.test(text[end] ?? " ")) return null;
  if (mark[0] === "_" && /[\p{L}\p{N}]/u.test(before)) return null;
  for (let close = text.indexOf(mark, end + 1); close >= 0; close = text.indexOf(mark, close + 1)) {
    const after = text[close + mark.length] ?? " ";
    if (/\s/.test(text[close - 1]) || text[close - 1] === "\\" || after === mark[0]) continue;
    if (mark[0] === "_" && /[\p{L}\p{N}]/u.test(after)) continue;
    if (mark.length === 1 && text[close - 1] === mark) continue;
    const [outer, inner] = TAGS[mark].map((t) => h(t));
    inline(inner ?? outer, text.slice(end, close), depth + 1, links);
    if (inner) outer.append(inner);
    return { element: outer, end: close + mark.length };
  }
  return null;
}
