// Formulas in answers: MathML, made by KaTeX where the daemon was built with it (web/meson.build).
// KaTeX is loaded with the first formula. Without it, and where it refuses, a formula stands as it
// was written.

import { h } from "./dom.js";

export const FORMULA_MAX = 2000; // characters

const OPTIONS = { output: "mathml", throwOnError: true, trust: false, strict: "ignore", maxExpand: 500, maxSize: 20 };

let loading = null; // a promise
let katex = null;
let absent = false;

async function load() {
  try {
    await import("./katex.min.js");
    katex = globalThis.katex ?? null;
  } catch {
    // This build has none.
  }
  absent = katex === null;
}

function draw(element, tex, display) {
  const made = document.createElement("span");
  try {
    katex.render(tex, made, { ...OPTIONS, displayMode: display });
    element.replaceChildren(...made.childNodes);
  } catch {
    // What is no formula, or more than KaTeX can do, stays as it is.
  }
}

// Returns the element of the formula @tex, which was written as @source.
export function formula(tex, source, display) {
  const element = h("span", { class: display ? "formula display" : "formula", title: tex.trim() }, source);
  if (katex) draw(element, tex, display);
  else if (!absent) (loading ??= load()).then(() => katex && draw(element, tex, display));
  return element;
}
