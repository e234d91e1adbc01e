/* echo, best_of and values of prompts. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "api/parts.h"
#include "stream.h"
#include "tiny.h"

#define WHOLE(choices, prompt, output, total, cached)                                              \
    R"({"id":"X","object":"text_completion","created":X,"model":"tiny","choices":)"                \
    "[" choices R"(],"usage":{"prompt_tokens":)" prompt R"(,"completion_tokens":)" output          \
    R"(,"total_tokens":)" total R"(,"prompt_tokens_details":{"cached_tokens":)" cached "}}}"
#define PIECE(choice)                                                                              \
    R"(data: {"id":"X","object":"text_completion","created":X,"model":"tiny",)"                    \
    R"("choices":[)" choice "]}\n\n"

static void started(struct world *w, const char *script) {
    world_init(w);
    w->port.script = script;
    world_start(w);
}

Test(score, echo_puts_the_prompt_before_the_text) {
    struct world w;
    struct reply r;

    started(&w, "yz");
    world_ask(&w, TEXT, R"({"prompt":"wx","echo":true})", &r);
    reply_expect(&r, 200,
                 WHOLE(R"({"index":0,"text":"wxyz","logprobs":null,"finish_reason":)"
                       R"("stop"})",
                       "2", "2", "4", "1"));
    cr_expect_eq(w.port.r[0].m.flags & SUBMIT_PROMPT_LOGPROBS, 0, "no request asked for them");
    world_ask(&w, TEXT, R"({"prompt":[119,120],"echo":true,"stream":true})", &r);
    reply_expect(&r, 200,
                 PIECE(R"({"index":0,"text":"wxy","logprobs":null,"finish_reason":null})")
                     PIECE(R"({"index":0,"text":"z","logprobs":null,"finish_reason":null})")
                         PIECE(R"({"index":0,"text":"","logprobs":null,"finish_reason":)"
                               R"("stop"})") "data: [DONE]\n\n");
    world_stop(&w);
}

Test(score, echo_tells_log_probabilities_of_the_prompt_too) {
    struct world w;
    struct reply r;

    started(&w, "yz");
    world_ask(&w, TEXT, R"({"prompt":"wx\u00e9","echo":true,"logprobs":2})", &r);
    reply_expect(
        &r, 200,
        WHOLE(R"({"index":0,"text":"wx)"
              "\u00e9"
              R"(yz","logprobs":{"tokens":["w","x",)"
              "\"\ufffd\",\"\ufffd\",\"y\",\"z\"],\"token_logprobs\":[null,-0.25,-0.5,-0.75,-0.5,"
              R"(-0.5],"top_logprobs":[null,{"t":-0.125,"x":-0.25},{"t":-0.125,")"
              "\ufffd"
              R"(":)"
              R"(-0.5},{"t":-0.125,")"
              "\ufffd"
              R"(":-0.75},{"y":-0.5,"z":-1.5},{"z":-0.5,"z":)"
              R"(-1.5}],"text_offset":[0,1,2,3,3,4]},"finish_reason":"stop"})",
              "4", "2", "6", "2"));
    w.port.script = "\x80\xE2\x82z";
    world_ask(&w, TEXT, R"({"prompt":"x","logprobs":0})", &r);
    cr_expect(strstr(r.body.data, R"("text":")"
                                  "\ufffd\ufffd"
                                  R"(z")"),
              "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("text_offset":[0,1,2,2])"), "%s", r.body.data);
    reply_deinit(&r);
    w.port.script = "yz";
    world_ask(&w, TEXT, R"({"prompt":"wx","echo":true,"logprobs":0,"stream":true})", &r);
    reply_expect(
        &r, 200,
        PIECE(R"({"index":0,"text":"wxy","logprobs":{"tokens":["w","x","y"],)"
              R"("token_logprobs":[null,-0.25,-0.5],"top_logprobs":[null,{"x":-0.25},{"y":-0.)"
              R"(5}],"text_offset":[0,1,2]},)"
              R"("finish_reason":null})")
            PIECE(R"({"index":0,"text":"z","logprobs":{"tokens":["z"],"token_logprobs":[)"
                  R"(-0.5],"top_logprobs":[{"z":-0.5}],"text_offset":[3]},"finish_reason":)"
                  "null}") PIECE(R"({"index":0,"text":"","logprobs":null,"finish_reason":"stop"})")
                DONE);
    world_stop(&w);
}

Test(score, no_tokens_are_asked_for_to_judge_the_prompt_alone) {
    struct world w;
    struct reply r;

    started(&w, "y");
    world_ask(&w, TEXT, R"({"prompt":"wx","echo":true,"logprobs":0,"max_tokens":0})", &r);
    reply_expect(&r, 200,
                 WHOLE(R"({"index":0,"text":"wx","logprobs":{"tokens":["w","x"],)"
                       R"("token_logprobs":[null,-0.25],"top_logprobs":[null,{"x":-0.25}],)"
                       R"("text_offset":[0,)"
                       R"(1]},"finish_reason":"length"})",
                       "2", "0", "2", "1"));
    world_ask(&w, TEXT,
              R"({"prompt":"wx","echo":true,"logprobs":0,"max_tokens":0,)"
              R"("stream":true})",
              &r);
    reply_expect(&r, 200,
                 PIECE(R"({"index":0,"text":"wx","logprobs":{"tokens":["w","x"],)"
                       R"("token_logprobs":[null,-0.25],"top_logprobs":[null,{"x":-0.25}],)"
                       R"("text_offset":[0,)"
                       R"(1]},"finish_reason":"length"})") DONE);
    world_stop(&w);
}

/* Counts the occurrences of @what in the answer. */
static size_t count(const struct reply *r, const char *what) {
    size_t n = 0;

    for (const char *at = r->body.data; (at = strstr(at, what)); at++)
        n++;
    return n;
}

