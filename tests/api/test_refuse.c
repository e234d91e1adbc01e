#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "stream.h"
#include "tiny.h"

/* A tool: a function with one more member. */
#define FUNCTION(member) R"(,"tools":[{"type":"function","function":{"name":"f",)" member "}}]"

static void started(struct world *w) {
    world_init(w);
    world_start(w);
}

static void expect_error(struct world *w, const char *path, const char *body, int status,
                         const char *param, const char *code) {
    struct reply r;
    char needle[200];

    world_ask(w, path, body, &r);
    cr_expect_eq(r.status, status, "%s: %d, not %d: %s", body, r.status, status, r.body.data);
    snprintf(needle, sizeof(needle),
             param ? R"("param":"%s","code":"%s"}})" : R"("param":%s,"code":"%s"}})",
             param ? param : "null", code);
    cr_expect(r.body.data && strstr(r.body.data, needle), "%s: %s has no %s", body, r.body.data,
              needle);
    reply_deinit(&r);
}

/* ---- what is refused ---- */

struct bad_field {
    const char *path, *body;
    int status;
    const char *param, *code;
};

static void refuse_all(const struct bad_field *table, size_t n) {
    struct world w;

    started(&w);
    for (size_t i = 0; i < n; i++)
        expect_error(&w, table[i].path, table[i].body, table[i].status, table[i].param,
                     table[i].code);
    cr_expect_eq(w.port.n, 0, "nothing of it reached the worker");
    world_stop(&w);
}

#define NUL_NAME R"("name":"f\u0000")"

Test(refuse, names_and_ids_with_nul) {
    static const struct bad_field table[] = {
        {CHAT, "{" HI R"(,"model":"tiny\u0000"})", 400, "model", "invalid_value"},
        {CHAT, "{" HI R"(,"tools":[{"type":"function","function":{)" NUL_NAME "}}]}", 400,
         "tools[0].function.name", "invalid_value"},
        {CHAT, "{" HI R"(,"tools":[{"type":"custom","custom":{)" NUL_NAME "}}]}", 400,
         "tools[0].custom.name", "invalid_value"},
        {CHAT, R"({"messages":[{"role":"assistant","tool_calls":[{"function":{)" NUL_NAME "}}]}]}",
         400, "messages[0].tool_calls[0]", "invalid_value"},
        {CHAT,
         "{" HI FUNCTION(
             R"("strict":true)") R"(,"tool_choice":{"type":"function","function":{)" NUL_NAME "}}}",
         400, "tool_choice", "invalid_value"},
        {CHAT, "{" HI R"(,"reasoning_effort":"low\u0000"})", 400, "reasoning_effort",
         "invalid_value"},
        {CHAT, "{" HI R"(,"logit_bias":{"5\u0000":1}})", 400, "logit_bias", "invalid_value"},
        {CHAT, "{" HI R"(,"guided_grammar":"root ::= \u0000"})", 400, "guided_grammar",
         "invalid_value"},
        {"/v1/responses", R"({"input":"a","previous_response_id":"resp_\u0000"})", 400,
         "previous_response_id", "invalid_value"},
        {"/v1/responses", R"({"input":"a","tools":[{"type":"function",)" NUL_NAME "}]}", 400,
         "tools[0].name", "invalid_value"},
        {"/v1/responses",
         R"({"input":[{"type":"function_call","call_id":"1\u0000","name":"f",)"
         R"("arguments":"{}"}]})",
         400, "input[0].call_id", "invalid_value"},
        {"/v1/responses",
         R"({"input":[{"type":"function_call","call_id":"1",)" NUL_NAME R"(,"arguments":"{}"}]})",
         400, "input[0].name", "invalid_value"},
    };

    refuse_all(table, ARRAY_SIZE(table));
}

