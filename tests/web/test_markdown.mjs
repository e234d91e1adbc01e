// web/markdown.js: the same elements whether a text comes at once or in pieces; work that grows as the
// text does. Prints TAP.
//
//     node tests/web/test_markdown.mjs

import assert from "node:assert/strict";
import { made, write } from "./dom.mjs";

const { render } = await import(new URL("../../web/markdown.js", import.meta.url));
const HOSTILE_LENGTH = 300000; // a parser of quadratic time takes minutes for it, and the test's time ends

const tests = [];
const test = (name, run) => tests.push({ name, run });

function whole(text) {
  const box = document.createElement("div");
  render(box, text);
  return box;
}

// A generator of the same numbers each time (xorshift).
function numbers(seed) {
  let x = seed * 2654435761 + 1;
  return (n) => {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    return (x >>> 0) % n;
  };
}

const PIECES = (
  "a|b c|word |  |\n|\n\n|\n  |\n    |- |-|* |1. |2) |10. |> |>|# |## x|#|---|***|___|`|``|```|```js\n|~~~\n|\n```\n|$|$$|\n$$\n|\\(|\\)|\\[|\\]|*|**|***|_|__|~~|[|](|)|]|![|" +
  "https://a.b/c|http|<https://x.y>|<|>|(|\\|\\*|\"|'|[a](http://b.c \"t\")|**x**|*y z*|`q`|[ ] |[x] |\t|  \n|é|🙂|//|/* |*/|\"\"\"|x = 1"
)
  .split("|")
  .concat(["|", "| a | b |\n|---|:-:|\n", "\n| c | d |", "a|b\n-|-\n", "-|"]);

// Of random texts; a third where Meson sets WEFT_FEW (-Dtest-cases=few).
const SEEDS = process.env.WEFT_FEW ? 150 : 300;

function someText(random) {
  let text = "";
  for (let n = random(40) + 1; n > 0; n--) text += PIECES[random(PIECES.length)];
  return text;
}

test("a text in pieces gives the elements of the whole text at each piece", () => {
  for (let seed = 1; seed <= SEEDS; seed++) {
    const random = numbers(seed);
    const text = someText(random);
    const box = document.createElement("div");
    for (let at = 0; at < text.length; ) {
      at = Math.min(text.length, at + 1 + random(seed % 2 ? 1 : 6));
      render(box, text.slice(0, at));
      assert.equal(write(box), write(whole(text.slice(0, at))), `seed ${seed}: ${JSON.stringify(text.slice(0, at))}`);
    }
  }
});

test("long texts in pieces as well", () => {
  for (let seed = 1; seed <= SEEDS / 50; seed++) {
    const random = numbers(seed + 5000);
    let text = "";
    while (text.length < 12000) text += seed % 3 ? someText(random) : `${"word ".repeat(random(400))}*x`;
    const box = document.createElement("div");
    for (let at = 0; at < text.length; ) {
      at = Math.min(text.length, at + 1 + random(900));
      render(box, text.slice(0, at));
      assert.equal(write(box), write(whole(text.slice(0, at))), `seed ${seed}, ${at}`);
    }
  }
});

test("a text that is no continuation is rendered anew", () => {
  const box = document.createElement("div");
  for (const text of ["# a\n\nb\n\nc\n\nd", "x", "", "- a\n- b", "- c\n- d", "```js\nlet a\n```\n\nq\n\nr"]) {
    render(box, text);
    assert.equal(write(box), write(whole(text)));
  }
  box.replaceChildren();
  render(box, "```js\nlet a\n```\n\nq\n\nr\n\ns");
  assert.equal(box.children.length, 4);
});

