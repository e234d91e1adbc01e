#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "api/generation/model.h"
#include "stream.h"
#include "tiny.h"

static void started(struct world *w) {
    world_init(w);
    world_start(w);
}

/* ---- forms ---- */

Test(chat, a_whole_answer_is_exact) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "Hello";
    world_ask(&w, CHAT, "{" HI R"(,"model":"tiny"})", &r);
    reply_expect(&r, 200,
                 R"({"id":"X","object":"chat.completion","created":X,"model":"tiny",)"
                 R"("choices":[{"index":0,"message":{"role":"assistant","content":)"
                 R"("Hello","refusal":null},"logprobs":null,"finish_reason":"stop"}],)"
                 R"("usage":{"prompt_tokens":21,"completion_tokens":5,"total_tokens":26,)"
                 R"("prompt_tokens_details":{"cached_tokens":10}}})");
    cr_expect_eq(w.port.r[0].m.n_prompt, HI_TOKENS);
    cr_expect_eq(w.port.r[0].m.tokens[0], TINY_START);
    cr_expect_eq(w.port.r[0].m.max_new, 512 - HI_TOKENS);
    world_stop(&w);
}

Test(chat, a_stream_is_exact) {
    struct world w;
    struct reply r;
    char v[64];

    started(&w);
    w.port.script = "Hi";
    world_ask(&w, CHAT, "{" HI R"(,"stream":true})", &r);
    cr_expect_str_eq(reply_header(&r, "cache-control", v, sizeof(v)), "no-cache");
    cr_expect_str_eq(reply_header(&r, "x-accel-buffering", v, sizeof(v)), "no");
    cr_expect_eq(strncmp(reply_header(&r, "content-type", v, sizeof(v)), "text/event-stream", 17),
                 0);
    reply_expect(&r, 200, ROLE DELTA("H") DELTA("i") FINISH("stop") DONE);
    world_stop(&w);
}

Test(chat, usage_comes_in_a_chunk_of_its_own) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "Hi";
    world_ask(&w, CHAT,
              "{" HI R"(,"stream":true,"max_tokens":1,"stream_options":{"include_usage":true,)"
              R"("include_obfuscation":false}})",
              &r);
#define WITH_NULL(choice)                                                                          \
    R"(data: {"id":"X","object":"chat.completion.chunk","created":X,"model":"tiny",)"              \
    R"("choices":[)" choice R"(],"usage":null})"                                                   \
    "\n\n"
    reply_expect(
        &r, 200,
        WITH_NULL(R"({"index":0,"delta":{"role":"assistant","content":""},)"
                  R"("logprobs":null,"finish_reason":null})")
            WITH_NULL(R"({"index":0,"delta":{"content":"H"},"logprobs":null,)"
                      R"("finish_reason":null})")
                WITH_NULL(R"({"index":0,"delta":{},"logprobs":null,)"
                          R"("finish_reason":"length"})") "data: "
                                                          R"({"id":"X","object":"chat.)"
                                                          R"(completion.chunk","created":X,)"
                                                          R"("model":"tiny","choices":[],)"
                                                          R"("usage":{"prompt_tokens":21,)"
                                                          R"("completion_tokens":1,"total_)"
                                                          R"(tokens":22,"prompt_tokens_details":)"
                                                          R"({"cached_tokens":10}}})"
                                                          "\n\n" DONE);
    world_stop(&w);
}

