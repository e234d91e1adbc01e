// Files that a message takes along, as text: source code, notes, logs. Nothing is uploaded: the text
// becomes part of the message.

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

// Reads @file (a File) to {name, text}. Throws an Error whose message is for the user.
export async function read(file) {
  if (file.size > FILE_MAX)
    throw new Error(`${file.name} is larger than ${FILE_MAX >> 20} MiB. Attach the part that matters.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const text = isPdf(bytes) ? null : textOf(bytes);
  if (text === null)
    throw new Error(
      isPdf(bytes)
        ? `${file.name} is a PDF, which this page cannot read. Attach its text: pdftotext FILE.pdf`
        : `${file.name} is not text.`,
    );
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
    return `File ${JSON.stringify(f.name)}:\n\n${mark}${kind}\n${f.text.replace(/\n$/, "")}\n${mark}`;
  });
  return [text, ...parts].filter((part) => part.trim()).join("\n\n");
}