test("what the marks mean", () => {
  for (const [text, wanted] of [
    ["# a b #", "<h3>a b</>"],
    ["#a", "<p>#a</>"],
    ["a **b *c* d** e", "<p>a <strong>b <em>c</> d</> e</>"],
    ["snake_case_word _x_", "<p>snake_case_word <em>x</></>"],
    ["`` a ` b ``", "<p><code>a ` b</></>"],
    ["> q\n> r", "<blockquote><p>q\nr</></>"],
    ["- a\n- b", "<ul><li>a</><li>b</></>"],
    ["- a\n\n- b", "<ul><li><p>a</></><li><p>b</></></>"],
    ["3. a\n   - b", '<ol start="3"><li>a<ul><li>b</></></></>'],
    ["a\n- - -\nb", "<p>a</><hr></><p>b</>"],
    ["[a](javascript:x)", "<p>a</>"],
    ["![a](<http://b/c d>)", '<p><a href="http://b/c%20d" target="_blank" rel="noopener noreferrer nofollow" title="http://b/c%20d">a</></>'],
    ["[a [b]](http://c/(d) 'e')", '<p><a href="http://c/(d)" target="_blank" rel="noopener noreferrer nofollow" title="http://c/(d)">a [b]</></>'],
    ["see http://a/b.", '<p>see <a href="http://a/b" target="_blank" rel="noopener noreferrer nofollow" title="http://a/b">http://a/b</>.</>'],
    ["<b>x</b>", "<p>&#60;b>x&#60;/b></>"],
    ["a  \nb", "<p>a<br></>b</>"],
    ["so $a_1*b*c$ is", '<p>so <span class=formula title="a_1*b*c">$a_1*b*c$</> is</>'],
    ["it is \\(x\\), \\[y\\]", '<p>it is <span class=formula title="x">\\(x\\)</>, <span class=formula display title="y">\\[y\\]</></>'],
    ["$5 and $10, $5-$10", "<p>$5 and $10, $5-$10</>"],
    ["$5 and $10, with $x$", '<p>$5 and $10, with <span class=formula title="x">$x$</></>'],
    ["$a\\$b$ c", '<p><span class=formula title="a\\\\$b">$a\\$b$</> c</>'],
    ["a\n$$\nx\n- y\n$$\nb", '<p>a</><p><span class=formula display title="x\\n- y">$$\nx\n- y\n$$</></><p>b</>'],
    ["$$a$$ b", '<p><span class=formula display title="a">$$a$$</> b</>'],
    ["$$\na\n\nb", "<p>$$\na</><p>b</>"],
  ])
    assert.equal(whole(text).childNodes.map(write).join(""), wanted);
});

test("code is coloured by lines", () => {
  const code = (text) => write(whole(text).children[0].children[1]).replace(/^<pre[^>]*>/, "");
  assert.equal(code("```js\nlet a = 'b' // c\n```"), "<code><span class=hl-k>let</> a = <span class=hl-s>'b'</> <span class=hl-c>// c</></></>");
  assert.equal(code("```c\n/* a\nb */ f(1)"), "<code><span class=hl-c>/* a\n</><span class=hl-c>b */</> <span class=hl-f>f</>(<span class=hl-n>1</>)</></>");
  assert.equal(code("```py\n# a 'b\n'"), "<code><span class=hl-c># a 'b</>\n'</></>");
});

