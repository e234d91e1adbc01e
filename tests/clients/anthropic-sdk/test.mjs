// The official Anthropic SDK. usage: node test.mjs SCRIPTED_URL KEYED_URL REAL_URL SEEING_URL PICTURE COUNTING_URL
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { jsonSchemaOutputFormat } from "@anthropic-ai/sdk/helpers/json-schema";
import { look, run, test } from "./tap.mjs";

const [scriptedURL, keyedURL, realURL, seeingURL, picture, countingURL] = process.argv.slice(2);
const client = new Anthropic({ baseURL: scriptedURL, apiKey: "none", maxRetries: 0 });
const real = new Anthropic({ baseURL: realURL, apiKey: "none", maxRetries: 0 });
const base = { model: "claude-sonnet-4-6", max_tokens: 1000 };
const ask = (content) => ({ ...base, messages: [{ role: "user", content }] });
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const weather = { name: "weather", description: "Weather of a city", input_schema };
const thinking = { type: "enabled", budget_tokens: 1024 };

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

test("a message comes with usage and a request id", async () => {
    const m = await client.messages.create(ask("Say hello."));
    assert.equal(m.type, "message");
    assert.equal(m.role, "assistant");
    assert.deepEqual(m.content, [{ type: "text", text: "Hello, it is a fine day." }]);
    assert.equal(m.stop_reason, "end_turn");
    assert.equal(m.stop_sequence, null);
    assert.ok(m.usage.input_tokens > 0 && m.usage.output_tokens > 0);
    assert.ok(m._request_id.startsWith("req_"));
});

test("the stream helper puts the same message together", async () => {
    const stream = client.messages.stream(ask("Say hello."));
    let text = "", pieces = 0;
    stream.on("text", (piece) => {
        text += piece;
        pieces++;
    });
    const m = await stream.finalMessage();
    assert.equal(text, "Hello, it is a fine day.");
    assert.ok(pieces > 2);
    assert.equal(await stream.finalText(), text);
    const whole = await client.messages.create(ask("Say hello."));
    for (const key of ["type", "role", "model", "content", "stop_reason", "stop_sequence"]) assert.deepEqual(m[key], whole[key], key);
    const total = (u) => u.input_tokens + u.cache_read_input_tokens + u.cache_creation_input_tokens;
    assert.equal(total(m.usage), total(whole.usage));
    assert.equal(m.usage.output_tokens, whole.usage.output_tokens);
});

