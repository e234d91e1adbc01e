// Requests whose answers are held against the types of the official SDKs. answer: the type of a whole answer; event: that of
// each event of a stream, which is asked for as well; body: the type of the request, where the types know all of it;
// nulls: members that are null as at OpenAI, though its types have no null. refused: the field of the error, where docs/reference/refused.md has the reason.

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABh6FO1AAAAABJRU5ErkJggg==";
const cases = [];
const add = (family, rows) => rows.forEach(([name, fields, extra]) => cases.push({ ...family, ...extra, name: `${family.name}: ${name}`, fields: { ...family.fields, ...fields } }));

// ---- chat completions ----

const say = (content) => ({ messages: [{ role: "user", content }] });
const fn = { type: "function", function: { name: "weather", description: "Weather of a city", parameters } };
const called = (id, name = "weather") => ({ role: "assistant", content: null, tool_calls: [{ id, type: "function", function: { name, arguments: '{"city": "Ghent"}' } }] });
add({ name: "chat", path: "/v1/chat/completions", answer: "OpenAI.ChatCompletion", event: "OpenAI.ChatCompletionChunk", body: "OpenAI.ChatCompletionCreateParams", fields: { model: "scripted", ...say("Say hello.") } }, [
    ["a text", {}],
    ["parts of text", say([{ type: "text", text: "Say " }, { type: "text", text: "hello." }])],
    ["a system message", { messages: [{ role: "system", content: "Be kind." }, { role: "user", content: "Say hello." }] }],
    ["a developer message", { messages: [{ role: "developer", content: "Be kind." }, { role: "user", content: "Say hello." }] }],
    ["max_completion_tokens", { max_completion_tokens: 3 }],
    ["stop", { stop: ["fine"] }],
    ["stop as text", { stop: "fine" }],
    ["n", { n: 2 }],
    ["seed and sampling", { seed: 7, temperature: 0.5, top_p: 0.9, presence_penalty: 0.1, frequency_penalty: 0.1, logit_bias: { 5: 1 } }],
    ["log probabilities", { logprobs: true, top_logprobs: 3 }],
    ["log probabilities without alternatives", { logprobs: true }],
    ["usage of a stream", {}, { stream: { stream_options: { include_usage: true } } }],
    ["reasoning", { ...say("Think first."), reasoning_effort: "low" }],
    ["no reasoning", { reasoning_effort: "none" }],
    ["a call", { ...say("Weather in Ghent?"), tools: [fn] }],
    ["two calls", { ...say("Weather at once?"), tools: [fn] }],
    ["one call at a time", { ...say("Weather in Ghent?"), tools: [fn], parallel_tool_calls: false }],
    ["a call that is required", { ...say("Weather in Ghent?"), tools: [fn], tool_choice: "required" }],
    ["no call", { tools: [fn], tool_choice: "none" }],
    ["a named function", { ...say("Weather in Ghent?"), tools: [fn], tool_choice: { type: "function", function: { name: "weather" } } }],
    ["allowed tools", { ...say("Weather in Ghent?"), tools: [fn], tool_choice: { type: "allowed_tools", allowed_tools: { mode: "auto", tools: [{ type: "function", function: { name: "weather" } }] } } }],
    ["a custom tool", { ...say("Patch it."), tools: [{ type: "custom", custom: { name: "patch", description: "Takes a patch" } }] }],
    ["a custom tool with a grammar", { ...say("Patch it."), tools: [{ type: "custom", custom: { name: "patch", format: { type: "grammar", grammar: { syntax: "regex", definition: "[a-z ]+" } } } }] }],
    ["the result of a call", { messages: [{ role: "user", content: "Say hello." }, called("c1"), { role: "tool", tool_call_id: "c1", content: "12" }] }],
    ["a result in parts", { messages: [{ role: "user", content: "Say hello." }, called("c1"), { role: "tool", tool_call_id: "c1", content: [{ type: "text", text: "12" }] }] }],
    ["a refusal in the history", { messages: [{ role: "user", content: "Say hello." }, { role: "assistant", content: [{ type: "refusal", refusal: "No." }] }, { role: "user", content: "Say hello." }] }],
    ["functions", { ...say("Weather in Ghent?"), functions: [{ name: "weather", parameters }] }],
    ["function_call", { ...say("Weather in Ghent?"), functions: [{ name: "weather", parameters }], function_call: { name: "weather" } }],
    ["a function message", { messages: [{ role: "user", content: "Say hello." }, { role: "assistant", content: null, function_call: { name: "weather", arguments: "{}" } }, { role: "function", name: "weather", content: "12" }] }],
    ["json_object", { ...say("As JSON."), response_format: { type: "json_object" } }],
    ["json_schema", { ...say("As JSON."), response_format: { type: "json_schema", json_schema: { name: "n", strict: true, schema: { type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false } } } }],
    ["json_schema without schema", { ...say("As JSON."), response_format: { type: "json_schema", json_schema: { name: "n" } } }],
    ["text", { response_format: { type: "text" } }],
    ["a prediction", { prediction: { type: "content", content: "Hello, it is" } }],
    ["names, metadata, tiers", { messages: [{ role: "user", name: "me", content: "Say hello." }], metadata: { a: "b" }, store: false, service_tier: "auto", user: "u", safety_identifier: "s", prompt_cache_key: "k", verbosity: "low" }],
    ["a hosted search", { web_search_options: { search_context_size: "low" } }, { refused: "web_search_options" }],
    ["audio", { modalities: ["audio"], audio: { voice: "alloy", format: "wav" } }, { refused: "modalities" }],
    ["a picture", say([{ type: "image_url", image_url: { url: "data:image/png;base64," + png } }]), { refused: "messages[0].content[0]" }],
    ["a picture in a result", { messages: [{ role: "user", content: "Say hello." }, called("c1"), { role: "tool", tool_call_id: "c1", content: [{ type: "image_url", image_url: { url: "data:image/png;base64," + png } }] }] }, { body: "" }],
]);

