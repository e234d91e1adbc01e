/* LM Studio's REST API: OpenAI's answers with additional figures, and its two lists of models. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/model.h"
#include "stream.h"

#define CHAT_V0 "/api/v0/chat/completions"
#define TEXT_V0 "/api/v0/completions"

static void started(struct world *w) {
    world_init(w);
    w->model.arch = "qwen3";
    w->model.file = "Tiny-UD-Q4_K_M-00001-of-00002.gguf";
    w->port.script = "Hi.";
    world_start(w);
}

/* Replaces the times, which differ from run to run, and the version. */
static void normalise(struct reply *r) {
    static const char *const keys[] = {R"(_first_token":)", R"(_time":)", R"("version":)"};

    reply_normalise(&r->body);
    for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
        char *at = strstr(r->body.data, keys[k]);

        if (!at)
            continue;
        at += strlen(keys[k]);
        memmove(at + 1, at + strcspn(at, ",}"), strlen(at + strcspn(at, ",}")) + 1);
        *at = 'X';
    }
}

#define USAGE(n)                                                                                   \
    R"("usage":{"prompt_tokens":21,"completion_tokens":)" n R"(,"total_tokens":24,)"               \
    R"("prompt_tokens_details":{"cached_tokens":10}})"
#define FIGURES(why)                                                                               \
    R"("stats":{"tokens_per_second":1000,"time_to_first_token":X,"generation_time":X,)"            \
    R"("stop_reason":")" why R"("},"model_info":{"arch":"qwen3","quant":"UD-Q4_K_M",)"             \
    R"("format":"gguf","context_length":512},"runtime":{"name":"weft",)"                           \
    R"("version":X,"supported_formats":["gguf"]})"

Test(lmstudio, a_chat_is_openais_with_figures) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, CHAT_V0, "{" HI R"(,"max_tokens":-1})", &r);
    normalise(&r);
    cr_expect_eq(r.status, 200);
    cr_expect_str_eq(r.body.data,
                     R"({"id":"X","object":"chat.completion","created":X,"model":"tiny",)"
                     R"("choices":[{"index":0,"message":{"role":"assistant","content":)"
                     R"("Hi.","refusal":null},"logprobs":null,"finish_reason":"stop"}],)" USAGE(
                         "3") "," FIGURES("eosFound") "}");
    cr_expect_gt(w.port.r[0].m.max_new, 480);
    reply_deinit(&r);
    world_stop(&w);
}

/* Only the chunk with the usage, if it was requested, has the figures. */
Test(lmstudio, a_stream_is_openais_with_figures_at_its_end) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, CHAT_V0, "{" HI R"(,"stream":true})", &r);
    cr_expect_null(strstr(r.body.data, R"("stats")"));
    reply_expect(&r, 200, ROLE DELTA("H") DELTA("i") DELTA(".") FINISH("stop") DONE);
    world_ask(&w, CHAT_V0, "{" HI R"(,"stream":true,"stream_options":{"include_usage":true}})", &r);
    normalise(&r);
    const char *last = strstr(r.body.data, R"("choices":[])");
    cr_assert(last, "%s", r.body.data);
    cr_expect_str_eq(last, R"("choices":[],)" USAGE("3") "," FIGURES("eosFound") "}\n\n" DONE);
    cr_expect(strstr(r.body.data, R"("stats")") > last);
    reply_deinit(&r);
    world_stop(&w);
}

