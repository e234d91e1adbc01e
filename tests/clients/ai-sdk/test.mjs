// The AI SDK with its provider for OpenAI-compatible services. usage: node test.mjs SCRIPTED_URL REASONING_URL REAL_URL
// SEEING_URL PICTURE COUNTING_URL
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, embedMany, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { look, run, test } from "./tap.mjs";

const [scriptedURL, reasoningURL, realURL, seeingURL, picture, countingURL] = process.argv.slice(2);
// The three dialects, each by its own provider.
const compatible = (url) => createOpenAICompatible({ name: "weft", baseURL: url + "/v1", includeUsage: true, supportsStructuredOutputs: true });
const openai = (url) => createOpenAI({ baseURL: url + "/v1", apiKey: "none" });
const anthropic = (url) => createAnthropic({ baseURL: url + "/v1", apiKey: "none" });
const scripted = compatible(scriptedURL), real = compatible(realURL);
const model = scripted("scripted"), small = real("default");
const settings = { maxRetries: 0 };

const weather = tool({
    description: "Weather of a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => ({ city, degrees: 12 }),
});

for (const [dialect, provider] of [["chat", compatible], ["responses", openai], ["messages", anthropic]]) {
    const promise = (name, f) => test(`${dialect}: ${name}`, f);
    const settings = {
        maxRetries: 0,
        maxOutputTokens: 500,
        providerOptions: { openai: { forceReasoning: true, reasoningSummary: "auto" }, anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } },
    };
    const model = provider(scriptedURL)("scripted"), thinker = provider(reasoningURL)("scripted");

    promise("a text comes with its usage and reason", async () => {
        const r = await generateText({ ...settings, model, prompt: "Say hello." });
        assert.equal(r.text, "Hello, it is a fine day.");
        assert.equal(r.finishReason, "stop");
        assert.ok(r.usage.inputTokens > 0);
        assert.equal(r.usage.totalTokens, r.usage.inputTokens + r.usage.outputTokens);
        assert.equal(typeof r.usage.inputTokenDetails.cacheReadTokens, "number");
    });

    promise("a streamed text is the same, and has its usage too", async () => {
        const r = streamText({ ...settings, model, prompt: "Say hello." });
        let text = "", pieces = 0;
        for await (const piece of r.textStream) {
            text += piece;
            pieces++;
        }
        assert.equal(text, "Hello, it is a fine day.");
        assert.ok(pieces > 2);
        assert.equal(await r.finishReason, "stop");
        assert.ok((await r.usage).outputTokens > 0);
    });

    promise("reasoning is apart from the text, and goes back with the conversation", async () => {
        const whole = await generateText({ ...settings, model: thinker, prompt: "Think first." });
        assert.equal(whole.reasoningText.trim(), "I think.");
        assert.equal(whole.text.trim(), "Therefore I am.");
        assert.ok(whole.usage.outputTokenDetails.reasoningTokens > 0);
        const r = streamText({ ...settings, model: thinker, prompt: "Think first." });
        let reasoning = "", text = "";
        for await (const part of r.fullStream) {
            if (part.type === "reasoning-delta") reasoning += part.text;
            if (part.type === "text-delta") text += part.text;
        }
        assert.equal(reasoning.trim(), "I think.");
        assert.equal(text.trim(), "Therefore I am.");
        const next = await generateText({ ...settings, model: thinker, messages: [{ role: "user", content: "Think first." }, ...whole.response.messages, { role: "user", content: "And?" }] });
        assert.equal(next.text.trim(), "So I was.");
    });

    promise("tools are called until there is an answer", async () => {
        const r = await generateText({ ...settings, model, tools: { weather }, stopWhen: stepCountIs(5), prompt: "Weather in Ghent and Bruges?" });
        assert.equal(r.text, "Both have 12 degrees.");
        assert.equal(r.steps.length, 3);
        assert.equal(r.steps[0].finishReason, "tool-calls");
        assert.deepEqual(r.steps.flatMap((s) => s.toolCalls.map((c) => c.input.city)), ["Ghent", "Bruges"]);
        assert.deepEqual(r.steps[1].toolResults[0].output, { city: "Bruges", degrees: 12 });
    });

    promise("streamed tools likewise, with their arguments as they come", async () => {
        const r = streamText({ ...settings, model, tools: { weather }, stopWhen: stepCountIs(5), prompt: "Weather in Ghent and Bruges?" });
        const kinds = [];
        let deltas = 0;
        for await (const part of r.fullStream) {
            if (part.type === "error") throw part.error;
            if (part.type === "tool-input-delta") deltas++;
            if (["tool-call", "tool-result", "finish-step"].includes(part.type)) kinds.push(part.type);
        }
        assert.deepEqual(kinds, ["tool-call", "tool-result", "finish-step", "tool-call", "tool-result", "finish-step", "finish-step"]);
        assert.ok(deltas > 2);
        assert.equal(await r.text, "Both have 12 degrees.");
    });

    promise("a picture is shown in a message and in a result", async () => {
        const model = provider(seeingURL)("scripted"), data = readFileSync(picture);
        const shown = { role: "user", content: [{ type: "text", text: "What is on it?" }, { type: "file", data, mediaType: "image/png" }] };
        const r = await generateText({ maxRetries: 0, model, messages: [shown] });
        assert.equal(r.text, "It shows a chat.");
        if (dialect === "chat") return; // this provider writes a tool's picture as text
        const camera = tool({
            description: "Takes a picture",
            inputSchema: z.object({}),
            execute: async () => "taken",
            toModelOutput: () => ({ type: "content", value: [{ type: "file", data: { type: "data", data: data.toString("base64") }, mediaType: "image/png" }] }),
        });
        const end = await generateText({ maxRetries: 0, model, tools: { camera }, stopWhen: stepCountIs(3), prompt: "Use the camera." });
        assert.equal(end.text, "The camera shows a chat.");
    });

    promise("agents show one picture in all their turns", () => {
        const model = provider(countingURL)("scripted"), file = { type: "file", data: readFileSync(picture), mediaType: "image/png" };
        return look(async (instructions, turns) => {
            const messages = turns.map(([role, text], i) => ({ role, content: [{ type: "text", text }, ...(i ? [] : [file])] }));
            const r = await generateText({ maxRetries: 0, maxOutputTokens: 16, model, instructions, messages });
            assert.ok(r.usage.inputTokens > 100);
        });
    });

    promise("two calls in one answer are two calls", async () => {
        const r = await generateText({ ...settings, model, tools: { weather }, stopWhen: stepCountIs(5), prompt: "Weather at once?" });
        assert.equal(r.steps[0].toolCalls.length, 2);
        assert.equal(new Set(r.steps[0].toolCalls.map((c) => c.toolCallId)).size, 2);
        assert.equal(r.text, "Done.");
    });
}