// ---- completions, embeddings, models ----

add({ name: "completions", path: "/v1/completions", answer: "OpenAI.Completion", event: "OpenAI.Completion", body: "OpenAI.CompletionCreateParams", fields: { model: "scripted", prompt: "Say hello.", max_tokens: 20 } }, [
    ["a text", {}],
    ["several prompts", { prompt: ["Say hello.", "Say hello."] }],
    ["tokens", { prompt: [83, 97, 121, 32, 104, 101, 108, 108, 111, 46] }],
    ["n", { n: 2, best_of: 2 }],
    ["echo", { echo: true }],
    ["log probabilities", { logprobs: 2 }],
    ["log probabilities of the prompt", { logprobs: 1, echo: true }],
    ["stop", { stop: ["fine"], seed: 1 }],
    ["usage of a stream", {}, { stream: { stream_options: { include_usage: true } } }],
]);
add({ name: "models", method: "GET", path: "/v1/models", answer: "OpenAI.ModelsPage['data'][number][]", pick: "data", fields: undefined }, [["list", undefined]]);
add({ name: "models", method: "GET", path: "/v1/models/scripted", answer: "OpenAI.Model", fields: undefined }, [["one", undefined]]);

// ---- Responses ----

const R = "OpenAI.Responses.";
const tool = { type: "function", name: "weather", description: "Weather of a city", parameters, strict: false };
const said = { role: "user", content: "Say hello." };
const foreign = (...items) => ({ input: [said, ...items, said] });
add({ name: "responses", path: "/v1/responses", answer: R + "Response", nulls: ["user", "usage"], event: R + "ResponseStreamEvent", body: R + "ResponseCreateParams", fields: { model: "scripted", input: "Say hello." } }, [
    ["a text", {}],
    ["a message", { input: [said] }],
    ["parts", { input: [{ role: "user", content: [{ type: "input_text", text: "Say hello." }] }] }],
    ["instructions", { instructions: "Be kind." }],
    ["a developer message", { input: [{ role: "developer", content: "Be kind." }, said] }],
    ["the model's own message", { input: [said, { type: "message", id: "msg_1", role: "assistant", status: "completed", content: [{ type: "output_text", text: "Hello.", annotations: [] }] }, said] }],
    ["cut off", { max_output_tokens: 3 }],
    ["reasoning", { input: "Think first.", reasoning: { effort: "low" } }],
    ["a summary of reasoning", { input: "Think first.", reasoning: { summary: "auto" } }],
    ["encrypted reasoning", { input: "Think first.", include: ["reasoning.encrypted_content"], store: false }],
    ["a call", { input: "Weather in Ghent?", tools: [tool] }],
    ["two calls", { input: "Weather at once?", tools: [tool] }],
    ["a call that is required", { input: "Weather in Ghent?", tools: [tool], tool_choice: "required" }],
    ["a named function", { input: "Weather in Ghent?", tools: [tool], tool_choice: { type: "function", name: "weather" } }],
    ["allowed tools", { input: "Weather in Ghent?", tools: [tool], tool_choice: { type: "allowed_tools", mode: "auto", tools: [{ type: "function", name: "weather" }] } }],
    ["a custom tool", { input: "Patch it.", tools: [{ type: "custom", name: "patch" }] }],
    ["a custom tool with a grammar", { input: "Patch it.", tools: [{ type: "custom", name: "patch", format: { type: "grammar", syntax: "regex", definition: "[a-z ]+" } }] }],
    ["a namespace", { input: "Weather there?", tools: [{ type: "namespace", name: "sky", description: "Of the sky", tools: [{ type: "function", name: "weather", parameters }] }] }],
    ["the result of a call", { input: [said, { type: "function_call", call_id: "c", name: "weather", arguments: "{}" }, { type: "function_call_output", call_id: "c", output: "12" }] }],
    ["a result in parts", { input: [said, { type: "function_call", call_id: "c", name: "weather", arguments: "{}" }, { type: "function_call_output", call_id: "c", output: [{ type: "input_text", text: "12" }] }] }],
    ["the result of a custom call", { input: [said, { type: "custom_tool_call", call_id: "c", name: "patch", input: "a" }, { type: "custom_tool_call_output", call_id: "c", output: "b" }] }],
    ["shell", { tools: [{ type: "shell", environment: { type: "local" } }] }],
    ["local_shell", { input: "Run it.", tools: [{ type: "local_shell" }] }],
    ["apply_patch", { tools: [{ type: "apply_patch" }] }],
    ["hosted tools", { tools: [{ type: "web_search_preview" }, { type: "code_interpreter", container: { type: "auto" } }, { type: "image_generation" }, { type: "mcp", server_label: "s", server_url: "http://s" }, { type: "file_search", vector_store_ids: ["v"] }] }],
    ["a hosted tool that is chosen", { tools: [{ type: "web_search_preview" }], tool_choice: { type: "web_search_preview" } }],
    ["json_object", { input: "As JSON.", text: { format: { type: "json_object" } } }],
    ["json_schema", { input: "As JSON.", text: { format: { type: "json_schema", name: "n", schema: { type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false } } } }],
    ["log probabilities", { top_logprobs: 2, include: ["message.output_text.logprobs"] }],
    ["sampling, metadata, tiers", { temperature: 0.5, top_p: 0.9, metadata: { a: "b" }, user: "u", safety_identifier: "s", prompt_cache_key: "k", service_tier: "auto", truncation: "disabled", max_tool_calls: 3, parallel_tool_calls: true, text: { verbosity: "low" } }],
    ["not stored", { store: false }],
    ["in the background", { background: true }],
    ["compaction", { input: [said, { type: "compaction_trigger" }] }, { body: "" }],
    ["context management", { context_management: [{ type: "compaction", compact_threshold: 5000 }] }],
    ["a web search of elsewhere", foreign({ type: "web_search_call", id: "w", status: "completed", action: { type: "search", query: "q" } })],
    ["a file search of elsewhere", foreign({ type: "file_search_call", id: "f", status: "completed", queries: ["q"], results: [{ text: "t" }] })],
    ["code of elsewhere", foreign({ type: "code_interpreter_call", id: "c", status: "completed", code: "1", container_id: "c", outputs: [{ type: "logs", logs: "1" }] })],
    ["a computer of elsewhere", foreign({ type: "computer_call", id: "i", call_id: "c", status: "completed", pending_safety_checks: [], action: { type: "wait" } }, { type: "computer_call_output", call_id: "c", output: { type: "computer_screenshot", image_url: "data:image/png;base64," + png } })],
    ["a picture of elsewhere", foreign({ type: "image_generation_call", id: "i", status: "completed", result: "aGk=" })],
    ["MCP of elsewhere", foreign({ type: "mcp_list_tools", id: "l", server_label: "s", tools: [] }, { type: "mcp_call", id: "m", name: "n", server_label: "s", arguments: "{}", output: "o" }, { type: "mcp_approval_request", id: "a", name: "n", server_label: "s", arguments: "{}" }, { type: "mcp_approval_response", approval_request_id: "a", approve: true })],
    ["a tool search of elsewhere", foreign({ type: "tool_search_call", call_id: null, execution: "server", arguments: {}, status: "completed" }, { type: "tool_search_output", call_id: null, execution: "server", status: "completed", tools: [] }), { body: "" }],
    ["an unknown item", foreign({ type: "of_next_year", text: "t" }), { body: "" }],
    ["a picture", { input: [{ role: "user", content: [{ type: "input_image", detail: "auto", image_url: "data:image/png;base64," + png }] }] }, { refused: "input[0].content[0]" }],
    ["a file", { input: [{ role: "user", content: [{ type: "input_file", filename: "f", file_data: "aGk=" }] }] }, { refused: "input[0].content[0].type" }],
    ["a stored prompt", { prompt: { id: "p" } }, { refused: "prompt" }],
]);
add({ name: "responses", path: "/v1/responses/input_tokens", answer: "OpenAI.Responses.InputTokenCountResponse", fields: { model: "scripted", input: "Say hello." } }, [["count", {}]]);
add({ name: "responses", path: "/v1/responses/compact", answer: R + "CompactedResponse", fields: { model: "scripted", input: [said] } }, [["compact", {}]]);
add({ name: "conversations", path: "/v1/conversations", answer: "OpenAI.Conversations.Conversation", fields: { items: [{ type: "message", ...said }], metadata: { a: "b" } } }, [["make", {}]]);

