/* llama-server's routes: texts, what stands between two, tokens, properties. */

#include <criterion/criterion.h>
#include <string.h>
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
    world_ask(&w, "/completion", "{\"prompt\":\"abc\",\"n_predict\":-1,\"cache_prompt\":true}", &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_gt(w.port.r[0].m.max_new, 100);
    expect_part(&r,
                "{\"index\":0,\"content\":\"one two\",\"tokens\":[],\"id_slot\":-1,\"stop\":true,"
                "\"model\":\"tiny\",\"tokens_predicted\":7,\"tokens_evaluated\":2,");
    expect_part(&r, "\"stop_type\":\"eos\",\"stopping_word\":\"\",\"timings\":{");
    reply_deinit(&r);
    world_ask(&w, "/completion", "{\"prompt\":\"abc\",\"stream\":true,\"stop\":[\" t\"]}", &r);
    expect_part(
        &r,
        "data: {\"index\":0,\"content\":\"o\",\"tokens\":[],\"id_slot\":-1,\"stop\":false}\n\n");
    expect_part(&r, "\"stop_type\":\"word\",\"stopping_word\":\" t\"");
    cr_expect_not(strstr(r.body.data, "[DONE]"));
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, any_model_name_is_answered_where_it_may_be) {
    static const char *const bodies[][2] = {
        {CHAT, "{" HI ",\"model\":\"gpt-4\"}"},
        {"/v1/completions", "{\"prompt\":\"a\",\"model\":\"gpt-4\"}"},
        {"/v1/responses", "{\"input\":\"a\",\"model\":\"gpt-4\"}"},
        {"/v1/messages", "{" HI ",\"max_tokens\":9,\"model\":\"gpt-4\"}"},
        {"/api/chat", "{" HI ",\"model\":\"gpt-4\",\"stream\":false}"},
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
            expect_part(&r, any ? "\"tiny\"" : "gpt-4");
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
              "{\"input_prefix\":\"a\",\"prompt\":\"x\",\"input_suffix\":\"c\",\"input_extra\":[{"
              "\"filename\":\"f\",\"text\":\"T\"}]}",
              &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_assert_eq(w.port.r[0].m.n_prompt, ARRAY_SIZE(want));
    for (size_t i = 0; i < ARRAY_SIZE(want); i++)
        cr_expect_eq(w.port.r[0].tokens[i], want[i], "%zu", i);
    expect_part(&r, "\"content\":\"ok\"");
    reply_deinit(&r);
    world_ask(&w, "/infill", "{\"input_prefix\":\"a\"}", &r);
    cr_expect_eq(r.status, 400);
    expect_part(&r, "\"param\":\"input_suffix\"");
    reply_deinit(&r);
    world_ask(&w, "/infill", "{\"input_prefix\":1,\"input_suffix\":\"c\"}", &r);
    cr_expect_eq(r.status, 400);
    expect_part(&r, "\"param\":\"input_prefix\"");
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, tokens_and_templates) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, "/tokenize", "{\"content\":\"ac\"}", &r);
    expect_part(&r, "\"tokens\":[97,99]");
    reply_deinit(&r);
    world_ask(&w, "/detokenize", "{\"tokens\":[97,99]}", &r);
    expect_part(&r, "{\"prompt\":\"ac\",\"content\":\"ac\"}");
    reply_deinit(&r);
    world_ask(&w, "/apply-template", "{" HI "}", &r);
    expect_part(&r, "{\"prompt\":\"<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n\"}");
    reply_deinit(&r);
    world_stop(&w);
}

Test(llamacpp, figures_of_the_server) {
    struct world w;
    struct reply r;

    started(&w);
    world_get(&w, "/props", &r);
    expect_part(&r, "{\"default_generation_settings\":{\"n_ctx\":");
    expect_part(&r, "\"modalities\":{\"vision\":false,\"audio\":false}");
    expect_part(&r, "\"eos_token\":\"<|im_end|>\"");
    reply_deinit(&r);
    world_get(&w, "/v1/health", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_get(&w, "/load", &r);
    expect_part(&r, "{\"server_load\":0}");
    reply_deinit(&r);
    world_get(&w, "/v1/loads", &r);
    expect_part(&r, "\"dp_rank_count\":1,\"loads\":[{\"dp_rank\":0,\"num_running_reqs\":0,"
                    "\"num_waiting_reqs\":0,");
    reply_deinit(&r);
    world_get(&w, "/is_sleeping", &r);
    expect_part(&r, "{\"is_sleeping\":false}");
    reply_deinit(&r);
    world_stop(&w);
}
