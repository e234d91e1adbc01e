// Files that a message takes along, as text: source code, notes, logs, the text of a PDF. Nothing is
// uploaded: the text becomes part of the message.

import { PDF_MAX } from "./pdf.js";
import { pdfText } from "./pdf_text.js";

export const FILE_MAX = 1 << 20; // bytes of one file
export const FILES_MAX = 20;

// Returns the text of @bytes, or null if they are no text (UTF-8 without control characters but
// white space; UTF-16 with a byte order mark).
export function textOf(bytes) {
  const wide = bytes[0] === 0xff && bytes[1] === 0xfe ? "utf-16le" : bytes[0] === 0xfe && bytes[1] === 0xff ? "utf-16be" : null;
  let text;
  try {
    text = new TextDecoder(wide ?? "utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c < 32 && (c < 9 || c > 13) && c !== 27) return null;
  }
  return text.replace(/\r\n?/g, "\n");
}

function isPdf(bytes) {
  return String.fromCharCode(...bytes.subarray(0, 5)) === "%PDF-";
}

// Returns the text of the PDF @bytes called @name.
async function textOfPdf(name, bytes) {
  let read;
  try {
    read = await pdfText(bytes);
  } catch (error) {
    throw new Error(`${name} is a PDF whose text cannot be read: ${error.message}.`);
  }
  if (read.text.length > FILE_MAX)
    throw new Error(`The text of ${name} is longer than ${FILE_MAX >> 20} MiB. Attach the pages that matter.`);
  return read;
}

// Reads @file (a File) to {name, text}, a PDF also to the number of its pages. Throws an Error whose
// message is for the user.
export async function read(file) {
  const begin = new Uint8Array(await file.slice(0, 5).arrayBuffer());
  const max = isPdf(begin) ? PDF_MAX : FILE_MAX;
  if (file.size > max) throw new Error(`${file.name} is larger than ${max >> 20} MiB. Attach the part that matters.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (isPdf(begin)) return { name: file.name, ...(await textOfPdf(file.name, bytes)) };
  const text = textOf(bytes);
  if (text === null) throw new Error(`${file.name} is not text.`);
  return { name: file.name, text };
}

// Returns a fence of backticks that is longer than any in @text.
function fence(text) {
  let longest = 2;
  for (const [run] of text.matchAll(/`+/g)) longest = Math.max(longest, run.length);
  return "`".repeat(longest + 1);
}

// Returns what the model gets for the message @text with @files: each file behind it, with its name
// before a block of code.
export function withFiles(text, files) {
  const parts = (files ?? []).map((f) => {
    const mark = fence(f.text);
    const kind = f.name.match(/\.([a-z0-9+]{1,10})$/i)?.[1].toLowerCase() ?? "";
    const pages = f.pages > 0 ? ` (the text of its ${f.pages} pages)` : "";
    return `File ${JSON.stringify(f.name)}${pages}:\n\n${mark}${pages ? "" : kind}\n${f.text.replace(/\n$/, "")}\n${mark}`;
  });
  return [text, ...parts].filter((part) => part.trim()).join("\n\n");
}
