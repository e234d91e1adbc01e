// A conversation is a tree: an answer that is made again, or a message that is edited, is a branch
// beside the other. What is seen is one path: from the root on, the selected child of each.
//
//   node {id, parent, role: user | assistant | tool, content, files?: [{name, text, pages?} or {name, picture}], reasoning?, toolCalls?, toolCallId?,
//         selected: id of a child, at, finish?, error?, writing?, stats?, model?}
//
// The root has the id "" and no text.

import { contentOf, isPicture } from "./attach.js";

let last = 0;
const touched = new WeakMap(); // by conversation, the ids of nodes that are not stored as they are now

// Ids are in the order of time.
function newId() {
  return `${Date.now().toString(36)}-${(last++).toString(36).padStart(4, "0")}-${Math.floor(Math.random() * 1e9).toString(36)}`;
}

// Notes that the node @id of @c was changed or removed.
export function touch(c, id) {
  if (!touched.has(c)) touched.set(c, new Set());
  touched.get(c).add(id);
}

// Returns the ids of the nodes that were touched since the last call.
export function takeTouched(c) {
  const ids = [...(touched.get(c) ?? [])];
  touched.delete(c);
  return ids;
}

export function create(settings) {
  const now = Date.now();
  return {
    id: newId(),
    title: "",
    created: now,
    updated: now,
    system: settings.system,
    params: { ...settings.params },
    model: settings.model,
    nodes: { "": { id: "", parent: null, children: [], selected: "" } },
  };
}

export function addNode(c, parent, fields) {
  const node = {
    id: newId(),
    parent,
    children: [],
    selected: "",
    at: Date.now(),
    content: "",
    ...fields,
  };
  c.nodes[node.id] = node;
  c.nodes[parent].children.push(node.id);
  c.nodes[parent].selected = node.id;
  touch(c, node.id);
  touch(c, parent);
  c.updated = Date.now();
  if (!c.title && node.role === "user")
    c.title = (node.content.trim().split("\n")[0] || node.files?.[0]?.name || "").slice(0, 80);
  return node;
}

// Returns @c as it was stored, after its page was closed: answers that were being written are stopped.
export function wake(c) {
  for (const node of Object.values(c.nodes))
    if (node.writing) {
      delete node.writing;
      delete node.wait;
      node.finish = "stopped";
    }
  return c;
}

// Returns the nodes on the selected path, from the first message up to and including the id @until.
export function path(c, until) {
  const nodes = [];
  for (
    let node = c.nodes[c.nodes[""].selected || "none"];
    node;
    node = c.nodes[node.selected || "none"]
  ) {
    nodes.push(node);
    if (node.id === until) break;
  }
  return nodes;
}

// Returns the children of the parent of @node, itself included.
export function siblings(c, node) {
  return c.nodes[node.parent].children;
}

export function select(c, node, step) {
  const ids = siblings(c, node);
  const next = ids[ids.indexOf(node.id) + step];
  if (!next) return;
  c.nodes[node.parent].selected = next;
  touch(c, node.parent);
}

export function removeNode(c, node) {
  const parent = c.nodes[node.parent];
  parent.children = parent.children.filter((id) => id !== node.id);
  if (parent.selected === node.id) parent.selected = parent.children.at(-1) ?? "";
  touch(c, parent.id);
  const gone = [node.id];
  while (gone.length) {
    const id = gone.pop();
    touch(c, id);
    gone.push(...c.nodes[id].children);
    delete c.nodes[id];
  }
}

// Returns the messages that the model gets: the path up to @until.
export function messages(c, until) {
  const list = c.system.trim() ? [{ role: "system", content: c.system }] : [];
  for (const node of path(c, until)) {
    if (node.role === "tool") {
      list.push({ role: "tool", tool_call_id: node.toolCallId, content: node.content });
    } else if (node.role === "assistant") {
      if (!node.content && !node.toolCalls?.length && !node.reasoning) continue;
      const message = { role: "assistant", content: node.content };
      if (node.reasoning) message.reasoning_content = node.reasoning;
      if (node.toolCalls?.length)
        message.tool_calls = node.toolCalls.map((t) => ({
          id: t.id,
          type: "function",
          function: { name: t.name, arguments: t.arguments },
        }));
      list.push(message);
    } else {
      list.push({ role: "user", content: contentOf(node.content, node.files) });
    }
  }
  return list;
}