test("messages: tools are searched for, and then called", async () => {
    const provider = anthropic(scriptedURL), deferred = { providerOptions: { anthropic: { deferLoading: true } } };
    const tools = { search: provider.tools.toolSearchBm25_20251119(), weather: { ...weather, ...deferred } };
    const options = { model: provider("scripted"), tools, stopWhen: stepCountIs(5), prompt: "How warm is it?" };
    const whole = await generateText(options), stream = streamText(options);
    for (const [text, steps] of [[whole.text, whole.steps], [await stream.text, await stream.steps]]) {
        assert.equal(text, "12 degrees.");
        assert.equal(steps.length, 2);
        assert.deepEqual(steps[0].toolCalls.map((c) => c.toolName), ["search", "weather"]);
    }
});

test("an error names its field and is not tried again", async () => {
    await assert.rejects(generateText({ ...settings, model: scripted("nothing"), prompt: "x" }), (e) => e.statusCode === 404 && e.isRetryable === false && /nothing/.test(e.message));
    await assert.rejects(generateText({ ...settings, model, prompt: "x", temperature: -1 }), (e) => e.statusCode === 400 && e.data?.error?.param === "temperature");
});

test("what fails by load may be tried again", async () => {
    await assert.rejects(generateText({ ...settings, model, prompt: "Fail now." }), (e) => e.statusCode === 503 && e.isRetryable === true);
});