// ---- Messages ----

const base = { model: "claude-sonnet-4-6", max_tokens: 500, ...say("Say hello.") };
const weather = { name: "weather", description: "Weather of a city", input_schema: parameters };
const use = (id) => ({ role: "assistant", content: [{ type: "tool_use", id, name: "weather", input: { city: "Ghent" } }] });
const give = (id, more) => ({ role: "user", content: [{ type: "tool_result", tool_use_id: id, ...more }] });
const history = (...blocks) => ({ messages: [{ role: "user", content: "Say hello." }, { role: "assistant", content: blocks }, { role: "user", content: "Say hello." }] });
add({ name: "messages", path: "/v1/messages", answer: "Anthropic.Message", event: "Anthropic.RawMessageStreamEvent", body: "Anthropic.MessageCreateParams", fields: base }, [
    ["a text", {}],
    ["blocks", say([{ type: "text", text: "Say hello.", cache_control: { type: "ephemeral", ttl: "1h" } }])],
    ["a system prompt", { system: "Be kind." }],
    ["a system prompt in blocks", { system: [{ type: "text", text: "Be kind.", cache_control: { type: "ephemeral" } }] }],
    ["cut off", { max_tokens: 3 }],
    ["a stop sequence", { stop_sequences: ["fine"] }],
    ["sampling", { temperature: 0.5, top_p: 0.9, top_k: 5, metadata: { user_id: "u" }, service_tier: "auto" }],
    ["a begun answer", { messages: [{ role: "user", content: "Say hello." }, { role: "assistant", content: "Hello" }] }],
    ["thinking", { ...say("Think first."), thinking: { type: "enabled", budget_tokens: 1024 } }],
    ["adaptive thinking", { ...say("Think first."), thinking: { type: "adaptive" } }],
    ["hidden thinking", { ...say("Think first."), thinking: { type: "adaptive", display: "omitted" } }],
    ["no thinking", { thinking: { type: "disabled" } }],
    ["effort", { output_config: { effort: "low" } }],
    ["a schema", { ...say("As JSON."), output_config: { format: { type: "json_schema", schema: { type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false } } } }],
    ["a call", { ...say("Weather in Ghent?"), tools: [weather] }],
    ["two calls", { ...say("Weather at once?"), tools: [weather] }],
    ["any call", { ...say("Weather in Ghent?"), tools: [weather], tool_choice: { type: "any" } }],
    ["a named tool", { ...say("Weather in Ghent?"), tools: [weather], tool_choice: { type: "tool", name: "weather", disable_parallel_tool_use: true } }],
    ["no call", { tools: [weather], tool_choice: { type: "none" } }],
    ["a result", { messages: [{ role: "user", content: "Say hello." }, use("t"), give("t", { content: "12" })] }],
    ["a result in blocks", { messages: [{ role: "user", content: "Say hello." }, use("t"), give("t", { content: [{ type: "text", text: "12" }], is_error: true })] }],
    ["an empty result", { messages: [{ role: "user", content: "Say hello." }, use("t"), give("t")] }],
    ["a picture in a result", { messages: [{ role: "user", content: "Say hello." }, use("t"), give("t", { content: [{ type: "image", source: { type: "base64", media_type: "image/png", data: png } }] })] }],
    ["a search result", say([{ type: "search_result", source: "s", title: "t", content: [{ type: "text", text: "Say hello." }] }])],
    ["a document", say([{ type: "document", source: { type: "text", media_type: "text/plain", data: "Say hello." } }])],
    ["bash and editor", { tools: [{ type: "bash_20250124", name: "bash" }, { type: "text_editor_20250728", name: "str_replace_based_edit_tool" }] }],
    ["hosted tools", { tools: [{ type: "web_search_20250305", name: "web_search" }, { type: "code_execution_20250825", name: "code_execution" }] }],
    ["tool search", { ...say("How warm is it?"), tools: [{ type: "tool_search_tool_bm25_20251119", name: "tool_search_tool_bm25" }, { ...weather, defer_loading: true }] }],
    ["thinking in the history", history({ type: "thinking", thinking: "I think.", signature: "weft" }, { type: "text", text: "So." })],
    ["redacted thinking in the history", history({ type: "redacted_thinking", data: "x" }, { type: "text", text: "So." })],
    ["a web search of elsewhere", history({ type: "server_tool_use", id: "s", name: "web_search", input: { query: "q" } }, { type: "web_search_tool_result", tool_use_id: "s", content: [{ type: "web_search_result", title: "t", url: "u", encrypted_content: "e" }] }, { type: "text", text: "So." })],
    ["code of elsewhere", history({ type: "server_tool_use", id: "s", name: "bash_code_execution", input: {} }, { type: "bash_code_execution_tool_result", tool_use_id: "s", content: { type: "bash_code_execution_result", stdout: "1", stderr: "", return_code: 0, content: [] } }, { type: "text", text: "So." })],
    ["a tool search of elsewhere", history({ type: "server_tool_use", id: "s", name: "tool_search_tool_regex", input: {} }, { type: "tool_search_tool_result", tool_use_id: "s", content: { type: "tool_search_tool_search_result", tool_references: [{ type: "tool_reference", tool_name: "weather" }] } }, { type: "text", text: "So." })],
    ["MCP of elsewhere", history({ type: "mcp_tool_use", id: "m", name: "n", server_name: "s", input: {} }, { type: "mcp_tool_result", tool_use_id: "m", content: "o" }), { body: "" }],
    ["compaction", history({ type: "compaction", content: "Until here." }), { body: "" }],
    ["an upload", history({ type: "container_upload", file_id: "f" }), { body: "" }],
    ["an unknown block", history({ type: "of_next_year", text: "t" }), { body: "" }],
    ["a picture", say([{ type: "image", source: { type: "base64", media_type: "image/png", data: png } }]), { refused: "messages.0.content.0.image.source.data" }],
    ["a PDF", say([{ type: "document", source: { type: "base64", media_type: "application/pdf", data: "aGk=" } }]), { refused: "messages.0.content.0.document.source.type" }],
    ...[
        ["temperature above 1", { temperature: 1.5 }, "temperature"],
        ["no max_tokens", { max_tokens: undefined }, "max_tokens"],
        ["a result without its call", { messages: [give("t", { content: "12" })] }, "messages.0.content.0.tool_result.tool_use_id"],
        ["a call without its result", { messages: [{ role: "user", content: "a" }, use("t"), { role: "user", content: "b" }] }, "messages.1"],
        ["two tools of one name", { tools: [weather, weather] }, "tools.1.name"],
        ["a blank stop sequence", { stop_sequences: [" "] }, "stop_sequences"],
        ["no budget", { thinking: { type: "enabled" } }, "thinking.budget_tokens"],
        ["no messages", { messages: [] }, "messages"],
        ["a role that is none", { messages: [{ role: "tool", content: "a" }] }, "messages.0.role"],
    ].map(([name, fields, refused]) => [name, fields, { refused, body: "" }]),
]);
add({ name: "messages", path: "/v1/messages/count_tokens", answer: "Anthropic.MessageTokensCount", fields: { ...base, max_tokens: undefined } }, [["count", {}], ["count with tools", { tools: [weather] }]]);
add({ name: "messages", method: "GET", path: "/v1/models", anthropic: true, answer: "Anthropic.ModelInfo[]", pick: "data", fields: undefined }, [["models", undefined]]);

// Where the types say less than the services themselves do: what the compiler says, and why weft answers so.
const deviations = [
    [/no properties in common.*tool_calls/, "a delta with nothing but reasoning_content, which is not OpenAI's"],
    [/'null' is not assignable to type '"content_filter" \| "length" \| "stop"'/, "finish_reason is null before the end of a stream, as at OpenAI"],
    [/'null' is not assignable to type 'number'/, "the first token of an echoed prompt has no log probability, as at OpenAI"],
];

export { cases, deviations };
