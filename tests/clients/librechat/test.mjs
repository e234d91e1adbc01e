// LibreChat's agents, as its server calls them for a custom endpoint. usage: node test.mjs SCRIPTED_URL
import assert from "node:assert/strict";
import { HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { GraphEvents, Providers, Run } from "@librechat/agents";
import { z } from "zod";
import { run, test } from "./tap.mjs";

const url = process.argv[2];

const weather = tool(async ({ city }) => `${city}: 12 degrees`, {
    name: "weather",
    description: "Weather of a city",
    schema: z.object({ city: z.string() }),
});

// The text of the answer to @question, and the pieces in which it came.
async function ask(question, tools) {
    const pieces = [];
    const agent = await Run.create({
        runId: "run",
        graphConfig: {
            type: "standard",
            instructions: "Be brief.",
            tools,
            llmConfig: {
                provider: Providers.OPENAI, model: "scripted", apiKey: "none", streaming: true, streamUsage: true,
                configuration: { baseURL: url + "/v1" },
            },
        },
        returnContent: true,
        customHandlers: { [GraphEvents.ON_MESSAGE_DELTA]: { handle: (event, data) => pieces.push(data.delta.content[0].text) } },
    });
    const content = await agent.processStream(
        { messages: [new HumanMessage(question)] },
        { configurable: { thread_id: "thread" }, streamMode: "values", version: "v2" },
    );
    return { text: content.filter((part) => part.type === "text").map((part) => part.text).join(""), pieces };
}

test("a chat is streamed", async () => {
    const { text, pieces } = await ask("Say hello.", []);
    assert.equal(text, "Hello, it is a fine day.");
    assert.equal(pieces.join(""), text);
    assert.ok(pieces.length > 3, pieces);
});

test("tools are called until the answer", async () => {
    const { text } = await ask("Weather in Ghent and Bruges?", [weather]);
    assert.ok(text.endsWith("Both have 12 degrees."), text);
});

await run();
