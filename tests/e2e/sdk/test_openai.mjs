// The official OpenAI SDK for Node against a real weftd: streaming, non-streaming, abort, errors, 32 parallel clients.
// usage: node test_openai.mjs URL; prints TAP.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { addTests } from "./responses.mjs";

const baseURL = process.argv[2] + "/v1";
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [
    { role: "system", content: "You are terse." },
    { role: "user", content: "Say something about weaving." },
];
const model = (await client.models.list()).data[0].id;
const tests = [];
const test = (name, f) => tests.push([name, f]);
const sleep = (ms) => new Promise((r) => setTimeout(r, ms));

async function running() {
    const text = await (await fetch(process.argv[2] + "/metrics")).text();
    return Number(text.match(/^vllm:num_requests_running\S* (\S+)$/m)[1]);
}

// Until nothing runs.
async function idle() {
    for (let i = 0; (await running()) !== 0; i++) {
        assert.ok(i < 500, "still running");
        await sleep(10);
    }
}

async function rejects(promise, type, check) {
    try {
        await promise;
    } catch (e) {
        assert.ok(e instanceof type, `${e?.constructor?.name}: ${e?.message}`);
        check?.(e);
        return;
    }
    assert.fail("no error");
}

test("models are listed and retrieved", async () => {
    const m = await client.models.retrieve(model);
    assert.equal(m.object, "model");
    assert.ok(m.max_model_len > 0);
    await rejects(client.models.retrieve("nothing"), OpenAI.NotFoundError);
});

test("chat answers, with usage", async () => {
    const r = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0 });
    assert.equal(r.object, "chat.completion");
    assert.equal(r.choices[0].message.role, "assistant");
    assert.ok(["stop", "length"].includes(r.choices[0].finish_reason));
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    assert.ok(r.usage.completion_tokens <= 12);
});

test("streamed text is the text of the whole answer", async () => {
    const body = { model, messages, max_tokens: 40, temperature: 0 };
    const whole = await client.chat.completions.create(body);
    const stream = await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } });
    let text = "", finish = null, usage = null, role = null;
    for await (const chunk of stream) {
        assert.equal(chunk.object, "chat.completion.chunk");
        if (chunk.choices.length) {
            text += chunk.choices[0].delta.content ?? "";
            role ??= chunk.choices[0].delta.role;
            finish = chunk.choices[0].finish_reason ?? finish;
        } else {
            usage = chunk.usage;
        }
    }
    assert.equal(role, "assistant");
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(finish, whole.choices[0].finish_reason);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the SDK's own accumulator agrees", async () => {
    const runner = client.chat.completions.stream({ model, messages, max_tokens: 20, temperature: 0 });
    const final = await runner.finalChatCompletion();
    const whole = await client.chat.completions.create({ model, messages, max_tokens: 20, temperature: 0 });
    assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
});

test("seeded sampling repeats and n gives different choices", async () => {
    const body = { model, messages, max_tokens: 16, temperature: 1, seed: 7, n: 3 };
    const a = await client.chat.completions.create(body);
    const b = await client.chat.completions.create(body);
    assert.equal(a.choices.length, 3);
    assert.deepEqual(a.choices.map((c) => c.message.content), b.choices.map((c) => c.message.content));
    assert.ok(new Set(a.choices.map((c) => c.message.content)).size > 1);
    assert.deepEqual(a.choices.map((c) => c.index), [0, 1, 2]);
});

test("logprobs come for every token, the best first", async () => {
    const r = await client.chat.completions.create({ model, messages, max_tokens: 5, temperature: 0, logprobs: true, top_logprobs: 3 });
    const content = r.choices[0].logprobs.content;
    assert.equal(content.length, r.usage.completion_tokens);
    for (const c of content) {
        assert.equal(c.top_logprobs.length, 3);
        assert.ok(c.logprob <= 0 && c.top_logprobs[0].logprob >= c.top_logprobs[1].logprob);
        assert.equal(c.top_logprobs[0].logprob, c.logprob);
    }
});