/* Clients that set options of streams once send them with each request. */
Test(chat, options_of_streams_change_no_whole_answer) {
    static const struct {
        const char *path, *body;
    } cases[] = {
        {CHAT, "{" HI R"(,"stream_options":{"include_usage":true}})"},
        {CHAT, "{" HI R"(,"stream":false,"stream_options":{"continuous_usage_stats":true}})"},
        {TEXT, R"({"prompt":"a","stream_options":{}})"},
        {"/v1/responses", R"({"input":"a","stream_options":{"include_obfuscation":false}})"},
    };
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "a";
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        world_ask(&w, cases[i].path, cases[i].body, &r);
        cr_assert_eq(r.status, 200, "%s: %s", cases[i].body, r.body.data);
        yyjson_doc *d = yyjson_read(r.body.data, r.body.len, 0);
        cr_expect(yyjson_is_obj(yyjson_obj_get(yyjson_doc_get_root(d), "usage")), "%s",
                  r.body.data);
        yyjson_doc_free(d);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(chat, usage_is_asked_for_as_openrouter_does) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "a";
    world_ask(&w, CHAT, "{" HI R"(,"stream":true,"usage":{"include":true}})", &r);
    cr_expect(strstr(r.body.data, R"("choices":[],"usage":{"prompt_tokens":21,)"), "%s",
              r.body.data);
    reply_deinit(&r);
    world_ask(&w, CHAT, "{" HI R"(,"usage":{"include":1}})", &r);
    cr_expect(r.status == 400 && strstr(r.body.data, R"("param":"usage.include")"), "%s",
              r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(completions, a_whole_answer_is_exact) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "0123456789abcdefghij";
    world_ask(&w, TEXT, R"({"prompt":"xyz"})", &r);
    reply_expect(&r, 200,
                 R"({"id":"X","object":"text_completion","created":X,"model":"tiny",)"
                 R"("choices":[{"index":0,"text":"0123456789abcdef","logprobs":null,)"
                 R"("finish_reason":"length"}],"usage":{"prompt_tokens":3,)"
                 R"("completion_tokens":16,"total_tokens":19,"prompt_tokens_details":)"
                 R"({"cached_tokens":1}}})");
    world_stop(&w);
}

Test(completions, a_stream_with_everything_is_exact) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    world_ask(&w, TEXT,
              R"({"prompt":[120,121],"stream":true,"logprobs":1,"return_token_ids":true,)"
              R"("logits_digest":true,"max_tokens":2})",
              &r);
#define TEXT_CHUNK(choice)                                                                         \
    R"(data: {"id":"X","object":"text_completion","created":X,"model":"tiny",)"                    \
    R"("choices":[)" choice "]}\n\n"
    reply_expect(
        &r, 200,
        TEXT_CHUNK(R"({"index":0,"text":"o","logprobs":{"tokens":["o"],)"
                   R"("token_logprobs":[-0.5],"top_logprobs":[{"o":-0.5}],"text_offset":[0]},)"
                   R"("finish_reason":null,"prompt_token_ids":[120,121],"token_ids":[111],)"
                   R"("digests":["000000000000abc0"]})")
            TEXT_CHUNK(R"({"index":0,"text":"k","logprobs":{"tokens":["k"],)"
                       R"("token_logprobs":[-0.5],"top_logprobs":[{"k":-0.5}],)"
                       R"("text_offset":[1]},"finish_reason":null,"token_ids":[107],)"
                       R"("digests":["000000000000abc1"]})")
                TEXT_CHUNK(R"({"index":0,"text":"","logprobs":null,"finish_reason":)"
                           R"("length","token_ids":[],"digests":[]})") DONE);
    world_stop(&w);
}