Test(refuse, a_bias_beyond_100) {
    static const char *const biases[] = {"-100", "100", "-100.5", "100.5"};
    char body[200];
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    for (size_t i = 0; i < ARRAY_SIZE(biases); i++) {
        snprintf(body, sizeof(body), "{" HI ",%s%s}}", R"("logit_bias":{"5":)", biases[i]);
        world_ask(&w, CHAT, body, &r);
        cr_expect_eq(r.status, i < 2 ? 200 : 400, "%s: %s", biases[i], r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(refuse, a_bias_of_more_than_1024_tokens) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    cr_assert_eq(buf_add_str(&b, "{" HI R"(,"logit_bias":{"5":1)"), 0);
    for (int i = 1; i < 1024; i++)
        cr_assert_eq(buf_add_str(&b, R"(,"5":1)"), 0);
    size_t len = b.len;
    cr_assert_eq(buf_add(&b, "}}", 3), 0);
    world_ask(&w, CHAT, b.data, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    b.len = len;
    cr_assert_eq(buf_add(&b, R"(,"5":1}})", 9), 0);
    expect_error(&w, CHAT, b.data, 400, "logit_bias", "invalid_value");
    expect_error(&w, CHAT, "{" HI R"(,"logit_bias":[5]})", 400, "logit_bias", "invalid_value");
    world_stop(&w);
}

Test(refuse, what_is_wrong_with_messages_is_named) {
    static const struct bad_field table[] = {
        {CHAT, "", 400, NULL, "invalid_json"},
        {CHAT, "{", 400, NULL, "invalid_json"},
        {CHAT, "[]", 400, NULL, "invalid_json"},
        {CHAT, "{} x", 400, NULL, "invalid_json"},
        {CHAT,
         R"({"a":")"
         "\xff"
         R"("})",
         400, NULL, "invalid_json"},
        {CHAT, "{" HI R"(,"speculation":true})", 400, "speculation", "invalid_value"},
        {CHAT, R"({"a":"\ud8"})", 400, NULL, "invalid_json"},
        {CHAT,
         R"({"a":"\ud800","b":")"
         "\xff"
         R"("})",
         400, NULL, "invalid_json"},
        {CHAT, R"({"n":NaN})", 400, NULL, "invalid_json"},
        {CHAT, "{}", 400, "messages", "missing_required_parameter"},
        {CHAT, R"({"messages":null})", 400, "messages", "missing_required_parameter"},
        {CHAT, R"({"messages":[]})", 400, "messages", "invalid_value"},
        {CHAT, R"({"messages":{}})", 400, "messages", "invalid_value"},
        {CHAT, R"({"messages":[1]})", 400, "messages[0]", "invalid_value"},
        {CHAT, R"({"messages":[{"role":"x","content":""}]})", 400, "messages[0].role",
         "invalid_value"},
        {CHAT, R"({"messages":[{"role":"user"}]})", 400, "messages[0].content", "invalid_value"},
        {CHAT, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", 400,
         "messages[0].content[0].type", "invalid_value"},
        {CHAT, R"({"messages":[{"role":"user","content":[{"type":"text","text":1}]}]})", 400,
         "messages[0].content[0].text", "invalid_value"},
        {CHAT,
         R"({"messages":[{"role":"user","content":"a"},{"role":"assistant",)"
         R"("tool_calls":[{}]}]})",
         400, "messages[1].tool_calls[0]", "invalid_value"},
        {CHAT, R"({"messages":[{"role":"function","content":"x"}]})", 400, "messages",
         "template_error"},
    };

    refuse_all(table, ARRAY_SIZE(table));
}

