// Answers against the types of the official SDKs, by the TypeScript compiler: each answer becomes a constant of the type that the
// SDK gives it, so a member that is missing or of another type is an error. Members that the types do not have are allowed: they
// are weft's own. Request bodies likewise, so that the requests are right. usage: node test.mjs URL
import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { cases, deviations } from "./cases.mjs";

const url = process.argv[2];
const files = new Map(); // name of a file: what it checks

async function ask(c, more) {
    const headers = { "content-type": "application/json", ...(c.anthropic || c.answer.startsWith("Anthropic") ? { "anthropic-version": "2023-06-01" } : {}) };
    const r = await fetch(url + c.path, { method: c.method ?? "POST", headers, body: c.method === "GET" ? undefined : JSON.stringify({ ...c.fields, ...more }) });
    return { status: r.status, text: await r.text() };
}

const events = (text) => text.split("\n\n").map((e) => e.match(/^data: (.*)$/m)?.[1]).filter((d) => d && d !== "[DONE]").map((d) => JSON.parse(d));

/* @value as its type has to have it: without members that are null at OpenAI as well, though its types have no null; texts of
 * Messages with the member `citations`, without which weft writes them because clients refuse a null there. */
function adjust(c, value) {
    return JSON.parse(JSON.stringify(value), (k, v) => {
        if (v === null && c.nulls?.includes(k)) return undefined;
        if (!c.event?.startsWith("Anthropic") || v?.type !== "text" || "citations" in v) return v;
        c.reasons.add("a text without citations has no such member");
        return { ...v, citations: null };
    });
}

function expectType(c, what, type, value) {
    const name = `case_${files.size}.ts`;
    files.set(name, { c, what });
    const head = 'import OpenAI from "openai";\nimport Anthropic from "@anthropic-ai/sdk";\nimport type { R } from "./readonly.js";\n';
    writeFileSync(`check/${name}`, `${head}const value = ${JSON.stringify(what === "request" ? value : adjust(c, value))} as const;\nexport const checked: R<${type}> = value;\n`);
}

/* The errors of a case that is refused, or of its status. */
function statusErrors(c, r) {
    if (!c.refused) return r.status === 200 ? [] : [`status ${r.status}: ${r.text.slice(0, 200)}`];
    const e = r.status === 400 ? JSON.parse(r.text).error : undefined;
    const place = e?.param ?? e?.message?.split(": ")[0];
    return e && place.startsWith(c.refused) ? [] : [`status ${r.status}, not a 400 about ${c.refused}: ${r.text.slice(0, 200)}`];
}

rmSync("check", { recursive: true, force: true });
mkdirSync("check");
// A value as a constant, without what the SDK adds to answers itself.
writeFileSync("check/readonly.ts", "export type R<T> = T extends string | number | boolean | null | undefined | unknown[] ? (T extends (infer U)[] ? readonly R<U>[] : T) : T extends object ? { readonly [K in keyof T as K extends 'output_text' ? never : K]: R<T[K]> } : T;\n");
for (const c of cases) {
    c.reasons = new Set();
    const whole = await ask(c);
    c.errors = statusErrors(c, whole);
    if (c.refused || c.errors.length) continue;
    const answer = JSON.parse(whole.text);
    expectType(c, "answer", c.answer, c.pick ? answer[c.pick] : answer);
    if (c.body) expectType(c, "request", c.body, c.fields);
    if (!c.event) continue;
    const streamed = await ask(c, { stream: true, ...c.stream });
    c.errors = statusErrors(c, streamed);
    if (!c.errors.length) expectType(c, "stream", `(${c.event})[]`, events(streamed.text));
}
let report = "";
try {
    execFileSync("node_modules/.bin/tsc", ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022", "--lib", "es2023,dom,dom.iterable", ...[...files.keys()].map((f) => "check/" + f)], { encoding: "utf8", maxBuffer: 1 << 28 });
} catch (e) {
    report = e.stdout;
}
let last;
for (const line of report.split("\n")) {
    const at = line.match(/^check\/(case_\d+\.ts)\(.*?error (TS\d+: .*)/);
    if (at) {
        const { c, what } = files.get(at[1]);
        last = [];
        c.errors.push([what, last]);
        last.push(at[2]);
    } else if (last && line.startsWith(" ")) last.push(line.trim());
    else if (/error TS/.test(line)) throw new Error(line);
}
console.log(`1..${cases.length}`);
let bad = 0;
for (const [i, c] of cases.entries()) {
    c.errors = c.errors.filter((e) => {
        const known = typeof e !== "string" && deviations.find(([pattern]) => pattern.test(e[1].join(" ")));
        if (known) c.reasons.add(known[1]);
        return !known;
    });
    c.result = c.errors.length ? "fail" : c.refused ? "are refused for a reason" : c.reasons.size ? "deviate for a reason" : "conform";
    for (const reason of c.reasons) console.log("# deviates: " + reason);
    for (const e of c.errors) console.log("# " + (typeof e === "string" ? e : `${e[0]}: ${e[1].at(-1).slice(0, 400)}`));
    bad += c.errors.length > 0;
    console.log(`${c.errors.length ? "not ok" : "ok"} ${i + 1} - ${c.name}${c.refused ? ": refused" : ""}`);
}
for (const sdk of ["OpenAI", "Anthropic"]) {
    const count = { conform: 0, "deviate for a reason": 0, "are refused for a reason": 0, fail: 0 };
    for (const c of cases.filter((c) => c.answer.startsWith(sdk))) count[c.result]++;
    console.log(`# ${sdk}: ` + Object.entries(count).map(([what, n]) => `${n} ${what}`).join(", "));
}
process.exit(bad ? 1 : 0);
