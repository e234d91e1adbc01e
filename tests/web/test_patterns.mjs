// Every regular expression of web/*.js takes linear time: each is run over long texts that repeat a few
// characters, where one with two ways to match them takes minutes. Prints TAP.
//
//     node tests/web/test_patterns.mjs

import assert from "node:assert/strict";
import fs from "node:fs";

const LENGTH = 30000;
const SECONDS_MAX = 0.12; // 2 ms are usual; quadratic time takes three times as long as this
const FOLDER = new URL("../../web/", import.meta.url);
const LITERAL = /(?:[=(,:!&|?]|return) ?(\/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n[])+\/[dgimsuvy]*)/g;
const UNITS = [..."a1 \t\n\\\"'`*_|-+#.:/<>()[]{}=&;~"].concat([
  "a ", "\\a", "\"\\", "'\\", "a.", "1.", "-:", "| ", "{\"", "a=", "a=\"", "} 1", "//", "/*", "*/", "http://a", "( ", "é", "<a", "$a", "# ", "1e", "0x", "a(", "  \n",
]);

function patterns() {
  const found = [];
  for (const name of fs.readdirSync(FOLDER).filter((n) => n.endsWith(".js"))) {
    const lines = fs.readFileSync(new URL(name, FOLDER), "utf8").split("\n");
    lines.forEach((line, i) => {
      if (line.trim().startsWith("//")) return;
      for (const [, literal] of line.matchAll(LITERAL)) {
        const end = literal.lastIndexOf("/");
        found.push({ where: `${name}:${i + 1}`, regex: new RegExp(literal.slice(1, end), literal.slice(end + 1)) });
      }
    });
  }
  return found;
}

// Returns the longest time in seconds that all matches of @regex in one of the texts take.
function longest(regex) {
  const all = new RegExp(regex.source, regex.flags.replace(/[gy]/g, "") + "g");
  let most = 0;
  for (const unit of UNITS) {
    const text = `${unit.repeat(LENGTH / unit.length)}\u0001`;
    const before = process.cpuUsage().user;
    for (const m of text.matchAll(all)) void m;
    most = Math.max(most, (process.cpuUsage().user - before) / 1e6);
  }
  return most;
}

const found = patterns();
console.log(`1..${found.length + 2}`);
let failed = 0;
let n = 0;
const check = (name, run) => {
  try {
    run();
    console.log(`ok ${++n} - ${name}`);
  } catch (error) {
    failed++;
    console.log(`not ok ${++n} - ${name}\n# ${error.message.replaceAll("\n", "\n# ")}`);
  }
};
check("the expressions are found", () => assert.ok(found.length >= 40, `${found.length}`));
check("quadratic time is noticed", () => assert.ok(longest(/\w+=/) > SECONDS_MAX));
for (const { where, regex } of found)
  check(`${where} ${regex}`.replaceAll("#", "\\#"), () => {
    const seconds = longest(regex);
    assert.ok(seconds < SECONDS_MAX, `${regex}: ${seconds} s`);
  });
process.exit(failed ? 1 : 0);