Test(refuse, every_bad_field_of_chats_is_named) {
    static const struct bad_field table[] = {
        {CHAT, "{" HI R"(,"model":"other"})", 404, "model", "model_not_found"},
        {CHAT, "{" HI R"(,"model":1})", 400, "model", "invalid_value"},
        {CHAT, "{" HI R"(,"n":0})", 400, "n", "invalid_value"},
        {CHAT, "{" HI R"(,"n":9})", 400, "n", "invalid_value"},
        {CHAT, "{" HI R"(,"n":1,"n":2})", 400, "n", "duplicate_key"},
        {CHAT, "{" HI R"(,"n":1.5})", 400, "n", "invalid_value"},
        {CHAT, "{" HI R"(,"n":"one"})", 400, "n", "invalid_value"},
        {CHAT, "{" HI R"(,"max_tokens":0})", 400, "max_tokens", "invalid_value"},
        {CHAT, "{" HI R"(,"max_tokens":-2})", 400, "max_tokens", "invalid_value"},
        {CHAT, "{" HI R"(,"max_tokens":1e18})", 400, "max_tokens", "invalid_value"},
        {CHAT, "{" HI R"(,"max_completion_tokens":true})", 400, "max_completion_tokens",
         "invalid_value"},
        {CHAT, "{" HI R"(,"stream":1})", 400, "stream", "invalid_value"},
        {CHAT, "{" HI R"(,"stream_options":1})", 400, "stream_options", "invalid_value"},
        {CHAT, "{" HI R"(,"stream":true,"stream_options":{"include_usage":1}})", 400,
         "stream_options.include_usage", "invalid_value"},
        {CHAT, "{" HI R"(,"stop":1})", 400, "stop", "invalid_value"},
        {CHAT, "{" HI R"(,"stop":[1]})", 400, "stop", "invalid_value"},
        {CHAT,
         "{" HI R"(,"stop":["1","2","3","4","5","6","7","8","9","a","b",)"
         R"("c","d","e","f","g","h"]})",
         400, "stop", "invalid_value"},
        {CHAT, "{" HI R"(,"stop_token_ids":[260]})", 400, "stop_token_ids", "invalid_value"},
        {CHAT,
         "{" HI R"(,"allowed_token_ids":[1,)"
         "260]}",
         400, "allowed_token_ids", "invalid_value"},
        {CHAT, "{" HI R"(,"allowed_token_ids":[]})", 400, "allowed_token_ids", "invalid_value"},
        {CHAT, "{" HI R"(,"allowed_token_ids":5})", 400, "allowed_token_ids", "invalid_value"},
        {CHAT, "{" HI R"(,"bad_words":"a"})", 400, "bad_words", "invalid_value"},
        {CHAT, "{" HI R"(,"bad_words":["a",7]})", 400, "bad_words", "invalid_value"},
        {CHAT, "{" HI R"(,"bad_words":["a"," "]})", 400, "bad_words", "invalid_value"},
        {CHAT, "{" HI R"(,"top_logprobs":2})", 400, "top_logprobs", "invalid_value"},
        {CHAT, "{" HI R"(,"logprobs":true,"top_logprobs":21})", 400, "top_logprobs",
         "invalid_value"},
        {CHAT, "{" HI R"(,"logprobs":5})", 400, "logprobs", "invalid_value"},
        {CHAT, "{" HI R"(,"logit_bias":{"x":1}})", 400, "logit_bias", "invalid_value"},
        {CHAT, "{" HI R"(,"logit_bias":{"260":1}})", 400, "logit_bias", "invalid_value"},
        {CHAT, "{" HI R"(,"logit_bias":{"1":101}})", 400, "logit_bias", "invalid_value"},
        {CHAT, "{" HI R"(,"seed":1.5})", 400, "seed", "invalid_value"},
        {CHAT, "{" HI R"(,"temperature":"1x"})", 400, "temperature", "invalid_value"},
        {CHAT, "{" HI R"(,"response_format":"text"})", 400, "response_format", "invalid_value"},
        {CHAT, "{" HI FUNCTION(R"("parameters":"x")") "}", 400, "tools[0].function.parameters",
         "invalid_value"},
        {CHAT, "{" HI FUNCTION(R"("parameters":[{}])") "}", 400, "tools[0].function.parameters",
         "invalid_value"},
        {CHAT, "{" HI FUNCTION(R"("strict":"true")") "}", 400, "tools[0].function.strict",
         "invalid_value"},
        {CHAT, "{" HI FUNCTION(R"("description":7)") "}", 400, "tools[0].function.description",
         "invalid_value"},
        {CHAT, "{" HI R"(,"tools":[{"type":"function"}]})", 400, "tools[0].function.name",
         "invalid_value"},
        {CHAT, "{" HI R"(,"tools":[{"type":"function"}],"tool_choice":"any"})", 400,
         "tools[0].function.name", "invalid_value"},
        {CHAT, "{" HI R"(,"tools":[{"name":7,"parameters":{}}]})", 400, "tools[0].function.name",
         "invalid_value"},
        {CHAT, "{" HI R"(,"tools":[{"type":"custom"}]})", 400, "tools[0].custom.name",
         "invalid_value"},
        {CHAT, "{" HI R"(,"functions":[{}]})", 400, "functions[0].name", "invalid_value"},
        {CHAT, "{" HI R"(,"web_search_options":{"a":1}})", 400, "web_search_options",
         "unsupported_parameter"},
        {CHAT, "{" HI R"(,"chat_template":"x"})", 400, "chat_template", "unsupported_parameter"},
        {CHAT, "{" HI R"(,"chat_template_kwargs":{"messages":1}})", 400, "chat_template_kwargs",
         "invalid_value"},
        {CHAT, "{" HI R"(,"chat_template_kwargs":{"a":[1]}})", 400, "chat_template_kwargs",
         "invalid_value"},
        {CHAT, "{" HI R"(,"modalities":["audio"]})", 400, "modalities", "unsupported_parameter"},
        {CHAT, "{" HI R"(,"echo":true})", 400, "echo", "unsupported_parameter"},
        {CHAT, "{" HI R"(,"top_a":0.5})", 400, "top_a", "unsupported_parameter"},
        {CHAT, "{" HI R"(,"tfs_z":0.9})", 400, "tfs_z", "unsupported_parameter"},
        {CHAT, "{" HI R"(,"adaptive_target":0.5})", 400, "adaptive_target",
         "unsupported_parameter"},
        {CHAT, "{" HI R"(,"no_repeat_ngram_size":3})", 400, "no_repeat_ngram_size",
         "unsupported_parameter"},
        {CHAT, "{" HI R"(,"logits_processors":["x"]})", 400, "logits_processors",
         "unsupported_parameter"},
        {CHAT, "{" HI R"(,"custom_logit_processor":"x"})", 400, "custom_logit_processor",
         "unsupported_parameter"},
        {CHAT, "{" HI R"(,"lora_path":"x"})", 400, "lora_path", "unsupported_parameter"},
        {CHAT, "{" HI R"(,"return_hidden_states":true})", 400, "return_hidden_states",
         "unsupported_parameter"},
    };

    refuse_all(table, ARRAY_SIZE(table));
}

