// web/pdf.js and web/pdf_text.js: the text of a PDF, what is said where there is none, and that
// hostile files end soon. Prints TAP.
//
//     node tests/web/test_pdf.mjs

import assert from "node:assert/strict";
import { deflateSync } from "node:zlib";

const web = (name) => import(new URL(`../../web/${name}`, import.meta.url));
const { glyphText, pdfText, readMap } = await web("pdf_text.js");
const { Lexer } = await web("pdf.js");

const tests = [];
const test = (name, run) => tests.push({ name, run });
const bytes = (text) => Uint8Array.from(text, (c) => c.charCodeAt(0));
const stream = (text, extra = "") => `<< ${extra} /Length ${text.length} >> stream\n${text}\nendstream`;
const packed = (text, extra = "") => stream(deflateSync(bytes(text)).toString("latin1"), `/Filter /FlateDecode ${extra}`);

const FONT = "<< /Type /Font /Subtype /Type1 /Encoding /WinAnsiEncoding >>";

// Builds a file with a page for each of @contents, which are whole objects; @more: {number: object}.
function file(contents, more = {}, trailer = "/Root 1 0 R") {
  const objects = {
    1: "<< /Type /Catalog /Pages 2 0 R >>",
    2: `<< /Type /Pages /Resources << /Font << /F1 3 0 R >> /XObject << /X 9 0 R >> >> /Kids [${contents.map((_, i) => `${10 + 2 * i} 0 R`).join(" ")}] >>`,
    3: FONT,
  };
  contents.forEach((c, i) => {
    objects[10 + 2 * i] = `<< /Type /Page /Parent 2 0 R /Contents ${11 + 2 * i} 0 R >>`;
    objects[11 + 2 * i] = c;
  });
  Object.assign(objects, more);
  const list = Object.entries(objects).map(([n, o]) => `${n} 0 obj\n${o}\nendobj\n`);
  return bytes(`%PDF-1.5\n${list.join("")}trailer << ${trailer} >>\n%%EOF`);
}

test("values", () => {
  const v = new Lexer("<< /A#20b [1 -2.5 (a\\(b\\051\\\nc(d)) <4a4B4> 7 0 R true] %x\n /N << >> >>").value();
  const list = v.get("A b");
  assert.deepEqual(list.slice(0, 4), [1, -2.5, "a(b)c(d)", "JK@"]);
  assert.equal(list[4].number, 7);
  assert.equal(v.get("N").size, 0);
});

test("lines, words and paragraphs follow from places on the page", async () => {
  const text = "BT /F1 10 Tf 50 700 Td (One) Tj 0 -12 Td (Two) Tj [( wo) -20 (rds) -900 (gap)] TJ 0 -40 Td (caf\\351 \\200) Tj ET";
  const want = "One\nTwo words gap\n\ncafé €\n";
  for (const content of [stream(text), packed(text)])
    assert.deepEqual(await pdfText(file([content])), { text: want, pages: 1 });
});

test("pages come in the order of their tree", async () => {
  const page = (t) => packed(`BT /F1 10 Tf (${t}) Tj ET`);
  assert.deepEqual(await pdfText(file([page("a"), page("b"), page("c")])), { text: "a\n\nb\n\nc\n", pages: 3 });
});

test("fonts with tables of their own", async () => {
  const map = "1 begincodespacerange <0000> <ffff> endcodespacerange 1 beginbfchar <0001> <00660069> endbfchar 2 beginbfrange <0002> <0004> <0061> <0010> <0011> [<65e5> <672c>] endbfrange";
  assert.deepEqual([...readMap(map).map], [[1, "fi"], [2, "a"], [3, "b"], [4, "c"], [16, "日"], [17, "本"]]);
  const wide = { 3: "<< /Subtype /Type0 /Encoding /Identity-H /ToUnicode 7 0 R /DescendantFonts [8 0 R] >>", 7: packed(map), 8: "<< /DW 500 /W [2 [400 400] 16 17 1000] >>" };
  assert.equal((await pdfText(file([packed("BT /F1 10 Tf <000100020003> Tj <00100011> Tj ET")], wide))).text, "fiab日本\n");
  const named = { 3: "<< /Subtype /Type1 /Encoding << /Differences [1 /ffi /Eacute /uni20AC 65 /z.alt] >> >>" };
  assert.equal((await pdfText(file([packed("BT /F1 10 Tf (\\001\\002\\003AB) Tj ET")], named))).text, "ffiÉ€zB\n");
  assert.equal(glyphText("g123"), "\ufffd");
});

