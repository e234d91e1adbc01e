/* llama-server's routes: texts, filling in the middle, tokens, properties. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "api/parts.h"
#include "base/log.h"
#include "stream.h"
#include "tiny.h"

static void started(struct world *w) {
    world_init(w);
    tokenizer_free((struct tokenizer *)(uintptr_t)w->model.tokenizer);
    w->model.tokenizer = tiny_fim_tokenizer();
    w->model.n_vocab = TINY_ALL;
    world_start(w);
}

static void expect_part(const struct reply *r, const char *part) {
    cr_expect(r->body.data && strstr(r->body.data, part), "%s\nhas no %s", r->body.data, part);
}

Test(llamacpp, a_completion) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "one two";
    world_ask(&w, "/completion", R"({"prompt":"abc","n_predict":-1,"cache_prompt":true})", &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_gt(w.port.r[0].m.max_new, 100);
    expect_part(&r, R"({"index":0,"content":"one )"
                    R"(two","tokens":[],"id_slot":-1,"stop":true,)"
                    R"("model":"tiny","tokens_predicted":)"
                    R"(7,"tokens_evaluated":2,)");
    expect_part(&r, R"("generation_settings":{"seed":)");
    expect_part(&r, R"("n_predict":-1,"ignore_eos":false,"stream":false,"n_probs":0,)");
    expect_part(&r, R"("prompt":"abc","has_new_line":false,"truncated":false,"stop_type":"eos",")"
                    R"(stopping_word":"","timings":{)");
    expect_part(&r, R"("prompt_n":1,"prompt_ms":4,"prompt_per_token_ms":4,)"
                    R"("prompt_per_second":250,")"
                    R"(predicted_n":7,"predicted_ms":7,)"
                    R"("predicted_per_token_ms":1.16666666666667,")"
                    R"(predicted_per_second":857.142857142857)");
    expect_part(&r, R"(,"draft_n":90,"draft_n_accepted":80})");
    reply_deinit(&r);
    world_ask(&w, "/completion", R"({"prompt":"abc","stream":true,"stop":[" t"]})", &r);
    expect_part(&r, R"(data: {"index":0,"content":"o","tokens":[111],)"
                    R"("id_slot":-1,"stop":false})"
                    "\n\n");
    expect_part(&r, R"("stop_type":"word","stopping_word":" t")");
    cr_expect_not(strstr(r.body.data, "[DONE]"));
    reply_deinit(&r);
    world_stop(&w);
}

/* The answer contains its prompts, so long ones are written on the pool, and a stream sends them in
 * turns. */
Test(llamacpp, long_prompts_are_told_on_the_pool) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct world w;
    struct reply r;
    struct jobs_stats before, after;

    started(&w);
    w.port.script = "x";
    for (unsigned n = 20; n <= 400; n += 380) {
        for (int stream = 0; stream < 2; stream++) {
            buf_clear(&body);
            buf_printf(&body, R"({"stream":%s,"prompt":[)", stream ? "true" : "false");
            for (int i = 0; i < 7; i++)
                buf_printf(&body, R"(%s"%0*d")", i ? "," : "", (int)n, i);
            buf_add_str(&body, R"(],"n_predict":3})");
            jobs_stats(w.api->env.pool.jobs, &before);
            world_ask(&w, "/completion", body.data, &r);
            jobs_stats(w.api->env.pool.jobs, &after);
            cr_assert_eq(r.status, 200, "%s", r.body.data);
            expect_part(&r, R"(0000","has_new_line")");
            expect_part(&r, R"(0001","has_new_line")");
            expect_part(&r, R"(0006","has_new_line")");
            cr_expect_eq(after.n_done - before.n_done, n > 20 && !stream, "%u %d", n, stream);
            reply_deinit(&r);
        }
    }
    world_stop(&w);
}