Test(lmstudio, it_says_why_a_text_ends) {
    static const struct {
        const char *body, *why;
    } rows[] = {
        {R"({"prompt":"a"})", "eosFound"},
        {R"({"prompt":"a","stop":"i"})", "stopStringFound"},
        {R"({"prompt":"a","max_tokens":2})", "maxPredictedTokensReached"},
    };
    struct world w;
    struct reply r;
    char want[64];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        world_ask(&w, TEXT_V0, rows[i].body, &r);
        snprintf(want, sizeof(want), R"("stop_reason":"%s")", rows[i].why);
        cr_expect(strstr(r.body.data, want), "%s: %s", rows[i].why, r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(lmstudio, ttl_is_a_number_of_seconds) {
    static const struct {
        const char *ttl;
        /* 77: refused */
        int64_t seconds;
    } rows[] = {
        {"0", 0},           {"0.5", 1}, {"60", 60},      {"2147483647", 2147483647},
        {"2147483648", 77}, {"-1", 77}, {R"("5m")", 77}, {"[]", 77},
    };
    struct world w;
    struct reply r;
    char body[64];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        bool bad = rows[i].seconds == 77;

        snprintf(body, sizeof(body), R"({"prompt":"a","ttl":%s})", rows[i].ttl);
        w.port.model->keep_alive_s = 77;
        world_ask(&w, TEXT_V0, body, &r);
        cr_expect_eq(r.status, bad ? 400 : 200, "%s: %s", body, r.body.data);
        cr_expect(!bad || strstr(r.body.data, R"("param":"ttl")"), "%s", r.body.data);
        cr_expect_eq(w.port.model->keep_alive_s, rows[i].seconds, "%s", body);
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* The answer took the rest of the context, which was not enough. */
Test(lmstudio, a_full_context_is_told) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.model.max_context = 24;
    w.port.script = "Hello.";
    world_start(&w);
    world_ask(&w, TEXT_V0, R"({"prompt":"01234567890123456789","max_tokens":-1})", &r);
    cr_expect(strstr(r.body.data, R"("stop_reason":"contextLengthReached")"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(lmstudio, calls_are_told) {
    static const char calls[] =
        "{% for t in tools or [] %}<tool_call>{{ t }}</tool_call>{% endfor %}a";
    struct world w;
    struct reply r;

    world_init(&w);
    w.port.script = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
    world_use_template(&w, calls, sizeof(calls) - 1);
    world_start(&w);
    world_ask(&w, CHAT_V0, "{" HI R"(,"tools":[{"type":"function","function":{"name":"f"}}]})", &r);
    cr_expect(strstr(r.body.data, R"("stop_reason":"toolCalls")"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

#define MODEL_V0                                                                                   \
    R"({"id":"tiny","object":"model","type":"llm","publisher":"weft",)"                            \
    R"("arch":"qwen3","compatibility_type":"gguf","quantization":"UD-Q4_K_M",)"                    \
    R"("state":"loaded","max_context_length":512,"loaded_context_length":512,)"                    \
    R"("capabilities":["tool_use"]})"

static void expect_get(struct world *w, const char *path, int status, const char *want) {
    struct reply r;

    world_get(w, path, &r);
    cr_expect_eq(r.status, status);
    cr_expect_str_eq(r.body.data, want);
    reply_deinit(&r);
}

Test(lmstudio, models_are_listed_in_both_forms) {
    struct world w;
    struct reply r;

    started(&w);
    expect_get(&w, "/api/v0/models", 200, R"({"object":"list","data":[)" MODEL_V0 "]}");
    expect_get(&w, "/api/v0/models/tiny", 200, MODEL_V0);
    expect_get(&w, "/api/v0/models/other", 404,
               R"({"error":{"message":"The model `other` does not exist.","type":)"
               R"("invalid_request_error","param":"model","code":"model_not_found"}})");
    w.model.n_params = 7615616512;
    world_get(&w, "/api/v1/models", &r);
    cr_expect(strstr(r.body.data, R"("params_string":"7.6B")"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"({"models":[{"type":"llm","publisher":"weft",)"
                                  R"("key":"tiny","display_name":"tiny",)"
                                  R"("architecture":"qwen3","quantization":{"name":)"
                                  R"("UD-Q4_K_M","bits_per_weight":null},"size_bytes":)"),
              "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("loaded_instances":[{"id":"tiny","config":{)"
                                  R"("context_length":512,)"),
              "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, "/api/v1/models/unload", R"({"instance_id":"tiny"})", &r);
    cr_expect(r.status == 400 && strstr(r.body.data, "always loaded"), "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, "/api/v1/chat", R"({"input":"a"})", &r);
    cr_expect_eq(r.status, 404);
    reply_deinit(&r);
    world_stop(&w);
}

Test(lmstudio, vectors_are_openais) {
    struct world w;
    struct reply a, b;

    started(&w);
    world_ask(&w, "/v1/embeddings", R"({"input":"a"})", &a);
    world_ask(&w, "/api/v0/embeddings", R"({"input":"a"})", &b);
    cr_expect(a.status == 200 && strstr(a.body.data, R"("embedding":[)"), "%s", a.body.data);
    cr_expect_str_eq(a.body.data, b.body.data);
    reply_deinit(&a);
    reply_deinit(&b);
    world_stop(&w);
}
