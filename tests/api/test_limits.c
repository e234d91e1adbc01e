/* The limits of what a request may have: as many, as long or as large as that is taken, and one
 * more is refused by name. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "stream.h"

#define MESSAGES "/v1/messages"
#define RESPONSES "/v1/responses"
#define CLAUDE R"({"model":"tiny","max_tokens":5,)" HI ","
#define OLLAMA R"({"model":"tiny","stream":false,)" HI ","

/* Sends a body that is taken if @what is NULL, and otherwise refused with the text @what. */
static void send_body(struct world *w, const char *path, const char *body, int status,
                      const char *what) {
    struct reply r;

    world_ask(w, path, body, &r);
    cr_expect_eq(r.status, status, "%.150s: %d, not %d: %s", body, r.status, status, r.body.data);
    cr_expect(!what || (r.body.data && strstr(r.body.data, what)), "%.150s: %s has no %s", body,
              r.body.data, what);
    reply_deinit(&r);
}

/* Sends a body with @n times @item in it. */
static void send_many(struct world *w, const char *path, const char *const parts[4], uint32_t n,
                      int status, const char *what) {
    CLEANUP(buf_deinit) struct buf b = {.max = 4 << 20};

    int r = buf_add_str(&b, parts[0]);
    for (uint32_t i = 0; i < n && r == 0; i++)
        r = buf_add_str(&b, i ? parts[2] : "") < 0 ? -1 : buf_add_str(&b, parts[1]);
    cr_assert(r == 0 && buf_add(&b, parts[3], strlen(parts[3]) + 1) == 0);
    send_body(w, path, b.data, status, what);
}