test("raw events come in order", async () => {
    const types = [];
    for await (const e of await client.messages.create({ ...ask("Say hello."), stream: true })) if (types.at(-1) !== e.type) types.push(e.type);
    assert.deepEqual(types, ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"]);
});

test("thoughts are blocks that go back with their signature", async () => {
    const body = { ...ask("Think first."), thinking };
    const m = await client.messages.create(body);
    assert.deepEqual(m.content.map((b) => b.type), ["thinking", "text"]);
    assert.equal(m.content[0].thinking, "I think.");
    assert.ok(m.content[0].signature);
    assert.equal(m.content[1].text, "Therefore I am.");
    assert.ok(m.usage.output_tokens_details.thinking_tokens > 0);
    const streamed = await client.messages.stream(body).finalMessage();
    assert.deepEqual(streamed.content, m.content);
    const next = await client.messages.create({ ...body, messages: [...body.messages, { role: "assistant", content: m.content }, { role: "user", content: "And?" }] });
    assert.equal(next.content.at(-1).text, "So I was.");
});

test("calls are blocks with parsed input, plain and streamed", async () => {
    const body = { ...ask("Weather at once?"), tools: [weather] };
    for (const m of [await client.messages.create(body), await client.messages.stream(body).finalMessage()]) {
        assert.equal(m.stop_reason, "tool_use");
        assert.deepEqual(m.content.map((b) => [b.type, b.name, b.input]), [
            ["tool_use", "weather", { city: "Ghent" }],
            ["tool_use", "weather", { city: "Bruges \"\u00e9\"" }],
        ]);
        assert.notEqual(m.content[0].id, m.content[1].id);
        const results = m.content.map((b) => ({ type: "tool_result", tool_use_id: b.id, content: `12 in ${b.input.city}` }));
        results[1].is_error = true;
        const end = await client.messages.create({ ...body, messages: [...body.messages, { role: "assistant", content: m.content }, { role: "user", content: results.reverse() }] });
        assert.equal(end.content[0].text, "Done.");
    }
});

test("a picture is shown in a message and in a result", async () => {
    const seeing = new Anthropic({ baseURL: seeingURL, apiKey: "none", maxRetries: 0 });
    const image = { type: "image", source: { type: "base64", media_type: "image/png", data: readFileSync(picture, "base64") } };
    const m = await seeing.messages.create(ask([image, { type: "text", text: "What is on it?" }]));
    assert.equal(m.content[0].text, "It shows a chat.");
    assert.ok(m.usage.input_tokens > 100);
    const camera = betaTool({ name: "camera", description: "Takes a picture", inputSchema: { type: "object", properties: {} }, run: async () => [image] });
    const end = await seeing.beta.messages.toolRunner({ ...ask("Use the camera."), tools: [camera] }).runUntilDone();
    assert.equal(end.content[0].text, "The camera shows a chat.");
});

test("agents show one picture in all their turns", () => {
    const counting = new Anthropic({ baseURL: countingURL, apiKey: "none", maxRetries: 0 });
    const image = { type: "image", source: { type: "base64", media_type: "image/png", data: readFileSync(picture, "base64") } };
    return look(async (system, turns) => {
        const messages = turns.map(([role, text], i) => ({ role, content: [...(i ? [] : [image]), { type: "text", text }] }));
        const m = await counting.messages.create({ ...base, max_tokens: 16, system, messages });
        assert.ok(m.usage.input_tokens + m.usage.cache_read_input_tokens > 100);
    });
});

for (const stream of [false, true]) {
    test(`the SDK's tool runner ends with an answer${stream ? ", streamed" : ""}`, async () => {
        const asked = [];
        const tool = betaTool({
            name: "weather",
            description: "Weather of a city",
            inputSchema: input_schema,
            run: async ({ city }) => {
                asked.push(city);
                return "12 degrees";
            },
        });
        const runner = client.beta.messages.toolRunner({ ...ask("Weather in Ghent, then in Bruges?"), tools: [tool], stream });
        const m = await runner.runUntilDone();
        assert.equal(m.content[0].text, "Both have 12 degrees.");
        assert.deepEqual(asked, ["Ghent", "Bruges"]);
    });
}

test("what is counted is what is used", async () => {
    const { max_tokens, ...body } = { ...ask("Say hello."), system: "Be brief.", tools: [weather] };
    const { input_tokens } = await client.messages.countTokens(body);
    const { usage } = await client.messages.create({ ...body, max_tokens });
    assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
    assert.equal((await client.beta.messages.countTokens(body)).input_tokens, input_tokens);
});

test("stop sequences and limits are told", async () => {
    const cut = await client.messages.create({ ...ask("Say hello."), stop_sequences: ["zzz", "fine"] });
    assert.deepEqual([cut.content[0].text, cut.stop_reason, cut.stop_sequence], ["Hello, it is a ", "stop_sequence", "fine"]);
    const short = await client.messages.stream({ ...ask("Say hello."), max_tokens: 3 }).finalMessage();
    assert.equal(short.stop_reason, "max_tokens");
    assert.equal(short.usage.output_tokens, 3);
});

test("an answer that has begun is continued", async () => {
    const body = ask("Say hello.");
    body.messages.push({ role: "assistant", content: "Well, " });
    assert.equal((await client.messages.create(body)).content[0].text, "hello again.");
});

test("errors are of the SDK's classes", async () => {
    const body = ask("x");
    await rejects(client.messages.create({ ...body, max_tokens: -1 }), Anthropic.BadRequestError, (e) => {
        assert.equal(e.status, 400);
        assert.equal(e.type, "invalid_request_error");
        assert.match(e.message, /max_tokens: must be/);
        assert.ok(e.requestID.startsWith("req_"));
        assert.equal(e.error.request_id, e.requestID);
    });
    await rejects(client.messages.create({ ...body, model: "gpt-4" }), Anthropic.NotFoundError, (e) => assert.equal(e.type, "not_found_error"));
    await rejects(client.messages.create(ask("Fail now.")), Anthropic.OverloadedError, (e) => assert.equal(e.type, "overloaded_error"));
    await rejects(client.messages.stream(ask("Fail now.")).finalMessage(), Anthropic.APIError, (e) => assert.equal(e.type, "overloaded_error"));
    await rejects(client.messages.create(ask("Refuse now.")), Anthropic.RateLimitError, (e) => assert.ok(e.headers.get("retry-after")));
    await rejects(client.messages.create(ask("Break now.")), Anthropic.InternalServerError, (e) => assert.equal(e.type, "api_error"));
    const image = { type: "image", source: { type: "base64", media_type: "image/png", data: "AA==" } };
    await rejects(client.messages.create(ask([image])), Anthropic.BadRequestError, (e) => assert.match(e.message, /messages\.0\.content\.0\..*this model reads only text/));
});

test("keys come as x-api-key and as a token", async () => {
    const body = ask("Say hello.");
    await rejects(new Anthropic({ baseURL: keyedURL, apiKey: "wrong", maxRetries: 0 }).messages.create(body), Anthropic.AuthenticationError, (e) => assert.equal(e.type, "authentication_error"));
    for (const options of [{ apiKey: "sk-one" }, { apiKey: null, authToken: "sk-one" }]) {
        const m = await new Anthropic({ baseURL: keyedURL, maxRetries: 0, ...options }).messages.create(body);
        assert.equal(m.content[0].text, "Hello, it is a fine day.");
    }
});

test("models are listed and found", async () => {
    const ids = [];
    for await (const m of client.models.list()) ids.push(m.id);
    assert.deepEqual(ids, ["scripted"]);
    assert.equal((await client.models.retrieve("claude-haiku-4-5")).type, "model");
});

// As Claude Code asks: system blocks behind a line that changes each time, tools with long schemas, a breakpoint that
// moves, and a small model on the side.
test("an agent's conversation is found in the cache", async () => {
    const headers = { "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27", "x-app": "cli" };
    const cache_control = { type: "ephemeral" };
    const properties = {};
    for (let i = 0; i < 60; i++) properties["option_" + i] = { type: "string", description: "What option " + i + " is good for. ".repeat(5) };
    const long = { name: "long", description: "A tool. ".repeat(100), input_schema: { $schema: "https://json-schema.org/draft/2020-12/schema", type: "object", properties, additionalProperties: false } };
    const metadata = { user_id: "user_1_account__session_2" };
    const messages = [{ role: "user", content: [{ type: "text", text: "<system-reminder>Today.</system-reminder>" }, { type: "text", text: "Look at the loom.", cache_control }] }];
    const turn = (i) => ({
        ...base,
        model: "claude-opus-4-5-20251101",
        max_tokens: 32000,
        temperature: 1,
        thinking,
        metadata,
        tools: [long, weather],
        context_management: { edits: [{ type: "clear_thinking_20251015", keep: "all" }] },
        system: [
            { type: "text", text: `x-anthropic-billing-header: cc_version=2.1.${i}; cc_entrypoint=cli; cch=${i}abc;` },
            { type: "text", text: "You are an agent.", cache_control },
            { type: "text", text: "Use the tools. ".repeat(50), cache_control },
        ],
        messages,
    });
    const side = client.beta.messages.create({ ...ask("Say hello."), model: "claude-haiku-4-5-20251001", system: "Write a title.", temperature: 0, thinking: { type: "disabled" } }, { headers });
    let before = 0;
    for (let i = 0; i < 4; i++) {
        const m = await client.beta.messages.stream(turn(i), { headers }).finalMessage();
        const { input_tokens, cache_read_input_tokens } = m.usage;
        assert.equal(m.stop_reason, i < 3 ? "tool_use" : "end_turn", JSON.stringify(m.content));
        assert.ok(i === 0 || cache_read_input_tokens >= before - 16, `${cache_read_input_tokens} of ${before}`);
        before = input_tokens + cache_read_input_tokens;
        delete messages.at(-1).content.at(-1).cache_control;
        messages.push({ role: "assistant", content: m.content });
        const results = m.content.filter((b) => b.type === "tool_use").map((b) => ({ type: "tool_result", tool_use_id: b.id, content: "thread " + i }));
        if (results.length) messages.push({ role: "user", content: [...results.slice(0, -1), { ...results.at(-1), cache_control }] });
    }
    assert.equal((await side).content[0].text, "Hello, it is a fine day.");
});

test("tools are searched for, and then called", async () => {
    const tools = [{ type: "tool_search_tool_regex_20251119", name: "tool_search_tool_regex" }, { ...weather, defer_loading: true }, { name: "twist", input_schema, defer_loading: true }];
    for (const create of [(b) => client.messages.create(b), (b) => client.messages.stream(b).finalMessage()]) {
        const body = { ...ask("How warm is it?"), tools };
        const first = await create(body);
        assert.deepEqual(first.content.map((b) => b.type), ["server_tool_use", "tool_search_tool_result", "tool_use"]);
        const [search, result, call] = first.content;
        assert.deepEqual(search.input, { pattern: "weather" });
        assert.equal(result.tool_use_id, search.id);
        assert.deepEqual(result.content.tool_references, [{ type: "tool_reference", tool_name: "weather" }]);
        assert.equal(first.stop_reason, "tool_use");
        assert.equal(first.usage.server_tool_use.tool_search_requests, 1);
        body.messages.push({ role: "assistant", content: first.content }, { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "12" }] });
        const second = await create(body);
        assert.equal(second.content[0].text, "12 degrees.");
        assert.ok(second.usage.cache_read_input_tokens > first.usage.output_tokens);
    }
});