Test(refuse, every_bad_field_of_texts_is_named) {
    static const struct bad_field table[] = {
        {TEXT, "{}", 400, "prompt", "missing_required_parameter"},
        {TEXT, R"({"prompt":""})", 400, "prompt", "invalid_value"},
        {TEXT, R"({"prompt":[]})", 400, "prompt", "invalid_value"},
        {TEXT, R"({"prompt":[[]]})", 400, "prompt[0]", "invalid_value"},
        {TEXT, R"({"prompt":[1,"a"]})", 400, "prompt", "invalid_value"},
        {TEXT, R"({"prompt":["a",[1]]})", 400, "prompt[1]", "invalid_value"},
        {TEXT, R"({"prompt":[-1]})", 400, "prompt", "invalid_value"},
        {TEXT, R"({"prompt":[260]})", 400, "prompt", "invalid_value"},
        {TEXT, R"({"prompt":7})", 400, "prompt", "invalid_value"},
        {TEXT, R"({"prompt":"a","echo":1})", 400, "echo", "invalid_value"},
        {TEXT, R"({"prompt":"a","prompt_logprobs":21})", 400, "prompt_logprobs", "invalid_value"},
        {TEXT, R"({"prompt":"a","prompt_logprobs":1,"stream":true})", 400, "prompt_logprobs",
         "invalid_value"},
        {TEXT, R"({"prompt":"a","best_of":2,"n":3})", 400, "best_of", "invalid_value"},
        {TEXT, R"({"prompt":"a","best_of":9})", 400, "best_of", "invalid_value"},
        {TEXT, R"({"prompt":"a","suffix":"b"})", 400, "suffix", "unsupported_parameter"},
        {TEXT, R"({"prompt":"a","best_of":2,"stream":true})", 400, "best_of", "invalid_value"},
        {TEXT, R"({"prompt":"a","logprobs":21})", 400, "logprobs", "invalid_value"},
        {TEXT, R"({"prompt":"a","logprobs":true})", 400, "logprobs", "invalid_value"},
        {"/tokenize", "{}", 400, "prompt", "missing_required_parameter"},
        {"/detokenize", R"({"tokens":[1.5]})", 400, "tokens", "invalid_value"},
        {"/detokenize", "{}", 400, "tokens", "missing_required_parameter"},
    };

    refuse_all(table, ARRAY_SIZE(table));
}