test("a stop string ends the text before it", async () => {
    const body = { model, messages, max_tokens: 40, temperature: 0 };
    const whole = (await client.chat.completions.create(body)).choices[0].message.content;
    const stop = whole.slice(5, 8);
    const cut = await client.chat.completions.create({ ...body, stop: [stop] });
    assert.equal(cut.choices[0].message.content, whole.slice(0, whole.indexOf(stop)));
    assert.equal(cut.choices[0].finish_reason, "stop");
    let text = "";
    for await (const c of await client.chat.completions.create({ ...body, stop, stream: true })) text += c.choices[0]?.delta.content ?? "";
    assert.equal(text, whole.slice(0, whole.indexOf(stop)));
});

test("completions answer and stream", async () => {
    const body = { model, prompt: "Once upon a time", max_tokens: 20, temperature: 0 };
    const whole = await client.completions.create(body);
    assert.equal(whole.object, "text_completion");
    let text = "";
    for await (const c of await client.completions.create({ ...body, stream: true })) text += c.choices[0]?.text ?? "";
    assert.equal(text, whole.choices[0].text);
    const echo = await client.completions.create({ ...body, echo: true, max_tokens: 2 }).catch((e) => e);
    assert.ok(echo instanceof OpenAI.BadRequestError || echo.choices[0].text.startsWith("Once upon a time"));
});

