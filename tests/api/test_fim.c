/* Filling in the middle: the prompt for a model with tokens for it, and the end of its text. */

#include <criterion/criterion.h>
#include <string.h>

#include "stream.h"
#include "tiny.h"

static bool stops_at(const struct submit *m, int32_t id) {
    for (uint32_t i = 0; i < m->n_stop_ids; i++)
        if (m->stop_ids[i] == id)
            return true;
    return false;
}

Test(fim, tokens_that_the_file_names_are_taken_whatever_their_texts) {
    static const int32_t want[] = {TINY_CALL, 'a', TINY_CALL + 1, 'c', TINY_CALL + 2};
    struct world w;
    struct reply r;

    world_init(&w);
    tokenizer_free((struct tokenizer *)(uintptr_t)w.model.tokenizer);
    w.model.tokenizer = tiny_fim_keys_tokenizer();
    w.model.n_vocab = TINY_ALL;
    world_start(&w);
    w.port.script = "x";
    world_ask(&w, TEXT, R"({"prompt":"a","suffix":"c"})", &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_assert_eq(w.port.r[0].m.n_prompt, ARRAY_SIZE(want));
    cr_expect_eq(memcmp(w.port.r[0].tokens, want, sizeof(want)), 0);
    reply_deinit(&r);
    world_stop(&w);
}

Test(fim, a_suffix_is_put_behind_its_marker) {
    struct world w;
    struct reply r;

    world_init(&w);
    tokenizer_free((struct tokenizer *)(uintptr_t)w.model.tokenizer);
    w.model.tokenizer = tiny_fim_tokenizer();
    w.model.n_vocab = TINY_ALL;
    world_start(&w);
    w.port.script = "x";
    world_ask(&w, TEXT, R"({"prompt":"a<fim_suffix>","suffix":"c","stop_token_ids":[7]})", &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    const struct submit *m = &w.port.r[0].m;
    const int32_t *id = w.port.r[0].tokens;
    static const int32_t want[] = {TINY_CALL, 'a', '<',           'f', 'i',          'm',
                                   '_',       's', 'u',           'f', 'f',          'i',
                                   'x',       '>', TINY_CALL + 1, 'c', TINY_CALL + 2};

    cr_assert_eq(m->n_prompt, ARRAY_SIZE(want));
    for (size_t i = 0; i < ARRAY_SIZE(want); i++)
        cr_expect_eq(id[i], want[i], "%zu: %d", i, id[i]);
    cr_expect(stops_at(m, 7));
    cr_expect(stops_at(m, TINY_EOT));
    reply_deinit(&r);
    world_ask(&w, TEXT, R"({"prompt":["a","b"],"suffix":"c"})", &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, R"("param":"suffix")"), "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, TEXT, R"({"prompt":"a","suffix":3})", &r);
    cr_expect_eq(r.status, 400);
    reply_deinit(&r);
    world_stop(&w);
}