const HOSTILE = {
  "spaces in a heading": (n) => `# a${" ".repeat(n)}b`,
  "spaces behind a fence": (n) => `\`\`\`${" ".repeat(n)}\``,
  "spaces before a line break": (n) => `a${" ".repeat(n)}b`,
  "spaces in the rule of a table": (n) => `a|b\n-${" ".repeat(n)}x|-`,
  "spaces behind an item": (n) => `-${" ".repeat(n)}a\u2028b`,
  "spaces in a target": (n) => `[a](${" ".repeat(n)}x`,
  "spaces in a target with a title": (n) => `[a](b "c"${" ".repeat(n)}x`,
  "spaces behind a rule": (n) => `- - -${" ".repeat(n)}x`,
  "spaces in a rule": (n) => `${"-  ".repeat(n / 3)}x`,
  "white space": (n) => `${"\t ".repeat(n / 2)}x`,
  "open emphasis": (n) => "*a ".repeat(n / 3),
  "open emphasis of all kinds": (n) => "*a **b ***c _d __e ~~f ".repeat(n / 24),
  "closed emphasis": (n) => "a* ".repeat(n / 3),
  stars: (n) => "*".repeat(n),
  underscores: (n) => "_a".repeat(n / 2),
  brackets: (n) => "[".repeat(n),
  "closed brackets": (n) => `${"[".repeat(n / 2)}${"]".repeat(n / 2)}`,
  "links without an end": (n) => "[a](".repeat(n / 4),
  "links with titles": (n) => "[a](b \"c".repeat(n / 8),
  "targets with brackets": (n) => "[a](b(".repeat(n / 6),
  "pointed targets": (n) => "[a](<b".repeat(n / 6),
  dollars: (n) => "$".repeat(n),
  "open formulas": (n) => "$a ".repeat(n / 3),
  "open formulas with brackets": (n) => "\\(a\\[".repeat(n / 5),
  formulas: (n) => "$a$ ".repeat(n / 4),
  "blocks of formulas": (n) => "$$\na\n".repeat(n / 5),
  backslashes: (n) => "\\".repeat(n),
  ticks: (n) => "`".repeat(n),
  "runs of ticks": (n) => {
    let text = "";
    for (let i = 1; text.length < n; i++) text += `${"`".repeat(i)}a`;
    return text;
  },
  "open code": (n) => "`a``b".repeat(n / 5),
  addresses: (n) => "http://".repeat(n / 7),
  "addresses with parentheses": (n) => "http://a(".repeat(n / 9),
  "one address": (n) => `http://${"a".repeat(n)}`,
  "an address and full stops": (n) => `http://a${".".repeat(n)}`,
  "addresses in angles": (n) => "<http://a".repeat(n / 9),
  "one word": (n) => "a".repeat(n),
  "quotes in code": (n) => `\`\`\`js\n${'\\"'.repeat(n / 2)}\n`,
  "quotes in lines of code": (n) => `\`\`\`js\n${`"${'\\"'.repeat(90)}\n`.repeat(n / 200)}`,
  "ticks in code": (n) => `\`\`\`js\n${"`\\".repeat(n / 2)}\n`,
  "numbers in code": (n) => `\`\`\`js\n${"1".repeat(n)}a\n`,
  "blank lines in a list": (n) => `- a${"\n".repeat(n)}b`,
  quotes: (n) => ">".repeat(n),
  "quotes by lines": (n) => `${">".repeat(30)}a\n`.repeat(n / 32),
  "nested items": (n) => {
    let text = "";
    for (let i = 0; text.length < n / 10; i++) text += `${" ".repeat(2 * i)}- a\n`;
    return text;
  },
  "items in items": (n) => "- ".repeat(n / 2),
  "a row of a table": (n) => `a|b\n-|-\n${"|".repeat(n)}`,
  "rules of tables": (n) => "a|b\n-|-\n\n".repeat(n / 9),
  "lines of a paragraph": (n) => "a|\n".repeat(n / 3),
  "ticks at the beginning": (n) => `${"`".repeat(n)}\na\n${"`".repeat(n - 1)}\n`,
  "digits": (n) => `${"1".repeat(n)}.`,
  hashes: (n) => `# ${"#".repeat(n)} a`,
};

for (const [name, make] of Object.entries(HOSTILE))
  test(`linear time: ${name}`, () => {
    assert.ok(whole(make(HOSTILE_LENGTH)).childNodes.length > 0);
  });

const LINES = {
  "a block of code": "  let value = compute(1, 'two'); // three\n",
  "a list": "- an item of the list with `code`\n",
  "a table": "| a cell | another one |\n",
  "a quote": "> a line of the quote with *emphasis*\n",
  "a paragraph": "some words with *emphasis*, `code` and [a link](http://a.b) in a paragraph ",
  "an open mark": "words *and an open mark ",
  paragraphs: "a paragraph with *emphasis*\n\n",
  "a word": "abcdefghijklmnopqrst",
};
const BEGINS = { "a block of code": "```js\n", "a table": "| a | b |\n|---|---|\n" };

// Returns the nodes that are made while a text of @n characters comes in pieces of 20.
function nodesFor(name, n) {
  const text = (BEGINS[name] ?? "") + LINES[name].repeat(Math.ceil(n / LINES[name].length));
  const box = document.createElement("div");
  const before = made.nodes;
  for (let at = 20; at < text.length; at += 20) render(box, text.slice(0, at));
  render(box, text);
  return made.nodes - before;
}

for (const name of Object.keys(LINES))
  test(`twice the stream makes twice the nodes: ${name}`, () => {
    const [once, twice] = [nodesFor(name, 9000), nodesFor(name, 18000)];
    assert.ok(twice < 3 * once, `${once} nodes, then ${twice}`);
  });

const WANTED = process.argv[2]; // part of a name: only these tests
const chosen = tests.filter((t) => !WANTED || t.name.includes(WANTED));
console.log(`1..${chosen.length}`);
let failed = 0;
chosen.forEach(({ name, run }, i) => {
  try {
    run();
    console.log(`ok ${i + 1} - ${name}`);
  } catch (error) {
    failed++;
    console.log(`not ok ${i + 1} - ${name}`);
    console.log(`# ${String(error.message).replaceAll("\n", "\n# ")}`);
  }
});
process.exitCode = failed ? 1 : 0;
