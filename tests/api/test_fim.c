/* Filling in the middle: the prompt for a model with tokens for it, and the end of its text. */

#include <criterion/criterion.h>
#include <string.h>

#include "api/generation/fim.h"
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

/* The tokens of each family in its order, and the tokens that end the text between. */
Test(fim, each_family_has_its_order_and_its_ends) {
    enum { P = TINY_CALL, S, M };
    static const struct {
        const char *special[3], *late[3];
        int bos;
        uint32_t n, n_ends;
        /* "xy" before and "c" after */
        int32_t want[7];
    } cases[] = {
        {{"<|im_start|>", "<EOT>", "<s>"},
         {"<PRE>", "<SUF>", "<MID>"},
         -1,
         6,
         1,
         {P, 'x', 'y', S, 'c', M}},
        {{"<|im_start|>", "<|im_end|>", "<s>"},
         {"<PRE>", "<SUF>", "<MID>"},
         TINY_EOT,
         7,
         0,
         {TINY_EOT, P, 'x', 'y', S, 'c', M}},
        {{"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"},
         {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
         -1,
         6,
         3,
         {P, 'x', 'y', S, 'c', M}},
        {{"<|im_start|>", "<|im_end|>", "<s>"},
         {"<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"},
         -1,
         6,
         0,
         {S, 'c', P, 'x', 'y', M}},
        {{"<|im_start|>", "<|im_end|>", "<s>"},
         {"[PREFIX]", "[SUFFIX]", "<|junk|>"},
         -1,
         5,
         0,
         {S, 'c', P, 'x', 'y'}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tokenizer *t = tiny_named_tokenizer(cases[i].special, cases[i].late, cases[i].bos);
        struct tokens got = {.max = 100}, none = {.max = 100};
        struct fim f;

        fim_init(&f, t);
        cr_expect_eq(f.n_ends, cases[i].n_ends, "%zu: %u", i, f.n_ends);
        for (uint32_t k = 0; k < f.n_ends; k++)
            cr_expect(f.ends[k] >= TINY_START && f.ends[k] <= TINY_EOT);
        cr_assert_eq(fim_encode(&f, t, "", 0, "", 0, &none), 0);
        cr_expect_eq(none.n, cases[i].n - 3, "%zu: the markers alone", i);
        cr_assert_eq(fim_encode(&f, t, "xy", 2, "c", 1, &got), 0);
        cr_assert_eq(got.n, cases[i].n, "%zu", i);
        cr_expect_eq(memcmp(got.id, cases[i].want, got.n * sizeof(*got.id)), 0, "%zu", i);
        tokens_deinit(&got);
        tokens_deinit(&none);
        tokenizer_free(t);
    }
}

/* A family of which one token is missing is not used. */
Test(fim, a_family_needs_all_its_tokens) {
    static const char *const special[] = {"<|im_start|>", "<|im_end|>", "<s>"};
    static const char *const late[][3] = {
        {"<PRE>", "<SUF>", "<|junk|>"},  {"<PRE>", "<|junk|>", "<MID>"},
        {"<|junk|>", "<SUF>", "<MID>"},  {"[PREFIX]", "<|junk|>", "<MID>"},
        {"<|junk|>", "[SUFFIX]", "<x>"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(late); i++) {
        struct tokenizer *t = tiny_named_tokenizer(special, late[i], -1);
        struct fim f;

        fim_init(&f, t);
        cr_expect(f.prefix == -1 && f.suffix == -1 && f.middle == -1, "%zu", i);
        cr_expect_eq(f.n_ends, 0);
        tokenizer_free(t);
    }
}