#define MANY_PROMPTS 16u
#define LENGTH 60u

/* A plain answer with many log probabilities is written on the pool in turns, and the loop serves
 * other clients meanwhile. Each value occurs once. */
Test(score, a_long_answer_is_written_on_the_pool) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct world w;
    struct reply r;
    struct jobs_stats before, after;

    started(&w, "y");
    buf_add_str(&body, R"({"prompt":[)");
    for (unsigned i = 0; i < MANY_PROMPTS; i++)
        buf_printf(&body, R"(%s"%0*u")", i ? "," : "", (int)LENGTH, i);
    buf_add_str(&body, R"(],"prompt_logprobs":2,"max_tokens":0})");
    jobs_stats(w.api->env.pool.jobs, &before);
    world_ask(&w, TEXT, body.data, &r);
    jobs_stats(w.api->env.pool.jobs, &after);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_eq(after.n_done - before.n_done, 1);
    cr_expect_eq(count(&r, R"("rank":1,)"), MANY_PROMPTS * (LENGTH - 1));
    cr_expect_eq(count(&r, R"("prompt_logprobs":[null,)"), MANY_PROMPTS);
    reply_deinit(&r);
    jobs_stats(w.api->env.pool.jobs, &before);
    world_ask(&w, TEXT, R"({"prompt":"wx","prompt_logprobs":2,"max_tokens":0})", &r);
    jobs_stats(w.api->env.pool.jobs, &after);
    cr_expect_eq(after.n_done, before.n_done, "a short one needs no thread");
    reply_deinit(&r);
    world_stop(&w);
}

/* A long prompt that is echoed is tokenised on the pool, once for all choices. */
Test(score, choices_share_what_they_echo) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct world w;
    struct reply r;

    started(&w, "y");
    buf_printf(&body, R"({"prompt":["%0*d","wx"],"echo":true,"n":3})", 500, 7);
    world_ask(&w, TEXT, body.data, &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_eq(count(&r, R"(0007y")"), 3);
    cr_expect_eq(count(&r, R"("wxy")"), 3);
    reply_deinit(&r);
    world_stop(&w);
}

/* Appends the lists of log probabilities of the answer @json to @out, [4] of them, and its text. */
static void collect(const char *json, size_t len, struct buf *text, struct buf out[4]) {
    static const char *const keys[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    yyjson_doc *doc = yyjson_read(json, len, 0);
    yyjson_val *choice = yyjson_ptr_get(yyjson_doc_get_root(doc), "/choices/0"), *v;
    size_t i, n;

    cr_assert(choice, "%.*s", (int)len, json);
    buf_add_str(text, yyjson_get_str(yyjson_obj_get(choice, "text")));
    for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
        yyjson_val *list = yyjson_obj_get(yyjson_obj_get(choice, "logprobs"), keys[k]);

        yyjson_arr_foreach(list, i, n, v) {
            char *one = yyjson_val_write(v, 0, NULL);

            buf_printf(&out[k], "%s,", one);
            free(one);
        }
    }
    yyjson_doc_free(doc);
}

/* A stream sends a long prompt with its log probabilities in parts, one in each turn of the loop;
 * together they equal the plain answer. */
Test(score, a_long_echo_is_streamed_in_parts) {
    struct buf text[2] = {{.max = 1 << 20}, {.max = 1 << 20}}, lists[2][4];
    char body[700];
    struct world w;
    struct reply r;
    size_t n_parts = 0;

    for (size_t i = 0; i < 8; i++)
        buf_init(&lists[i / 4][i % 4], 1 << 24);
    started(&w, "yz");
    for (int stream = 0; stream < 2; stream++) {
        snprintf(body, sizeof(body), R"({"prompt":"%0*d","echo":true,"logprobs":5,"seed":1%s})",
                 500, 7, stream ? R"(,"stream":true)" : "");
        world_ask(&w, TEXT, body, &r);
        cr_assert_eq(r.status, 200, "%s", r.body.data);
        if (!stream)
            collect(r.body.data, r.body.len, &text[0], lists[0]);
        for (char *at = r.body.data; stream && (at = strstr(at, "data: {")); n_parts++) {
            at += strlen("data: ");
            size_t len = strcspn(at, "\n");

            cr_expect_lt(len, 400000);
            collect(at, len, &text[1], lists[1]);
        }
        reply_deinit(&r);
    }
    cr_expect_geq(n_parts, 4); /* in one part there are three */
    cr_expect_str_eq(text[1].data, text[0].data);
    for (size_t k = 0; k < 4; k++)
        cr_expect_str_eq(lists[1][k].data, lists[0][k].data);
    for (size_t i = 0; i < 8; i++)
        buf_deinit(&lists[i / 4][i % 4]);
    buf_deinit(&text[0]);
    buf_deinit(&text[1]);
    world_stop(&w);
}

/* The client leaves at any moment, also while the pool writes. */
Test(score, who_leaves_while_the_pool_writes_leaves_nothing) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct world w;

    started(&w, "y");
    buf_add_str(&body, R"({"prompt":[)");
    for (unsigned i = 0; i < 128; i++)
        buf_printf(&body, R"(%s"%0*u")", i ? "," : "", 200, i);
    buf_add_str(&body, R"(],"prompt_logprobs":20,"max_tokens":0})");
    for (int turns = 1; turns < 12; turns++) {
        int fd = world_connect(&w);

        w.port.n = 0;
        world_post(&w, fd, TEXT, body.data);
        world_turns(&w, turns);
        world_drop(&w, fd);
        while (jobs_n(w.api->env.pool.jobs) > 0)
            world_turn(&w);
    }
    int fd = world_connect(&w);
    world_post(&w, fd, TEXT, body.data);
    world_turns(&w, 8);
    world_stop(&w); /* asserts that nothing is left */
    close(fd);
}