Test(refuse, every_sampling_parameter_is_held_to_its_range) {
    struct world w;
    char body[300];

    started(&w);
    for (uint32_t i = 0; i < params_count; i++) {
        const struct param *p = &params_table[i];
        static const char *const never[] = {R"("a")", "[]", "{}", "1e999"};

        for (size_t k = 0; k < ARRAY_SIZE(never); k++) {
            struct reply r;

            snprintf(body, sizeof(body), "{" HI R"(,"%s":%s})", p->name, never[k]);
            world_ask(&w, CHAT, body, &r);
            cr_expect_eq(r.status, 400, "%s: %d", body, r.status);
            cr_expect(strstr(r.body.data, p->name) || strstr(r.body.data, "invalid_json"), "%s",
                      r.body.data);
            reply_deinit(&r);
        }
        if (p->type == PARAM_BOOL)
            continue;
        for (int above = 0; above < 2; above++) {
            struct reply r;

            snprintf(body, sizeof(body), "{" HI R"(,"%s":%.17g})", p->name,
                     above ? p->max + 1 : p->min - 1);
            world_ask(&w, CHAT, body, &r);
            cr_expect_eq(r.status, 400, "%s: %d", body, r.status);
            cr_expect(strstr(r.body.data, p->name), "%s", r.body.data);
            reply_deinit(&r);
        }
    }
    cr_expect_eq(w.port.n, 0);
    w.port.script = "x";
    for (uint32_t i = 0; i < params_count; i++) {
        const struct param *p = &params_table[i];
        struct reply r;

        snprintf(body, sizeof(body),
                 p->type == PARAM_BOOL ? "{" HI R"(,"%s":true})" : "{" HI R"(,"%s":%.17g})",
                 p->name, p->max);
        world_ask(&w, CHAT, body, &r);
        cr_expect_eq(r.status, 200, "%s: %d %s", body, r.status, r.body.data);
        reply_deinit(&r);
        cr_expect_eq(params_check(&w.port.r[i].m.sampling, NULL), 0);
        struct sampling defaults;
        params_init(&defaults);
        cr_expect_neq(memcmp(&defaults, &w.port.r[i].m.sampling, sizeof(defaults)),
                      p->max == p->initial ? 1 : 0, "%s", p->name);
    }
    world_stop(&w);
}

Test(refuse, a_prompt_that_does_not_fit_is_told_both_numbers) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    started(&w);
    w.port.script = "x";
    for (int n = 511; n <= 512; n++) {
        buf_clear(&b);
        buf_add_str(&b, R"({"prompt":")");
        for (int i = 0; i < n; i++)
            buf_add_char(&b, 'x');
        buf_add_str(&b, R"(","max_tokens":1000})");
        world_ask(&w, TEXT, b.data, &r);
        cr_expect_eq(r.status, n == 511 ? 200 : 400);
        if (n == 512)
            cr_expect(
                strstr(r.body.data, "512 tokens. However, your prompt resulted in 512 tokens") &&
                    strstr(r.body.data, R"("code":"context_length_exceeded")"),
                "%s", r.body.data);
        else
            cr_expect(strstr(r.body.data, R"("finish_reason":"length")"), "%s", r.body.data);
        reply_deinit(&r);
    }
    cr_expect_eq(w.port.r[0].m.max_new, 1);
    world_stop(&w);
}

