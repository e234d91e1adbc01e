// Random schemas with random instances, judged by ajv: a folder for maskbench.py, whose invalid_accepted must be 0.
//
// usage: node fuzz_schemas.mjs AJV N SEED FOLDER
// AJV: the folder of the npm package ajv (8.x). Writes N files into FOLDER.
import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';

const [ajvFolder, count, seed, folder] = process.argv.slice(2);
if (!folder) {
    console.error('usage: node fuzz_schemas.mjs AJV N SEED FOLDER');
    process.exit(64);
}
const Ajv = createRequire(import.meta.url)(path.resolve(ajvFolder, 'dist/2020.js')).default;

let state = BigInt(seed) * 0x9E3779B97F4A7C15n + 1n;
function below(n) { // SplitMix64
    state = (state + 0x9E3779B97F4A7C15n) & 0xFFFFFFFFFFFFFFFFn;
    let z = state;
    z = ((z ^ (z >> 30n)) * 0xBF58476D1CE4E5B9n) & 0xFFFFFFFFFFFFFFFFn;
    z = ((z ^ (z >> 27n)) * 0x94D049BB133111EBn) & 0xFFFFFFFFFFFFFFFFn;
    return Number((z ^ (z >> 31n)) % BigInt(n));
}
const one = (list) => list[below(list.length)];
const some = (list, n) => list.filter(() => below(list.length) < n);
const NAMES = ['a', 'b', 'c', 'ab', 'x1'];
const PATTERNS = ['^a', 'b$', '^[a-c]$', '1', '^x', '^a|b', '^(?!a)', '^(?=.*b).{1,2}$', '[^a]$', '^(ab|x1)*$', '^\\D+$'];
const STRINGS = ['', 'a', 'ab', 'abc', 'b', 'x1', '0', 'aaaa'];
const NUMBERS = [0, 1, 2, 3, -1, 10, 0.5, 1.5, 6, -0.5, 0.25, 100, 99, -10, 0.001, 12345678];

function value(depth) {
    const kind = below(depth > 0 ? 8 : 5);
    if (kind === 0) return null;
    if (kind === 1) return below(2) === 1;
    if (kind === 2) return one(NUMBERS);
    if (kind < 5) return one(STRINGS);
    if (kind === 5 && below(2)) return Array.from({ length: below(4) }, () => value(depth - 1));
    if (kind === 5) return Array.from({ length: below(5) }, () => one(below(4) ? STRINGS : NUMBERS));
    const o = {};
    for (const name of some(NAMES, 2)) o[name] = value(depth - 1);
    return o;
}