Test(llamacpp, a_completion_of_several_prompts_is_an_array) {
    static const int32_t mixed[] = {99, 97, 'b'};
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    world_ask(
        &w, "/completion",
        R"({"prompt":[[99,"ab"],"c",{"prompt_string":"d"}],"n_predict":3,"return_tokens":true})",
        &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_eq(strncmp(r.body.data, R"([{"index":0,)", 12), 0, "%s", r.body.data);
    expect_part(&r, R"(},{"index":2,"content":"x","tokens":[120])");
    cr_assert_eq(w.port.n, 3);
    cr_expect_eq(w.port.r[0].m.n_prompt, 2); /* "ab" is one token */
    cr_expect_eq(w.port.r[0].tokens[0], mixed[0]);
    cr_expect_eq(w.port.r[2].tokens[0], 'd');
    reply_deinit(&r);
    world_ask(&w, "/completion", R"({"prompt":[1,"ab",99999999]})", &r);
    cr_expect_eq(r.status, 400);
    expect_part(&r, R"("param":"prompt")");
    reply_deinit(&r);
    world_ask(&w, "/completion", R"({"prompt":[[1],{"prompt":"ab"}]})", &r);
    cr_expect_eq(r.status, 400);
    reply_deinit(&r);
    world_stop(&w);
}

static void ask_too_much(struct world *w, const char *path, const char *before, const char *after,
                         struct reply *r) {
    struct buf b = {.max = 1 << 16};

    buf_add_str(&b, before);
    for (int i = 0; i < 600; i++)
        buf_add_char(&b, 'x');
    buf_add_str(&b, after);
    world_ask(w, path, b.data, r);
    cr_expect_eq(r->status, 400);
    buf_deinit(&b);
}

Test(llamacpp, a_prompt_that_does_not_fit_has_its_type_and_numbers) {
    const struct {
        const char *path, *before, *after, *type;
    } cases[] = {
        {"/completion", R"({"prompt":")", R"("})", "exceed_context_size_error"},
        {"/chat/completions", R"({"messages":[{"role":"user","content":")", R"("}]})",
         "exceed_context_size_error"},
        {"/v1/completions", R"({"prompt":")", R"("})", "invalid_request_error"},
    };
    struct world w;
    struct reply r;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char type[80];

        ask_too_much(&w, cases[i].path, cases[i].before, cases[i].after, &r);
        snprintf(type, sizeof(type), R"("type":"%s")", cases[i].type);
        expect_part(&r, type);
        expect_part(&r, R"("code":"context_length_exceeded","n_prompt_tokens":6)");
        expect_part(&r, R"(,"n_ctx":512})");
        reply_deinit(&r);
    }
    world_ask(&w, "/completion", R"({"prompt":"a","top_p":7})", &r);
    expect_part(&r, R"("type":"invalid_request_error")");
    cr_expect_not(strstr(r.body.data, "n_ctx"));
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, breakers_of_dry_go_to_the_worker_as_tokens) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    world_ask(&w, "/completion",
              R"({"prompt":"abc","dry_multiplier":0.8,"dry_sequence_breakers":["b"]})", &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    expect_part(&r, R"("dry_multiplier":0.8,"dry_base":1.75,"dry_allowed_length":2,)");
    cr_assert_geq(w.port.r[0].n_breakers, 2); /* "b" and "ab" */
    for (uint32_t i = 0; i < w.port.r[0].n_breakers; i++) {
        size_t len;
        const char *piece = tokenizer_piece(w.model.tokenizer, w.port.r[0].breakers[i], true, &len);

        cr_expect(memchr(piece, 'b', len), "%.*s", (int)len, piece);
    }
    reply_deinit(&r);
    world_ask(&w, "/completion", R"({"prompt":"abc","dry_sequence_breakers":[""]})", &r);
    cr_expect_eq(r.status, 400);
    expect_part(&r, R"("param":"dry_sequence_breakers")");
    reply_deinit(&r);
    world_ask(&w, "/completion", R"({"prompt":"abc"})", &r);
    cr_expect_eq(w.port.r[1].n_breakers, 0);
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, its_paths_answer_chats_as_it_does) {
    static const char body[] = R"({"messages":[{"role":"user","content":"a"}],"stream":true,)"
                               R"("stream_options":{"include_usage":true}})";
    struct world w;
    struct reply r;
    char v[64];

    started(&w);
    w.port.script = "x";
    world_ask(&w, "/chat/completions", body, &r);
    expect_part(&r, R"("delta":{"role":"assistant","content":null})");
    expect_part(&r, R"(},"timings":{"cache_n":)");
    reply_deinit(&r);
    world_ask(&w, "/v1/chat/completions", body, &r);
    expect_part(&r, R"("delta":{"role":"assistant","content":""})");
    cr_expect_not(strstr(r.body.data, "timings"));
    reply_deinit(&r);
    world_ask(&w, "/completion", R"({"prompt":"a","ignore_eos":true})", &r);
    expect_part(&r, R"("logit_bias":[{"bias":null,"token":)");
    reply_deinit(&r);
    world_get(&w, "/metrics", &r);
    cr_expect(*reply_header(&r, "process-start-time-unix", v, sizeof(v)));
    expect_part(&r, "\nllamacpp:n_tokens_max ");
    reply_deinit(&r);
    world_stop(&w);
}

