// OpenAI's Agents SDK over /v1/responses. usage: node test.mjs SCRIPTED_URL REASONING_URL SEEING_URL PICTURE COUNTING_URL
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Agent, applyDiff, applyPatchTool, OpenAIProvider, OpenAIResponsesCompactionSession, Runner, setTracingDisabled, shellTool, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";
import { look, run, test } from "./tap.mjs";

setTracingDisabled(true);
const [scriptedURL, reasoningURL, seeingURL, picture, countingURL] = process.argv.slice(2);
const runnerOf = (url) => new Runner({ modelProvider: new OpenAIProvider({ baseURL: url + "/v1", apiKey: "none", useResponses: true }), tracingDisabled: true });
const runner = runnerOf(scriptedURL), thinking = runnerOf(reasoningURL);
const asked = [];
const weather = tool({
    name: "weather",
    description: "Weather of a city",
    parameters: z.object({ city: z.string() }),
    execute: async ({ city }) => {
        asked.push(city);
        return `${city}: 12 degrees`;
    },
});
const agent = new Agent({ name: "Forecaster", model: "scripted", instructions: "You know the weather.", tools: [weather] });
const kinds = (result) => result.newItems.map((i) => i.type);

test("tools are called until there is an answer", async () => {
    asked.length = 0;
    const r = await runner.run(agent, "Weather in Ghent and Bruges?");
    assert.equal(r.finalOutput, "Both have 12 degrees.");
    assert.deepEqual(asked, ["Ghent", "Bruges"]);
    assert.deepEqual(kinds(r), ["tool_call_item", "tool_call_output_item", "message_output_item", "tool_call_item", "tool_call_output_item", "message_output_item"]);
    assert.ok(r.state.usage.inputTokens > 0 && r.state.usage.outputTokens > 0);
});

test("a stream has the same end, and its text in pieces", async () => {
    asked.length = 0;
    const r = await runner.run(agent, "Weather in Ghent and Bruges?", { stream: true });
    let text = "";
    const events = new Set();
    for await (const e of r) {
        events.add(e.type === "raw_model_stream_event" ? e.data.type : e.name ?? e.type);
        if (e.type === "raw_model_stream_event" && e.data.type === "output_text_delta") text += e.data.delta;
    }
    await r.completed;
    assert.equal(r.finalOutput, "Both have 12 degrees.");
    assert.equal(text, "And now the other.Both have 12 degrees.");
    assert.deepEqual(asked, ["Ghent", "Bruges"]);
    for (const e of ["response_started", "output_text_delta", "response_done", "tool_called", "tool_output", "message_output_created"]) assert.ok(events.has(e), `${e} in ${[...events]}`);
});

test("a WebSocket serves whole tasks", async () => {
    globalThis.WebSocket ??= (await import("ws")).WebSocket; // Node has one since version 22
    const modelProvider = new OpenAIProvider({ baseURL: scriptedURL + "/v1", apiKey: "none", useResponses: true, useResponsesWebSocket: true });
    const framed = new Runner({ modelProvider, tracingDisabled: true });
    assert.equal((await modelProvider.getModel("scripted")).constructor.name, "OpenAIResponsesWSModel");
    for (const stream of [false, true]) {
        asked.length = 0;
        const r = await framed.run(agent, "Weather in Ghent and Bruges?", { stream });
        await r.completed;
        assert.equal(r.finalOutput, "Both have 12 degrees.");
        assert.deepEqual(asked, ["Ghent", "Bruges"]);
    }
    await assert.rejects(framed.run(agent.clone({ modelSettings: { temperature: 9 } }), "Say hello."), /terminal state "error"/);
    await modelProvider.close();
});

test("a picture is shown in a message and in a result", async () => {
    const seeing = runnerOf(seeingURL), image = `data:image/png;base64,${readFileSync(picture, "base64")}`;
    const camera = tool({ name: "camera", description: "Takes a picture", parameters: z.object({}), execute: async () => ({ type: "image", image }) });
    const watcher = new Agent({ name: "Watcher", model: "scripted", instructions: "You look.", tools: [camera] });
    const shown = await seeing.run(watcher, [{ role: "user", content: [{ type: "input_text", text: "What is on it?" }, { type: "input_image", image }] }]);
    assert.equal(shown.finalOutput, "It shows a chat.");
    for (const stream of [false, true]) {
        const r = await seeing.run(watcher, "Use the camera.", { stream });
        await r.completed;
        assert.equal(r.finalOutput, "The camera shows a chat.");
    }
});

test("agents show one picture in all their turns", () => {
    const counting = runnerOf(countingURL), image = { type: "input_image", image: `data:image/png;base64,${readFileSync(picture, "base64")}` };
    const items = {
        user: (text, first) => ({ role: "user", content: [{ type: "input_text", text }, ...(first ? [image] : [])] }),
        assistant: (text) => ({ role: "assistant", status: "completed", content: [{ type: "output_text", text }] }),
    };
    return look(async (instructions, turns) => {
        // The schema ends the answers of a random model; the SDK takes one that a limit ends for an error.
        const watcher = new Agent({ name: "Watcher", model: "scripted", instructions, outputType: z.object({ seen: z.boolean() }) });
        const r = await counting.run(watcher, turns.map(([role, text], i) => items[role](text, i === 0)));
        assert.equal(typeof r.finalOutput.seen, "boolean");
        assert.ok(r.state.usage.inputTokens > 100);
    });
});

