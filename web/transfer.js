// Exports conversations to files and imports them.

import { withFiles } from "./attach.js";
import { path, sanitize } from "./conversation.js";
import { h } from "./dom.js";

function download(name, type, text) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function fileName(title, ending) {
  const name = title
    .normalize("NFKD")
    .replace(/[^\w]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 50)
    .toLowerCase();
  return `${name || "conversation"}.${ending}`;
}

export function markdown(c) {
  const parts = [`# ${c.title || "Conversation"}\n`];
  if (c.system.trim())
    parts.push(
      `> **System**\n>\n${c.system
        .split("\n")
        .map((l) => `> ${l}`)
        .join("\n")}\n`,
    );
  for (const node of path(c)) {
    const who = { user: "You", assistant: node.model || "Assistant", tool: "Tool result" }[
      node.role
    ];
    parts.push(`## ${who}\n`);
    if (node.reasoning)
      parts.push(
        `<details><summary>Reasoning</summary>\n\n${node.reasoning.trim()}\n\n</details>\n`,
      );
    for (const f of node.files ?? []) if (f.picture) parts.push(`*Picture: ${f.name}*\n`);
    const text = withFiles(node.content, node.files);
    if (text) parts.push(`${text.trim()}\n`);
    for (const t of node.toolCalls ?? [])
      parts.push(`\`${t.name}\`\n\n\`\`\`json\n${t.arguments}\n\`\`\`\n`);
  }
  return parts.join("\n");
}

export function exportMarkdown(c) {
  download(fileName(c.title, "md"), "text/markdown", markdown(c));
}

export function exportJson(list) {
  const file = { format: "weft.conversations", version: 1, conversations: list };
  download(
    list.length === 1 ? fileName(list[0].title, "json") : "weft-conversations.json",
    "application/json",
    JSON.stringify(file, null, 1),
  );
}

// Returns the conversations in the text of a file, with new ids. Throws if there are none.
export function importJson(text) {
  const value = JSON.parse(text);
  const list = (Array.isArray(value?.conversations) ? value.conversations : [value])
    .map(sanitize)
    .filter(Boolean);
  if (!list.length) throw new Error("This file contains no conversation.");
  return list;
}