/* The raw answer has what the parser takes out of the text. */
Test(llamacpp, a_verbose_chat_has_its_raw_answer) {
    const char *hi =
        R"({"messages":[{"role":"user","content":"ab"}],"logprobs":true,"top_logprobs":2)";
    struct world w;
    struct reply r;
    char body[256];

    started(&w);
    w.port.script = "one two";
    for (int stream = 0; stream < 2; stream++) {
        snprintf(body, sizeof(body), R"(%s,"verbose":true%s})", hi,
                 stream ? R"(,"stream":true,"stream_options":{"include_usage":true})" : "");
        world_ask(&w, "/chat/completions", body, &r);
        cr_assert_eq(r.status, 200, "%s", r.body.data);
        expect_part(
            &r,
            R"(,"__verbose":{"index":0,"content":"one )"
            R"(two","tokens":[],"id_slot":-1,"stop":true,"model":"tiny","tokens_predicted":7,)");
        expect_part(&r, R"("prompt":"<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n)");
        expect_part(&r, R"("stop_type":"eos")");
        cr_expect_not(strstr(r.body.data, "completion_probabilities"));
        reply_deinit(&r);
        world_ask(&w, "/v1/chat/completions", body, &r);
        cr_expect_not(strstr(r.body.data, "__verbose"), "%s", r.body.data);
        reply_deinit(&r);
    }
    w.port.script = "<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>";
    snprintf(body, sizeof(body),
             R"(%s,"verbose":true,"tools":[{"type":"function","function":{"name":"f"}}]})", hi);
    world_ask(&w, "/chat/completions", body, &r);
    expect_part(&r, R"("content":null)");
    expect_part(&r, R"(,"content":"<tool_call>\n{\"name\":\"f\")");
    reply_deinit(&r);
    world_ask(&w, "/chat/completions",
              R"({"messages":[{"role":"user","content":"a"}],"verbose":1})", &r);
    cr_expect_eq(r.status, 400);
    expect_part(&r, R"("param":"verbose")");
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, a_server_that_logs_all_answers_verbosely) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    log_set_level(WLOG_DEBUG);
    world_ask(&w, "/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})", &r);
    expect_part(&r, R"(,"__verbose":{"index":0,"content":"x",)");
    reply_deinit(&r);
    world_ask(&w, "/chat/completions",
              R"({"messages":[{"role":"user","content":"a"}],"verbose":false})", &r);
    cr_expect_not(strstr(r.body.data, "__verbose"), "%s", r.body.data);
    reply_deinit(&r);
    log_set_level(WLOG_ERROR);
    world_stop(&w);
}

Test(llamacpp, members_of_a_completion_that_are_asked_for) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x\ny";
    world_ask(&w, "/completion",
              R"({"prompt":"a","n_predict":3,"seed":7,"response_fields":["content","generation_)"
              R"(settings/n_predict","generation_settings/seed","has_new_line","no/such"]})",
              &r);
    cr_expect_str_eq(r.body.data,
                     R"({"content":"x\ny","generation_settings/n_predict":3,"generation_settings/)"
                     R"(seed":7,"has_new_line":true})");
    reply_deinit(&r);
    world_ask(
        &w, "/completion",
        R"({"prompt":"a","n_predict":1,"stream":true,"response_fields":["stop","truncated"]})", &r);
    expect_part(&r, R"(data: {"index":0,"content":"x",)");
    expect_part(&r, R"(data: {"stop":true,"truncated":false})"
                    "\n");
    reply_deinit(&r);
    world_ask(&w, "/completion", R"({"prompt":"a","n_predict":2,"n_probs":1})", &r);
    expect_part(&r, R"("completion_probabilities":[{"id":120,"token":"x","logprob":-0.5,"bytes":[)"
                    R"(120],"top_logprobs":[)");
    reply_deinit(&r);
    world_ask(&w, "/completion", R"({"prompt":"a","n_probs":21})", &r);
    cr_expect_eq(r.status, 400);
    reply_deinit(&r);
    world_ask(&w, "/completion", R"({"prompt":"a","post_sampling_probs":true})", &r);
    cr_expect_eq(r.status, 400);
    expect_part(&r, "unsupported_parameter");
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, an_answer_that_fills_the_context_is_truncated) {
    const struct {
        uint32_t context;
        const char *part;
    } cases[] = {
        {64, R"("truncated":false,"stop_type":"eos")"},
        {5, R"("truncated":true,"stop_type":"limit")"},
    };
    struct reply r;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct world w;

        started(&w);
        w.model.max_context = cases[i].context;
        w.port.script = "one two";
        world_ask(&w, "/completion", R"({"prompt":"c"})", &r);
        expect_part(&r, cases[i].part);
        reply_deinit(&r);
        world_ask(&w, "/completion", R"({"prompt":"c","n_predict":3})", &r);
        expect_part(&r, R"("truncated":false,"stop_type":"limit")");
        reply_deinit(&r);
        world_stop(&w);
    }
}