// Returns the calls of the last answer that have no result yet.
export function openCalls(c, node) {
  if (!node?.toolCalls?.length) return [];
  const answered = new Set();
  for (
    let n = c.nodes[node.selected || "none"];
    n?.role === "tool";
    n = c.nodes[n.selected || "none"]
  )
    answered.add(n.toolCallId);
  return node.toolCalls.filter((t) => !answered.has(t.id));
}

// ---- for the store ----

// Returns @c without its nodes.
export function headOf({ nodes, ...head }) {
  return head;
}

// Returns the record of the node @id of @c. Its children are not in it: they follow from their parents,
// so that nodes which two tabs have added at one place are branches there.
export function recordOf(c, id) {
  const { children, ...record } = c.nodes[id];
  return { ...record, conversation: c.id };
}

// Changes @c to what was stored elsewhere: its head @head, the records @records, and without the nodes
// @gone. @writing: the id of the node that is being written here, if any; it stays, and so does the
// path to it.
export function merge(c, head, records, gone, writing) {
  Object.assign(c, head);
  for (const id of gone) if (id !== writing) delete c.nodes[id];
  for (const { conversation, ...record } of records) {
    if (record.id === writing) continue;
    const node = (c.nodes[record.id] ??= {});
    const selected = writing ? (node.selected ?? record.selected) : record.selected;
    for (const key of Object.keys(node)) delete node[key];
    Object.assign(node, record, { selected });
  }
  c.nodes[""] ??= { id: "", parent: null, selected: "" };
  const nodes = Object.values(c.nodes).sort((a, b) => (a.at ?? 0) - (b.at ?? 0) || (a.id < b.id ? -1 : 1));
  for (const node of nodes) node.children = [];
  for (const node of nodes) c.nodes[node.parent ?? "none"]?.children.push(node.id);
  for (const node of nodes)
    if (!node.children.includes(node.selected)) node.selected = node.children.at(-1) ?? "";
  return c;
}

// ---- for files ----

const TEXTS = ["content", "reasoning", "finish", "error", "model", "toolCallId"];

// Builds a conversation from a file, whose fields may be anything. Returns null if it is not one.
export function sanitize(value) {
  if (!value || typeof value !== "object" || typeof value.nodes !== "object" || !value.nodes?.[""])
    return null;
  const c = create({
    system: String(value.system ?? ""),
    params: {},
    model: String(value.model ?? ""),
  });
  c.title = String(value.title ?? "").slice(0, 200);
  c.named = Boolean(c.title);
  c.created = Number(value.created) || c.created;
  for (const [name, v] of Object.entries(value.params ?? {}))
    if (["string", "number", "boolean"].includes(typeof v)) c.params[name] = v;
  const copy = (from, parent, depth) => {
    if (depth > 5000) return;
    const children = Array.isArray(from.children) ? from.children : [];
    for (const id of children) {
      const node = Object.hasOwn(value.nodes, id) ? value.nodes[id] : null;
      if (!node || !["user", "assistant", "tool"].includes(node.role)) continue;
      const fields = { role: node.role, at: Number(node.at) || Date.now() };
      for (const name of TEXTS) if (typeof node[name] === "string") fields[name] = node[name];
      if (Array.isArray(node.files))
        fields.files = node.files
          .filter((f) => typeof f?.name === "string" && (typeof f.text === "string" || isPicture(f.picture)))
          .map((f) =>
            isPicture(f.picture)
              ? { name: f.name, picture: f.picture }
              : { name: f.name, text: f.text, ...(f.pages > 0 && { pages: Number(f.pages) }) },
          );
      if (Array.isArray(node.toolCalls))
        fields.toolCalls = node.toolCalls.map((t) => ({
          id: String(t?.id),
          name: String(t?.name),
          arguments: String(t?.arguments),
        }));
      if (node.stats && typeof node.stats === "object")
        fields.stats = Object.fromEntries(
          Object.entries(node.stats).filter(([, v]) => typeof v === "number"),
        );
      const made = addNode(c, parent, fields);
      copy(node, made.id, depth + 1);
      if (id === from.selected) selected.set(parent, made.id);
    }
  };
  const selected = new Map();
  copy(value.nodes[""], "", 0);
  for (const [parent, id] of selected) c.nodes[parent].selected = id;
  c.updated = Number(value.updated) || c.updated;
  return c;
}
