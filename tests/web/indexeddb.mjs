// As much of IndexedDB as web/store.js uses, in memory, for tests without a browser.

export const databases = new Map(); // by name: {version, stores: by name {keyPath, rows: by key}}
export const wrote = []; // keys, as JSON, in the order in which they were written
export const fails = { next: false }; // the next transaction that writes is aborted

const keyOf = (path, value) => JSON.stringify([path].flat().map((name) => value[name]));

class Store {
  constructor(store, transaction) {
    Object.assign(this, { store, transaction });
  }
  answer(result) {
    const request = {};
    this.transaction.n_open++;
    setImmediate(() => {
      request.result = result;
      request.onsuccess?.({ target: request });
      setImmediate(() => this.transaction.close());
    });
    return request;
  }
  find = (key) => this.store.rows.get(JSON.stringify([key].flat()));
  get = (key) => this.answer(structuredClone(this.find(key)));
  getKey = (key) => this.answer(this.find(key) && key);
  getAll = (range) =>
    this.answer([...this.store.rows].filter(([k]) => !range || range.has(k)).map(([, v]) => structuredClone(v)));
  put(value) {
    const key = keyOf(this.store.keyPath, value);
    const row = structuredClone(value);
    this.transaction.changes.push(() => {
      wrote.push(key);
      this.store.rows.set(key, row);
    });
    return this.answer();
  }
  delete(key) {
    this.transaction.changes.push(() => {
      for (const k of [...this.store.rows.keys()])
        if (key.has ? key.has(k) : k === JSON.stringify([key].flat())) this.store.rows.delete(k);
    });
    return this.answer();
  }
}

class Transaction {
  n_open = 0;
  changes = [];
  constructor(stores) {
    this.stores = stores;
  }
  objectStore(name) {
    return new Store(this.stores.get(name), this);
  }
  close() {
    if (--this.n_open > 0) return;
    const aborts = this.changes.length && fails.next;
    if (aborts) {
      fails.next = false;
      this.error = new Error("QuotaExceededError");
      return this.onabort?.();
    }
    for (const change of this.changes.splice(0)) change();
    this.oncomplete?.();
  }
}

globalThis.IDBKeyRange = { bound: ([first]) => ({ has: (key) => JSON.parse(key)[0] === first }) };
globalThis.indexedDB = {
  open(name, version) {
    if (!databases.has(name)) databases.set(name, { version: 0, stores: new Map() });
    const found = databases.get(name);
    const upgrade = new Transaction(found.stores);
    const request = { transaction: upgrade };
    request.result = {
      createObjectStore(store, { keyPath }) {
        found.stores.set(store, { keyPath, rows: new Map() });
        return upgrade.objectStore(store);
      },
      transaction: () => new Transaction(found.stores),
    };
    setImmediate(() => {
      if (found.version === version) return request.onsuccess();
      upgrade.oncomplete = () => request.onsuccess();
      request.onupgradeneeded({ oldVersion: found.version });
      found.version = version;
      if (!upgrade.n_open) request.onsuccess();
    });
    return request;
  },
};