Test(limits, of_lists_and_texts) {
    static const struct {
        /* status of the answer at the limit */
        int taken;
        const char *path;
        /* before, item, between two items, after */
        const char *parts[4];
        uint32_t most;
        const char *refused;
    } limits[] = {
        {200, CHAT, {"{" HI R"(,"stop":[)", R"("q")", ",", "]}"}, 16, "stop must be"},
        {200, CHAT, {"{" HI R"(,"stop":")", "q", "", R"("})"}, 256, "stop must be"},
        {200,
         CHAT,
         {"{" HI R"(,"stop_token_ids":[)", "7", ",", "]}"},
         128,
         "stop_token_ids must be"},
        {200, CHAT, {"{" HI R"(,"bad_words":[)", R"("a")", ",", "]}"}, 128, "bad_words must be"},
        {200, CHAT, {"{" HI R"(,"bad_words":[")", "a", "", R"("]})"}, 256, "bad_words must be"},
        {200,
         CHAT,
         {"{" HI R"(,"dry_sequence_breakers":[)", R"("a")", ",", "]}"},
         16,
         "dry_sequence_breakers must be"},
        {200,
         CHAT,
         {"{" HI R"(,"dry_sequence_breakers":[")", "a", "", R"("]})"},
         64,
         "dry_sequence_breakers must be"},
        {200, CHAT, {"{" HI R"(,"cache_salt":")", "a", "", R"("})"}, 1024, "cache_salt must be"},
        {200,
         CHAT,
         {"{" HI R"(,"prompt_cache_key":")", "a", "", R"("})"},
         4096,
         "prompt_cache_key must be"},
        {200,
         CHAT,
         {"{" HI R"(,"safety_identifier":")", "a", "", R"("})"},
         4096,
         "safety_identifier must be"},
        {200, CHAT, {"{" HI R"(,"user":")", "a", "", R"("})"}, 4096, "user must be"},
        {200,
         CHAT,
         {"{" HI R"(,"prediction":{"type":"content","content":")", "a", "", R"("}})"},
         1 << 20,
         "prediction must be"},
        {200,
         CHAT,
         {"{" HI R"(,"prediction":{"type":"content","content":[{"type":"text","text":"a"},)"
          R"({"type":"text","text":")",
          "a", "", R"("}]}})"},
         (1 << 20) - 1,
         "prediction must be"},
        {200,
         CHAT,
         {"{" HI R"(,"tools":[{"type":"function","function":{"name":")", "f", "", R"("}}]})"},
         256,
         "tools[0].function.name must be a string of 1 to 256 bytes"},
        {200,
         CHAT,
         {"{" HI R"(,"tools":[{"type":"custom","custom":{"name":")", "f", "", R"("}}]})"},
         256,
         "tools[0].custom.name must be a string of 1 to 256 bytes"},
        {200,
         CHAT,
         {"{" HI R"(,"tools":[{"type":"function","function":{"name":"f"}}],)"
          R"("tool_choice":{"type":"allowed_tools","tools":[)",
          R"({"type":"function","function":{"name":"f"}})", ",", "]}}"},
         1024,
         "tool_choice.allowed_tools.tools"},
        {200, TEXT, {R"({"max_tokens":1,"prompt":[)", "[1]", ",", "]}"}, 128, "at most 128"},
        {200,
         "/completion",
         {R"({"prompt":"a","response_fields":[)", R"("content")", ",", "]}"},
         64,
         "at most 64 paths"},
        {200,
         "/completion",
         {R"({"prompt":"a","logit_bias":[)", "[5,1]", ",", "]}"},
         1024,
         "at most 1024 tokens"},
        {200,
         "/completion",
         {R"({"prompt":"a","logit_bias":[[")", "a", "", R"(",1]]})"},
         1024,
         "at most 1024 tokens"},
        {200,
         MESSAGES,
         {CLAUDE R"("stop_sequences":[)", R"("q")", ",", "]}"},
         16,
         "stop_sequences: must"},
        {200,
         MESSAGES,
         {CLAUDE R"("stop_sequences":[")", "q", "", R"("]})"},
         256,
         "stop_sequences: must"},
        {200,
         RESPONSES,
         {R"({"input":"a","metadata":{)", R"("a":"b")", ",", "}}"},
         16,
         "metadata must be an object"},
        {200,
         RESPONSES,
         {R"({"input":"a","metadata":{")", "a", "", R"(":"b"}})"},
         64,
         "metadata must be an object"},
        {200,
         RESPONSES,
         {R"({"input":"a","metadata":{"a":")", "b", "", R"("}})"},
         2048,
         "metadata must be an object"},
        {200,
         RESPONSES,
         {R"({"input":"a","safety_identifier":")", "a", "", R"("})"},
         256,
         "safety_identifier must be a string of at most 256 bytes"},
        {404,
         RESPONSES,
         {R"({"input":"a","previous_response_id":")", "a", "", R"("})"},
         256,
         "previous_response_id must be the id of a response"},
        {404,
         RESPONSES,
         {R"({"input":"a","conversation":{"id":")", "a", "", R"("}})"},
         256,
         "conversation must be the id of a conversation"},
    };
    struct world w;

    world_init(&w);
    w.opts.max_body_bytes = 2 << 20;
    w.opts.max_stored = 10;
    w.opts.stored_ttl_s = 60;
    w.opts.stored_bytes = 1 << 20;
    w.port.script = "x";
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
        send_many(&w, limits[i].path, limits[i].parts, limits[i].most, limits[i].taken, NULL);
        uint32_t n = w.port.n;
        send_many(&w, limits[i].path, limits[i].parts, limits[i].most + 1, 400, limits[i].refused);
        cr_expect_eq(w.port.n, n, "%s reached the worker", limits[i].refused);
    }
    world_stop(&w);
}