/* The first report comes before any token of the prompt is computed, the last one with the first
 * token of the answer. Times of what was not computed are 0. */
Test(llamacpp, streams_tell_the_progress_of_the_prompt_and_times) {
#define ASKED R"(,"stream":true,"return_progress":true,"timings_per_token":true})"
    const char *const paths[][2] = {
        {"/completion", R"({"prompt":"abc")" ASKED},
        {"/chat/completions", "{" HI ASKED},
        {"/responses", R"({"input":"hi")" ASKED},
    };
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "one two";
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        world_ask(&w, paths[i][0], paths[i][1], &r);
        cr_assert_eq(r.status, 200, "%s", r.body.data);
        const char *last = NULL;
        unsigned total, cached, done, n = 0;

        for (const char *at = r.body.data; (at = strstr(at, R"("prompt_progress":)"));
             last = at++, n++)
            ;
        cr_assert_geq(n, 2, "%s", r.body.data);
        cr_expect_not(strstr(r.body.data, "event: response.created\n") &&
                      strstr(strstr(r.body.data, "response.created"), "prompt_progress") <
                          strstr(r.body.data, "response.in_progress"));
        cr_expect_eq(sscanf(last, R"("prompt_progress":{"total":%u,"cache":%u,"processed":%u,)",
                            &total, &cached, &done),
                     3, "%s", last);
        cr_expect_eq(done, total, "%s", last);
        const char *begin = strstr(r.body.data, R"("prompt_progress":)");
        if (i < 2)
            cr_expect_eq(sscanf(begin,
                                R"("prompt_progress":{"total":%u,"cache":%u,"processed":%u,)",
                                &total, &cached, &done) == 3 &&
                             done == cached,
                         true, "%s", begin);
        if (i == 1)
            cr_expect_not(strstr(r.body.data, "timings") < strstr(r.body.data, R"("content":"o")"));
        cr_expect(strstr(last, R"(,"predicted_per_second":)"), "%s", last);
        reply_deinit(&r);
    }
    world_ask(&w, "/completion", R"({"prompt":"abc","stream":true,"return_progress":1})", &r);
    cr_expect_eq(r.status, 400);
    reply_deinit(&r);
    int fd = world_connect(&w);
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    w.port.script = NULL;
    world_post(&w, fd, paths[0][0], paths[0][1]);
    world_turns(&w, 5);
    fake_accept(&w.port, w.port.n - 1);
    cr_expect(
        world_read_until(&w, fd, &b, R"(},"timings":{"cache_n":0,"prompt_n":0,"prompt_ms":0,)"),
        "%s", b.data);
    cr_expect(strstr(b.data, R"("processed":1,"time_ms":)"), "%s", b.data);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(llamacpp, responses_have_times_on_its_path) {
    const char *const ends[] = {"", R"(,"stream":true)"};
    struct world w;
    struct reply r;
    char body[80];

    started(&w);
    w.port.script = "x";
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
        snprintf(body, sizeof(body), R"({"input":"hi"%s})", ends[i]);
        world_ask(&w, "/responses", body, &r);
        cr_expect_eq(strstr(r.body.data, R"("timings":{)") != NULL, i == 1, "%s", r.body.data);
        cr_expect_not(strstr(r.body.data, "prompt_progress"), "%s", r.body.data);
        reply_deinit(&r);
        world_ask(&w, "/v1/responses", body, &r);
        cr_expect_not(strstr(r.body.data, R"("timings")"), "%s", r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* llama.vim fills the prefix cache this way. */
Test(llamacpp, a_prompt_alone_has_an_empty_answer) {
    const char *const more[] = {"", R"(,"echo":true)", R"(,"prompt_logprobs":1)"};
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    for (size_t i = 0; i < ARRAY_SIZE(more); i++) {
        char body[100];

        snprintf(body, sizeof(body), R"({"prompt":"a","n_predict":0,"n_probs":2%s})", more[i]);
        world_ask(&w, "/completion", body, &r);
        cr_expect_eq(r.status, 200);
        expect_part(&r, R"("tokens_predicted":0,)");
        expect_part(&r, R"("stop_type":"limit")");
        expect_part(&r, R"("completion_probabilities":[])");
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(llamacpp, bias_of_tokens_and_of_texts) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    world_ask(&w, "/completion", R"({"prompt":"a","logit_bias":[[97,1.5],["xy",-2],["98",false]]})",
              &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    expect_part(&r, R"("logit_bias":[{"bias":1.5,"token":97},{"bias":-2,"token":120},{"bias":-2,")"
                    R"(token":121},{"bias":-100,"token":98}]})");
    reply_deinit(&r);
    world_ask(&w, "/completion", R"({"prompt":"a","logit_bias":[[97,true]]})", &r);
    cr_expect_eq(r.status, 400);
    expect_part(&r, R"("param":"logit_bias")");
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, lists_have_limits) {
    const struct {
        const char *field, *begin, *item;
        int n;
    } lists[] = {
        {"response_fields", R"({"prompt":"a","response_fields":["prompt")", R"(,"prompt")", 64},
        {"logit_bias", R"({"prompt":"a","logit_bias":[[1,1])", ",[97,1]", 1024},
        {"prompt", R"({"prompt":[1,"x")", R"(,"xyxyxyxyxyxyxyxy")", 50000},
    };
    struct world w;
    struct reply r;

    started(&w);
    for (size_t k = 0; k < ARRAY_SIZE(lists); k++) {
        CLEANUP(buf_deinit) struct buf b = {.max = 8 << 20};

        cr_assert_eq(buf_add_str(&b, lists[k].begin), 0);
        for (int i = 0; i < lists[k].n; i++)
            cr_assert_eq(buf_add_str(&b, lists[k].item), 0);
        cr_assert_eq(buf_add(&b, "]}", 3), 0);
        world_ask(&w, "/completion", b.data, &r);
        cr_expect_eq(r.status, 400, "%s: %d", lists[k].field, r.status);
        expect_part(&r, R"("param":)");
        expect_part(&r, lists[k].field);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(llamacpp, slots_say_how_far_requests_are) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.max_running = 2;
    world_start(&w);
    world_get(&w, "/slots", &r);
    expect_part(&r, R"([{"id":0,"n_ctx":)");
    expect_part(&r, R"("is_processing":false,"next_token":[{"has_next_token":false,"n_remain":-1,")"
                    R"(n_decoded":0}]},{"id":1,)");
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, slots_can_be_turned_off) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.slots = false;
    world_start(&w);
    world_get(&w, "/slots", &r);
    cr_expect_eq(r.status, 501);
    expect_part(&r, "--no-slots");
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, any_model_name_is_answered_where_it_may_be) {
    const char *const bodies[][2] = {
        {CHAT, "{" HI R"(,"model":"gpt-4"})"},
        {"/v1/completions", R"({"prompt":"a","model":"gpt-4"})"},
        {"/v1/responses", R"({"input":"a","model":"gpt-4"})"},
        {"/v1/messages", "{" HI R"(,"max_tokens":9,"model":"gpt-4"})"},
        {"/api/chat", "{" HI R"(,"model":"gpt-4","stream":false})"},
    };

    for (int any = 0; any < 2; any++) {
        struct world w;
        struct reply r;

        world_init(&w);
        w.opts.any_model_name = any;
        world_start(&w);
        w.port.script = "x";
        for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
            world_ask(&w, bodies[i][0], bodies[i][1], &r);
            cr_expect_eq(r.status, any ? 200 : 404, "%s: %s", bodies[i][0], r.body.data);
            expect_part(&r, any ? R"("tiny")" : "gpt-4");
            reply_deinit(&r);
        }
        world_get(&w, "/v1/models/gpt-4", &r);
        cr_expect_eq(r.status, 404);
        reply_deinit(&r);
        world_stop(&w);
    }
}

