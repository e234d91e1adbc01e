/*
 * Random schemas and random texts under their masks: every text that may end is valid JSON, and
 * valid for its schema as the validator of tests/support says.
 */

#include <locale.h>
#include <string.h>

#include "tests/grammar/grammar_support.h"
#include "tests/support/schemas.h"

static int check_texts(const char *schema, struct grammar *g, struct rng *r) {
    static char text[16384];
    int n_good = 0;

    for (int i = 0; i < 4; i++) {
        int len = test_random_text(g, r, 2, text, sizeof(text));

        if (len < 0)
            continue;
        cr_assert(schema_allows(schema, strlen(schema), text, (size_t)len),
                  "not valid: %.*s\nschema: %s", len, text, schema);
        n_good++;
    }
    return n_good;
}

Test(grammar_random, texts_under_the_mask_are_valid) {
    struct schema_writer w = {.r = {2024}};
    int n_compiled = 0, n_texts = 0, n_masks = 0;

    setlocale(LC_CTYPE, "C.UTF-8"); /* for regexec() */
    buf_init(&w.b, 1 << 20);
    for (int i = 0; i < 1500; i++) {
        CLEANUP(grammar_freep) struct grammar *g = NULL;
        struct err err = {0};

        schema_write(&w);
        struct grammar_source src = {.kind = GRAMMAR_JSON_SCHEMA,
                                     .text = w.b.data,
                                     .len = w.b.len,
                                     .flags = rng_below(&w.r, 3) == 0 ? GRAMMAR_COMPACT : 0};
        int r = grammar_compile(&g, test_vocab(), &src, NULL, &err);

        cr_assert(r == 0 || (r == -22 && err.status == 400), "%s", w.b.data);
        if (r < 0)
            continue;
        if (n_compiled++ % 2)
            grammar_prepare(g);
        n_texts += check_texts(w.b.data, g, &w.r);
        if (i % 20 == 0) {
            CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
            uint32_t bits[64];

            cr_assert_eq(grammar_state_new(&s, g), 0);
            for (int k = 0; k < 30; k++, n_masks++) {
                uint32_t n = test_mask_is_exact(s, g, bits), pick = rng_below(&w.r, MAX(n, 1u)),
                         id = 0;

                while (n && !((bits[id / 32] >> (id % 32) & 1) && pick-- == 0))
                    id++;
                if (n == 0 || grammar_accept(s, (int32_t)id) < 0)
                    break;
            }
        }
    }
    buf_deinit(&w.b);
    cr_expect(n_compiled > 700 && n_texts > 2000 && n_masks > 300, "%d schemas, %d texts, %d masks",
              n_compiled, n_texts, n_masks);
}

/* The validator must be able to say no. */
Test(grammar_random, the_validator_refuses) {
    static const char *const CASES[][2] = {
        {R"({"type":"integer"})", "1.5"},
        {R"({"minimum":2})", "1"},
        {R"({"exclusiveMaximum":2})", "2"},
        {R"({"maxLength":1})", R"("ab")"},
        {R"({"pattern":"^a+$"})", R"("b")"},
        {R"({"required":["a"]})", "{}"},
        {R"({"properties":{"a":{"type":"null"}}})", R"({"a":1})"},
        {R"({"additionalProperties":false})", R"({"a":1})"},
        {R"({"items":{"enum":[1,2]}})", "[3]"},
        {R"({"prefixItems":[{"const":1}]})", "[2]"},
        {R"({"minItems":1})", "[]"},
        {R"({"maxProperties":0})", R"({"a":1})"},
        {R"({"oneOf":[{},{}]})", "1"},
        {R"({"anyOf":[{"type":"null"}]})", "1"},
        {R"({"$ref":"#/$defs/x","$defs":{"x":false}})", "1"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(CASES); i++) {
        cr_expect_not(
            schema_allows(CASES[i][0], strlen(CASES[i][0]), CASES[i][1], strlen(CASES[i][1])),
            "%s %s", CASES[i][0], CASES[i][1]);
        cr_expect(schema_allows("true", 4, CASES[i][1], strlen(CASES[i][1])), "%s", CASES[i][1]);
    }
}