test("objects in streams, forms and pictures in contents", async () => {
  const inner = "<< /Type /Font /Subtype /Type1 >> << /Type /Other >>";
  const more = { 3: "null", 5: packed(`3 0 6 34 ${inner}`, "/Type /ObjStm /N 2 /First 9") };
  const content = packed("BI /W 1 ID \x01(x) Tj\nEI\nq 1 0 0 1 0 0 cm /X Do Q");
  more[9] = packed("BT /F1 10 Tf (in a form) Tj ET", "/Subtype /Form");
  assert.equal((await pdfText(file([content], more))).text, "in a form\n");
});

test("why there is no text", async () => {
  const some = packed("BT /F1 10 Tf (a) Tj ET");
  await assert.rejects(pdfText(file([packed("/X Do")])), /only pictures.*OCR/);
  await assert.rejects(pdfText(file([some], {}, "/Root 1 0 R /Encrypt 4 0 R")), /encrypted/);
  await assert.rejects(pdfText(bytes("%PDF-1.4\n")), /no pages/);
  await assert.rejects(pdfText(file([some], { 3: "<< /Subtype /Type0 >>" })), /pdftotext/);
});

test("a file that is cut gives what is there", async () => {
  const whole = file([stream("BT /F1 10 Tf (begin) Tj ET"), packed("BT /F1 10 Tf (end) Tj ET")]);
  for (let n = 0; n < whole.length; n += 7)
    await pdfText(whole.subarray(0, n)).then((r) => assert.match(r.text, /begin|end/), (e) => assert.match(e.message, /no pages|no text/));
});

test("damaged bytes end in a text or in a reason", async () => {
  const whole = file([packed("BT /F1 10 Tf 1 0 0 1 5 5 Tm [(ab) 3 (c)] TJ ET")], { 9: packed("q", "/Subtype /Form") });
  let x = 1;
  for (let i = 0; i < 300; i++) {
    const damaged = whole.slice();
    for (let k = 0; k < 4; k++) {
      x = (x * 1103515245 + 12345) % 2147483648;
      damaged[x % damaged.length] = (x >> 8) & 255;
    }
    await pdfText(damaged).then((r) => assert.equal(typeof r.text, "string"), (e) => assert.ok(!(e instanceof TypeError || e instanceof RangeError), e.stack));
  }
});

const N = 100000;
const form = (n, target) => stream(`/${target} Do `.repeat(n), "/Subtype /Form /Resources << /XObject << /X 9 0 R /Y 8 0 R >> >>");
const HOSTILE = {
  digits: () => bytes(`%PDF-${"1".repeat(N)} 0 obj`),
  "objects without an end": () => bytes("%PDF-1.4 1 0 obj << ".repeat(N / 20)),
  "streams without an end": () => bytes("1 0 obj << >> stream\n".repeat(N / 20)),
  "lists in lists": () => bytes(`%PDF- 1 0 obj ${"[".repeat(N)}`),
  "dictionaries in dictionaries": () => bytes(`%PDF- 1 0 obj ${"<</A".repeat(N / 4)}`),
  "open strings": () => bytes("%PDF- 1 0 obj (".repeat(N / 15)),
  numbers: () => bytes(`%PDF- 1 0 obj [${"1 ".repeat(N / 2)}`),
  spaces: () => bytes(`%PDF- 1 0 obj [1${" ".repeat(N)}2${" ".repeat(N)}`),
  "forms in forms": () => file([stream("/X Do")], { 9: form(500, "Y"), 8: form(500, "X") }),
  "pages that are their own": () => file([stream("q")], { 2: `<< /Kids [${"2 0 R ".repeat(N / 6)}] >>` }),
  "what unpacks to much": () => file([stream(deflateSync(Buffer.alloc(70 << 20, " ")).toString("latin1"), "/Filter /FlateDecode")]),
  "large ranges": () => file([packed("BT /F1 1 Tf (a) Tj ET")], { 3: "<< /ToUnicode 7 0 R >>", 7: packed(`${"<0000> <ffff> <0041> ".repeat(5000)} endbfrange`) }),
  "pictures without an end": () => file([stream("ID ".repeat(N / 3))]),
};
for (const [name, make] of Object.entries(HOSTILE))
  test(`ends soon: ${name}`, async () => {
    const begin = process.cpuUsage().user;
    const given = make();
    await pdfText(given).catch((e) => assert.ok(!(e instanceof TypeError || e instanceof RangeError), e.stack));
    const seconds = (process.cpuUsage().user - begin) / 1e6;
    assert.ok(seconds < 20, `${seconds} s`); // quadratic time takes minutes
  });

console.log(`1..${tests.length}`);
let failed = 0;
for (const [i, { name, run }] of tests.entries()) {
  try {
    await run();
    console.log(`ok ${i + 1} - ${name}`);
  } catch (error) {
    failed++;
    console.log(`not ok ${i + 1} - ${name}\n# ${String(error.stack).replaceAll("\n", "\n# ")}`);
  }
}
process.exit(failed ? 1 : 0);
