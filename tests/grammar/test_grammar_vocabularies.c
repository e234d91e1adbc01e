/* Masks of real vocabularies: byte-level BPE, SentencePiece, characters. Skipped without the test
 * data. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "base/buf.h"
#include "base/gguf.h"
#include "tests/grammar/grammar_support.h"
#include "tests/support/few.h"
#include "tests/support/test_data.h"
#include "text/tokenizer.h"

static const char SCHEMA[] =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"n":{)"
    R"("type":"integer","minimum":5,)"
    R"("maximum":99999},"kind":{"enum":["read","write",")"
    "\xc3\xbc"
    R"("]},"tags":{"type":)"
    R"("array","items":{"type":"string",)"
    R"("pattern":"^[a-z]{2,9}$"},"maxItems":4},"more":{}},"required":["name","kind"],)"
    R"("additionalProperties":{"type":"number"}})";

/* Whether the mask and the acceptance of token @id agree. */
static void check_token(struct grammar_state *s, struct grammar_state *t, const uint32_t *bits,
                        int32_t id) {
    bool masked = bits[id / 32] >> (id % 32) & 1;

    cr_assert_eq(grammar_state_copy(t, s), 0);
    cr_assert_eq(grammar_accept(t, id) == 0, masked, "token %d", id);
}

static int32_t pick(const uint32_t *bits, uint32_t n, struct rng *r) {
    uint32_t k = rng_below(r, n);
    int32_t id = 0;

    while (!(bits[id / 32] >> (id % 32) & 1) || k-- > 0)
        id++;
    return id;
}

/* One text; its bytes into @out. True: it ended. */
static bool generate(struct grammar_state *s, struct grammar_state *t, const struct tokenizer *tok,
                     uint32_t *bits, struct rng *r, struct buf *out) {
    uint32_t n_vocab = tokenizer_n_vocab(tok);

    grammar_state_reset(s);
    for (int step = 0; step < 250; step++) {
        int64_t n = grammar_mask(s, bits);

        cr_assert_gt(n, 0, "stuck after %s", out->data ? out->data : "");
        for (int i = 0; i < 25; i++)
            check_token(s, t, bits, (int32_t)rng_below(r, n_vocab));
        int32_t id = pick(bits, (uint32_t)n, r);
        size_t len;
        const char *piece = tokenizer_piece(tok, id, false, &len);

        check_token(s, t, bits, id);
        cr_assert_eq(grammar_accept(s, id), 0);
        if (grammar_is_done(s))
            return true;
        cr_assert_eq(buf_add(out, piece, len), 0);
    }
    return false;
}

/* Strings whose states read all texts of some kind, some for a while, some for ever. */
static const char PATTERNS[] =
    R"({"type":"array","minItems":9,"prefixItems":[{"pattern":"^[a-z0-9]{1,7}-[a-z]{0,6}$)"
    R"("},)"
    R"({"pattern":"^[a-z0-9-]{9,40}a[0-9]*$"},{"pattern":"^[^/]+/[A-Za-z_]*$"},)"
    R"({"pattern":"foo[A-Z]+","maxLength":20},{"pattern":"^(?!x-)[\\w.-]+$"},)"
    R"({"pattern":"^.{3,17}[\u00e0-\u00ff]*$"},{"pattern":"^([a-z]+ )*[0-9]+$"},)"
    R"({"format":"uri","maxLength":60},{"not":{"enum":["a","the"]},"type":"string"})"
    "]}";

/* A quick mask of @t, which is where @s is, is that of @s, or late: 1. */
static uint32_t check_quick(struct grammar_state *s, struct grammar_state *t, uint32_t left,
                            uint32_t n_words) {
    CLEANUP(freep) uint32_t *quick = malloc(2ul * n_words * sizeof(*quick));

    cr_assert_eq(grammar_state_copy(t, s), 0);
    grammar_state_set_quick(t, true);
    int64_t n = grammar_mask_within(t, quick, left);

    grammar_state_set_quick(t, false);
    if (n == -EAGAIN)
        return 1;
    cr_assert_eq(n, grammar_mask_within(s, quick + n_words, left));
    cr_assert_arr_eq(quick, quick + n_words, n_words * sizeof(*quick));
    return 0;
}

/* The mask against the acceptance of every token, at places of a random text. Quick masks that were
 * late. */
