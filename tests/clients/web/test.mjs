// test.mjs CHROMIUM URL URL_WITH_KEYS: the page as its users have it.

import assert from "node:assert/strict";
import fs from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";
import { run, test } from "./tap.mjs";

const [executablePath, url, lockedUrl, seeingUrl, screenshot] = process.argv.slice(2);
const axe = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const shots = process.env.WEFT_SHOTS;
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });

// A fresh browser, whose every complaint (of scripts, of the policy, of requests elsewhere) fails the test.
async function withPage(f, options, at = url) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, acceptDownloads: true, ...options });
  // A title that the model gives would come between two steps of a test on a slow machine.
  await context.addInitScript(() => localStorage["weft.settings"] ??= '{"titles":false}');
  const page = await context.newPage();
  const complaints = [];
  context.setDefaultTimeout(60000); // also of other tabs; only a failure waits so long; a loaded machine has needed more than 15 s
  page.on("pageerror", (e) => complaints.push(String(e)));
  page.on("console", (m) => m.type() === "error" && !/40[134]|429|503|ERR_/.test(m.text()) && complaints.push(m.text()));
  page.on("request", (r) => !r.url().startsWith(at) && !r.url().startsWith("blob:") && complaints.push(`request of ${r.url()}`));
  page.on("dialog", (d) => d.accept());
  await page.goto(at);
  await page.locator("#messages > *").first().waitFor(); // the page listens from then on, later than it is loaded
  await f(page, context);
  assert.deepEqual(complaints, []);
  await context.close();
}