Test(llamacpp, between_two_texts) {
    static const int32_t want[] = {TINY_CALL, 'f', '\n',          'T', '\n',
                                   'a',       'x', TINY_CALL + 1, 'c', TINY_CALL + 2};
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    world_ask(&w, "/infill",
              R"({"input_prefix":"a","prompt":"x","input_suffix":"c",)"
              R"("input_extra":[{"filename":"f")"
              R"(,"text":"T"}]})",
              &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_assert_eq(w.port.r[0].m.n_prompt, ARRAY_SIZE(want));
    for (size_t i = 0; i < ARRAY_SIZE(want); i++)
        cr_expect_eq(w.port.r[0].tokens[i], want[i], "%zu", i);
    expect_part(&r, R"("content":"ok")");
    reply_deinit(&r);
    world_ask(&w, "/infill", R"({"input_prefix":"a"})", &r);
    cr_expect_eq(r.status, 400);
    expect_part(&r, R"("param":"input_suffix")");
    reply_deinit(&r);
    world_ask(&w, "/infill", R"({"input_prefix":1,"input_suffix":"c"})", &r);
    cr_expect_eq(r.status, 400);
    expect_part(&r, R"("param":"input_prefix")");
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, tokens_and_templates) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, "/tokenize", R"({"content":"ac"})", &r);
    expect_part(&r, R"("tokens":[97,99])");
    reply_deinit(&r);
    world_ask(&w, "/tokenize", R"({"content":"ac\u00e9","with_pieces":true})", &r);
    expect_part(&r, R"("tokens":[{"id":97,"piece":"a"},{"id":99,"piece":"c"},{"id":195,"piece":[)"
                    R"(195]},{"id":169,"piece":[169]}])");
    reply_deinit(&r);
    world_ask(&w, "/tokenize", R"({"content":"<|im_end|>"})", &r);
    expect_part(&r, R"("count":1,)");
    reply_deinit(&r);
    world_ask(&w, "/tokenize", R"({"content":"<|im_end|>","parse_special":false})", &r);
    expect_part(&r, R"("count":10,)");
    reply_deinit(&r);
    world_ask(&w, "/chat/completions/input_tokens", "{" HI "}", &r);
    expect_part(&r, R"({"input_tokens":)");
    reply_deinit(&r);
    world_ask(&w, "/detokenize", R"({"tokens":[97,99]})", &r);
    expect_part(&r, R"({"prompt":"ac","content":"ac"})");
    reply_deinit(&r);
    world_ask(&w, "/apply-template", "{" HI "}", &r);
    expect_part(&r, R"({"prompt":"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"})");
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, an_answer_continues_the_last_message) {
    const struct {
        /* NULL: the request is refused */
        const char *last, *prompt;
    } table[] = {
        {R"({"role":"assistant","content":"Once "})", "Once "},
        {R"({"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}])"
         "}",
         "a\nb"},
        {R"({"role":"user","content":"Once"})", NULL},
        {R"({"role":"assistant","content":null})", NULL},
        {R"({"role":"assistant","content":"x","tool_calls":[{}]})", NULL},
    };
    struct world w;
    struct reply r;
    char body[400], prompt[400];

    started(&w);
    w.port.script = "x";
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        snprintf(body, sizeof(body),
                 R"({"messages":[{"role":"user","content":"hi"},%s],)"
                 R"("continue_final_message":true,"add_generation_prompt":false})",
                 table[i].last);
        snprintf(prompt, sizeof(prompt), "|user\nhi|\n|assistant\n%s", table[i].prompt);
        uint32_t n = w.port.n;

        world_ask(&w, CHAT, body, &r);
        cr_expect_eq(r.status, table[i].prompt ? 200 : 400, "%s: %s", body, r.body.data);
        if (table[i].prompt) {
            cr_assert_eq(w.port.n, n + 1);
            cr_expect_str_eq(fake_prompt(&w.port.r[n]), prompt);
        } else {
            expect_part(&r, R"("param":"continue_final_message")");
        }
        reply_deinit(&r);
    }
    world_ask(&w, CHAT, "{" HI R"(,"continue_final_message":true,"add_generation_prompt":true})",
              &r);
    cr_expect_eq(r.status, 400);
    expect_part(&r, "cannot be given together");
    reply_deinit(&r);
    world_stop(&w);
}

