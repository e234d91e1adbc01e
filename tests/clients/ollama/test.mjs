// Ollama's own client for JavaScript. usage: node test.mjs URL SEEING_URL PICTURE COUNTING_URL
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Ollama } from "ollama";
import { look, run, test } from "./tap.mjs";

const client = new Ollama({ host: process.argv[2] });
const model = "tiny";
const messages = [{ role: "user", content: "Hello" }];
const options = { num_predict: 12, seed: 1, temperature: 0.8 };

const status = (promise) => promise.then(() => 200, (e) => e.status_code);

test("what is served is listed, shown and running", async () => {
    assert.match((await client.version()).version, /^\d+\.\d+\.\d+/);
    const { models } = await client.list();
    assert.ok(models.length === 1 && models[0].model && models[0].size > 0 && models[0].details.family === "qwen3");
    const shown = await client.show({ model });
    assert.ok(shown.capabilities.includes("completion") && shown.model_info["qwen3.context_length"] > 0);
    assert.equal((await client.ps()).models.length, 1);
});

test("a chat is the same whole and streamed", async () => {
    const whole = await client.chat({ model, messages, options });
    assert.ok(whole.done && whole.done_reason === "length" && whole.eval_count === 12 && whole.message.role === "assistant");
    let text = "", last;
    for await (const part of await client.chat({ model, messages, options, stream: true })) {
        text += part.message.content;
        last = part;
    }
    assert.equal(text, whole.message.content);
    assert.ok(last.done && last.prompt_eval_count > 0 && last.total_duration > 0);
});

test("a generation is the same whole and streamed", async () => {
    const ask = { model, prompt: "Once", raw: true, options };
    const whole = await client.generate(ask);
    let text = "";
    for await (const part of await client.generate({ ...ask, stream: true })) text += part.response;
    assert.equal(text, whole.response);
    assert.equal(whole.eval_count, 12);
});

test("format holds the answer to a schema", async () => {
    const format = { type: "object", properties: { a: { type: "integer", minimum: 0, maximum: 9 } }, required: ["a"], additionalProperties: false };
    const { message } = await client.chat({ model, messages, format, options: { ...options, num_predict: 60 } });
    assert.ok(Number.isInteger(JSON.parse(message.content).a), message.content);
});

test("texts become vectors", async () => {
    const { embeddings } = await client.embed({ model, input: ["a", "b"] });
    assert.ok(embeddings.length === 2 && embeddings[0].length > 0);
});

test("a picture is shown in a message and in a result", async () => {
    const seeing = new Ollama({ host: process.argv[3] }), images = [new Uint8Array(readFileSync(process.argv[4]))];
    assert.ok((await seeing.show({ model: "scripted" })).capabilities.includes("vision"));
    const shown = await seeing.chat({ model: "scripted", messages: [{ role: "user", content: "What is on it?", images }] });
    assert.equal(shown.message.content, "It shows a chat.");
    const tools = [{ type: "function", function: { name: "camera", description: "Takes a picture", parameters: { type: "object", properties: {} } } }];
    const messages = [{ role: "user", content: "Use the camera." }];
    messages.push((await seeing.chat({ model: "scripted", messages, tools })).message);
    messages.push({ role: "tool", tool_name: messages[1].tool_calls[0].function.name, content: "Taken:", images });
    assert.equal((await seeing.chat({ model: "scripted", messages, tools })).message.content, "The camera shows a chat.");
});

test("agents show one picture in all their turns", () => {
    const counting = new Ollama({ host: process.argv[5] }), images = [new Uint8Array(readFileSync(process.argv[4]))];
    return look(async (system, turns) => {
        const shown = turns.map(([role, content], i) => ({ role, content, ...(i ? {} : { images }) }));
        const r = await counting.chat({ model: "scripted", messages: [{ role: "system", content: system }, ...shown], options: { num_predict: 16 } });
        assert.ok(r.done && r.prompt_eval_count > 100);
    });
});

test("an aborted stream ends, and the next request is answered", async () => {
    const stream = await client.chat({ model, messages, stream: true, options: { num_predict: 4000 } });
    let n = 0;
    await assert.rejects(async () => {
        for await (const _ of stream) if (++n === 3) stream.abort();
    }, { name: "AbortError" });
    assert.ok((await client.chat({ model, messages, options })).done);
});

test("errors are Ollama's", async () => {
    assert.equal(await status(client.chat({ model: "none", messages })), 404);
    assert.equal(await status(client.show({ model: "none" })), 404);
    assert.equal(await status(client.pull({ model: "hf.co/a/b" })), 403);
    assert.equal(await status(client.delete({ model })), 403);
    await assert.rejects(client.chat({ model: "none", messages }), /not found|none/);
});

run();