test("a request with tools is answered, plain and by the SDK's stream", async () => {
    const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
    const tools = [{ type: "function", function: { name: "get_weather", description: "Weather of a city.", parameters } }];
    const body = { model, messages, tools, tool_choice: "auto", parallel_tool_calls: false, max_tokens: 24, temperature: 0 };
    const check = ({ message, finish_reason }) => {
        assert.ok(["stop", "length", "tool_calls"].includes(finish_reason));
        assert.ok(message.content === null || typeof message.content === "string");
        for (const c of message.tool_calls ?? []) assert.equal(typeof c.function.arguments, "string");
    };
    const whole = await client.chat.completions.create(body);
    check(whole.choices[0]);
    const streamed = await client.chat.completions.stream(body).finalChatCompletion();
    check(streamed.choices[0]);
    assert.equal(streamed.choices[0].message.content || null, whole.choices[0].message.content || null);
    assert.equal(streamed.choices[0].finish_reason, whole.choices[0].finish_reason);
    const past = [
        ...messages,
        { role: "assistant", content: null, tool_calls: [{ id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city": "Bonn"}' } }] },
        { role: "tool", tool_call_id: "call_1", content: "rain" },
    ];
    check((await client.chat.completions.create({ ...body, messages: past })).choices[0]);
});

const weather = { type: "object", properties: { city: { type: "string", maxLength: 20 }, days: { type: "integer", minimum: 1, maximum: 9 } }, required: ["city", "days"], additionalProperties: false };
function isWeather(v) {
    assert.deepEqual(Object.keys(v), ["city", "days"]);
    assert.ok(typeof v.city === "string" && Number.isInteger(v.days) && v.days >= 1 && v.days <= 9, JSON.stringify(v));
}

test("what the SDK parses fits its schema", async () => {
    const response_format = { type: "json_schema", json_schema: { name: "weather", strict: true, schema: weather } };
    for (const temperature of [0, 1]) {
        const body = { model, messages, response_format, temperature, seed: 5, max_tokens: 200 };
        const whole = await client.chat.completions.parse(body);
        isWeather(whole.choices[0].message.parsed);
        const streamed = await client.chat.completions.stream(body).finalChatCompletion();
        isWeather(JSON.parse(streamed.choices[0].message.content));
        assert.equal(streamed.choices[0].message.content, whole.choices[0].message.content);
    }
});

test("the SDK runs the tool that it asked for", async () => {
    const seen = [];
    const tools = [{ type: "function", function: { name: "get_weather", parameters: weather, strict: true, parse: JSON.parse, function: (v) => (seen.push(v), "rain") } }];
    const body = { model, messages, tools, tool_choice: "required", parallel_tool_calls: false, temperature: 1, seed: 2, max_tokens: 200 };
    for (const stream of [false, true]) {
        const runner = client.chat.completions.runTools({ ...body, stream }, { maxChatCompletions: 2 });
        await runner.done();
        assert.ok(seen.length >= 1, "no call");
        seen.splice(0).forEach(isWeather);
    }
});

test("an aborted stream frees its generation", async () => {
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 1500, stream: true, temperature: 1, seed: 1, ignore_eos: true });
    for await (const _ of stream) break;
    stream.controller.abort();
    await idle();
});

test("a request aborted before its answer frees its generation", async () => {
    const controller = new AbortController();
    const call = client.chat.completions.create({ model, messages, max_tokens: 1500, temperature: 1, ignore_eos: true }, { signal: controller.signal });
    setTimeout(() => controller.abort(), 50);
    await rejects(call, OpenAI.APIUserAbortError);
    await idle();
});

test("errors have the SDK's types and name the field", async () => {
    const create = (more) => client.chat.completions.create({ model, messages, ...more });
    await rejects(create({ model: "nothing" }), OpenAI.NotFoundError, (e) => assert.equal(e.code, "model_not_found"));
    await rejects(create({ temperature: 5 }), OpenAI.BadRequestError, (e) => assert.equal(e.param, "temperature"));
    await rejects(create({ temperature: "hot" }), OpenAI.BadRequestError, (e) => assert.equal(e.param, "temperature"));
    await rejects(create({ max_tokens: -2 }), OpenAI.BadRequestError, (e) => assert.equal(e.param, "max_tokens"));
    await rejects(create({ messages: "hello" }), OpenAI.BadRequestError, (e) => assert.equal(e.param, "messages"));
    await rejects(create({ messages: [] }), OpenAI.BadRequestError, (e) => assert.equal(e.param, "messages"));
    await rejects(create({ top_logprobs: 99, logprobs: true }), OpenAI.BadRequestError, (e) => assert.equal(e.param, "top_logprobs"));
    const long = [{ role: "user", content: "word ".repeat(60000) }];
    await rejects(create({ messages: long }), OpenAI.BadRequestError, (e) => assert.equal(e.code, "context_length_exceeded"));
    await rejects(client.get("/nothing"), OpenAI.NotFoundError);
});

test("what was sampled is as probable when it is a prompt", async () => {
    const prompt = [...Array(20).keys()].map((i) => 40 + i * 3);
    const made = await client.completions.create({ model, prompt, max_tokens: 12, temperature: 1, seed: 3, logprobs: 2, return_token_ids: true, ignore_eos: true });
    const ids = made.choices[0].token_ids;
    const scored = await client.completions.create({ model, prompt: [...prompt, ...ids], max_tokens: 0, echo: true, logprobs: 2 });
    const lp = scored.choices[0].logprobs;
    assert.equal(scored.usage.completion_tokens, 0);
    assert.equal(lp.tokens.length, 32);
    assert.equal(lp.token_logprobs[0], null);
    assert.deepEqual(lp.token_logprobs.slice(20), made.choices[0].logprobs.token_logprobs);
    assert.deepEqual(lp.top_logprobs.slice(20), made.choices[0].logprobs.top_logprobs);
    const texts = lp.text_offset.map((at, i) => [...scored.choices[0].text].slice(at, lp.text_offset[i + 1]).join(""));
    assert.equal(texts.join(""), scored.choices[0].text);
});

test("of many texts the most probable are kept", async () => {
    const body = { model, prompt: "The weft", max_tokens: 8, temperature: 1, seed: 11, logprobs: 0 };
    const mean = (c) => c.logprobs.token_logprobs.reduce((a, b) => a + b) / c.logprobs.token_logprobs.length;
    const all = await client.completions.create({ ...body, n: 4, ignore_eos: true });
    const best = await client.completions.create({ ...body, n: 2, best_of: 4, ignore_eos: true });
    const want = all.choices.sort((a, b) => mean(b) - mean(a)).slice(0, 2).map((c) => c.text);
    assert.deepEqual(best.choices.map((c) => c.text), want);
    assert.equal(best.usage.completion_tokens, 32);
});

test("embeddings are unit vectors in order, in both formats", async () => {
    const input = ["the weft passes through the warp", "a shuttle", "the weft passes through the warp"];
    const base64 = await client.embeddings.create({ model, input }); // asked for and decoded by the SDK
    const float = await client.embeddings.create({ model, input, encoding_format: "float" });
    assert.deepEqual(base64.data.map((d) => d.index), [0, 1, 2]);
    assert.equal(base64.usage.prompt_tokens, float.usage.prompt_tokens);
    for (let i = 0; i < 3; i++) {
        const a = Array.from(base64.data[i].embedding), b = float.data[i].embedding;
        assert.deepEqual(a, b.map(Math.fround));
        assert.ok(Math.abs(Math.hypot(...a) - 1) < 1e-5);
    }
    assert.deepEqual(base64.data[0].embedding, base64.data[2].embedding);
    assert.notDeepEqual(base64.data[0].embedding, base64.data[1].embedding);
    const mean = await client.embeddings.create({ model, input, pooling: "mean" });
    assert.notDeepEqual(mean.data[0].embedding, base64.data[0].embedding);
    assert.deepEqual(mean.data[0].embedding, mean.data[2].embedding);
});

test("an embedding is the same among hundreds as alone", async () => {
    const input = Array.from({ length: 300 }, (_, i) => `text ${i % 100} of many `.repeat(1 + (i % 7)));
    for (const pooling of ["last", "mean"]) {
        const all = (await client.embeddings.create({ model, input, pooling })).data;
        for (const i of [0, 17, 99, 299])
            assert.deepEqual((await client.embeddings.create({ model, input: input[i], pooling })).data[0].embedding, all[i].embedding);
    }
});

test("embeddings of fewer dimensions are the first ones, of length 1", async () => {
    const cut = (await client.embeddings.create({ model, input: "a", dimensions: 3 })).data[0].embedding;
    const whole = (await client.embeddings.create({ model, input: "a" })).data[0].embedding.slice(0, 3);
    const length = Math.hypot(...whole);
    assert.equal(cut.length, 3);
    cut.forEach((x, i) => assert.ok(Math.abs(x - whole[i] / length) < 1e-5, `${cut} ${whole}`));
});

test("embeddings refuse by name", async () => {
    await rejects(client.embeddings.create({ model, input: ["a", ""] }), OpenAI.BadRequestError, (e) => assert.equal(e.param, "input[1]"));
    await rejects(client.embeddings.create({ model, input: "a", dimensions: 100000 }), OpenAI.BadRequestError, (e) => assert.equal(e.param, "dimensions"));
});

test("32 parallel clients get what one gets alone", async () => {
    const ask = async (i) => {
        const own = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
        const body = { model, messages: [{ role: "user", content: `Client ${i} asks about the number ${i * 7}.` }], max_tokens: 24, temperature: i % 2, seed: i };
        if (i % 3) return (await own.chat.completions.create(body)).choices[0].message.content;
        let text = "";
        for await (const c of await own.chat.completions.create({ ...body, stream: true })) text += c.choices[0]?.delta.content ?? "";
        return text;
    };
    const alone = [];
    for (let i = 0; i < 32; i++) alone.push(await ask(i));
    assert.deepEqual(await Promise.all(alone.map((_, i) => ask(i))), alone);
});

addTests({ test, client, model, rejects, idle });

let failed = 0;
console.log(`1..${tests.length}`);
for (const [i, [name, f]] of tests.entries()) {
    try {
        await f();
        console.log(`ok ${i + 1} - ${name}`);
    } catch (e) {
        failed++;
        console.error(e);
        console.log(`not ok ${i + 1} - ${name}`);
    }
}
process.exit(failed ? 1 : 0);
