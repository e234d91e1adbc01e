// The text of a PDF, by pdf.js where the daemon was built with it (web/meson.build). pdf.js is loaded
// with the first PDF and works in a thread of its own.

import { h } from "./dom.js";

export const PDF_MAX = 32 << 20; // bytes of a file
const PAGES_MAX = 5000;
const TEXT_MAX = 16 << 20; // characters of output

// Nothing is drawn, so no font is loaded, and no code of a font is run.
const OPTIONS = { isEvalSupported: false, disableFontFace: true, useSystemFonts: false, verbosity: 0 };

// Resolves to pdf.js, or to null where this build has none. It is no module, so a script loads it.
function load() {
  return new Promise((resolve) => {
    const script = h("script", { src: "web/pdf.js" });
    script.addEventListener("load", () => resolve(globalThis.pdfjsLib ?? null));
    script.addEventListener("error", () => resolve(null));
    document.head.append(script);
  });
}

async function library() {
  const pdfjs = globalThis.pdfjsLib ?? (await load());
  if (!pdfjs) throw new Error("this build of weft has no pdf.js. Attach its text: pdftotext FILE.pdf");
  pdfjs.GlobalWorkerOptions.workerSrc = "web/pdf.worker.js";
  return pdfjs;
}

function reasonOf(error) {
  if (error.name === "PasswordException") return "it is encrypted. Save it without a password first";
  return "it may be damaged";
}

async function textOfPage(page) {
  const { items } = await page.getTextContent();
  return items.map((item) => item.str + (item.hasEOL ? "\n" : "")).join("");
}

// Returns {text, pages} of the PDF @bytes. Throws an Error that says why there is no text.
export async function pdfText(bytes) {
  const pdfjs = await library();
  const task = pdfjs.getDocument({ data: bytes, ...OPTIONS });
  const pages = [];
  let pdf;
  let size = 0;
  try {
    pdf = await task.promise;
    for (let n = 1; n <= Math.min(pdf.numPages, PAGES_MAX) && size < TEXT_MAX; n++) {
      pages.push((await textOfPage(await pdf.getPage(n))).trim());
      size += pages.at(-1).length;
    }
  } catch (error) {
    throw new Error(reasonOf(error));
  } finally {
    task.destroy();
  }
  if (size === 0) throw new Error("it holds no text, only pictures: it may be a scan, which needs OCR first");
  return { text: pages.join("\n\n") + "\n", pages: pdf.numPages };
}