test("two calls at once are both made", async () => {
    asked.length = 0;
    const r = await runner.run(agent, "Weather at once?");
    assert.equal(r.finalOutput, "Done.");
    assert.deepEqual(asked.sort(), ["Bruges", "Ghent"]);
});

test("the service keeps the conversation", async () => {
    const first = await runner.run(agent, "Say hello.");
    assert.equal(first.finalOutput, "Hello, it is a fine day.");
    assert.match(first.lastResponseId, /^resp_/);
    const second = await runner.run(agent, "What did you say?", { previousResponseId: first.lastResponseId });
    assert.equal(second.finalOutput, "I said hello.");
    const missing = runner.run(agent, "What did you say?", { previousResponseId: "resp_nothing" });
    await assert.rejects(missing, (e) => e.status === 404 && e.code === "previous_response_not_found");
});

test("the client keeps the conversation", async () => {
    const own = agent.clone({ modelSettings: { store: false } });
    const first = await runner.run(own, "Weather in Ghent and Bruges?");
    const second = await runner.run(own, [...first.history, { role: "user", content: "What did you say?" }]);
    assert.equal(second.finalOutput, "I said hello.");
});

test("a conversation is replaced by its summary", async () => {
    // The session wants a model of OpenAI's by name.
    const named = (url, init) => fetch(url, { ...init, body: init.body.replace('"gpt-4.1"', '"scripted"') });
    const client = new OpenAI({ baseURL: scriptedURL + "/v1", apiKey: "none", fetch: named });
    const session = new OpenAIResponsesCompactionSession({ client, model: "gpt-4.1", compactionMode: "input", shouldTriggerCompaction: () => true });
    await runner.run(agent, "Say hello.", { session });
    assert.deepEqual((await session.getItems()).map((i) => i.type), ["compaction"]);
    const r = await runner.run(agent, "Where is it?", { session });
    assert.equal(r.finalOutput, "It is in the summary.");
});

test("an agent hands over to another", async () => {
    const poet = new Agent({ name: "Poet", model: "scripted", instructions: "You write poems.", handoffDescription: "Writes poems" });
    const desk = Agent.create({ name: "Desk", model: "scripted", instructions: "You hand over.", handoffs: [poet] });
    const r = await runner.run(desk, "A poem, please.");
    assert.equal(r.finalOutput, "Warp and weft.");
    assert.equal(r.lastAgent.name, "Poet");
});

test("an output has the type that is asked for", async () => {
    const typed = new Agent({ name: "Typed", model: "scripted", instructions: "You answer.", outputType: z.object({ city: z.string(), degrees: z.number() }) });
    const r = await runner.run(typed, "As an object, please.");
    assert.deepEqual(r.finalOutput, { city: "Ghent", degrees: 12 });
});

test("its own shell and editor are called", async () => {
    const files = new Map(), commands = [];
    const shell = { run: async (action) => (commands.push(...action.commands), { output: [{ stdout: "warp.txt\n", stderr: "", outcome: { type: "exit", exitCode: 0 } }] }) };
    const editor = {
        createFile: async ({ path, diff }) => void files.set(path, applyDiff("", diff, "create")),
        updateFile: async ({ path, diff }) => void files.set(path, applyDiff(files.get(path), diff)),
        deleteFile: async ({ path }) => void files.delete(path),
    };
    const smith = new Agent({ name: "Smith", model: "scripted", instructions: "You edit.", tools: [shellTool({ shell }), applyPatchTool({ editor })] });
    for (const stream of [false, true]) {
        files.clear();
        const r = await runner.run(smith, "Look and write.", { stream });
        await r.completed;
        assert.equal(r.finalOutput, "Written.");
        assert.equal(files.get("weft.txt"), "one\nthree");
    }
    assert.deepEqual(commands, ["ls", "ls"]);
});

for (const store of [true, false]) {
    test(`reasoning is told, and goes back with the conversation, ${store ? "kept" : "carried"}`, async () => {
        const modelSettings = { store, reasoning: { effort: "low", summary: "auto" }, providerData: { include: ["reasoning.encrypted_content"] } };
        const thinker = new Agent({ name: "Thinker", model: "scripted", instructions: "You think.", tools: [weather], modelSettings });
        const r = await thinking.run(thinker, "Think first.");
        assert.equal(r.finalOutput, "Therefore I am.");
        const reasoning = r.newItems.filter((i) => i.type === "reasoning_item");
        assert.equal(reasoning.length, 2);
        assert.equal(reasoning[0].rawItem.content[0].text.trim(), "I look.");
        assert.ok(r.state.usage.outputTokens > 0);
    });
}

test("an output that is cut off is an error or what there is", async () => {
    const short = agent.clone({ modelSettings: { maxTokens: 2 } });
    const r = await runner.run(short, "Say hello.", { maxTurns: 2 }).catch((e) => e);
    assert.ok(r instanceof Error || "Hello, it is a fine day.".startsWith(r.finalOutput), String(r));
});

test("errors say what is wrong", async () => {
    const bad = agent.clone({ modelSettings: { temperature: 9 } });
    await assert.rejects(runner.run(bad, "Say hello."), (e) => e.status === 400 && e.param === "temperature");
    await assert.rejects(runner.run(agent.clone({ model: "nothing" }), "Say hello."), (e) => e.status === 404 && e.code === "model_not_found");
});

await run();