/* Clients with one kind of number write 5 as 5.0. */
Test(refuse, whole_numbers_may_have_a_point) {
    static const struct {
        const char *path, *body;
        /* 0: not given */
        uint32_t max_new;
    } cases[] = {
        {CHAT, "{" HI R"(,"max_tokens":5.0,"seed":-42.0,"n":1.0})", 5},
        {TEXT, R"({"prompt":[3.0,4],"max_tokens":5.0,"stop_token_ids":[7.0]})", 5},
        {TEXT, R"({"prompt":"a","max_tokens":-1.0,"seed":-42.0,"top_k":4.0})", 0},
        {"/completion", R"({"prompt":"a","n_predict":-2.0,"seed":-42.0,"n_probs":2.0})", 0},
        {"/api/chat",
         R"({"model":"tiny",)" HI R"(,"stream":false,"logprobs":true,"top_logprobs":2.0,)"
         R"("options":{"num_predict":5.0,"seed":-42.0,"num_ctx":4096.0}})",
         5},
        {"/v1/messages",
         R"({"model":"tiny","max_tokens":5.0,)" HI
         R"(,"thinking":{"type":"enabled","budget_tokens":3.0}})",
         5},
        {"/v1/responses",
         R"({"input":"a","max_output_tokens":5.0,"max_tool_calls":2.0,)"
         R"("context_management":[{"type":"compaction","compact_threshold":400.0}]})",
         5},
    };
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        world_ask(&w, cases[i].path, cases[i].body, &r);
        cr_expect_eq(r.status, 200, "%s: %s", cases[i].body, r.body.data);
        cr_assert_eq(w.port.n, i + 1);
        const struct submit *m = &w.port.r[i].m;
        cr_expect(cases[i].max_new ? m->max_new == cases[i].max_new : m->max_new > 100, "%s: %u",
                  cases[i].body, m->max_new);
        cr_expect(!strstr(cases[i].body, "seed") || m->seed == (uint64_t)-42, "%s", cases[i].body);
        reply_deinit(&r);
    }
    world_ask(&w, "/v1/messages", R"({"model":"tiny","max_tokens":5.5,)" HI "}", &r);
    cr_expect_eq(r.status, 400);
    reply_deinit(&r);
    world_stop(&w);
}

/* -1 is how clients of other servers ask for a random seed. */
Test(refuse, a_seed_of_minus_one_is_random) {
    static const struct {
        const char *path, *body;
    } cases[] = {
        {CHAT, "{" HI R"(,"seed":-1})"},
        {"/completion", R"({"prompt":"a","seed":-1.0})"},
        {"/api/generate", R"({"model":"tiny","prompt":"a","stream":false,"options":{"seed":-1}})"},
    };
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    for (uint32_t i = 0; i < 2 * ARRAY_SIZE(cases); i++) {
        world_ask(&w, cases[i / 2].path, cases[i / 2].body, &r);
        cr_assert_eq(r.status, 200, "%s", r.body.data);
        cr_assert_eq(w.port.n, i + 1);
        cr_expect(i % 2 == 0 || w.port.r[i].m.seed != w.port.r[i - 1].m.seed, "%s",
                  cases[i / 2].body);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(refuse, what_is_unknown_or_changes_nothing_is_ignored) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    world_ask(&w, CHAT,
              "{" HI R"(,"unheard":{"a":[1]},"user":"u","metadata":{},"store":false,)"
              R"("n":null,"stop":null,"temperature":null,"tools":[],"tool_choice":"auto",)"
              R"("response_format":{"type":"text"},"functions":null,"typical_p":1,)"
              R"("parallel_tool_calls":true,"service_tier":"auto","logit_bias":{},)"
              R"("modalities":["text"],"prediction":{"type":"content","content":"x"},)"
              R"("reasoning_effort":"low","echo":false,"best_of":4})",
              &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, TEXT, R"({"prompt":"a","best_of":1,"echo":false,"suffix":null})", &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(refuse, depth_is_bounded) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    started(&w);
    buf_add_str(&b, R"({"x":)");
    for (int i = 0; i < 100000; i++)
        buf_add_char(&b, '[');
    expect_error(&w, CHAT, b.data, 400, NULL, "json_depth");
    world_stop(&w);
}