/* llama-server continues a last message of the assistant without being told. */
Test(llamacpp, an_answer_continues_the_last_message_on_its_paths) {
    const struct {
        const char *last, *prompt, *told;
    } table[] = {
        {R"("Once ")", "|assistant\nOnce ", ""},
        {R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])", "|assistant\na\n\nb", ""},
        {R"("Once")", "|assistant\nOnce|\n|assistant\n", R"(,"continue_final_message":false)"},
        {R"("Once")", "|assistant\nOnce|\n|assistant\n", R"(,"add_generation_prompt":true)"},
        {R"("")", "|assistant\n|\n|assistant\n", ""},
    };
    struct world w;
    struct reply r;
    char body[400], prompt[400];

    started(&w);
    w.port.script = "x";
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        snprintf(body, sizeof(body),
                 R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant",)"
                 R"("content":%s}]%s})",
                 table[i].last, table[i].told);
        snprintf(prompt, sizeof(prompt), "|user\nhi|\n%s", table[i].prompt);
        uint32_t n = w.port.n;

        world_ask(&w, "/chat/completions", body, &r);
        cr_assert_eq(r.status, 200, "%s: %s", body, r.body.data);
        cr_assert_eq(w.port.n, n + 1);
        cr_expect_str_eq(fake_prompt(&w.port.r[n]), prompt);
        reply_deinit(&r);
        world_ask(&w, CHAT, body, &r);
        cr_assert_eq(w.port.n, n + 2, "%s", r.body.data);
        cr_expect(strstr(fake_prompt(&w.port.r[n + 1]), "|\n|assistant\n"));
        reply_deinit(&r);
    }
    world_ask(
        &w, "/apply-template",
        R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"Once"}]})",
        &r);
    expect_part(&r, R"(<|im_start|>assistant\nOnce"})");
    reply_deinit(&r);
    world_stop(&w);
}