Test(chat, logprobs_have_tokens_bytes_and_tops) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "\xC3\xA9";
    world_ask(&w, CHAT, "{" HI R"(,"logprobs":true,"top_logprobs":2,"return_token_ids":true})", &r);
    cr_expect(strstr(r.body.data,
                     R"("logprobs":{"content":[{"token":")"
                     "\xEF\xBF\xBD"
                     R"(","logprob":-0.5,)"
                     R"("bytes":[195],"top_logprobs":[{"token":")"
                     "\xEF\xBF\xBD"
                     R"(","logprob":-0.5,)"
                     R"("bytes":[195]},{"token":"z","logprob":-1.5,"bytes":[122]}]},)"),
              "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("refusal":null},"finish_reason":"stop","token_ids")"), "%s",
              r.body.data);
    const char *ids = strstr(r.body.data, R"("prompt_token_ids":[256,117,)");
    cr_expect(ids && ids < strstr(r.body.data, R"("choices")"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("token_ids":[195,169])"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(chat, a_stream_tells_the_prompt_once) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    world_ask(&w, CHAT, "{" HI R"(,"stream":true,"n":2,"return_token_ids":true})", &r);
    const char *ids = strstr(r.body.data, R"("prompt_token_ids":[256,117,)");
    cr_expect(ids && ids < strstr(r.body.data, R"("choices")"), "%s", r.body.data);
    cr_expect(ids && !strstr(ids + 2, "prompt_token_ids"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("token_ids":[111)"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(chat, tokens_as_ids) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    world_ask(&w, CHAT,
              "{" HI R"(,"logprobs":true,"top_logprobs":1,"return_tokens_as_token_ids":true})", &r);
    cr_expect(strstr(r.body.data, R"({"token":"token_id:111","logprob":-0.5,"bytes":[111])"), "%s",
              r.body.data);
    reply_deinit(&r);
    world_ask(&w, TEXT,
              R"({"prompt":[120],"logprobs":1,"return_tokens_as_token_ids":true,)"
              R"("max_tokens":1})",
              &r);
    cr_expect(strstr(r.body.data, R"("tokens":["token_id:111"],)"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("top_logprobs":[{"token_id:111":-0.5}])"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(chat, choices_are_told_apart) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ab";
    world_ask(&w, CHAT, "{" HI R"(,"n":3,"stream":true,"seed":7,"speculation":"off"})", &r);
    for (int i = 0; i < 3; i++) {
        char needle[200];

        snprintf(needle, sizeof(needle), R"({"index":%d,"delta":{"role":"assistant")", i);
        cr_expect(strstr(r.body.data, needle));
        snprintf(needle, sizeof(needle), R"({"index":%d,"delta":{},"logprobs":null,"finish)", i);
        cr_expect(strstr(r.body.data, needle));
        cr_expect_eq(w.port.r[i].m.choice, i);
        cr_expect_eq(w.port.r[i].m.group, w.port.r[0].id);
        cr_expect_eq(w.port.r[i].m.seed, 7);
        cr_expect_eq(w.port.r[i].m.flags & SUBMIT_NO_SPECULATION, SUBMIT_NO_SPECULATION);
    }
    reply_deinit(&r);
    world_ask(&w, TEXT, R"({"prompt":["a","b"],"n":2,"max_tokens":2})", &r);
    for (int i = 0; i < 4; i++) {
        char needle[64];

        snprintf(needle, sizeof(needle), R"({"index":%d,"text":"ab")", i);
        cr_expect(strstr(r.body.data, needle), "%s", r.body.data);
        cr_expect_eq(w.port.r[3 + i].m.tokens[0], i < 2 ? 'a' : 'b');
        cr_expect_eq(w.port.r[3 + i].m.choice, i % 2);
    }
    cr_expect(strstr(r.body.data, R"("prompt_tokens":2,"completion_tokens":8)"), "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, TEXT, R"({"prompt":["wxyz","uv"],"n":2,"max_tokens":2})", &r);
    cr_expect(strstr(r.body.data, R"("cached_tokens":3})"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

/* -1 is the rest of the context under each name of the limit, also where completions have a small
 * default, and where the operator has set one. */
Test(parameters, minus_one_is_no_limit) {
    static const struct {
        const char *path, *body;
    } cases[] = {
        {CHAT, "{" HI R"(,"max_tokens":-1})"},
        {CHAT, "{" HI R"(,"max_completion_tokens":-1})"},
        {CHAT, "{" HI R"(,"max_tokens":3,"max_completion_tokens":-1})"},
        {CHAT, "{" HI R"(,"n_predict":-1})"},
        {"/chat/completions", "{" HI R"(,"max_tokens":-1})"},
        {TEXT, R"({"prompt":"a","max_tokens":-1})"},
        {TEXT, R"({"prompt":"a","n_predict":-2})"},
        {"/v1/responses", R"({"input":"a","max_output_tokens":-1})"},
    };
    struct world w;

    world_init(&w);
    w.opts.default_max_tokens = 5;
    world_start(&w);
    w.port.script = "a";
    for (uint32_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reply r;

        world_ask(&w, cases[i].path, cases[i].body, &r);
        cr_assert_eq(r.status, 200, "%s %s: %s", cases[i].path, cases[i].body, r.body.data);
        cr_expect_gt(w.port.r[i].m.max_new, 400, "%s %s: %u", cases[i].path, cases[i].body,
                     w.port.r[i].m.max_new);
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* Tests the names of other services for the same parameters. */
Test(parameters, other_names) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "a";
    world_ask(&w, TEXT, R"({"prompt":"a","n_predict":3,"repeat_penalty":1.5})", &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_eq(w.port.r[0].m.max_new, 3);
    cr_expect_eq(w.port.r[0].m.sampling.repetition_penalty, 1.5);
    reply_deinit(&r);
    world_ask(&w, TEXT,
              R"({"prompt":"a","random_seed":5,"logprobs":false,"top_a":0,"tfs_z":1,)"
              R"("adaptive_target":-1,"lora_path":null,"logits_processors":[]})",
              &r);
    cr_assert(r.status == 200 && strstr(r.body.data, R"("logprobs":null)"), "%s", r.body.data);
    cr_expect_eq(w.port.r[1].m.seed, 5);
    reply_deinit(&r);
    world_ask(&w, CHAT, "{" HI R"(,"n_predict":-1,"reasoning":{"max_tokens":5,"exclude":true}})",
              &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_gt(w.port.r[2].m.max_new, 3);
    reply_deinit(&r);
    world_ask(&w, CHAT, "{" HI R"(,"reasoning":{"enabled":3}})", &r);
    cr_expect(r.status == 400 && strstr(r.body.data, "reasoning.enabled"), "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, CHAT, "{" HI R"(,"thinking":{"type":"x"}})", &r);
    cr_expect(r.status == 400 && strstr(r.body.data, R"("param":"thinking")"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

/* Members of extra_body and options are read like those of the body, which take precedence. */
Test(parameters, members_of_other_objects) {
    static const struct {
        const char *body;
        uint32_t max_new;
        double temperature;
    } cases[] = {
        {"{" HI R"(,"extra_body":{"max_tokens":3,"temperature":0.5}})", 3, 0.5},
        {"{" HI R"(,"options":{"num_predict":4,"temperature":"0.25","num_ctx":9}})", 4, 0.25},
        {"{" HI R"(,"max_tokens":2,"extra_body":{"max_tokens":3},"options":{"temperature":0.5}})",
         2, 0.5},
        {"{" HI R"(,"extra_body":{"temperature":0.5},"options":{"temperature":1},"max_tokens":2})",
         2, 0.5},
        {"{" HI R"(,"extra_body":[],"max_new_tokens":5,"temperature":1})", 5, 1},
        {"{" HI R"(,"options":{},"max_output_tokens":6,"temperature":1})", 6, 1},
    };
    static const struct {
        const char *body, *param;
    } bad[] = {
        {"{" HI R"(,"extra_body":"x"})", R"("param":"extra_body")"},
        {"{" HI R"(,"options":1})", R"("param":"options")"},
        {"{" HI R"(,"options":{"temperature":9}})", R"("param":"temperature")"},
        {"{" HI R"(,"extra_body":{"n":1,"n":2}})", R"("param":"n")"},
        {"{" HI R"(,"extra_body":{},"extra_body":{"n":2}})", R"("param":"extra_body")"},
        {"{" HI R"(,"extra_body":{"chat_template":"x"}})", R"("param":"chat_template")"},
    };
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "a";
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        world_ask(&w, CHAT, cases[i].body, &r);
        cr_assert_eq(r.status, 200, "%s: %s", cases[i].body, r.body.data);
        cr_expect_eq(w.port.r[i].m.max_new, cases[i].max_new, "%s", cases[i].body);
        cr_expect_float_eq(w.port.r[i].m.sampling.temperature, cases[i].temperature, 1e-6, "%s",
                           cases[i].body);
        reply_deinit(&r);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        world_ask(&w, CHAT, bad[i].body, &r);
        cr_expect(r.status == 400 && strstr(r.body.data, bad[i].param), "%s: %s", bad[i].body,
                  r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* No member of extra_body chooses the model, which is known by then. */
Test(parameters, extra_body_names_no_model) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "a";
    world_ask(&w, CHAT, "{" HI R"(,"extra_body":{"model":"other"}})", &r);
    cr_expect(r.status == 200 && strstr(r.body.data, R"("model":"tiny")"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

/* The names of Ollama and LM Studio hold on the paths of OpenAI, too. */
Test(parameters, a_request_says_how_long_its_model_stays_loaded) {
    static const struct {
        const char *path, *body;
        int64_t seconds;
    } cases[] = {
        {CHAT, "{" HI R"(,"keep_alive":"5m"})", 300},
        {CHAT, "{" HI R"(,"keep_alive":-1})", -1},
        {CHAT, "{" HI R"(,"ttl":"60"})", 60},
        {TEXT, R"({"prompt":"a","keep_alive":0})", 0},
        {"/v1/embeddings", R"({"input":"a","keep_alive":30})", 30},
        {"/v1/responses", R"({"input":"a","ttl":40})", 40},
        {"/v1/messages", R"({"model":"tiny","max_tokens":4,"keep_alive":"1m",)" HI "}", 60},
        {CHAT, "{" HI "}", 77},
    };
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "a";
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        w.port.model->keep_alive_s = 77;
        world_ask(&w, cases[i].path, cases[i].body, &r);
        cr_expect_eq(r.status, 200, "%s: %s", cases[i].body, r.body.data);
        cr_expect_eq(w.port.model->keep_alive_s, cases[i].seconds, "%s", cases[i].body);
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* ---- text ---- */

Test(text, a_stop_string_across_tokens_is_never_sent) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "one STSTOP two";
    world_ask(&w, CHAT, "{" HI R"(,"stream":true,"stop":["STOP","zzz"]})", &r);
    reply_normalise(&r.body);
    cr_expect(strstr(r.body.data, DELTA("e") DELTA(" ") DELTA("ST") FINISH("stop") DONE), "%s",
              r.body.data);
    cr_expect(w.port.r[0].cut && w.port.n_cancels == 0, "the worker was told, and keeps the turn");
    cr_expect_str_eq(w.port.r[0].stops[0], "STOP");
    reply_deinit(&r);
    world_ask(&w, CHAT, "{" HI R"(,"stop":"STOP","include_stop_str_in_output":true})", &r);
    cr_expect(strstr(r.body.data, R"("content":"one STSTOP")"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("completion_tokens":10)"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(text, a_beginning_of_a_stop_string_is_sent_at_the_end) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "aST";
    world_ask(&w, CHAT, "{" HI R"(,"stream":true,"stop":"STOP"})", &r);
    reply_expect(&r, 200, ROLE DELTA("a") DELTA("ST") FINISH("stop") DONE);
    world_stop(&w);
}

Test(text, characters_are_never_cut) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "\xE2\x82\xAC\xF0\x9F\x98\x80\xFFx\xE2\x82";
    world_ask(&w, CHAT, "{" HI R"(,"stream":true})", &r);
    reply_expect(&r, 200,
                 ROLE DELTA("\xE2\x82\xAC") DELTA("\xF0\x9F\x98\x80") DELTA("\xEF\xBF\xBD")
                     DELTA("x") DELTA("\xEF\xBF\xBD") FINISH("stop") DONE);
    world_stop(&w);
}

Test(text, end_tokens_and_stop_ids_are_not_text) {
    struct world w;
    struct reply r;
    static const int32_t ids[] = {'h', 'i', TINY_END}, with_stop[] = {'h', '!'};

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"logprobs":true,"return_token_ids":true})");
    world_turns(&w, 3);
    fake_accept(&w.port, 0);
    fake_ids(&w.port, 0, ids, 3);
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect(strstr(r.body.data, R"("content":"hi")"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("token_ids":[104,105,257])"), "%s", r.body.data);
    cr_expect(!strstr(r.body.data, "im_end"), "%s", r.body.data);
    reply_deinit(&r);
    world_post(&w, fd, CHAT, "{" HI R"(,"stop_token_ids":[33],"ignore_eos":false})");
    world_turns(&w, 3);
    cr_expect_eq(w.port.r[1].m.n_stop_ids, 1);
    fake_accept(&w.port, 1);
    fake_ids(&w.port, 1, with_stop, 2);
    fake_finish(&w.port, 1, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect(strstr(r.body.data, R"("content":"h")"), "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* ---- tokens ---- */

Test(tokens, words_and_ids_that_may_come_go_to_the_worker_as_tokens) {
    /* Behind a space a word has one token more here, so it has no second form. */
    static const int32_t bad[] = {2, 'x', 'y', 1, 'z'};
    struct world w;
    struct reply r;

    world_init(&w);
    world_start(&w);
    w.port.script = "x";
    world_ask(&w, "/v1/completions",
              R"({"prompt":"a","allowed_token_ids":[5,6,5],"bad_words":[" xy","z"]})", &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_eq(w.port.r[0].n_allowed, 3);
    cr_assert_eq(w.port.r[0].n_bad, ARRAY_SIZE(bad));
    cr_expect_arr_eq(w.port.r[0].bad, bad, sizeof(bad));
    reply_deinit(&r);
    world_stop(&w);
}

Test(text, half_a_character_is_replaced) {
    static const struct {
        const char *sent, *text;
    } table[] = {
        {"a\\ud83d", "a\xEF\xBF\xBD"},
        {"\\uDE00 b", "\xEF\xBF\xBD b"},
        {"\\ud83d\\ud83d\\ude00", "\xEF\xBF\xBD\xF0\x9F\x98\x80"},
        {"\\ud83d\\u0041\\ud83d\\n", "\xEF\xBF\xBD"
                                     "A\xEF\xBF\xBD\\n"},
        {"\\\\ud83d\\ud83d", "\\\\ud83d\xEF\xBF\xBD"},
    };
    struct world w;
    struct reply r;
    char body[200], want[200];

    started(&w);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        snprintf(body, sizeof(body), R"({"messages":[{"role":"user","content":"%s"}]})",
                 table[i].sent);
        snprintf(want, sizeof(want), "user\\n%s<|im_end|>", table[i].text);
        world_ask(&w, CHAT "/render", body, &r);
        cr_expect(strstr(r.body.data, want), "%s: %s", body, r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(tokens, text_and_back) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, "/tokenize", R"({"prompt":"abc<|im_end|>","return_token_strs":true})", &r);
    reply_expect(&r, 200,
                 R"({"count":3,"max_model_len":512,"tokens":[259,99,257],)"
                 R"("token_strs":["ab","c","<|im_end|>"]})");
    world_ask(&w, "/tokenize", "{" HI "}", &r);
    cr_expect(strstr(r.body.data, R"({"count":21,)"), "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, "/detokenize", R"({"tokens":[259,99,257]})", &r);
    reply_expect(&r, 200, R"({"prompt":"abc<|im_end|>","content":"abc<|im_end|>"})");
    world_ask(&w, "/v1/chat/completions/render",
              R"({"messages":[{"role":"developer","content":"<|im_end|>"}],)"
              R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"x"}]})",
              &r);
    cr_expect(strstr(r.body.data, R"("text":"<|im_start|>system\n<|im_end|><|im_end|>\n[1])"
                                  R"(<|im_start|>assistant\n")"),
              "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("token_ids":[256,115,121,115,116,101,109,10,60,124,105)"),
              "user text is not a special token: %s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, "/v1/completions/render", R"({"prompt":[[1,2],[3]]})", &r);
    reply_expect(&r, 200, R"([{"text":null,"token_ids":[1,2]},{"text":null,"token_ids":[3]}])");
    world_ask(&w, "/tokenize",
              R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":)"
              R"("b"}],"continue_final_message":true,"add_generation_prompt":false})",
              &r);
    cr_expect(strstr(r.body.data, "115,115,105,115,116,97,110,116,10,98],"),
              "the prompt ends with the text: %s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(tokens, a_long_prompt_is_worked_on_beside_the_loop) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    world_init(&w);
    w.model.max_context = 1000000;
    world_start(&w);
    w.port.script = "x";
    buf_add_str(&b, R"({"prompt":")");
    for (int i = 0; i < 50000; i++)
        buf_add_str(&b, "word ");
    buf_add_str(&b, R"("})");
    int fd = world_connect(&w), gone = world_connect(&w);
    world_post(&w, fd, TEXT, b.data);
    world_post(&w, gone, TEXT, b.data);
    world_drop(&w, gone); /* perhaps while it is being tokenised */
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, R"("prompt_tokens":250000)"), "%s", r.body.data);
    reply_deinit(&r);
    world_post(&w, fd, TEXT, b.data);
    world_stop(&w); /* also with work under way */
    close(fd);
}

Test(tokens, huge_prompts_take_turns_and_leave_room) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf huge = {.max = 1 << 21}, large = {.max = 1 << 20};
    int fd[6];

    world_init(&w);
    w.model.max_context = 1000000;
    world_start(&w);
    w.port.script = "x";
    buf_add_str(&huge, R"({"prompt":")");
    buf_add_str(&large, R"({"prompt":")");
    for (int i = 0; i < 120000; i++)
        buf_add_str(&huge, "word ");
    for (int i = 0; i < 4000; i++)
        buf_add_str(&large, "word ");
    buf_add_str(&huge, R"("})");
    buf_add_str(&large, R"("})");
    for (int i = 0; i < 6; i++) {
        fd[i] = world_connect(&w);
        world_post(&w, fd[i], TEXT, i == 5 ? large.data : huge.data);
    }
    world_drop(&w, fd[4]); /* perhaps before its turn */
    world_receive(&w, fd[5], &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    for (int i = 0; i < 4; i++) {
        world_receive(&w, fd[i], &r);
        cr_expect_eq(r.status, 200);
        cr_expect(strstr(r.body.data, R"("prompt_tokens":600000)"), "%s", r.body.data);
        reply_deinit(&r);
        world_drop(&w, fd[i]);
    }
    for (int i = 0; i < 3; i++) {
        fd[i] = world_connect(&w);
        world_post(&w, fd[i], TEXT, huge.data);
    }
    world_stop(&w); /* also while some requests wait */
    for (int i = 0; i < 3; i++)
        close(fd[i]);
    close(fd[5]);
}

/* ---- tenants ---- */

Test(tenants, prefixes_are_shared_by_tenant_and_salt) {
    struct world w;
    struct reply r;
    char path[64];
    static const char *const keys[] = {"k1", "k2", "k3", "k3"};

    snprintf(path, sizeof(path), "/tmp/weft-test-tenants-%d", getpid());
    FILE *f = fopen(path, "w");
    fputs("a:k1\na:k2\nb:k3\n", f);
    fclose(f);
    world_init(&w);
    w.opts.api_keys_file = path;
    world_start(&w);
    w.port.script = "x";
    for (int i = 0; i < 4; i++) {
        int fd = world_connect(&w);
        const char *body = i == 3 ? "{" HI R"(,"cache_salt":"s"})" : "{" HI "}";

        world_say(&w, fd,
                  "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
                  "Content-Length: %zu\r\n\r\n%s",
                  keys[i], strlen(body), body);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, 200);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    unlink(path);
    cr_expect_eq(w.port.r[0].m.tenant, w.port.r[1].m.tenant);
    cr_expect_neq(w.port.r[0].m.tenant, w.port.r[2].m.tenant);
    cr_expect_eq(memcmp(w.port.r[0].m.isolation_key, w.port.r[1].m.isolation_key, 16), 0);
    cr_expect_neq(memcmp(w.port.r[0].m.isolation_key, w.port.r[2].m.isolation_key, 16), 0);
    cr_expect_neq(memcmp(w.port.r[2].m.isolation_key, w.port.r[3].m.isolation_key, 16), 0);
    world_stop(&w);
}

Test(tokens, who_leaves_while_the_pool_counts_leaves_nothing) {
    static const char *const heads[] = {
        R"({"prompt":")", R"({"model":"tiny","messages":[{"role":"user","content":")"};
    static const char *const paths[] = {"/tokenize", "/v1/messages/count_tokens"};
    static const char *const tails[] = {R"("})", R"("}]})"};
    struct world w;
    struct reply r;

    world_init(&w);
    w.model.max_context = 1000000;
    world_start(&w);
    for (int i = 0; i < 2; i++) {
        CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

        buf_add_str(&b, heads[i]);
        for (int k = 0; k < 50000; k++)
            buf_add_str(&b, "word ");
        buf_add_str(&b, tails[i]);
        buf_add_char(&b, 0);
        int fd = world_connect(&w);
        world_post(&w, fd, paths[i], b.data);
        world_turns(&w, 2);
        world_drop(&w, fd);
        world_turns(&w, 5);
        world_ask(&w, paths[i], b.data, &r); /* the next one is answered */
        cr_expect_eq(r.status, 200, "%s", r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}
