// web/store.js and what web/conversation.js has for it: what is written, and what two tabs make of one
// conversation. Prints TAP.
//
//     node tests/web/test_store.mjs

import assert from "node:assert/strict";
import { databases, fails, wrote } from "./indexeddb.mjs";

const web = (name) => import(new URL(`../../web/${name}`, import.meta.url));
const conv = await web("conversation.js");

const tests = [];
const test = (name, run) => tests.push({ name, run });
const settings = { system: "", params: {}, model: "m" };
const texts = (c) => conv.path(c).map((n) => n.content);
let tabs = 0;

// Another page of the same browser: a store of its own, and what the others told it.
async function tab() {
  const store = await web(`store.js?tab=${++tabs}`);
  const heard = [];
  assert.equal(await store.open((what) => heard.push(what)), true);
  return { store, heard, read: async () => (await store.all()).map(conv.wake) };
}

// Takes over in @c what @t was told, as the page does.
async function hear(t, c, writing) {
  for (let i = 0; i < 100 && !t.heard.length; i++) await new Promise((done) => setTimeout(done, 5));
  for (const { id, nodes } of t.heard.splice(0)) {
    const { head, records, gone } = await t.store.read(id, nodes);
    conv.merge(c, head, records, gone, writing);
  }
}

function filled(n) {
  const c = conv.create(settings);
  for (let i = 0, at = ""; i < n; i++)
    at = conv.addNode(c, at, { role: i % 2 ? "assistant" : "user", content: `text ${i}` }).id;
  return c;
}

test("conversations of version 1 are kept", async () => {
  const c = filled(4);
  const [first] = conv.path(c);
  conv.addNode(c, first.parent, { role: "user", content: "edited" });
  conv.select(c, conv.path(c)[0], -1);
  conv.takeTouched(c);
  databases.set("weft", {
    version: 1,
    stores: new Map([["conversations", { keyPath: "id", rows: new Map([[JSON.stringify([c.id]), structuredClone(c)]]) }]]),
  });
  const { read } = await tab();
  assert.deepEqual(await read(), [c]);
});

test("a conversation is read as it was stored", async () => {
  const a = await tab();
  const c = filled(200);
  conv.addNode(c, conv.path(c)[9].parent, { role: "assistant", content: "another" });
  conv.select(c, conv.path(c).at(-1), -1);
  assert.equal(await a.store.put(c), true);
  const [found] = (await (await tab()).read()).filter((x) => x.id === c.id);
  assert.deepEqual(found, c);
  assert.equal(conv.path(found).length, 200);
});

test("only what has changed is written", async () => {
  const a = await tab();
  const c = filled(200);
  const picture = `data:image/png;base64,${"A".repeat(1 << 20)}`;
  conv.addNode(c, conv.path(c).at(-1).id, { role: "user", content: "", files: [{ name: "p", picture }] });
  await a.store.put(c);
  const node = conv.addNode(c, conv.path(c).at(-1).id, { role: "assistant" });
  await a.store.put(c);
  wrote.length = 0;
  node.content = "more";
  conv.touch(c, node.id);
  await a.store.put(c);
  assert.deepEqual(wrote, [JSON.stringify([c.id]), JSON.stringify([c.id, node.id])]);
  wrote.length = 0;
  c.title = "renamed";
  await a.store.put(c);
  assert.deepEqual(wrote, [JSON.stringify([c.id])]);
});

test("what could not be written is written with the next change", async () => {
  const a = await tab();
  const c = filled(3);
  fails.next = true;
  await assert.rejects(a.store.put(c), /Quota/);
  await a.store.put(c);
  assert.deepEqual(texts((await a.read()).find((x) => x.id === c.id)), texts(c));
});

test("what two tabs say at one place is kept as branches", async () => {
  const [a, b] = [await tab(), await tab()];
  const c = filled(2);
  await a.store.put(c);
  const [d] = (await b.read()).filter((x) => x.id === c.id);
  const end = conv.path(c).at(-1).id;
  conv.addNode(c, end, { role: "user", content: "from a" });
  conv.addNode(d, end, { role: "user", content: "from b" });
  a.heard.length = b.heard.length = 0;
  await a.store.put(c);
  await hear(b, d);
  assert.deepEqual(texts(d), [...texts(filled(2)), "from a"], "b follows");
  await b.store.put(d);
  await hear(a, c);
  for (const x of [c, d, (await (await tab()).read()).find((e) => e.id === c.id)])
    assert.deepEqual(x.nodes[end].children.map((id) => x.nodes[id].content), ["from a", "from b"]);
});

test("an answer that is written here is not disturbed", async () => {
  const [a, b] = [await tab(), await tab()];
  const c = filled(1);
  await a.store.put(c);
  const [d] = (await b.read()).filter((x) => x.id === c.id);
  const mine = conv.addNode(c, conv.path(c)[0].id, { role: "assistant", content: "half an", writing: true });
  await a.store.put(c);
  conv.addNode(d, conv.path(d)[0].id, { role: "assistant", content: "another" });
  conv.touch(d, mine.id); // as if it had been deleted there
  await b.store.put(d);
  a.heard.splice(0, a.heard.length);
  a.heard.push({ id: c.id, nodes: Object.keys(c.nodes).concat(Object.keys(d.nodes)) });
  await hear(a, c, mine.id);
  assert.equal(c.nodes[mine.id], mine);
  assert.deepEqual(texts(c), ["text 0", "half an"]);
  assert.equal(conv.siblings(c, mine).length, 2);
});

test("a message that is deleted is deleted in both, and a node stays the same object", async () => {
  const [a, b] = [await tab(), await tab()];
  const c = filled(4);
  await a.store.put(c);
  const [d] = (await b.read()).filter((x) => x.id === c.id);
  const first = conv.path(d)[0];
  b.heard.length = 0;
  conv.path(c)[0].content = "changed";
  conv.touch(c, conv.path(c)[0].id);
  conv.removeNode(c, conv.path(c)[2]);
  await a.store.put(c);
  await hear(b, d);
  assert.deepEqual(texts(d), ["changed", "text 1"]);
  assert.equal(conv.path(d)[0], first);
  assert.deepEqual(texts((await (await tab()).read()).find((x) => x.id === c.id)), ["changed", "text 1"]);
});

test("a conversation that another tab has deleted does not come back", async () => {
  const [a, b] = [await tab(), await tab()];
  const c = filled(2);
  await a.store.put(c);
  const [d] = (await b.read()).filter((x) => x.id === c.id);
  await a.store.remove(c.id);
  conv.addNode(d, conv.path(d).at(-1).id, { role: "user", content: "still here" });
  assert.equal(await b.store.put(d), false);
  assert.equal(await b.store.read(c.id), null);
  const { stores } = databases.get("weft");
  for (const store of stores.values()) assert.equal([...store.rows.keys()].some((k) => k.includes(c.id)), false);
});

console.log(`1..${tests.length}`);
let failed = 0;
for (const [i, { name, run }] of tests.entries())
  try {
    await run();
    console.log(`ok ${i + 1} - ${name}`);
  } catch (error) {
    failed++;
    console.log(`not ok ${i + 1} - ${name}\n${String(error.stack).replace(/^/gm, "# ")}`);
  }
process.exit(failed ? 1 : 0);
