// LangChain. usage: node test.mjs SCRIPTED_URL REAL_URL SEEING_URL PICTURE COUNTING_URL
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { ChatAnthropic } from "@langchain/anthropic";
import { AIMessage, HumanMessage, SystemMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI, OpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";
import { look, run, test } from "./tap.mjs";

const [scriptedURL, realURL, seeingURL, picture, countingURL] = process.argv.slice(2);
const options = (url) => ({ apiKey: "none", maxRetries: 0, configuration: { baseURL: url + "/v1" } });
// The three dialects.
const chatsOf = (url, maxTokens = 500) => ({
    chat: new ChatOpenAI({ ...options(url), model: "scripted", maxTokens }),
    responses: new ChatOpenAI({ ...options(url), model: "scripted", maxTokens, useResponsesApi: true }),
    messages: new ChatAnthropic({ model: "scripted", apiKey: "none", anthropicApiUrl: url, maxTokens, maxRetries: 0 }),
});
const chats = chatsOf(scriptedURL);
const small = new ChatOpenAI({ ...options(realURL), model: "default", temperature: 0, maxTokens: 200 });

const weather = tool(async ({ city }) => `${city}: 12 degrees`, {
    name: "weather",
    description: "Weather of a city",
    schema: z.object({ city: z.string() }),
});

for (const [dialect, chat] of Object.entries(chats)) {
    const promise = (name, f) => test(`${dialect}: ${name}`, f);

    promise("a chat is answered, with usage", async () => {
        const r = await chat.invoke([new SystemMessage("Be brief."), new HumanMessage("Say hello.")]);
        assert.equal(r.text, "Hello, it is a fine day.");
        assert.ok(r.usage_metadata.input_tokens > 0);
        assert.equal(r.usage_metadata.total_tokens, r.usage_metadata.input_tokens + r.usage_metadata.output_tokens);
        assert.equal(typeof r.usage_metadata.input_token_details.cache_read, "number");
    });

    promise("a stream adds up to the same", async () => {
        let all, n = 0;
        for await (const chunk of await chat.stream("Say hello.")) {
            all = all ? all.concat(chunk) : chunk;
            n++;
        }
        assert.equal(all.text, "Hello, it is a fine day.");
        assert.ok(n > 3);
        assert.ok(all.usage_metadata.output_tokens > 0);
    });

    promise("a batch is answered in order", async () => {
        const r = await chat.batch(["Say hello.", "Say goodbye.", "Say hello."]);
        assert.deepEqual(r.map((m) => m.text), ["Hello, it is a fine day.", "Goodbye.", "Hello, it is a fine day."]);
    });

    async function loop(stream) {
        const bound = chat.bindTools([weather]);
        const messages = [new HumanMessage("Weather in Ghent and Bruges?")];
        const cities = [];
        for (let i = 0; i < 5; i++) {
            let answer;
            if (stream)
                for await (const chunk of await bound.stream(messages)) answer = answer ? answer.concat(chunk) : chunk;
            else answer = await bound.invoke(messages);
            messages.push(answer);
            if (!answer.tool_calls.length) return { text: answer.text, cities };
            for (const call of answer.tool_calls) {
                cities.push(call.args.city);
                const result = await weather.invoke(call);
                assert.ok(result instanceof ToolMessage);
                messages.push(result);
            }
        }
        assert.fail("no end");
    }

    promise("tools are called until there is an answer", async () => {
        assert.deepEqual(await loop(false), { text: "Both have 12 degrees.", cities: ["Ghent", "Bruges"] });
    });

    promise("streamed tools likewise", async () => {
        assert.deepEqual(await loop(true), { text: "Both have 12 degrees.", cities: ["Ghent", "Bruges"] });
    });

    promise("a picture is shown in a message and in a result", async () => {
        const seeing = chatsOf(seeingURL)[dialect], url = `data:image/png;base64,${readFileSync(picture, "base64")}`;
        const image = { type: "image_url", image_url: { url } };
        const shown = await seeing.invoke([new HumanMessage({ content: [{ type: "text", text: "What is on it?" }, image] })]);
        assert.equal(shown.text, "It shows a chat.");
        const camera = tool(async () => [image], { name: "camera", description: "Takes a picture", schema: z.object({}) });
        const messages = [new HumanMessage("Use the camera.")];
        messages.push(await seeing.bindTools([camera]).invoke(messages));
        messages.push(await camera.invoke(messages[1].tool_calls[0]));
        assert.equal((await seeing.bindTools([camera]).invoke(messages)).text, "The camera shows a chat.");
    });

    promise("agents show one picture in all their turns", () => {
        const counting = chatsOf(countingURL, 16)[dialect], url = `data:image/png;base64,${readFileSync(picture, "base64")}`;
        return look(async (system, turns) => {
            const said = turns.map(([role, text], i) => {
                if (role === "assistant") return new AIMessage(text);
                return new HumanMessage({ content: [{ type: "text", text }, ...(i ? [] : [{ type: "image_url", image_url: { url } }])] });
            });
            const r = await counting.invoke([new SystemMessage(system), ...said]);
            assert.ok(r.usage_metadata.input_tokens > 100);
        });
    });

    promise("earlier messages of all kinds are taken", async () => {
        const r = await chat.invoke([
            new HumanMessage({ content: [{ type: "text", text: "Say " }, { type: "text", text: "hello." }] }),
            new AIMessage("Hello."),
            new HumanMessage("Say goodbye."),
        ]);
        assert.equal(r.text, "Goodbye.");
    });
}

const recipe = z.object({ name: z.string().max(12), minutes: z.number().int().min(0).max(99), kind: z.enum(["soup", "cake"]), spicy: z.boolean() });

const smalls = {
    chat: small,
    responses: new ChatOpenAI({ ...options(realURL), model: "default", temperature: 0, maxTokens: 200, useResponsesApi: true }),
    messages: new ChatAnthropic({ model: "default", apiKey: "none", anthropicApiUrl: realURL, temperature: 0, maxTokens: 200, maxRetries: 0 }),
};

for (const [dialect, model] of Object.entries(smalls))
    for (const method of ["jsonSchema", "functionCalling"])
        test(`${dialect}: structured output is what its schema says: ${method}`, async () => {
            // To Messages it sends lengths, ranges and choices only as descriptions, which a random model does not read.
            const schema = dialect === "messages" && method === "jsonSchema" ? recipe.pick({ spicy: true }) : recipe;
            schema.parse(await model.withStructuredOutput(schema, { name: "recipe", method }).invoke("A recipe."));
        });

test("log probabilities come", async () => {
    const r = await new ChatOpenAI({ ...options(realURL), model: "default", maxTokens: 5, logprobs: true, topLogprobs: 2 }).invoke("Hi");
    assert.ok(r.response_metadata.logprobs.content.length > 0);
});

test("completions are answered and streamed", async () => {
    const llm = new OpenAI({ ...options(realURL), model: "default", temperature: 0, maxTokens: 12 });
    const whole = await llm.invoke("The weft");
    let text = "";
    for await (const piece of await llm.stream("The weft")) text += piece;
    assert.equal(text, whole);
});

test("embeddings of a query and of documents agree", async () => {
    const e = new OpenAIEmbeddings({ ...options(realURL), model: "default" });
    const query = await e.embedQuery("weft and warp");
    const documents = await e.embedDocuments([...Array(600).keys()].map((i) => (i === 599 ? "weft and warp" : `text ${i % 50}`)));
    assert.equal(documents.length, 600);
    assert.deepEqual(documents[599], query);
    assert.deepEqual(documents[0], documents[50]);
    assert.notDeepEqual(documents[0], documents[1]);
});

test("an error names its field", async () => {
    await assert.rejects(new ChatOpenAI({ ...options(realURL), model: "nothing" }).invoke("x"), (e) => e.status === 404);
    await assert.rejects(new ChatOpenAI({ ...options(realURL), model: "default", topP: 7 }).invoke("x"), (e) => e.status === 400 && e.param === "top_p");
});

test("an aborted stream ends", async () => {
    const abort = new AbortController();
    const long = new ChatOpenAI({ ...options(realURL), model: "default", maxTokens: 4000 });
    let n = 0;
    await assert.rejects(async () => {
        for await (const _ of await long.stream("Go on.", { signal: abort.signal })) if (++n === 3) abort.abort();
    });
    for (let i = 0; i < 100; i++) {
        const text = await (await fetch(realURL + "/metrics")).text();
        if (Number(text.match(/^vllm:num_requests_running\S* (\S+)$/m)[1]) === 0) return;
        await new Promise((done) => setTimeout(done, 50));
    }
    assert.fail("the generation still runs");
});

await run();