// ---- a real model, of random weights ----

test("a schema is held by any model", async () => {
    const schema = { type: "object", properties: { ready: { type: "boolean" }, size: { type: "string", enum: ["small", "large"] } }, required: ["ready", "size"], additionalProperties: false };
    const m = await real.messages.parse({ ...ask("Is it?"), max_tokens: 200, temperature: 0, output_config: { format: jsonSchemaOutputFormat(schema) } });
    assert.equal(typeof m.parsed_output.ready, "boolean");
    assert.ok(["small", "large"].includes(m.parsed_output.size));
    assert.equal(m.stop_reason, "end_turn");
});

test("a call can be forced", async () => {
    const tools = [{ name: "choose", input_schema: { type: "object", properties: { a: { type: "boolean" } }, required: ["a"], additionalProperties: false } }, weather];
    const m = await real.messages.create({ ...ask("Choose."), max_tokens: 200, temperature: 0, tools, tool_choice: { type: "tool", name: "choose", disable_parallel_tool_use: true } });
    assert.equal(m.stop_reason, "tool_use", JSON.stringify(m));
    assert.deepEqual(m.content.map((b) => [b.type, b.name, typeof b.input.a]), [["tool_use", "choose", "boolean"]]);
});

test("a stream that is left frees its generation", async () => {
    const stream = real.messages.stream({ ...ask("Go on."), max_tokens: 4000, ignore_eos: true });
    stream.on("error", () => {});
    for await (const e of stream) if (e.type === "content_block_delta") break;
    stream.abort();
    for (let i = 0; ; i++) {
        const text = await (await fetch(realURL + "/metrics")).text();
        if (Number(text.match(/^vllm:num_requests_running\S* (\S+)$/m)[1]) === 0) break;
        assert.ok(i < 1000, "still running");
        await new Promise((r) => setTimeout(r, 10));
    }
});

await run();