/* A number that is taken, and the next one, which is not. */
Test(limits, of_numbers) {
    static const struct {
        const char *path, *before, *after;
        const char *taken, *refused, *why;
    } limits[] = {
        {CHAT, "{" HI R"(,"n":)", "}", "8", "9", "n must be between 1 and 8."},
        {CHAT, "{" HI R"(,"n":)", "}", "1", "0", "n must be between 1 and 8."},
        {CHAT, "{" HI R"(,"max_tokens":)", "}", "2147483647", "2147483648", "max_tokens must be"},
        {CHAT, "{" HI R"(,"max_tokens":)", "}", "1", "0", "max_tokens must be 1 or more"},
        {CHAT, "{" HI R"(,"loop_breaker":)", "}", "4096", "4097", "loop_breaker must be"},
        {CHAT, "{" HI R"(,"loop_breaker":)", "}", "0", "-1", "loop_breaker must be"},
        {CHAT, "{" HI R"(,"thinking_budget":)", "}", "-1", "-2", "thinking_budget must be"},
        {CHAT, "{" HI R"(,"thinking":{"type":"enabled","budget_tokens":)", "}}", "-1", "-2",
         "thinking.budget_tokens must be"},
        {CHAT, "{" HI R"(,"thinking":{"type":"enabled","budget_tokens":)", "}}", "2147483647",
         "2147483648", "thinking.budget_tokens must be"},
        {CHAT, "{" HI R"(,"reasoning":{"max_tokens":)", "}}", "-1", "-2",
         "reasoning.max_tokens must be"},
        {CHAT, "{" HI R"(,"logprobs":true,"top_logprobs":)", "}", "20", "21", "top_logprobs must"},
        {CHAT, "{" HI R"(,"logit_bias":{"5":)", "}}", "100", "100.5", "logit_bias must be"},
        {CHAT, "{" HI R"(,"logit_bias":{"5":)", "}}", "-100", "-100.5", "logit_bias must be"},
        {CHAT, "{" HI R"(,"logit_bias":{")", R"(":1}})", "259", "260", "logit_bias must be"},
        {CHAT, "{" HI R"(,"logit_bias":{")", R"(":1}})", "0", "-0", "logit_bias must be"},
        {CHAT, "{" HI R"(,"logit_bias":{")", R"(":1}})", "9", ":", "logit_bias must be"},
        {CHAT, "{" HI R"(,"stop_token_ids":[)", "]}", "259", "260", "ids from 0 to 259; entry 0"},
        {CHAT, "{" HI R"(,"stop_token_ids":[1,)", "]}", "0", "-1", "ids from 0 to 259; entry 1"},
        {CHAT, "{" HI R"(,"seed":)", "}", "18446744073709551615", "18446744073709551616", "seed"},
        {CHAT, "{" HI R"(,"seed":)", "}", "-9223372036854775808", "-9223372036854775809", "seed"},
        {TEXT, R"({"prompt":"a","max_tokens":)", "}", "0", "-2", "max_tokens must be 0 or more"},
        {TEXT, R"({"prompt":"a","logprobs":)", "}", "20", "21", "logprobs must be"},
        {TEXT, R"({"prompt":"a","prompt_logprobs":)", "}", "20", "21", "prompt_logprobs must be"},
        {TEXT, R"({"prompt":"a","n":2,"best_of":)", "}", "2", "1", "best_of must be at least n"},
        {"/v1/embeddings", R"({"input":"a","dimensions":)", "}", "4", "5", "at most 4"},
        {"/v1/embeddings", R"({"input":"a","dimensions":)", "}", "1", "0", "dimensions must be"},
        {"/completion", R"({"prompt":"a","n_probs":)", "}", "20", "21", "n_probs must be"},
        {"/completion", R"({"prompt":"a","logit_bias":[[5,)", "]]}", "100", "101", "logit_bias"},
        {"/completion", R"({"prompt":"a","logit_bias":[[)", ",1]]}", "259", "260", "logit_bias"},
        {"/api/chat", OLLAMA R"("logprobs":true,"top_logprobs":)", "}", "20", "21", "top_logprobs"},
        {"/api/chat", OLLAMA R"("logprobs":true,"top_logprobs":)", "}", "0", "-1", "top_logprobs"},
        {MESSAGES, CLAUDE R"("thinking":{"type":"enabled","budget_tokens":)", "}}", "1", "0",
         "thinking.budget_tokens"},
        {MESSAGES, CLAUDE R"("thinking":{"type":"enabled","budget_tokens":)", "}}", "2147483647",
         "2147483648", "thinking.budget_tokens"},
        {RESPONSES, R"({"input":"a","max_tool_calls":)", "}", "0", "-1", "max_tool_calls must be"},
        {RESPONSES, R"({"input":"a","top_logprobs":)", "}", "20", "21", "top_logprobs must be"},
        {RESPONSES, R"({"input":"a","max_output_tokens":)", "}", "1", "0", "max_output_tokens"},
    };
    struct world w;

    world_init(&w);
    w.port.script = "x";
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
        char body[300];

        snprintf(body, sizeof(body), "%s%s%s", limits[i].before, limits[i].taken, limits[i].after);
        send_body(&w, limits[i].path, body, 200, NULL);
        uint32_t n = w.port.n;
        snprintf(body, sizeof(body), "%s%s%s", limits[i].before, limits[i].refused,
                 limits[i].after);
        send_body(&w, limits[i].path, body, 400, limits[i].why);
        cr_expect_eq(w.port.n, n, "%s reached the worker", limits[i].why);
    }
    world_stop(&w);
}
