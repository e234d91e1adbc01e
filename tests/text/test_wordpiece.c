/*
 * WordPiece: what BERT's tokenizer is known to do, and on random text the same ids as a naive
 * implementation.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/rng.h"
#include "tests/text/expect.h"
#include "tests/text/tiny.h"

#define MARK "\xE2\x96\x81"

enum { PAD, UNK, CLS, SEP, FIRST };

/* Texts as BERT's own vocab.txt has them. */
static const char *const pieces[] = {
    "un",
    "##aff",
    "##able",
    "able",
    "the",
    "cafe",
    "##s",
    "a",
    "##a",
    "b",
    "##b",
    "ab",
    "##ab",
    "c",
    "!",
    ",",
    "$",
    "[",
    "]",
    "sep",
    "cls",
    "1",
    "##1",
    "12",
    "\u4E2D",
    "\u6587",
    "i",
    "\u0434",
    "##\u0434\u0430",
    "##c",
};

/* The tokenizer of these, as a GGUF file has them. */
static struct tokenizer *open_typed(enum token_type type, const char *flag, bool value,
                                    const char *key) {
    static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]"};
    static struct tiny t;
    struct tokenizer *out = NULL;
    struct gguf_writer w;
    struct err err = {0};

    memset(&t, 0, sizeof(t));
    for (int i = 0; i < FIRST; i++)
        tiny_add(&t, special[i], type, 0);
    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        bool inside = strncmp(pieces[i], "##", 2) == 0;
        char text[48];

        snprintf(text, sizeof(text), "%s%s", inside ? "" : MARK, pieces[i] + (inside ? 2 : 0));
        tiny_add(&t, text, TOKEN_NORMAL, 0);
    }
    gw_init(&w);
    tiny_put(&t, &w, "bert", NULL);
    if (flag)
        gw_bool(&w, flag, value);
    if (key)
        gw_u32(&w, key, 0);
    cr_assert_eq(expect_load(&out, &w, &err), 0, "%s", err.message);
    gw_deinit(&w);
    return out;
}

static struct tokenizer *open_pieces(const char *flag, bool value) {
    return open_typed(TOKEN_CONTROL, flag, value, NULL);
}

static int32_t id_of(const char *piece) {
    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++)
        if (strcmp(pieces[i], piece) == 0)
            return FIRST + (int32_t)i;
    return UNK;
}

/* @want: pieces with spaces between; other names are unknown. */
static void check(const struct tokenizer *t, const char *text, const char *want) {
    struct tokens got = expect_encode(t, text, strlen(text), 0);
    char copy[256];
    size_t n = 0;

    snprintf(copy, sizeof(copy), "%s", want);
    for (char *s = strtok(copy, " "); s; s = strtok(NULL, " "), n++)
        cr_expect(n < got.n && got.id[n] == id_of(s), "'%s' %zu: %d, not %s", text, n,
                  n < got.n ? got.id[n] : -1, s);
    cr_expect_eq(got.n, n, "'%s' has %zu tokens, not %zu", text, got.n, n);
    tokens_deinit(&got);
}

Test(wordpiece, takes_words_apart_as_bert_does) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_pieces(NULL, false);

    check(t, "unaffable", "un ##aff ##able");
    check(t, "UNaffABLE the\tcafes", "un ##aff ##able the cafe ##s");
    check(t, "the\u00A0\u3000 cafe\u0301s", "the cafe ##s"); /* spaces; a combining accent */
    check(t, "caf\u00E9s", "cafe ##s");
    check(t, "the,cafe!", "the , cafe !");
    check(t, "a$b", "a $ b");
    check(t, "unxaffable the", "UNK the"); /* one unknown token for the whole word */
    check(t, "a\u4E2D\u6587b", "a \u4E2D \u6587 b");
    check(t, "th\u200Be\x01 \xFF a", "the a"); /* no width, control, no UTF-8 */
    check(t, "\u0130\u0414\u0414\u0410", "UNK");
    check(t, "\u0130 \u0414\u0414\u0410", "i \u0434 ##\u0434\u0430");
    check(t, "aab 12 121 1", "a ##ab 12 12 ##1 1");
    check(t, "", "");
    check(t, " \n", "");
    check(t, "[SEP] [CLS]", "[ sep ] [ cls ]");
}

Test(wordpiece, puts_cls_and_sep_around_a_text) {
    static const int32_t want[] = {CLS, 4 + 4, SEP}, inside[] = {CLS, 4 + 4, SEP, 4 + 7, SEP};
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_pieces(NULL, false);
    const struct text_range user = {8, 9};
    struct tokens got = expect_encode(t, "the", 3, TOKENIZE_BOS);

    expect_ids(&got, want, 3, "the");
    tokens_deinit(&got);
    cr_assert_eq(
        tokenizer_encode(t, "the[SEP]a", 9, TOKENIZE_BOS | TOKENIZE_SPECIAL, &user, 1, &got), 0);
    expect_ids(&got, inside, 5, "a pair");
    tokens_deinit(&got);
    cr_expect_eq(tokenizer_bos(t), CLS);
    cr_expect_eq(tokenizer_eos(t), SEP);
}

