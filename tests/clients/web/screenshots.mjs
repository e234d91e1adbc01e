// screenshots.mjs CHROMIUM FOLDER SCRIPTED SEEING REAL: the pictures of docs/images, of the pages at three addresses.

import { chromium } from "playwright-core";

const [executablePath, folder, scripted, seeing, real] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
const WIDE = { width: 1280, height: 800 };
const SMALL = { width: 1000, height: 620 };
const PHONE = { viewport: { width: 390, height: 780 }, isMobile: true, hasTouch: true };

async function take(name, url, viewport, f, options) {
  const context = await browser.newContext({ viewport, ...options });
  await context.addInitScript(() => localStorage["weft.settings"] ??= '{"titles":false}');
  const page = await context.newPage();
  page.setDefaultTimeout(120000);
  await page.goto(url);
  await page.locator("#about").getByText(/context/).waitFor(); // the page knows the model
  await f(page);
  await page.mouse.move(0, 0);
  await page.screenshot({ path: `${folder}/${name}.png` });
  await context.close();
}

async function ask(page, text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

async function attach(page, files) {
  const [chooser] = await Promise.all([
    page.waitForEvent("filechooser"),
    page.getByRole("button", { name: /^Attach text files/ }).click(),
  ]);
  await chooser.setFiles(files);
}

const answered = (page) => page.locator("#send").waitFor();

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

// Sends chats with one beginning until @until, in as many streams as @streams says after so many seconds.
async function load(url, until, streams) {
  const begin = Date.now();
  const system = "You are a patient teacher of weaving, who answers in whole sentences. ".repeat(12);
  let n = 0;
  const one = async (i) => {
    while (Date.now() < until) {
      if (i >= streams((Date.now() - begin) / 1000)) {
        await new Promise((r) => setTimeout(r, 500));
        continue;
      }
      const messages = [{ role: "system", content: system }, { role: "user", content: `Tell me ${n++ % 40} facts about looms.` }];
      const answer = await fetch(`${url}/v1/chat/completions`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ messages, max_tokens: 60 + 40 * (n % 5), stream: true }),
      });
      await answer.text();
    }
  };
  await Promise.all([0, 1, 2, 3, 4, 5].map(one));
}

await take("web-chat", scripted, WIDE, async (page) => {
  await ask(page, "How does a loom work?");
  await answered(page);
});

await take("web-phone", scripted, PHONE.viewport, async (page) => {
  await ask(page, "How does a loom work?");
  await answered(page);
}, { ...PHONE, colorScheme: "dark" });

await take("web-formulas", scripted, SMALL, async (page) => {
  await attach(page, { name: "report.pdf", mimeType: "application/pdf", buffer: Buffer.from(pdf("Euler, Gauss and the rest."), "latin1") });
  await page.locator("#attached").getByText("report.pdf").waitFor();
  await ask(page, "Show me formulas.");
  await answered(page);
  await page.locator("math").first().waitFor();
});

await take("web-picture", seeing, WIDE, async (page) => {
  await attach(page, `${folder}/web-chat.png`);
  await page.locator("#attached img").waitFor();
  await ask(page, "What is on this screenshot?");
  await answered(page);
});

await take("web-progress", real, SMALL, async (page) => {
  const numbers = Array.from({ length: 4500 }, (_, i) => (i * 7907) % 100000).join(" ");
  await ask(page, `Sum these: ${numbers}`);
  await page.getByText(/Reads the prompt: [1-9]\d %, about/).waitFor();
});

const end = Date.now() + 130000;
const busy = load(real, end, (s) => (s < 30 ? 2 : s < 60 ? 6 : s < 80 ? 3 : 5));
await take("web-live", real, { width: 1280, height: 900 }, async (page) => {
  await page.getByRole("link", { name: "Live view" }).click();
  await page.waitForTimeout(end - 8000 - Date.now());
}, { colorScheme: "dark" });
await busy;
await take("web-requests", real, PHONE.viewport, async (page) => {
  await page.goto(`${real}#live`);
  const row = page.locator("details.request").filter({ hasText: "wrote the answer for" }).first();
  await row.locator("summary").click();
  await row.getByText(/^Of .* went into/).waitFor();
  await row.evaluate((e) => e.scrollIntoView());
  await page.locator(".filters").evaluate((e) => e.scrollIntoView());
}, PHONE);
await browser.close();