test("an aborted stream ends", async () => {
    const abort = new AbortController();
    const r = streamText({ ...settings, model: small, prompt: "Go on for long.", maxOutputTokens: 4000, abortSignal: abort.signal, onError: () => {} });
    let n = 0;
    for await (const part of r.fullStream) {
        if (part.type === "text-delta" && ++n === 3) abort.abort();
    }
    for (let i = 0; i < 100; i++) {
        const text = await (await fetch(realURL + "/metrics")).text();
        if (Number(text.match(/^vllm:num_requests_running\S* (\S+)$/m)[1]) === 0) return;
        await new Promise((done) => setTimeout(done, 50));
    }
    assert.fail("the generation still runs");
});

const recipe = z.object({ name: z.string().max(12), minutes: z.number().int().min(0).max(99), spicy: z.boolean() });

// What a grammar holds the model to, in the three dialects, by a model that knows nothing.
for (const [dialect, provider] of [["chat", compatible], ["responses", openai], ["messages", anthropic]]) {
    const promise = (name, f) => test(`${dialect}: ${name}`, f);
    const model = provider(realURL)("default");

    promise("an object is what its schema says", async () => {
        const r = await generateObject({ ...settings, model, schema: recipe, prompt: "A recipe.", maxOutputTokens: 200, temperature: 0 });
        recipe.parse(r.object);
        assert.equal(r.finishReason, "stop");
    });

    promise("a streamed object likewise", async () => {
        const r = streamObject({ ...settings, model, schema: recipe, prompt: "A recipe.", maxOutputTokens: 200, temperature: 0 });
        let last;
        for await (const partial of r.partialObjectStream) last = partial;
        assert.deepEqual(await r.object, last);
        recipe.parse(last);
    });

    promise("an output with a schema is one", async () => {
        const r = await generateText({ ...settings, model, output: Output.object({ schema: recipe }), prompt: "A recipe.", maxOutputTokens: 200, temperature: 0 });
        recipe.parse(r.output);
    });

    for (const toolChoice of ["required", { type: "tool", toolName: "weather" }])
        promise(`a tool that must be called has arguments of its schema: ${toolChoice.type ?? toolChoice}`, async () => {
            const other = tool({ inputSchema: z.object({ number: z.number().int() }) });
            const weather = tool({ inputSchema: z.object({ city: z.string().max(10), scale: z.enum(["C", "F"]) }) });
            const r = await generateText({ ...settings, model, tools: { weather, other }, toolChoice, prompt: "Weather?", maxOutputTokens: 200, temperature: 0 });
            const calls = r.toolCalls.filter((c) => !c.invalid); // the last of many may be cut off
            assert.ok(calls.length > 0);
            for (const { toolName, input } of calls) {
                if (toolChoice.type) assert.equal(toolName, "weather");
                if (toolName === "weather") assert.ok(input.city.length <= 10 && ["C", "F"].includes(input.scale));
                else assert.ok(Number.isInteger(input.number));
            }
        });
}

test("embeddings come one and many", async () => {
    const embedder = real.embeddingModel("default");
    const one = await embed({ ...settings, model: embedder, value: "weft and warp" });
    const many = await embedMany({ ...settings, model: embedder, values: ["a shuttle", "weft and warp"] });
    assert.deepEqual(many.embeddings[1], one.embedding);
    assert.notDeepEqual(many.embeddings[0], one.embedding);
    assert.ok(Math.abs(Math.hypot(...one.embedding) - 1) < 1e-5);
    assert.ok(one.usage.tokens > 0);
});

await run();