static uint32_t check_places(struct grammar_state *s, struct grammar_state *t, uint32_t n_vocab,
                             uint32_t *bits, struct rng *r) {
    uint32_t n_words = (n_vocab + 31) / 32, n_late = 0;

    grammar_state_reset(s);
    for (int step = 0; step < 60; step++) {
        n_late += check_quick(s, t, GRAMMAR_NO_MAX, n_words);
        n_late += check_quick(s, t, 1 + rng_below(r, 60), n_words);
        int64_t n = grammar_mask(s, bits), n_set = 0;

        cr_assert_gt(n, 0);
        for (uint32_t i = 0; i < n_vocab; i++)
            n_set += bits[i / 32] >> (i % 32) & 1;
        cr_assert_eq(n, n_set);
        for (uint32_t i = 0; step % 7 == 0 && i < n_vocab; i++)
            check_token(s, t, bits, (int32_t)i);
        cr_assert_eq(grammar_accept(s, pick(bits, (uint32_t)n, r)), 0);
        if (grammar_is_done(s))
            grammar_state_reset(s);
    }
    return n_late;
}

static void check_patterns(const struct grammar_vocab *v, uint32_t n_vocab) {
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL, *t = NULL;
    CLEANUP(freep) uint32_t *bits = malloc(grammar_vocab_n_words(v) * sizeof(*bits));
    struct grammar_source src = {
        .kind = GRAMMAR_JSON_SCHEMA, .text = PATTERNS, .len = sizeof(PATTERNS) - 1};
    struct rng r = {5};
    uint32_t n_late = 0;
    struct err err = {0};

    cr_assert_eq(grammar_compile(&g, v, &src, NULL, &err), 0, "%s", err.message);
    cr_assert_eq(grammar_state_new(&s, g), 0);
    cr_assert_eq(grammar_state_new(&t, g), 0);
    for (int i = 0; i < 4; i++)
        n_late += check_places(s, t, n_vocab, bits, &r);
    cr_expect(n_late > 0 && n_late < 4 * 2 * 60, "%u", n_late);
}

/* States of a search differ in a few tokens: a text that is in the middle of one of the words again
 * and again. */
static const char SEARCH[] = R"({"pattern":"QUEUE_INT|QUEUE_DOUBLE|CACHED"})",
                  SEARCHED[] = R"("aQUEUE_DOUBCACQUEUE_INT\"a")";
/* Several readings, each in a state that takes nearly everything but a few letters. */
static const char LACK[] = R"({"anyOf":[)"
                           R"({"items":{"pattern":"^[^a7 ]*$"}},)"
                           R"({"items":{"pattern":"^([^9e]|9[^9x])*$"}},)"
                           R"({"items":{"pattern":"^[^st]*y[^q]*$"}},)"
                           R"({"items":{"pattern":"^[^on]*$"}},)"
                           R"({"items":{"pattern":"^[^ri5]*y[^l]*$"}},)"
                           R"({"items":{"pattern":"^([^e]|e[^rns])*$"}})"
                           "]}",
                  LACKING[] = R"(["b9Xy","x9ay s"])";

/* Readings that differ by what they count, beside the search, which takes most tokens. */
static const char COUNTED[] = R"({"pattern":"[a-zA-Z0-9_-]{18}([.][a-z]+)?"})",
                  COUNTS[] = R"("ab0-F_9abcdefghijK,\n")";

/* Other words: nothing of theirs is there already. */
static const char PREPARED[] = R"({"pattern":"BATCH_INT|BATCH_TABLE|MACHINE"})",
                  PREPARED_TEXT[] = R"("aBATCH_TABMACBATCH_INT\"a")";

/* A search that reads all text, and characters of several bytes that are counted. */
static const char WIDE[] = R"({"pattern":")"
                           "\u00e9"
                           R"([0-9]$|zz"})",
                  WIDE_TEXT[] = "\"x \xe4\xbd\xa0z\xc3\xa9\\n\xc3\xa9\x37\"",
                  WIDTHS[] = R"({"pattern":"[a-f]","maxLength":20})",
                  WIDTHS_TEXT[] = "\"x\xe4\xbd\xa0-\xc3\xa9gf\"";

/* A state for each count, which agree in all but long tokens. */
static const char LENGTHS[] = R"({"pattern":"^[^@ ]+@[a-z.]+$","maxLength":26})",
                  LENGTHS_TEXT[] = R"("a)"
                                   "\xc3\xa9"
                                   R"(.b-c7@ab.c")";

/* So few characters are left that most tokens are read, or not, by their characters alone. */
static const char EXACT[] = R"({"pattern":"[0-9a-f]","minLength":6,"maxLength":6})", EXACT_TEXT[] =
                                                                                         R"("xyz)"
                                                                                         "\xc3\xa9"
                                                                                         R"(\na")";

/* Loops whose characters are those of UTF-8, and one that has escapes. */
static const char LOOP[] = R"({"pattern":"^[\\w .)"
                           "\u00e9\u4f60"
                           R"(]{2,8}$"})",
                  LOOP_TEXT[] = "\"a \xe4\xbd\xa0.\xc3\xa9\"",
                  ESCAPES[] = R"({"pattern":"^[^x]{1,7}$"})",
                  ESCAPES_TEXT[] = R"("a\n)"
                                   "\xc3\xa9"
                                   R"(\"b")";

enum { STEP = FEWER(7, 77) };

