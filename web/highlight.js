// Colours for code, coarse and the same for all languages: comments, strings, numbers, keywords.

import { h } from "./dom.js";

const WORDS = new Set(
  (
    "abstract and as assert async await auto bool boolean break byte case catch char class const constexpr continue def default defer del delete do double elif else " +
    "end enum except export extends extern false False final finally float fn for foreach from func function go goto if impl implements import in include inline int " +
    "interface is lambda let long loop match mod module move mut namespace new nil None not null nullptr operator or override package pass private proc protected pub " +
    "public raise ref require return select self short signed sizeof static struct super switch template then this throw throws trait true True try type typedef " +
    "typename typeof union unsigned until unsafe use using val var virtual void volatile when where while with yield SELECT FROM WHERE INSERT INTO UPDATE DELETE CREATE " +
    "TABLE JOIN LEFT INNER ON GROUP BY ORDER LIMIT AND OR NOT NULL VALUES SET fi done esac echo local"
  ).split(" "),
);
const HASH = new Set(
  "bash sh shell zsh python py ruby rb perl yaml yml toml ini conf make makefile dockerfile r elixir nix".split(
    " ",
  ),
);
const DASH = new Set("sql lua haskell hs ada".split(" "));
const PLAIN = new Set(["", "text", "txt", "plain", "markdown", "md", "output", "log"]);
const LENGTH_MAX = 60000;

export function highlight(element, text, language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name) || text.length > LENGTH_MAX) {
    element.append(text);
    return element;
  }
  const comment = HASH.has(name)
    ? "#[^\\n]*"
    : DASH.has(name)
      ? "--[^\\n]*"
      : "//[^\\n]*|/\\*[^]*?(?:\\*/|$)|<!--[^]*?(?:-->|$)";
  const parts = new RegExp(
    `(?<comment>${comment})|(?<string>"""[^]*?(?:"""|$)|"(?:\\\\.|[^"\\\\\\n])*"|'(?:\\\\.|[^'\\\\\\n])*'|\`(?:\\\\.|[^\`\\\\])*\`)|(?<number>\\b(?:0x[\\da-fA-F]+|\\d+(?:\\.\\d+)?(?:e[+-]?\\d+)?)\\b)|(?<word>[A-Za-z_$][\\w$]*)`,
    "g",
  );
  let at = 0;
  for (const m of text.matchAll(parts)) {
    const kind = m.groups.comment
      ? "c"
      : m.groups.string
        ? "s"
        : m.groups.number
          ? "n"
          : WORDS.has(m[0])
            ? "k"
            : text[m.index + m[0].length] === "("
              ? "f"
              : "";
    if (!kind) continue;
    element.append(text.slice(at, m.index), h("span", { class: `hl-${kind}` }, m[0]));
    at = m.index + m[0].length;
  }
  element.append(text.slice(at));
  return element;
}
