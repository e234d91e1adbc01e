// Stores conversations in IndexedDB, or in memory where the browser has none (private windows).
//
// The head of a conversation is a record, and so is each of its nodes: what has changed is written, not
// the whole, and what two tabs do in one conversation is kept. A tab tells the others what it stored.

import { headOf, merge, recordOf, takeTouched, touch } from "./conversation.js";

const HEADS = "conversations";
const NODES = "nodes";
let database = null;
let channel = null;
const memory = new Map();
const stored = new Set(); // ids of conversations that this tab has read or written

function ask(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// Returns [heads, nodes, a promise that the transaction is complete].
function begin(mode) {
  const t = database.transaction([HEADS, NODES], mode);
  const complete = new Promise((resolve, reject) => {
    t.oncomplete = resolve;
    t.onabort = t.onerror = () => reject(t.error);
  });
  complete.catch(() => {});
  return [t.objectStore(HEADS), t.objectStore(NODES), complete];
}

function write(heads, nodes, c, ids) {
  heads.put(headOf(c));
  for (const id of ids)
    if (c.nodes[id]) nodes.put(recordOf(c, id));
    else nodes.delete([c.id, id]);
}

// The keys of all nodes of the conversation @id.
const nodesOf = (id) => IDBKeyRange.bound([id], [id, []]);

function upgrade(request, version) {
  const nodes = request.result.createObjectStore(NODES, { keyPath: ["conversation", "id"] });
  if (version < 1) {
    request.result.createObjectStore(HEADS, { keyPath: "id" });
    return;
  }
  const heads = request.transaction.objectStore(HEADS); // in version 1 with their nodes
  heads.getAll().onsuccess = (event) => {
    for (const c of event.target.result) write(heads, nodes, c, Object.keys(c.nodes));
  };
}

// @onChange is called with what another tab did: {id, nodes: ids} was stored, or {removed: ids}.
export async function open(onChange) {
  try {
    const request = indexedDB.open("weft", 2);
    request.onupgradeneeded = (event) => upgrade(request, event.oldVersion);
    database = await ask(request);
    database.onversionchange = () => database.close();
    channel = new BroadcastChannel("weft");
    channel.onmessage = (event) => onChange(event.data);
    return true;
  } catch {
    return false;
  }
}

export async function all() {
  if (!database) return [...memory.values()];
  const [heads, nodes] = begin("readonly");
  const [found, records] = await Promise.all([ask(heads.getAll()), ask(nodes.getAll())]);
  const by = new Map(found.map((head) => [head.id, []]));
  for (const record of records) by.get(record.conversation)?.push(record);
  return found.map((head) => {
    stored.add(head.id);
    return merge({ nodes: {} }, head, by.get(head.id), []);
  });
}

// Returns what is stored of the conversation @id: {head, records, gone: those of @ids that are not there}.
// @ids: of nodes; none: of all. Returns null if there is no such conversation.
export async function read(id, ids) {
  const [heads, nodes] = begin("readonly");
  const [head, ...found] = await Promise.all([
    ask(heads.get(id)),
    ...(ids?.map((node) => ask(nodes.get([id, node]))) ?? [ask(nodes.getAll(nodesOf(id)))]),
  ]);
  if (!head) return null;
  stored.add(id);
  return { head, records: found.flat().filter(Boolean), gone: ids?.filter((_, i) => !found[i]) ?? [] };
}

// Stores what has changed in @c. Returns false if another tab has removed it.
export async function put(c) {
  const ids = takeTouched(c);
  if (!database) {
    memory.set(c.id, c);
    return true;
  }
  try {
    const [heads, nodes, complete] = begin("readwrite");
    if (stored.has(c.id) && !(await ask(heads.getKey(c.id)))) return false;
    write(heads, nodes, c, ids);
    await complete;
  } catch (error) {
    for (const id of ids) touch(c, id);
    throw error;
  }
  stored.add(c.id);
  channel.postMessage({ id: c.id, nodes: ids });
  return true;
}

export async function remove(...ids) {
  if (!database) {
    for (const id of ids) memory.delete(id);
    return;
  }
  const [heads, nodes, complete] = begin("readwrite");
  for (const id of ids) {
    heads.delete(id);
    nodes.delete(nodesOf(id));
  }
  await complete;
  channel.postMessage({ removed: ids });
}