/* Masks against the acceptance of every @STEP-th token, along @text. How many were late. */
static uint32_t check_along(const struct grammar_vocab *v, const struct tokenizer *tok,
                            const char *schema, const char *text, bool prepared) {
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL, *t = NULL;
    CLEANUP(freep) uint32_t *bits = malloc(grammar_vocab_n_words(v) * sizeof(*bits));
    struct grammar_source src = {
        .kind = GRAMMAR_JSON_SCHEMA, .text = schema, .len = strlen(schema)};
    uint32_t n_vocab = tokenizer_n_vocab(tok), n_late = 0;
    struct err err = {0};

    cr_assert_eq(grammar_compile(&g, v, &src, NULL, &err), 0, "%s", err.message);
    if (prepared)
        grammar_prepare(g);
    cr_assert_eq(grammar_state_new(&s, g), 0);
    cr_assert_eq(grammar_state_new(&t, g), 0);
    for (uint32_t at = 0; text[at]; at++) {
        int32_t next = -1;

        n_late += check_quick(s, t, GRAMMAR_NO_MAX, grammar_vocab_n_words(v));
        cr_assert_gt(grammar_mask(s, bits), 0);
        for (uint32_t i = at % STEP; i < n_vocab; i += STEP)
            check_token(s, t, bits, (int32_t)i);
        for (uint32_t i = 0; i < n_vocab && next < 0; i++) {
            size_t len;
            const char *piece = tokenizer_piece(tok, (int32_t)i, false, &len);

            if (len == 1 && *piece == text[at] && (bits[i / 32] >> (i % 32) & 1))
                next = (int32_t)i;
        }
        cr_assert_eq(grammar_accept(s, next), 0, "%s", text + at);
    }
    cr_assert(grammar_can_end(s));
    return n_late;
}

static void check_vocabulary(const char *folder, const char *name) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *tok = NULL;
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = NULL;
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL, *t = NULL;
    struct grammar_source src = {
        .kind = GRAMMAR_JSON_SCHEMA, .text = SCHEMA, .len = sizeof(SCHEMA) - 1};
    struct rng r = {3};
    struct err err = {0};
    char path[512];
    int n_ended = 0;

    snprintf(path, sizeof(path), "%s/vocab/ggml-vocab-%s.gguf", folder, name);
    cr_assert_eq(gguf_open(&file, path, &err), 0, "%s: %s", path, err.message);
    cr_assert_eq(tokenizer_new(&tok, file, &err), 0, "%s", err.message);
    cr_assert_eq(grammar_vocab_of(&v, tok), 0);
    cr_assert_eq(grammar_compile(&g, v, &src, NULL, &err), 0, "%s", err.message);
    cr_assert_eq(grammar_state_new(&s, g), 0);
    cr_assert_eq(grammar_state_new(&t, g), 0);
    CLEANUP(freep) uint32_t *bits = malloc(grammar_vocab_n_words(v) * sizeof(*bits));

    for (int i = 0; i < 12; i++) {
        struct buf text;

        buf_init(&text, 1 << 20);
        if (generate(s, t, tok, bits, &r, &text)) {
            yyjson_doc *doc = yyjson_read(text.data, text.len, 0);
            yyjson_val *root = yyjson_doc_get_root(doc);

            cr_assert(yyjson_is_obj(root), "%s: %s", name, text.data);
            cr_assert(yyjson_is_str(yyjson_obj_get(root, "name")) && yyjson_obj_get(root, "kind"));
            yyjson_doc_free(doc);
            n_ended++;
        }
        buf_deinit(&text);
    }
    cr_expect_gt(n_ended, 0, "%s", name);
    check_patterns(v, tokenizer_n_vocab(tok));
    cr_expect_gt(check_along(v, tok, SEARCH, SEARCHED, false), 0);
    cr_expect_eq(check_along(v, tok, PREPARED, PREPARED_TEXT, true), 0);
    cr_expect_gt(check_along(v, tok, LACK, LACKING, false), 0);
    check_along(v, tok, COUNTED, COUNTS, false);
    check_along(v, tok, WIDE, WIDE_TEXT, false);
    check_along(v, tok, WIDTHS, WIDTHS_TEXT, false);
    check_along(v, tok, LENGTHS, LENGTHS_TEXT, false);
    check_along(v, tok, EXACT, EXACT_TEXT, false);
    check_along(v, tok, LOOP, LOOP_TEXT, false);
    check_along(v, tok, ESCAPES, ESCAPES_TEXT, false);
}

static void check(const char *name) {
    check_vocabulary(test_data(), name);
}

Test(grammar_vocabularies, byte_level_bpe) {
    check("qwen2");
}

Test(grammar_vocabularies, llama_bpe) {
    check("llama-bpe");
}

Test(grammar_vocabularies, sentencepiece) {
    check("llama-spm");
}