Test(score, prompt_logprobs_are_vllm_s) {
    struct world w;
    struct reply r;

    started(&w, "y");
    world_ask(&w, TEXT, R"({"prompt":"wx","prompt_logprobs":1,"max_tokens":1})", &r);
    reply_expect(&r, 200,
                 WHOLE(R"({"index":0,"text":"y","logprobs":null,"finish_reason":"length",)"
                       R"("prompt_logprobs":[null,{"116":{"logprob":-0.125,"rank":1,)"
                       R"("decoded_token":"t"},"120":{"logprob":-0.25,"rank":null,)"
                       R"("decoded_token":"x"}}]})",
                       "2", "1", "3", "1"));
    world_ask(&w, TEXT, R"({"prompt":"wx","prompt_logprobs":2,"max_tokens":0})", &r);
    reply_expect(&r, 200,
                 WHOLE(R"({"index":0,"text":"","logprobs":null,"finish_reason":"length",)"
                       R"("prompt_logprobs":[null,{"116":{"logprob":-0.125,"rank":1,)"
                       R"("decoded_token":"t"},"120":{"logprob":-0.25,"rank":2,)"
                       R"("decoded_token":"x"}}]})",
                       "2", "0", "2", "1"));
    world_ask(&w, CHAT, "{" HI R"(,"prompt_logprobs":0,"max_tokens":1})", &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, R"(},"prompt_logprobs":[null,{"117":{"logprob":-0.25,"rank":)"
                                  R"(null,"decoded_token":"u"}},)"),
              "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(score, best_of_keeps_the_most_probable) {
    struct world w;
    struct reply r;

    started(&w, NULL);
    int fd = world_connect(&w);
    world_post(&w, fd, TEXT, R"({"prompt":["w","x"],"best_of":3,"n":2})");
    world_turns(&w, 5);
    cr_assert_eq(w.port.n, 6u);
    for (uint32_t i = 0; i < 6; i++) {
        static const float lp[] = {-3, -1, -2, -0.5f, -0.5f, -4};
        char text[] = {(char)('0' + i), 'x', 0};

        fake_accept(&w.port, i);
        w.port.r[i].logprob = lp[i];
        fake_tokens(&w.port, i, text);
        fake_finish(&w.port, i, FINISH_STOP);
    }
    world_receive(&w, fd, &r);
#define CHOICE(index, text)                                                                        \
    R"({"index":)" index R"(,"text":")" text R"(","logprobs":null,"finish_reason":"stop"})"
    reply_expect(
        &r, 200,
        WHOLE(CHOICE("0", "1x") "," CHOICE("1", "2x") "," CHOICE("2", "3x") "," CHOICE("3", "4x"),
              "2", "12", "14", "0"));
    world_drop(&w, fd);
    world_stop(&w);
}

Test(score, a_worker_that_tells_another_prompt_is_not_believed) {
    struct world w;
    struct reply r;

    started(&w, NULL);
    int fd = world_connect(&w);
    world_post(&w, fd, TEXT, R"({"prompt":"wxyz","echo":true,"logprobs":1})");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    w.port.r[0].m.n_prompt = 3;
    fake_tokens(&w.port, 0, "q");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 500);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}
