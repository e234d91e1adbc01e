// looks.mjs CHROMIUM FOLDER SCRIPTED LOCKED REAL [SCENE...]: pictures of each part of the page, wide and on a phone, light
// and dark, for a person to look at. Fails where a page is wider than its window, or a control lies outside of it.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const [executablePath, folder, scripted, locked, real, ...wanted] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
const WINDOWS = [
  { name: "1280", viewport: { width: 1280, height: 800 } },
  { name: "768", viewport: { width: 768, height: 1000 }, hasTouch: true },
  { name: "390", viewport: { width: 390, height: 780 }, isMobile: true, hasTouch: true },
  { name: "320", viewport: { width: 320, height: 560 }, isMobile: true, hasTouch: true },
];

async function ask(page, text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

const answered = (page) => page.locator("#send").waitFor();

// Has the daemon end a request: the list of requests begins with those of the last ten minutes.
const request = (page) => page.request.post(`${real}/v1/completions`, { data: { prompt: "Once", max_tokens: 40 } });

// Opens the list of conversations where it is not always open.
async function openSidebar(page) {
  const button = page.locator("#sidebar-open");
  if (await button.isVisible()) await button.click();
  await page.waitForTimeout(300); // it slides
}

const SCENES = [
  ["start", scripted, async () => {}],
  ["marks", scripted, async (page) => {
    await ask(page, "Show all marks.");
    await answered(page);
    await page.locator("article.assistant").evaluate((e) => e.scrollIntoView());
  }],
  ["loom", scripted, async (page) => {
    await ask(page, "How does a loom work?");
    await answered(page);
  }],
  ["paste", scripted, async (page) => {
    const lines = Array.from({ length: 300 }, (_, i) => `line ${i} of a log that someone has pasted`);
    await ask(page, `What is wrong here?\n${lines.join("\n")}`);
    await answered(page);
    const file = { name: "a-file-with-a-long-name.txt", mimeType: "text/plain", buffer: Buffer.from("text") };
    for (const name of ["notes.md", "a-file-with-a-long-name.txt"]) await page.locator("#files").setInputFiles({ ...file, name });
    await page.locator("#attached li").nth(1).waitFor();
    await page.getByRole("button", { name: "Copy" }).last().click();
  }],
  ["list", scripted, async (page) => {
    for (const text of ["Hello", "How does a loom work?", "A question whose title is much longer than the list of conversations is wide"]) {
      await page.goto(scripted);
      await ask(page, text);
      await answered(page);
    }
    await openSidebar(page);
  }],
  ["settings", scripted, async (page) => {
    await openSidebar(page);
    await page.getByRole("button", { name: "Settings" }).click();
    await page.locator("dialog[open]").waitFor();
  }],
  ["parameters", scripted, (page) => page.getByRole("button", { name: "Parameters of this chat" }).click()],
  ["refused", scripted, async (page) => {
    await ask(page, "Refuse this.");
    await page.getByRole("button", { name: "Try again" }).waitFor();
  }],
  ["key", locked, async (page) => {
    const box = page.getByRole("dialog", { name: "API key" });
    await ask(page, "Hello");
    await box.getByLabel("API key", { exact: true }).fill("sk-wrong");
    await box.getByRole("button", { name: "Use this key" }).click();
    await box.getByText(/does not accept/).waitFor();
  }],
  ["live", real, async (page) => {
    await request(page);
    await page.goto(`${real}#live`);
    await page.getByRole("heading", { name: "Output tokens per second" }).waitFor();
    await page.locator("details.request").first().waitFor();
    await page.waitForTimeout(2500); // the figures of a second sample
  }],
  ["requests", real, async (page) => {
    await request(page);
    await page.goto(`${real}#live`);
    const row = page.locator("details.request").first();
    await row.locator("summary").click();
    await row.locator("dd").first().waitFor();
    await row.evaluate((e) => e.scrollIntoView());
  }],
];

// Returns what lies outside of the window: the page itself, or names of controls.
const outside = (page) => page.evaluate(() => {
  const wide = document.documentElement.clientWidth;
  const found = document.documentElement.scrollWidth > wide ? [`the page is ${document.documentElement.scrollWidth} wide`] : [];
  for (const e of document.querySelectorAll("button, input, select, textarea, a")) {
    const { left, right, width } = e.getBoundingClientRect();
    const scrolls = e.closest(".table, pre, .sidebar, .panel, .sr-only, .skip");
    if (width && !scrolls && e.checkVisibility() && (left < -1 || right > wide + 1)) found.push(e.ariaLabel || e.textContent || e.id);
  }
  return found;
});

const wrong = [];
for (const { name: width, ...window } of WINDOWS) {
  for (const colorScheme of ["light", "dark"]) {
    for (const [scene, url, show] of SCENES.filter(([s]) => !wanted.length || wanted.includes(s))) {
      const name = `${scene}-${width}-${colorScheme}`;
      const context = await browser.newContext({ ...window, colorScheme });
      await context.addInitScript(() => localStorage["weft.settings"] ??= '{"titles":false}');
      const page = await context.newPage();
      page.setDefaultTimeout(60000);
      await page.goto(url);
      await page.locator("#messages > *").first().waitFor();
      await show(page).catch((why) => wrong.push(`${name}: ${why}`));
      await page.screenshot({ path: `${folder}/${name}.png` });
      wrong.push(...(await outside(page)).map((what) => `${name}: ${what}`));
      await context.close();
    }
  }
}
await browser.close();
assert.deepEqual(wrong, []);
