// Stores conversations in IndexedDB, or in memory where the browser has none (private windows).

const STORE = "conversations";
let database = null;
const memory = new Map();

function ask(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export async function open() {
  try {
    const request = indexedDB.open("weft", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    database = await ask(request);
    database.onversionchange = () => database.close();
    return true;
  } catch {
    return false;
  }
}

function table(mode) {
  return database.transaction(STORE, mode).objectStore(STORE);
}

export async function all() {
  return database ? ask(table("readonly").getAll()) : [...memory.values()];
}

export async function put(conversation) {
  if (database) await ask(table("readwrite").put(conversation));
  else memory.set(conversation.id, conversation);
}

export async function remove(id) {
  if (database) await ask(table("readwrite").delete(id));
  else memory.delete(id);
}

export async function clear() {
  if (database) await ask(table("readwrite").clear());
  else memory.clear();
}
