/*
 * The texts of refusals name the error and the accepted input. tests/api/test_refuse.c checks
 * statuses, codes and fields.
 */

#include <criterion/criterion.h>
#include <string.h>

#include "stream.h"
#include "tiny.h"

#define RESPONSES "/v1/responses"
#define COUNT "/v1/messages/count_tokens"
#define DECISIONS "/v1/decisions"
#define SAID(member) R"({"model":"tiny",)" HI "," member "}"

struct refusal {
    const char *path, *body, *text;
};

/* Sends each body of @table, and looks for its text in a refusal. */
static void expect_texts(const struct refusal *table, size_t n) {
    struct world w;

    world_init(&w);
    world_start(&w);
    for (size_t i = 0; i < n; i++) {
        struct reply r;

        world_ask(&w, table[i].path, table[i].body, &r);
        cr_expect(r.status >= 400 && r.status < 500, "%s: %d", table[i].body, r.status);
        cr_expect(r.body.data && strstr(r.body.data, table[i].text), "%s %s: %s has no %s",
                  table[i].path, table[i].body, r.body.data, table[i].text);
        reply_deinit(&r);
    }
    cr_expect_eq(w.port.n, 0, "nothing of it reached the worker");
    world_stop(&w);
}

Test(messages, of_chats_and_completions) {
    static const struct refusal table[] = {
        {CHAT, R"({"messages":[{"role":"x","content":""}]})",
         "must be system, developer, user, assistant, tool or function"},
        {CHAT, "{" HI R"(,"model":"a\u0000"})", "model must not contain a NUL character."},
        {CHAT, "{" HI R"(,"tool_choice":{"type":"function"}})",
         R"(\"none\", \"auto\", \"required\", a function, or allowed_tools)"},
        {CHAT, "{" HI R"(,"max_tokens":0})",
         "max_tokens must be 1 or more; leave it out, or send -1, for no limit."},
        {CHAT, "{" HI R"(,"n":99})", "n must be between 1 and 8."},
        {CHAT, "{" HI R"(,"dynatemp_range":1})", "dynatemp_range is not supported."},
        {CHAT, "{}", "Missing required parameter: messages."},
        {CHAT, "{" HI R"(,"top_logprobs":1})", "top_logprobs needs logprobs to be true."},
        {TEXT, R"({"prompt":"a","prompt_logprobs":1,"stream":true})",
         "prompt_logprobs cannot be streamed."},
        {TEXT, R"({"prompt":"a","best_of":2,"stream":true})",
         "best_of above n cannot be streamed."},
        {"/tokenize", R"({"prompt":"a",)" HI "}", "Either prompt or messages is needed."},
        {"/infill", R"({"input_prefix":"a"})", "Missing required parameter: input_suffix."},
    };

    expect_texts(table, ARRAY_SIZE(table));
}

Test(messages, of_anthropic) {
    static const struct refusal table[] = {
        {COUNT, SAID(R"("output_config":{"effort":"x"})"),
         "must be low, medium, high, xhigh or max"},
        {COUNT, SAID(R"("tool_choice":{"type":"x"})"), "must be auto, any, tool or none"},
        {COUNT, R"({"model":"tiny","messages":[{"role":"x","content":"a"}]})",
         "must be user, assistant or system"},
        {COUNT,
         R"({"model":"tiny","messages":[{"role":"user","content":[{"type":"image",)"
         R"("source":{"type":)"
         R"("x"}}]}]})",
         "must be base64: send the picture itself"},
    };

    expect_texts(table, ARRAY_SIZE(table));
}

Test(messages, of_responses) {
    static const struct refusal table[] = {
        {RESPONSES, "{}", "One of input, previous_response_id and conversation must be given."},
        {RESPONSES, R"({"input":"a","background":true,"store":false})",
         "needs a response that is stored"},
        {RESPONSES, R"({"input":"a","conversation":"conv_1","store":false})",
         "needs a response that is stored"},
        {RESPONSES, R"({"input":[{"role":"x","content":"a"}]})",
         "must be user, assistant, system or developer"},
        {RESPONSES,
         R"({"input":[{"type":"function_call","call_id":"1","name":"f","arguments":)"
         R"("{}","namespace":"\u0000"}]})",
         "must not contain NUL"},
        {RESPONSES,
         R"({"input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{)"
         R"("type":"allowed_tools","mode":"auto","tools":[{"type":"function"}]}})",
         "must be functions with a name without NUL, or other tools"},
    };

    expect_texts(table, ARRAY_SIZE(table));
}

Test(messages, of_ollama_and_lm_studio) {
    static const struct refusal table[] = {
        {"/api/show", "{}", "model is required"},
        {"/api/show", R"({"model":"\u0000"})", "model must not contain NUL"},
        {"/api/generate", R"({"model":"tiny","prompt":"a","raw":true,"images":["AA=="]})",
         "images need the model's chat template: leave out raw and suffix"},
        {"/api/v1/models/load", "{}", R"(\"model\" is required)"},
        {"/api/v1/models/unload", "{}", R"(\"instance_id\" is required)"},
        {"/api/v1/models/unload", R"({"instance_id":"\u0000"})",
         R"(\"instance_id\" must not contain NUL)"},
        {"/api/v1/models/unload", R"({"instance_id":"x"})", "No model `x` is loaded."},
    };

    expect_texts(table, ARRAY_SIZE(table));
}