async function ask(page, text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

// Waits until the list @list of conversations has the titles @titles: a page reads them after it is loaded.
async function listed(list, titles) {
  await list.locator("li a").nth(titles.length - 1).waitFor();
  await list.locator("li a").nth(titles.length).waitFor({ state: "detached" });
  assert.deepEqual(await list.locator("li a").allInnerTexts(), titles);
}

// Waits until the browser has stored, in the conversation @title, an answer that begins with @text: it outlives the page.
async function stored(page, title, text) {
  const found = await page.evaluate(async ([title, text]) => {
    const { all } = await import("/web/store.js");
    const has = (c) => c.title === title && Object.values(c.nodes).some((n) => n.role === "assistant" && n.content.startsWith(text));
    for (let i = 0; i < 750; i++) {
      if ((await all()).some(has)) return true;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    return false;
  }, [title, text]);
  assert.ok(found, `no answer that begins with "${text}" is stored`);
}

const answers = (page) => page.locator("article.assistant");
const done = (page) => page.locator("#send").waitFor();

async function accessible(page, where) {
  await page.evaluate(axe + ";0").catch(() => {});
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  assert.deepEqual(violations.map((v) => `${where}: ${v.id}: ${v.nodes.map((n) => n.target.join(" ")).slice(0, 3).join(", ")}: ${v.nodes[0].failureSummary}`), []);
}

// Seconds that the browser's processes have computed: whatever else the machine does counts for nothing.
async function cpuTime() {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  await session.detach();
  return processInfo.reduce((sum, p) => sum + p.cpuTime, 0);
}

async function shot(page, name) {
  if (shots) await page.screenshot({ path: `${shots}/${name}.png` });
}

test("an answer is streamed and its marks are shown", () => withPage(async (page) => {
  await page.getByRole("heading", { name: "What shall we work on?" }).waitFor();
  await shot(page, "empty");
  await accessible(page, "empty");
  await ask(page, "How does a loom work?");
  await done(page);
  const answer = answers(page).last();
  assert.equal(await answer.locator("ol > li").count(), 5);
  assert.equal(await answer.locator("table tbody tr").count(), 3);
  // A cell of one word is one line high at every width: columns do not shrink to letters.
  const tall = await answer.locator("table").evaluate((table) => {
    table.parentElement.style.width = "60px";
    return [...table.querySelectorAll("td, th")].filter((cell) => /^\S+$/.test(cell.textContent.trim()) &&
      cell.getBoundingClientRect().height > 2 * parseFloat(getComputedStyle(cell).lineHeight)).map((cell) => cell.textContent);
  });
  assert.deepEqual(tall, []);
  assert.equal(await answer.locator(".code pre").getAttribute("aria-label"), "Code, python");
  assert.match(await answer.locator(".stats").innerText(), /tokens/);
  assert.equal(await page.locator("#announce").textContent(), "The answer is complete.");
  await accessible(page, "chat");
  await shot(page, "chat");
}));

test("reasoning is folded", () => withPage(async (page) => {
  await ask(page, "Name a fibre.");
  await done(page);
  const box = answers(page).locator("details.reasoning");
  assert.equal(await box.evaluate((e) => e.open), false);
  assert.equal((await answers(page).locator(".text").innerText()).trim(), "Linen.");
  await box.locator("summary").click();
  assert.match(await box.innerText(), /Linen is old/);
  await accessible(page, "reasoning");
}));

test("an answer is stopped by Escape, and what came is kept", () => withPage(async (page) => {
  await ask(page, "Count for long.");
  await page.getByText("20 21 22").waitFor();
  await page.keyboard.press("Escape");
  await done(page);
  await page.getByText("Stopped.", { exact: true }).first().waitFor();
  assert.match(await answers(page).innerText(), /1 2 3 4/);
}));

test("an answer outlives the page that waits for it, and goes on", () => withPage(async (page) => {
  await ask(page, "Count for long.");
  await stored(page, "Count for long.", "1 2 3 4");
  await page.reload();
  await page.getByText("Stopped.", { exact: true }).first().waitFor();
  assert.match(await answers(page).innerText(), /1 2 3 4/);
  await page.getByRole("button", { name: "Continue" }).waitFor();
}));

test("an answer of the first moment outlives the page, and can be asked for again", () => withPage(async (page) => {
  await ask(page, "Count for long.");
  await stored(page, "Count for long.", "1 2 3");
  await page.reload();
  await page.getByText("Stopped.", { exact: true }).first().waitFor();
  assert.match(await answers(page).innerText(), /1 2 3/);
  await page.route("**/v1/chat/completions", () => {}); // no answer comes
  await page.getByRole("button", { name: /New chat/ }).click();
  await ask(page, "Count once more.");
  await answers(page).locator(".dots").waitFor();
  await stored(page, "Count once more.", "");
  await page.reload();
  await page.unroute("**/v1/chat/completions");
  await page.getByRole("button", { name: "Try again" }).click();
  await page.getByText("Hello from the script.").waitFor();
}));

test("a message without an answer is answered", () => withPage(async (page) => {
  await ask(page, "Hello");
  await done(page);
  await answers(page).getByRole("button", { name: /^Delete this message/ }).click();
  await answers(page).waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Answer this" }).click();
  await page.getByText("Hello from the script.").waitFor();
}));

test("a long message is folded", () => withPage(async (page) => {
  const text = Array.from({ length: 300 }, (_, i) => `line ${i}`).join("\n");
  await ask(page, text);
  await done(page);
  const bubble = page.locator("article.user .bubble");
  assert.ok((await bubble.boundingBox()).height < 400);
  assert.equal(await bubble.textContent(), text);
  await accessible(page, "folded");
  await shot(page, "folded");
  await page.getByRole("button", { name: /^Show all of it/ }).click();
  assert.ok((await bubble.boundingBox()).height > 4000);
  await page.getByRole("button", { name: "Show less" }).click();
  assert.ok((await bubble.boundingBox()).height < 400);
}));

test("a conversation that is deleted while it is answered does not come back", () => withPage(async (page) => {
  await ask(page, "Count for long.");
  await page.getByText("20 21 22").waitFor();
  const list = page.locator("#conversations");
  await list.locator("li").hover();
  await list.getByRole("button", { name: "Delete Count for long." }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("heading", { name: "What shall we work on?" }).waitFor();
  await page.waitForTimeout(300);
  assert.equal(await list.locator("li").count(), 0);
  await page.reload();
  await page.getByText("Your conversations will be listed here.").waitFor();
}));

test("a new chat takes what is sent at once", () => withPage(async (page) => {
  await ask(page, "Hello");
  await done(page);
  await page.evaluate(() => {
    document.querySelector("#new-chat").click();
    document.querySelector("#input").value = "Hello again";
    document.querySelector("#input").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
  });
  await listed(page.locator("#conversations"), ["Hello again", "Hello"]);
}));

test("an answer is made again beside the other, and a message is edited", () => withPage(async (page) => {
  await ask(page, "Hello");
  await done(page);
  await page.getByRole("button", { name: "Answer again" }).click();
  await page.getByText("2 / 2").waitFor();
  await done(page);
  await page.getByRole("button", { name: "Previous version" }).click();
  await page.getByText("1 / 2").waitFor();
  await page.locator("article.user").hover();
  await page.locator("article.user").getByRole("button", { name: "Edit" }).click();
  await page.getByLabel("Edit the message").fill("Hello, the second time");
  await page.getByRole("button", { name: "Send", exact: true }).first().click();
  await page.getByText("Answered to the edited message.").waitFor();
  await done(page);
  await page.locator("article.user").getByRole("button", { name: "Previous version" }).click();
  await page.getByText("Hello from the script.").waitFor();
}));

test("conversations outlive the page, are searched, renamed and deleted", () => withPage(async (page) => {
  await ask(page, "Remember the heddle");
  await done(page);
  await page.getByRole("button", { name: /New chat/ }).click();
  await ask(page, "And the shuttle");
  await done(page);
  await page.reload();
  const list = page.locator("#conversations");
  await listed(list, ["And the shuttle", "Remember the heddle"]);
  await page.getByLabel("Search conversations").fill("heddle");
  await listed(list, ["Remember the heddle"]);
  await list.locator("li a").click();
  await page.getByText("Hello from the script.").waitFor();
  await list.locator("li").hover();
  await list.getByRole("button", { name: /Rename/ }).click();
  await page.getByLabel("Title").fill("Looms");
  await page.keyboard.press("Enter");
  await page.getByLabel("Search conversations").fill("");
  await list.getByText("Looms").hover();
  await list.getByRole("button", { name: "Delete Looms" }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await list.getByText("Looms").waitFor({ state: "detached" });
  await page.getByRole("heading", { name: "What shall we work on?" }).waitFor();
}));

test("two tabs show one conversation, and keep what both say", () => withPage(async (page, context) => {
  await ask(page, "Remember the heddle");
  await done(page);
  const other = await context.newPage();
  await other.goto(page.url());
  await other.getByText("Hello from the script.").waitFor();
  await ask(other, "And the shuttle");
  await done(other);
  await page.getByText("And the shuttle", { exact: true }).last().waitFor();
  await answers(page).nth(1).waitFor();
  await ask(page, "And the reed");
  await done(page);
  await answers(other).nth(2).waitFor();
  const asked = ["Remember the heddle", "And the shuttle", "And the reed"];
  for (const tab of [page, other]) {
    await tab.reload();
    await answers(tab).nth(2).waitFor();
    assert.deepEqual(await tab.locator("article.user .bubble").allInnerTexts(), asked);
  }
  const list = page.locator("#conversations");
  await list.locator("li").hover();
  await list.getByRole("button", { name: /Delete/ }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await other.getByRole("heading", { name: "What shall we work on?" }).waitFor();
  await other.getByText("Your conversations will be listed here.").waitFor();
}));

test("the model gives a conversation its title", () => withPage(async (page) => {
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("The model gives conversations their titles").check();
  await page.keyboard.press("Escape");
  await page.locator("dialog[open]").waitFor({ state: "detached" }); // what is behind it takes no keys
  await ask(page, "Remember the heddle");
  await page.locator("#conversations").getByText("Hello from the script", { exact: true }).waitFor();
}));

test("a conversation is exported, deleted and imported again", () => withPage(async (page) => {
  await ask(page, "How does a loom work?");
  await done(page);
  const save = async (kind) => {
    await page.getByRole("button", { name: "Export this conversation" }).click();
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: kind, exact: true }).click()]);
    return fs.readFileSync(await download.path(), "utf8");
  };
  assert.match(await save("Markdown"), /## You\n\nHow does a loom work\?[^]*## scripted\n\nA loom weaves/);
  const json = await save("JSON");
  await page.getByRole("button", { name: "Settings" }).click();
  await accessible(page, "settings");
  await shot(page, "settings");
  const gaps = await page.locator("#titles").evaluate((box) => {
    const label = box.closest("label");
    const text = document.createRange();
    text.selectNode(label.lastChild);
    const next = label.parentElement.nextElementSibling.getBoundingClientRect();
    return [text.getBoundingClientRect().left - box.getBoundingClientRect().right, next.top - label.getBoundingClientRect().bottom];
  });
  assert.ok(gaps[0] >= 6 && gaps[1] >= 8, String(gaps));
  await page.getByRole("button", { name: "Delete all…" }).click();
  await page.getByRole("button", { name: "Delete all", exact: true }).click();
  await page.getByText("Your conversations will be listed here.").waitFor();
  await page.getByRole("button", { name: "Settings" }).click();
  await page.locator("#import-file").setInputFiles({ name: "a.json", mimeType: "application/json", buffer: Buffer.from(json) });
  await page.getByText("Letting off").waitFor();
  await page.getByRole("button", { name: "Settings" }).click();
  await page.locator("#import-file").setInputFiles({ name: "b.json", mimeType: "application/json", buffer: Buffer.from('{"nodes": 3}') });
  await page.getByText(/This file cannot be imported/).waitFor();
}));

test("what a model writes never becomes code", () => withPage(async (page) => {
  await ask(page, "Be hostile.");
  await done(page);
  const answer = answers(page).last();
  await answer.getByText("window.broken = 1").first().waitFor();
  await answer.hover();
  await page.waitForTimeout(300);
  assert.equal(await page.evaluate(() => globalThis.broken), undefined);
  assert.equal(await answer.locator(".markdown").locator("script, img, iframe, svg:not(.icon), style, [onerror], [onload], [onmouseover], [srcdoc]").count(), 0);
  const links = await answer.locator("a").evaluateAll((list) => list.map((a) => [a.protocol, a.rel]));
  for (const [protocol, rel] of links) assert.deepEqual([protocol, rel], ["https:", "noopener noreferrer nofollow"]);
  const imported = { nodes: { "": { children: ["a", "__proto__"], selected: "a" }, a: { role: "user", content: "<img src=x onerror=window.broken=1>", children: ["b"], selected: "b" },
    b: { role: "assistant", content: "ok", model: "<img src=x onerror=window.broken=2>", toolCalls: [{ name: "<b>", arguments: "<script>" }] } }, title: "<img src=x onerror=window.broken=3>" };
  await page.getByRole("button", { name: "Settings" }).click();
  await page.locator("#import-file").setInputFiles({ name: "a.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(imported)) });
  await page.locator("article.assistant").getByText("ok", { exact: true }).waitFor();
  assert.equal(await page.evaluate(() => globalThis.broken), undefined);
}));

test("a text of a language from right to left is shown so", () => withPage(async (page) => {
  await ask(page, "\u05e9\u05dc\u05d5\u05dd, weft!");
  await done(page);
  // Its exclamation mark is at the left end.
  const [first, last] = await page.locator("article.user .bubble").evaluate((bubble) => {
    const at = (i) => {
      const range = document.createRange();
      range.setStart(bubble.firstChild, i);
      range.setEnd(bubble.firstChild, i + 1);
      return range.getBoundingClientRect().left;
    };
    return [at(0), at(bubble.firstChild.length - 1)];
  });
  assert.ok(last < first, `${last} < ${first}`);
}));

test("markdown is kept to its rules", () => withPage(async (page) => {
  const cases = [
    ["a *b* **c** ~~d~~ `e`", "<p>a <em>b</em> <strong>c</strong> <del>d</del> <code>e</code></p>"],
    ["snake_case_name and 2 * 3 * 4", "<p>snake_case_name and 2 * 3 * 4</p>"],
    ["# A\n\ntext\nmore", "<h3>A</h3><p>text\nmore</p>"],
    ["- a\n  - b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"],
    ["  - a\n    1. b\n    2. c", "<ul><li>a<ol start=\"1\"><li>b</li><li>c</li></ol></li></ul>"],
    ["a\n2. b", "<p>a\n2. b</p>"],
    ["3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'],
    ["<b>x</b> & \\*y\\*", "<p>&lt;b&gt;x&lt;/b&gt; &amp; *y*</p>"],
    ["> q\n> r", "<blockquote><p>q\nr</p></blockquote>"],
    ["***both*** and **a *b* c**", "<p><strong><em>both</em></strong> and <strong>a <em>b</em> c</strong></p>"],
    ["---", "<hr>"],
    ["unclosed **bold and `code", "<p>unclosed **bold and `code</p>"],
  ];
  const result = await page.evaluate(async (texts) => {
    const { render } = await import("/web/markdown.js");
    return texts.map((t) => {
      const box = document.createElement("div");
      for (let n = 1; n <= t.length; n++) render(box, t.slice(0, n)); // as it is streamed
      return box.innerHTML;
    });
  }, cases.map(([t]) => t));
  assert.deepEqual(result, cases.map(([, html]) => html));
  const begin = await cpuTime();
  await page.evaluate(async () => {
    const { render } = await import("/web/markdown.js");
    for (const t of ["*".repeat(20000), "[".repeat(20000), "> ".repeat(5000) + "x", "`".repeat(9999) + " " + "`".repeat(9998), "- ".repeat(5000), "|a".repeat(5000) + "\n" + "|-".repeat(5000), "_a ".repeat(9000)])
      render(document.createElement("div"), t);
  });
  const seconds = (await cpuTime()) - begin;
  assert.ok(seconds < 10, `hostile lengths took ${seconds} s`);
}));

test("tools are called, their results typed", () => withPage(async (page) => {
  await page.getByRole("button", { name: "Parameters of this chat" }).click();
  await page.getByLabel("Temperature").fill("0.5");
  await page.getByLabel("Tools").fill('[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]');
  await accessible(page, "parameters");
  await ask(page, "Weather in Ghent");
  await done(page);
  const call = page.getByRole("region", { name: "Call of weather" });
  assert.match(await call.locator("pre").innerText(), /"city": "Ghent"/);
  await shot(page, "tools");
  await call.getByLabel("Result of weather").fill("12 degrees");
  await call.getByRole("button", { name: "Send result" }).click();
  await page.getByText("It has 12 degrees in Ghent.").waitFor();
}));

test("a refusal is told and can be tried again", () => withPage(async (page) => {
  await ask(page, "Refuse this.");
  await page.getByRole("button", { name: "Try again" }).waitFor();
  await accessible(page, "error");
  await shot(page, "error");
}));

test("the state of the service is told, and its end is noticed", () => withPage(async (page) => {
  let state = { status: "unavailable", state: "starting" };
  await page.route("**/health", (route) => (state ? route.fulfill({ status: state.status === "ok" ? 200 : 503, json: state }) : route.abort()));
  await page.reload();
  const banner = page.locator("#banner");
  await banner.getByText("The model is being loaded").waitFor();
  await accessible(page, "starting");
  await shot(page, "starting");
  state = { status: "unavailable", state: "failed", reason: "no such <b>file</b>" };
  await banner.getByText("The model cannot be loaded: no such <b>file</b>.").waitFor();
  state.reason = "was it copied whole?";
  await banner.getByText(/whole\?$/).waitFor();
  state = null;
  await banner.getByText("weft does not answer").waitFor();
  state = { status: "ok", state: "serving" };
  await banner.waitFor({ state: "hidden" });
  await page.route("**/v1/chat/completions", (route) => route.abort());
  await ask(page, "Hello");
  await page.getByText("weft does not answer. Is it running").first().waitFor();
  await page.unroute("**/v1/chat/completions");
  await page.keyboard.press("ArrowUp");
  await page.getByLabel("Edit the message").fill("Hello again");
  await page.keyboard.press("Control+Enter");
  await page.getByText("Hello from the script.").waitFor();
}));

test("a key is asked for, used and forgotten", () => withPage(async (page, context) => {
  const box = page.getByRole("dialog", { name: "API key" });
  await box.waitFor();
  await accessible(page, "key");
  await box.getByLabel("API key", { exact: true }).fill("sk-wrong");
  await box.getByRole("button", { name: "Use this key" }).click();
  await box.getByText("The server does not accept this API key.").waitFor();
  await box.getByLabel("API key", { exact: true }).fill("sk-one");
  await box.getByRole("button", { name: "Use this key" }).click();
  await ask(page, "Hello");
  await page.getByText("Hello from the script.").waitFor();
  const kept = await context.storageState();
  assert.ok(!JSON.stringify(kept).includes("sk-one"), "the key is kept though it was not asked for");
}, {}, lockedUrl));

test("the live view draws what is done", () => withPage(async (page, context) => {
  await ask(page, "Count for long.");
  await page.getByRole("link", { name: "Live view" }).click();
  await page.getByRole("heading", { name: "Output tokens per second" }).waitFor();
  await page.waitForFunction(() => document.querySelectorAll(".chart .line").length >= 4);
  await page.waitForTimeout(2500);
  await page.getByText("First token").waitFor();
  await page.goBack();
  await page.keyboard.press("Escape");
  await done(page);
  await page.getByRole("link", { name: "Live view" }).click();
  await page.locator("details.request").first().click();
  await page.locator("details.request[open] dt", { hasText: "Wrote the answer" }).waitFor();
  const line = await page.locator("details.request summary").first().innerText();
  assert.match(line, /[\d,]+ tokens in, [\d,]+ out · (waited for its turn|read the prompt|wrote the answer) for /);
  await accessible(page, "live");
  await shot(page, "live");
}));

// Sends a chat with the key @key, from outside of the page.
async function chatAs(key, text) {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${key}` };
  const body = JSON.stringify({ messages: [{ role: "user", content: text }] });
  const answer = await fetch(`${lockedUrl}/v1/chat/completions`, { method: "POST", headers, body });
  assert.equal(answer.status, 200);
}

async function giveKey(page, key) {
  const box = page.getByRole("dialog", { name: "API key" });
  await box.getByLabel("API key", { exact: true }).fill(key);
  await box.getByRole("button", { name: "Use this key" }).click();
}

test("an operator sees the requests of all tenants, and why one was slow", () => withPage(async (page) => {
  await chatAs("sk-one", "Name a fibre.");
  await chatAs("sk-two", "How does a loom work?");
  await giveKey(page, "sk-root");
  await page.getByRole("link", { name: "Live view" }).click();
  const rows = page.locator("details.request");
  await rows.filter({ hasText: "one ·" }).first().waitFor();
  await rows.filter({ hasText: "two ·" }).first().waitFor();
  await page.getByRole("combobox", { name: "Tenant" }).selectOption("two");
  await rows.filter({ hasText: "one ·" }).first().waitFor({ state: "detached" });
  await page.getByRole("combobox", { name: "Ended" }).selectOption("times");
  await page.getByLabel("From").fill("00:00");
  await page.getByLabel("Order").selectOption("");
  await rows.filter({ hasText: "two ·" }).first().locator("summary").click();
  await page.getByText("The scheduler's decisions about it are not kept any more.").or(page.getByText(/^Of .* went into/)).waitFor();
  await accessible(page, "requests");
  await shot(page, "requests");
}, {}, lockedUrl));

test("a user sees the requests of the own key", () => withPage(async (page) => {
  await chatAs("sk-one", "Name a fibre.");
  await giveKey(page, "sk-two");
  await chatAs("sk-two", "Name a fibre.");
  await page.getByRole("link", { name: "Live view" }).click();
  await page.locator("details.request").first().click();
  await page.locator("details.request[open] dd", { hasText: /^two$/ }).waitFor();
  assert.equal(await page.locator("#requests-tenant").isVisible(), false);
  assert.equal(await page.locator("details.request dd", { hasText: /^one$/ }).count(), 0);
}, {}, lockedUrl));

test("where the time of a request went is told in words", () => withPage(async (page) => {
  const got = await page.evaluate(async () => {
    const { secondsSince, words } = await import("/web/requests.js");
    const now = new Date(2026, 0, 2, 10, 32, 5);
    return [words([]), words([
      { code: "load", text: "waited for its model to be loaded", at_ms: 20, ms: 4400, rows: 0 },
      { code: "prompt", text: "computed its prompt", at_ms: 4420, ms: 80, rows: 4 },
    ]), words([
      { code: "queued", text: "waited behind other requests", at_ms: 0, ms: 1500, rows: 0 },
      { code: "admitted", text: "was admitted", at_ms: 1500, ms: 0, rows: 0 },
      { code: "prompt", text: "computed its prompt", at_ms: 1500, ms: 8000, rows: 8028 },
      { code: "time", text: "waited while steps computed other requests", at_ms: 9500, ms: 100, rows: 0 },
      { code: "decode", text: "generated tokens", at_ms: 9600, ms: 400, rows: 9 },
    ]), secondsSince("10:30", now), secondsSince("10:33", now)];
  });
  assert.deepEqual(got, ["", "Of 4.50\u00a0s, 2 % went into 4 tokens of the prompt, 0 % into the answer, 98 % into waiting, longest: it waited for its model to be loaded (4.40\u00a0s).", "Of 10.0\u00a0s, 80 % went into 8,028 tokens of the prompt, 4 % into the answer, 16 % into waiting, longest: it waited behind other requests (1.50\u00a0s).", 125, 86345]);
}));

test("figures of several models are one", () => withPage(async (page) => {
  const sample = (used, hits, fast, slow) => `# HELP x y
vllm:cache_config_info{model_name="a",block_size="32",num_gpu_blocks="100"} 1
vllm:cache_config_info{model_name="b \\"c\\"",block_size="32",num_gpu_blocks="300"} 1
vllm:kv_cache_usage_perc{model_name="a"} ${used}
vllm:kv_cache_usage_perc{model_name="b \\"c\\""} 0.5
vllm:cache_config_info{model_name="unloaded",block_size="32",num_gpu_blocks="5000"} 1
vllm:kv_cache_usage_perc{model_name="unloaded"} 0
weft_pages_cached{model_name="a"} 50
weft_pages_cached{model_name="b \\"c\\""} 70
weft_pages_pinned{model_name="a"} 20
weft_pages_free{model_name="a"} 25
weft_pages_free{model_name="b \\"c\\""} 80
hits_total{model_name="a"} ${hits}
hits_total{model_name="b"} 10
weft_tenant_output_tokens_total{tenant="t",model_name="a"} 3
weft_tenant_output_tokens_total{tenant="t",model_name="b"} 4
t_bucket{model_name="a",le="0.1"} ${fast}
t_bucket{model_name="a",le="1"} ${slow}
t_bucket{model_name="a",le="+Inf"} ${slow}
`;
  const got = await page.evaluate(async ([before, now]) => {
    const m = await import("/web/metrics.js");
    const a = m.parse(before);
    const b = m.parse(now);
    a.at = 10;
    b.at = 12;
    return [m.pages(b), m.label(b, "vllm:cache_config_info", "model_name"), m.rate(a, b, "hits_total"), m.tenants(b), m.quantile(a, b, "t", 0.5), m.quantile(a, b, "t", 0.05),
      Number.isNaN(m.quantile(a, a, "t", 0.5)), m.increase(b, a, "hits_total") > 0, Number.isNaN(m.value(b, "none"))];
  }, [sample(0.1, 10, 5, 10), sample(0.25, 30, 6, 20)]);
  const [pages, label, rate, tenants, half, first, none, restarted, absent] = got;
  assert.deepEqual([pages, label, rate, tenants], [{ total: 400, used: 175, pinned: 20, cached: 100, free: 105, page: 32 }, 'a, b "c", unloaded', 10, { t: { output_tokens: 7 } }]);
  assert.ok(Math.abs(half - (0.1 + 0.9 * (4 / 9))) < 1e-9 && first === -0.1 && none && restarted && absent, String(got));
}));

// Gives the page the screenshot as @kind of event with files at @selector, as a paste or a drop does.
async function give(page, selector, kind) {
  const data = fs.readFileSync(screenshot).toString("base64");
  await page.locator(selector).evaluate((e, { kind, data }) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], `${kind}.png`, { type: "image/png" }));
    const init = { bubbles: true, cancelable: true };
    e.dispatchEvent(kind === "paste" ? new ClipboardEvent(kind, { ...init, clipboardData: transfer }) : new DragEvent(kind, { ...init, dataTransfer: transfer }));
  }, { kind, data });
}

test("pictures are chosen, pasted and dropped, shown, sent and kept", () => withPage(async (page) => {
  const waiting = page.locator("#attached img");
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: "Attach text files, PDF or pictures" }).click()]);
  await chooser.setFiles(screenshot);
  await waiting.nth(0).waitFor();
  await give(page, "#input", "paste");
  await waiting.nth(1).waitFor();
  await give(page, "#chat", "drop");
  await waiting.nth(2).waitFor();
  await accessible(page, "pictures attached");
  await page.getByRole("button", { name: /^Remove paste.png/ }).click();
  await page.getByRole("button", { name: /^Remove drop.png/ }).click();
  await waiting.nth(1).waitFor({ state: "detached" });
  await ask(page, "What is on this screenshot?");
  await done(page);
  await page.getByText("It is a screenshot of a chat").waitFor();
  const shown = page.locator("article.user img.picture");
  assert.equal(await shown.count(), 1);
  assert.ok(await shown.evaluate((e) => e.naturalWidth > 1000), "the picture is not drawn");
  await accessible(page, "picture sent");
  await shot(page, "web-picture");
  await page.reload();
  await shown.waitFor();
  assert.ok(await shown.evaluate((e) => e.decode().then(() => e.naturalWidth > 1000)), "the picture is gone");
  await ask(page, "And what else?"); // the picture goes with the history
  await done(page);
  assert.equal(await page.getByText("It is a screenshot of a chat").count(), 2);
}, undefined, seeingUrl));

// Returns a PDF of one page with the line @text.
function pdf(text) {
  const content = `BT /F1 12 Tf 72 720 Td (${text}) Tj ET`;
  const objects = [
    "<< /Type /Catalog /Pages 2 0 R >>",
    "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    "<< /Type /Page /Parent 2 0 R /Resources << /Font << /F1 4 0 R >> >> /Contents 5 0 R >>",
    "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    `<< /Length ${content.length} >> stream\n${content}\nendstream`,
  ];
  return `%PDF-1.5\n${objects.map((o, i) => `${i + 1} 0 obj\n${o}\nendobj\n`).join("")}trailer << /Root 1 0 R >>\n%%EOF`;
}

test("the text of a PDF is attached, and a file without text is refused", () => withPage(async (page) => {
  const attach = async (name, text) => {
    const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: /^Attach text files/ }).click()]);
    await chooser.setFiles({ name, mimeType: "application/pdf", buffer: Buffer.from(text, "latin1") });
  };
  const built = await page.evaluate(async () => (await fetch("web/pdf.worker.js")).ok);
  await attach("report.pdf", pdf("Euler, Gauss and the rest."));
  if (!built) {
    await page.getByText(/report.pdf is a PDF.*pdftotext/).waitFor();
    return;
  }
  await page.locator("#attached").getByText("report.pdf").waitFor();
  await attach("damaged.pdf", "%PDF-1.5\n");
  await page.getByText(/damaged.pdf is a PDF.*damaged/).waitFor();
  await ask(page, "Who is named?");
  await done(page);
  await page.locator("article.user").getByText("report.pdf").click();
  await page.getByText("Euler, Gauss and the rest.").waitFor();
}));

test("a picture for a model without eyes is not taken", () => withPage(async (page) => {
  let answer;
  const release = new Promise((resolve) => { answer = resolve; });
  await page.route("**/v1/models", (route) => release.then(() => route.continue()));
  await page.reload();
  await page.locator("#messages > *").first().waitFor();
  await give(page, "#input", "paste"); // before the page knows whether the model sees
  answer();
  await page.getByText(/paste.png is a picture, and this model reads only text/).waitFor();
  assert.equal(await page.locator("#attached img").count(), 0);
}));

test("by keyboard alone, dark, and on a phone", () => withPage(async (page) => {
  await page.getByRole("heading", { name: "What shall we work on?" }).waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("How does a loom work?");
  await page.keyboard.press("Enter");
  await done(page);
  await page.getByText("Letting off").waitFor();
  await page.keyboard.press("Alt+KeyP");
  assert.equal(await page.evaluate(() => document.activeElement.id), "param-system");
  await page.keyboard.press("Escape");
  await shot(page, "phone");
  await page.locator("#about").getByText(/context [\d,]+/).waitFor();
  const about = await page.locator("#about").boundingBox();
  assert.ok(about.width > 60 && about.height > 8, JSON.stringify(about));
  assert.ok(await page.locator("#about").evaluate((e) => {
    e.textContent = "30.5 B parameters · context 131,072";
    return e.scrollWidth <= e.clientWidth;
  }), "size and context are cut");
  await accessible(page, "phone");
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 390, `the page is ${wide} wide`);
  await page.getByRole("button", { name: "Open the list of conversations" }).click();
  const focused = () => page.evaluate(() => document.activeElement.id);
  assert.equal(await focused(), "new-chat");
  await page.locator("#sidebar").evaluate((e) => Promise.all(e.getAnimations().map((a) => a.finished)));
  await accessible(page, "drawer");
  await shot(page, "drawer");
  await page.getByRole("button", { name: "Settings" }).click();
  await page.keyboard.press("Escape");
  assert.equal(await focused(), "settings-open", "the drawer closes with the settings");
  await page.keyboard.press("Escape");
  assert.equal(await focused(), "sidebar-open", "focus is lost with the drawer");
  await page.keyboard.press("Alt+KeyN");
  await page.getByRole("heading", { name: "What shall we work on?" }).waitFor();
}, { viewport: { width: 390, height: 780 }, colorScheme: "dark", hasTouch: true, isMobile: true }));

await run();