/* Files may give them the type of words. */
Test(wordpiece, cls_and_sep_are_special_whatever_their_type) {
    static const int32_t want[] = {4 + 4, SEP, 4 + 7}, unknown[] = {UNK};
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_typed(TOKEN_NORMAL, NULL, false, NULL);
    struct tokens got = expect_encode(t, "the[SEP]a", 9, TOKENIZE_SPECIAL);

    expect_ids(&got, want, 3, "the[SEP]a");
    tokens_deinit(&got);
    got = expect_encode(t, "xyz", 3, 0);
    expect_ids(&got, unknown, 1, "xyz");
    tokens_deinit(&got);
    cr_expect(tokenizer_is_special(t, CLS));
    cr_expect(!tokenizer_is_special(t, PAD));
}

Test(wordpiece, the_first_token_may_be_the_last_of_a_text) {
    static const int32_t want[] = {CLS, 4 + 4, PAD};
    CLEANUP(tokenizer_freep)
    struct tokenizer *t =
        open_typed(TOKEN_CONTROL, NULL, false, "tokenizer.ggml.seperator_token_id");
    struct tokens got = expect_encode(t, "the", 3, TOKENIZE_BOS);

    expect_ids(&got, want, 3, "the");
    tokens_deinit(&got);
}

Test(wordpiece, long_words_are_unknown) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_pieces(NULL, false);
    char text[1000];

    for (size_t n = 98; n < 103; n++) {
        memset(text, 'b', n);
        text[n] = 0;
        struct tokens got = expect_encode(t, text, n, 0);
        cr_expect_eq(got.n, n <= 100 ? n : 1, "%zu", n);
        tokens_deinit(&got);
    }
}

Test(wordpiece, keeps_case_where_the_file_says_so) {
    CLEANUP(tokenizer_freep)
    struct tokenizer *t = open_pieces("tokenizer.ggml.normalizer.lowercase", false);

    check(t, "The the caf\u00E9", "UNK the UNK");
}

Test(wordpiece, comes_back_as_words) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_pieces(NULL, false);
    struct tokens got = expect_encode(t, "Unaffable, the cafes", 20, TOKENIZE_BOS);
    struct buf text;

    buf_init(&text, 1 << 16);
    cr_assert_eq(tokenizer_decode(t, got.id, got.n, false, &text), 0);
    cr_expect_eq(text.len, 21u);
    cr_expect_eq(memcmp(text.data, "unaffable , the cafes", text.len), 0);
    buf_deinit(&text);
    tokens_deinit(&got);
}

/* The longest piece at @s, as a name of `pieces`. */
static int longest(const char *s, size_t len, bool inside, size_t *n) {
    int best = -1;

    *n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        bool is_inside = strncmp(pieces[i], "##", 2) == 0;
        const char *p = pieces[i] + (is_inside ? 2 : 0);

        if (is_inside == inside && strlen(p) <= len && strlen(p) > *n &&
            memcmp(p, s, strlen(p)) == 0) {
            best = (int)i;
            *n = strlen(p);
        }
    }
    return best;
}

/* ASCII only. */
static size_t naive(const char *text, size_t len, int32_t *out) {
    size_t n_out = 0;

    for (size_t i = 0; i < len;) {
        char word[64];
        size_t n = 0, at = 0, before = n_out;

        while (i < len && text[i] != ' ' && !strchr("!,$[]", text[i]))
            word[n++] = (char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] + 32 : text[i]), i++;
        if (n == 0 && text[i] != ' ')
            word[n++] = text[i], i++;
        else if (n == 0)
            i++;
        while (at < n) {
            size_t took;
            int p = longest(word + at, n - at, at > 0, &took);

            if (p < 0) {
                n_out = before;
                out[n_out++] = UNK;
                break;
            }
            out[n_out++] = FIRST + p;
            at += took;
        }
    }
    return n_out;
}

Test(wordpiece, ids_are_those_of_a_naive_implementation) {
    static const char letters[] = "aabbbcAB1 2  !,$[]stheun";
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_pieces(NULL, false);
    struct rng rng = {7};

    for (int round = 0; round < 3000; round++) {
        char text[48];
        int32_t want[64];
        size_t len = rng_below(&rng, sizeof(text));

        for (size_t i = 0; i < len; i++)
            text[i] = letters[rng_below(&rng, sizeof(letters) - 1)];
        struct tokens got = expect_encode(t, text, len, 0);
        size_t n = naive(text, len, want);
        cr_assert(got.n == n && (n == 0 || memcmp(got.id, want, n * sizeof(*want)) == 0), "'%.*s'",
                  (int)len, text);
        tokens_deinit(&got);
    }
}

Test(wordpiece, a_vocabulary_without_its_special_tokens_is_refused) {
    static const char *const special[] = {"[CLS]", "[SEP]", "[UNK]"};

    for (size_t missing = 0; missing < ARRAY_SIZE(special); missing++) {
        static struct tiny t;
        struct tokenizer *out = NULL;
        struct gguf_writer w;
        struct err err = {0};
        char want[60];

        memset(&t, 0, sizeof(t));
        for (size_t i = 0; i < ARRAY_SIZE(special); i++)
            tiny_add(&t, i == missing ? MARK "a" : special[i], TOKEN_NORMAL, 0);
        gw_init(&w);
        tiny_put(&t, &w, "bert", NULL);
        cr_expect_eq(expect_load(&out, &w, &err), -EINVAL);
        snprintf(want, sizeof(want), "tokenizer.ggml.tokens has no %s", special[missing]);
        cr_expect_str_eq(err.message, want);
        gw_deinit(&w);
    }
}