const members = (depth, names) => Object.fromEntries(names.map((n) => [n, schema(depth - 1)]));
const list = (depth) => Array.from({ length: 1 + below(3) }, () => schema(depth - 1));
const BY_TYPE = {
    object: [
        (d) => ({ properties: members(d, some(NAMES, 3)) }),
        (d) => ({ properties: members(d, some(NAMES, 2)), required: some(NAMES, 1) }),
        () => ({ required: some(NAMES, 2) }),
        (d) => ({ additionalProperties: below(2) ? false : schema(d - 1) }),
        (d) => ({ patternProperties: Object.fromEntries(some(PATTERNS, 2).map((p) => [p, schema(d - 1)])) }),
        () => ({ propertyNames: one([{ pattern: one(PATTERNS) }, { maxLength: 1 + below(2) }, { enum: some(NAMES, 3) }, { not: { const: one(NAMES) } }]) }),
        () => ({ minProperties: below(3) }),
        () => ({ maxProperties: 1 + below(3) }),
        () => ({ dependentRequired: { [one(NAMES)]: some(NAMES, 1) } }),
        (d) => ({ dependentSchemas: { [one(NAMES)]: schema(d - 1) } }),
        () => ({ unevaluatedProperties: false }),
    ],
    array: [
        (d) => ({ items: schema(d - 1) }),
        (d) => ({ prefixItems: list(d), items: below(2) ? false : schema(d - 1) }),
        () => ({ minItems: below(3) }),
        () => ({ maxItems: below(4) }),
        (d) => ({ contains: schema(d - 1) }),
        (d) => ({ contains: schema(d - 1), minContains: below(3), maxContains: 1 + below(3) }),
        (d) => ({ prefixItems: list(d) }),
        () => ({ uniqueItems: true, maxItems: 1 + below(2) }),
        () => ({ uniqueItems: true, items: one([{ type: 'string' }, { type: 'integer' }, { type: ['string', 'null', 'boolean'] }, { type: 'string', pattern: one(PATTERNS) }, { enum: mixed() }]) }),
    ],
    string: [
        () => ({ minLength: below(3) }),
        () => ({ maxLength: below(4) }),
        () => ({ pattern: one(PATTERNS) }),
        () => ({ enum: some(STRINGS, 3).concat(one(STRINGS)).filter((s, i, all) => all.indexOf(s) === i) }),
    ],
    number: [
        () => ({ minimum: one(NUMBERS) }),
        () => ({ maximum: one(NUMBERS) }),
        () => ({ exclusiveMinimum: one(NUMBERS) }),
        () => ({ exclusiveMaximum: one(NUMBERS) }),
        () => ({ minimum: one(NUMBERS), maximum: one(NUMBERS) }),
        () => ({ multipleOf: one([1, 2, 3, 0.5, 0.25, 5, 10]) }),
    ],
};
BY_TYPE.integer = BY_TYPE.number;

const mixed = () => [one(NUMBERS), one(STRINGS), one(NUMBERS), value(1)].filter((v, i, all) => all.indexOf(v) === i);

let refs = []; // what may be referred to: no circles
function schema(depth) {
    if (depth <= 0) return one([{ type: one(['string', 'integer', 'boolean', 'null']) }, { const: one(STRINGS) }, true]);
    const kind = below(12);
    if (kind === 0) return { anyOf: list(depth) };
    if (kind === 1) return { oneOf: list(depth) };
    if (kind === 2) return { allOf: list(depth) };
    if (kind === 3) return { const: value(1) };
    if (kind === 5) return { enum: mixed(), not: { type: one(['integer', 'string', 'null', 'number']) } };
    if (kind === 4 && refs.length) return { $ref: '#/$defs/' + one(refs) };
    const type = one(['object', 'object', 'object', 'array', 'string', 'number', 'integer']);
    const out = { type };
    for (let n = 1 + below(3); n > 0; n--) Object.assign(out, one(BY_TYPE[type])(depth));
    if (below(8) === 0) out.type = [type, one(['null', 'boolean', 'string', 'integer'])].filter((t, i, all) => all.indexOf(t) === i);
    if (below(6) === 0) out.not = schema(depth - 1);
    if (below(6) === 0) Object.assign(out, { if: schema(depth - 1), then: schema(depth - 1), else: schema(depth - 1) });
    if (below(8) === 0) out[one(['anyOf', 'oneOf', 'allOf'])] = list(depth);
    return out;
}

fs.mkdirSync(folder, { recursive: true });
for (let made = 0, tries = 0; made < Number(count) && tries < 100 * Number(count); tries++) {
    const defs = {};
    for (const name of ['p', 'q']) {
        refs = Object.keys(defs);
        defs[name] = schema(2);
    }
    refs = ['p', 'q'];
    const s = { ...schema(3), $defs: defs };
    const tests = [];
    try {
        const valid = new Ajv({ strict: false, logger: false }).compile(s);
        for (let i = 0; i < 200; i++) {
            const data = value(3);
            tests.push({ valid: valid(data), data });
        }
    } catch {
        continue; // an empty enum or oneOf; or ajv's own code fails
    }
    if (!tests.some((t) => t.valid)) continue; // nothing to be learnt of most of these
    fs.writeFileSync(path.join(folder, `${seed}-${String(made++).padStart(5, '0')}.json`), JSON.stringify({ schema: s, tests }));
}
