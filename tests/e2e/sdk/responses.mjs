// The Responses API of the official SDK, against a real model with random weights.
import assert from "node:assert/strict";
import OpenAI from "openai";

export function addTests({ test, client, model, rejects, idle }) {
    const body = { model, instructions: "You are terse.", input: "Say something about weaving.", max_output_tokens: 24, temperature: 0 };
    const cities = { type: "object", properties: { city: { type: "string", enum: ["Bonn", "Ghent"] } }, required: ["city"], additionalProperties: false };
    const tools = [{ type: "function", name: "get_weather", description: "Weather of a city.", parameters: cities, strict: true }];

    test("responses: an answer, with usage, is kept until it is deleted", async () => {
        const r = await client.responses.create(body);
        assert.equal(r.object, "response");
        assert.ok(["completed", "incomplete"].includes(r.status));
        assert.ok(r.output_text.length > 0);
        assert.equal(r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens);
        const { output_text: _, ...kept } = r;
        assert.deepEqual({ ...(await client.responses.retrieve(r.id)) }.output, kept.output);
        const items = [];
        for await (const item of client.responses.inputItems.list(r.id)) items.push(item);
        assert.deepEqual(items.map((i) => i.content[0].text), [body.input]);
        await client.responses.delete(r.id);
        await rejects(client.responses.retrieve(r.id), OpenAI.NotFoundError);
    });

    test("responses: a stream is the whole answer", async () => {
        const whole = await client.responses.create(body);
        const stream = client.responses.stream(body);
        let text = "", next = 0;
        for await (const e of stream) {
            assert.equal(e.sequence_number, next++);
            if (e.type === "response.output_text.delta") text += e.delta;
        }
        const final = await stream.finalResponse();
        assert.equal(text, whole.output_text);
        assert.equal(final.output_text, whole.output_text);
        assert.equal(final.status, whole.status);
        assert.deepEqual(final.usage.output_tokens, whole.usage.output_tokens);
    });

    test("responses: a call, its result, an answer", async () => {
        const ask = { ...body, tools, tool_choice: "required", parallel_tool_calls: false, max_output_tokens: 400 };
        const first = await client.responses.create(ask);
        const call = first.output.find((i) => i.type === "function_call");
        assert.equal(call?.name, "get_weather", JSON.stringify(first.output));
        assert.ok(["Bonn", "Ghent"].includes(JSON.parse(call.arguments).city));
        const streamed = await client.responses.stream(ask).finalResponse();
        assert.equal(streamed.output.find((i) => i.type === "function_call").arguments, call.arguments);
        const input = [{ type: "function_call_output", call_id: call.call_id, output: "rain" }];
        const next = await client.responses.create({ ...body, tools, tool_choice: "none", previous_response_id: first.id, input });
        assert.equal(next.previous_response_id, first.id);
        assert.ok(next.output_text.length > 0);
        // The same conversation, carried by the client.
        const own = await client.responses.create({ ...body, tools, tool_choice: "none", store: false, input: [{ role: "user", content: body.input }, ...first.output, ...input] });
        assert.equal(own.output_text, next.output_text);
        await rejects(client.responses.create({ ...body, previous_response_id: own.id }), OpenAI.NotFoundError, (e) => assert.equal(e.param, "previous_response_id"));
    });

    test("responses: an output follows its schema", async () => {
        const text = { format: { type: "json_schema", name: "place", schema: cities, strict: true } };
        const r = await client.responses.parse({ ...body, max_output_tokens: 400, text });
        assert.ok(["Bonn", "Ghent"].includes(JSON.parse(r.output_text).city), r.output_text);
    });

    test("responses: one in the background is polled, and read from an event on", async () => {
        const begun = await client.responses.create({ ...body, background: true });
        assert.ok(["queued", "in_progress"].includes(begun.status), begun.status);
        let r = begun;
        while (["queued", "in_progress"].includes(r.status)) {
            await new Promise((resolve) => setTimeout(resolve, 50));
            r = await client.responses.retrieve(begun.id);
        }
        assert.equal(r.status, r.incomplete_details ? "incomplete" : "completed");
        assert.ok(r.output_text.length > 0);
        const numbers = [];
        for await (const event of await client.responses.retrieve(begun.id, { stream: true, starting_after: 2 })) numbers.push(event.sequence_number);
        assert.deepEqual(numbers, numbers.map((_, i) => i + 3));
        await client.responses.delete(begun.id);
    });

    test("responses: errors name the field, an aborted stream is freed", async () => {
        const create = (more) => client.responses.create({ ...body, ...more });
        await rejects(create({ temperature: 5 }), OpenAI.BadRequestError, (e) => assert.equal(e.param, "temperature"));
        await rejects(create({ input: [{ type: 5 }] }), OpenAI.BadRequestError, (e) => assert.equal(e.param, "input[0].type"));
        await rejects(create({ prompt: { id: "p" } }), OpenAI.BadRequestError, (e) => assert.equal(e.code, "unsupported_parameter"));
        await rejects(create({ background: true, store: false }), OpenAI.BadRequestError, (e) => assert.equal(e.param, "background"));
        await rejects(create({ input: "word ".repeat(60000) }), OpenAI.BadRequestError, (e) => assert.equal(e.code, "context_length_exceeded"));
        const stream = await client.responses.create({ ...body, max_output_tokens: 1500, temperature: 1, seed: 1, stream: true, ignore_eos: true });
        for await (const _ of stream) break;
        stream.controller.abort();
        await idle();
    });
}