/* Editors read the context once at their start. */
Test(llamacpp, no_figures_before_the_model_was_loaded) {
    static const char *const paths[] = {"/props", "/slots"};
    struct world w;
    struct reply r;

    world_init(&w);
    w.starting = true;
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        char seconds[20];

        world_get(&w, paths[i], &r);
        cr_expect_eq(r.status, 503, "%s", paths[i]);
        expect_part(&r, R"("message":"Loading model")");
        cr_expect(*reply_header(&r, "retry-after", seconds, sizeof(seconds)));
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(llamacpp, figures_of_the_server) {
    struct world w;
    struct reply r;
    int fd[3];

    started(&w);
    world_get(&w, "/props", &r);
    expect_part(&r, R"({"default_generation_settings":{"n_ctx":)");
    expect_part(&r, R"("modalities":{"vision":false,"video":false,"audio":false})");
    expect_part(&r, R"("eos_token":"<|im_end|>")");
    reply_deinit(&r);
    world_get(&w, "/v1/health", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_get(&w, "/load", &r);
    expect_part(&r, R"({"server_load":0})");
    reply_deinit(&r);
    world_get(&w, "/v1/loads", &r);
    expect_part(
        &r,
        R"("dp_rank_count":1,"loads":[{"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0,)");
    reply_deinit(&r);
    world_get(&w, "/is_sleeping", &r);
    expect_part(&r, R"({"is_sleeping":false})");
    reply_deinit(&r);
    /* Two requests run and one waits; the worker has used 3 of 8 pages of 16 tokens. */
    struct model *m = api_first_model(w.api);
    m->worker = (struct msg_stats){.n_used = 3, .n_pages = 8};
    w.api->env.admit.opts.max_running = 2;
    for (int i = 0; i < 3; i++) {
        fd[i] = world_connect(&w);
        world_post(&w, fd[i], "/completion", R"({"prompt":"hi"})");
        world_turns(&w, 3);
    }
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "x");
    world_get(&w, "/load", &r);
    expect_part(&r, R"({"server_load":3})");
    reply_deinit(&r);
    world_get(&w, "/get_load", &r);
    expect_part(&r, R"([{"dp_rank":0,"num_reqs":3,"num_waiting_reqs":1,"num_tokens":48}])");
    reply_deinit(&r);
    world_get(&w, "/v1/loads", &r);
    expect_part(&r, R"("num_running_reqs":2,"num_waiting_reqs":1,"num_total_reqs":3,)"
                    R"("num_used_tokens":48,"max_total_num_tokens":)");
    expect_part(&r, R"("token_usage":0.375,)");
    reply_deinit(&r);
    world_get(&w, "/get_server_info", &r);
    expect_part(&r, R"({"model_path":"tiny","served_model_name":"tiny","tokenizer_path":"tiny",)");
    expect_part(&r, R"("is_generation":true,)");
    expect_part(&r, R"("dp_size":1,"tp_size":1,"context_length":512,)");
    reply_deinit(&r);
    for (int i = 0; i < 3; i++)
        world_drop(&w, fd[i]);
    world_stop(&w);
}

/* Progress of a prompt is sent again while a stream waits, for the first prompt without a token. */
Test(llamacpp, progress_is_told_while_a_stream_waits) {
    static const char *const first =
        R"("index":0,"content":"","tokens":[],"id_slot":-1,"stop":false,"prompt_progress")";
    static const char *const second =
        R"("index":1,"content":"","tokens":[],"id_slot":-1,"stop":false,"prompt_progress")";
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct world w;

    world_init(&w);
    w.opts.keepalive_ms = 10;
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, "/completion",
               R"({"prompt":["hi","ho"],"stream":true,"return_progress":true})");
    world_turns(&w, 5);
    cr_assert_eq(w.port.n, 2);
    fake_accept(&w.port, 0);
    fake_accept(&w.port, 1);
    cr_assert(world_read_until(&w, fd, &b, second), "the head has both");
    buf_clear(&b);
    cr_expect(world_read_until(&w, fd, &b, first));
    fake_tokens(&w.port, 0, "x");
    world_turns(&w, 5);
    buf_clear(&b);
    cr_expect(world_read_until(&w, fd, &b, second));
    fake_tokens(&w.port, 1, "y");
    world_turns(&w, 5);
    buf_clear(&b);
    cr_expect(world_read_until(&w, fd, &b, ": keep-alive\n\n"));
    buf_clear(&b);
    cr_expect(world_read_until(&w, fd, &b, ": keep-alive\n\n"));
    cr_expect_null(strstr(b.data, "progress"), "%s", b.data);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(llamacpp, errors_name_the_field) {
#define BIAS "logit_bias must be pairs of a token or text and a number from -100 to 100 or false."
    static const struct {
        const char *path, *body, *message;
    } table[] = {
        {"/infill", R"({"input_prefix":"a","input_suffix":"b","input_extra":7})",
         "input_extra must be an array of objects with filename and text."},
        {"/infill",
         R"({"input_prefix":"a","input_suffix":"b","input_extra":[{"filename":7,"text":"c"}]})",
         "input_extra must be an array of objects with filename and text."},
        {"/completion", R"({"prompt":{"prompt_string":"a","multimodal_data":["aGk="]}})",
         "multimodal_data must be absent, because this model reads only text."},
        {"/completion", R"({"prompt":[["a",{}],"b"]})",
         "prompt must be texts and arrays of tokens and texts."},
        {"/completion", R"({"prompt":[[97,2147483648],"b"]})",
         "prompt must be texts and arrays of tokens and texts."},
        {"/completion", R"({"prompt":"a","logit_bias":[["b","c"]]})", BIAS},
        {"/completion", R"({"prompt":"a","logit_bias":[[{},1]]})", BIAS},
        {"/completion", R"({"prompt":"a","logit_bias":[[2147483648,1]]})", BIAS},
        {"/completion", R"({"prompt":"a","logit_bias":{"b":true}})", BIAS},
        {"/completion", R"({"prompt":"a","return_tokens":7})", "return_tokens must be a boolean."},
        {"/completion", R"({"prompt":"a","post_sampling_probs":7})",
         "post_sampling_probs must be a boolean."},
    };
    struct world w;
    struct reply r;
    char want[200];

    started(&w);
    w.port.script = "x";
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        world_ask(&w, table[i].path, table[i].body, &r);
        snprintf(want, sizeof(want), R"("message":"%s")", table[i].message);
        cr_expect_eq(r.status, 400, "%s", table[i].body);
        expect_part(&r, want);
        reply_deinit(&r);
    }
    cr_expect_eq(w.port.n, 0);
    world_stop(&w);
}

Test(llamacpp, a_bias_may_be_an_object) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    world_ask(&w, "/completion", R"({"prompt":"a","logit_bias":{"98":3,"c":false,"a":1}})", &r);
    cr_expect_eq(r.status, 200);
    expect_part(&r, R"("logit_bias":[{"bias":3,"token":98},{"bias":-100,"token":99},)"
                    R"({"bias":1,"token":97}])");
    reply_deinit(&r);
    world_stop(&w);
}
