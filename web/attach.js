// Files that a message takes along: source code, notes, logs, the text of a PDF as text; pictures as
// data URIs for models that see. Nothing is uploaded: they become parts of the message.

import { PDF_MAX, pdfText } from "./pdf_text.js";

export const FILE_MAX = 1 << 20; // bytes of one file
export const FILES_MAX = 20;
export const PICTURE_MAX = 20 << 20;

const PICTURES = { png: "\x89PNG", jpeg: "\xff\xd8\xff", gif: "GIF8", webp: "RIFF" };

// Returns the type of a picture by its first @bytes; undefined if it is none.
function pictureType(bytes) {
  const begin = String.fromCharCode(...bytes.subarray(0, 12));
  return Object.keys(PICTURES).find(
    (type) => begin.startsWith(PICTURES[type]) && (type !== "webp" || begin.endsWith("WEBP")),
  );
}

// Returns true if @uri can be shown and sent: a picture in base64.
export function isPicture(uri) {
  return typeof uri === "string" && /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/.test(uri);
}

function dataUri(type, bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return `data:image/${type};base64,${btoa(text)}`;
}

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

// Reads @file (a File) to {name, text}, a PDF also to the number of its pages, a picture to
// {name, picture}. @sees: the model takes pictures. Throws an Error whose message is for the user.
export async function read(file, sees) {
  const begin = new Uint8Array(await file.slice(0, 12).arrayBuffer());
  const type = pictureType(begin);
  const max = isPdf(begin) ? PDF_MAX : type ? PICTURE_MAX : FILE_MAX;
  if (type && !sees) throw new Error(`${file.name} is a picture, and this model reads only text.`);
  if (file.size > max) throw new Error(`${file.name} is larger than ${max >> 20} MiB. Attach the part that matters.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (type) return { name: file.name, picture: dataUri(type, bytes) };
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
// before a block of code. Pictures are left to contentOf().
export function withFiles(text, files) {
  const texts = (files ?? []).filter((f) => !f.picture);
  const parts = texts.map((f) => {
    const mark = fence(f.text);
    const kind = f.name.match(/\.([a-z0-9+]{1,10})$/i)?.[1].toLowerCase() ?? "";
    const pages = f.pages > 0 ? ` (the text of its ${f.pages} pages)` : "";
    return `File ${JSON.stringify(f.name)}${pages}:\n\n${mark}${pages ? "" : kind}\n${f.text.replace(/\n$/, "")}\n${mark}`;
  });
  return [text, ...parts].filter((part) => part.trim()).join("\n\n");
}

// Returns the content of a message for the server: a text, or parts where there are pictures.
export function contentOf(text, files) {
  const words = withFiles(text, files);
  const pictures = (files ?? []).filter((f) => f.picture);
  if (!pictures.length) return words;
  return [
    ...pictures.map((f) => ({ type: "image_url", image_url: { url: f.picture } })),
    ...(words ? [{ type: "text", text: words }] : []),
  ];
}
