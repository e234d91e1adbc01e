/*
 * Unigram: on random vocabularies the best of all ways to cut a text, by trying each; the map of
 * normalisation by a trie that is put together here, also a broken one.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "tests/text/expect.h"
#include "tests/text/tiny.h"

#define MARK "\xE2\x96\x81"

static struct tiny vocab;
static struct gguf_writer writer;

static void begin(void) {
    memset(&vocab, 0, sizeof(vocab));
    tiny_add(&vocab, "<s>", TOKEN_CONTROL, 0);
    tiny_add(&vocab, "</s>", TOKEN_CONTROL, 0);
    tiny_add(&vocab, "<unk>", TOKEN_UNKNOWN, 0);
}

static struct tokenizer *finish(const uint8_t *map, size_t n) {
    struct tokenizer *t = NULL;
    struct err err = {0};

    gw_init(&writer);
    tiny_put(&vocab, &writer, "t5", NULL);
    gw_u32(&writer, "tokenizer.ggml.bos_token_id", 0);
    gw_u32(&writer, "tokenizer.ggml.eos_token_id", 1);
    if (map)
        gw_array(&writer, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, n, map, n);
    cr_assert_eq(expect_load(&t, &writer, &err), 0, "%s", err.message);
    gw_deinit(&writer);
    return t;
}

static void check(const struct tokenizer *t, const char *text, const int32_t *ids, size_t n) {
    struct tokens got = expect_encode(t, text, strlen(text), 0);

    expect_ids(&got, ids, n, text);
    tokens_deinit(&got);
}

Test(unigram, spaces_and_unknown_characters) {
    begin();
    int32_t a = tiny_add(&vocab, MARK "a", TOKEN_NORMAL, -1),
            mark = tiny_add(&vocab, MARK, TOKEN_NORMAL, -2);
    int32_t b = tiny_add(&vocab, "b", TOKEN_NORMAL, -3);
    tiny_add(&vocab, "bb", TOKEN_UNUSED, -1);
    CLEANUP(tokenizer_freep) struct tokenizer *t = finish(NULL, 0);

    check(t, "  a   a ", (int32_t[]){a, a}, 2);
    check(t, "bb", (int32_t[]){mark, b, b}, 3);
    check(t, "axyb zz", (int32_t[]){a, 2, b, mark, 2}, 5);
    check(t, "a\xFF", (int32_t[]){a, 2}, 2);
    check(t, "<s>", (int32_t[]){mark, 2}, 2);
    check(t, "   ", NULL, 0);
}

Test(unigram, bos_and_eos_stand_around_a_pair) {
    begin();
    int32_t a = tiny_add(&vocab, MARK "a", TOKEN_NORMAL, -1),
            b = tiny_add(&vocab, MARK "b", TOKEN_NORMAL, -1);
    CLEANUP(tokenizer_freep) struct tokenizer *t = finish(NULL, 0);
    struct tokens got = expect_encode(t, "a</s></s>b", 10, TOKENIZE_BOS | TOKENIZE_SPECIAL);

    expect_ids(&got, (int32_t[]){0, a, 1, 1, b, 1}, 6, "a pair");
    tokens_deinit(&got);
}

/* The best sum of scores of @s, by all cuts; unknown characters have @unknown. */
static double best(const char *s, size_t len, double unknown) {
    double most = len ? -1e30 : 0;

    for (size_t n = 1; n <= len; n++)
        for (uint32_t i = 3; i < vocab.n; i++)
            if (strlen(vocab.token[i]) == n && memcmp(vocab.token[i], s, n) == 0)
                most = fmax(most, (double)vocab.score[i] + best(s + n, len - n, unknown));
    size_t n = len >= 3 && (uint8_t)*s == 0xE2 ? 3 : 1;
    return len ? fmax(most, unknown + best(s + n, len - n, unknown)) : 0;
}

Test(unigram, of_all_cuts_the_best_is_taken) {
    struct rng rng = {5};

    for (int round = 0; round < 150; round++) {
        double least = 0;

        begin();
        for (int i = 0; i < 14; i++) {
            char text[5] = {0};
            size_t n = 1 + rng_below(&rng, 4);

            for (size_t k = 0; k < n; k++)
                text[k] = "abc"[rng_below(&rng, 3)];
            bool twice = false;
            for (uint32_t k = 0; k < vocab.n; k++)
                twice |= strcmp(vocab.token[k], text) == 0;
            float score = -(float)rng_below(&rng, 1000) / 64 - 1;
            if (twice)
                continue;
            tiny_add(&vocab, text, TOKEN_NORMAL, score);
            least = fmin(least, (double)score);
        }
        CLEANUP(tokenizer_freep) struct tokenizer *t = finish(NULL, 0);
        for (int k = 0; k < 20; k++) {
            char text[16] = MARK;
            size_t n = 3, len = 4 + rng_below(&rng, 9);
            double sum = 0;

            while (n < len)
                text[n++] = "abcd"[rng_below(&rng, 4)];
            struct tokens got = expect_encode(t, text + 3, n - 3, 0);
            size_t covered = 0;
            for (size_t i = 0; i < got.n; i++)
                covered += got.id[i] == 2 ? 0 : strlen(vocab.token[got.id[i]]);
            for (size_t i = 0; i < got.n; i++)
                sum += got.id[i] == 2 ? 0 : (double)vocab.score[got.id[i]];
            /* What is not covered are unknown characters; the mark in front is one of three
             * bytes. */
            sum += (double)(n - 3 - covered + 1) * (least - 10);
            cr_assert_float_eq(sum, best(text, n, least - 10), 1e-3, "%s", text);
            tokens_deinit(&got);
        }
    }
}

/* A map with two strings: "A" becomes "b", "AA" becomes "cc". */
static size_t make_map(uint8_t *out) {
    uint32_t unit[512] = {0};
    static const char strings[] = "b\0cc";
    uint32_t size = sizeof(unit);

    unit[0] = 256u << 10; /* its children stand at 256 ^ byte */
    unit[256 ^ 'A'] = 'A' | 1u << 8 | (128u << 10);
    unit[(256 ^ 'A') ^ 128] = 1u << 31 | 0; /* the leaf: offset 0 */
    unit[((256 ^ 'A') ^ 128) ^ 'A'] = 'A' | 1u << 8 | (64u << 10);
    unit[(((256 ^ 'A') ^ 128) ^ 'A') ^ 64] = 1u << 31 | 2;
    memcpy(out, &size, 4);
    memcpy(out + 4, unit, sizeof(unit));
    memcpy(out + 4 + sizeof(unit), strings, sizeof(strings));
    return 4 + sizeof(unit) + sizeof(strings);
}

Test(unigram, the_longest_string_of_the_map_is_replaced) {
    uint8_t map[3000];
    size_t n = make_map(map);

    begin();
    int32_t mark = tiny_add(&vocab, MARK, TOKEN_NORMAL, -1),
            b = tiny_add(&vocab, "b", TOKEN_NORMAL, -1);
    int32_t c = tiny_add(&vocab, "c", TOKEN_NORMAL, -1);
    CLEANUP(tokenizer_freep) struct tokenizer *t = finish(map, n);

    check(t, "AAA b", (int32_t[]){mark, c, c, b, mark, b}, 6);
    check(t, "Ac", (int32_t[]){mark, b, c}, 3);
}

/* An offset with bit 9 counts in steps of 256. */
Test(unigram, children_may_be_far_away) {
    uint8_t map[3000];
    size_t n = make_map(map);
    const uint32_t root = 1u << 10 | 1u << 9;

    memcpy(map + 4, &root, sizeof(root));
    begin();
    int32_t mark = tiny_add(&vocab, MARK, TOKEN_NORMAL, -1);
    int32_t b = tiny_add(&vocab, "b", TOKEN_NORMAL, -1);
    CLEANUP(tokenizer_freep) struct tokenizer *t = finish(map, n);

    check(t, "A", (int32_t[]){mark, b}, 2);
}

/* An offset behind the map's strings names none of them. */
Test(unigram, strings_end_with_the_map) {
    uint8_t map[3000];
    size_t n = make_map(map);
    const uint32_t leaf = 1u << 31 | 5;

    memcpy(map + 4 + ((256 ^ 'A') ^ 128) * 4, &leaf, sizeof(leaf));
    begin();
    int32_t mark = tiny_add(&vocab, MARK, TOKEN_NORMAL, -1);
    CLEANUP(tokenizer_freep) struct tokenizer *t = finish(map, n);

    check(t, "A", (int32_t[]){mark, 2}, 2);
}

/* The trie must leave room for its own length. */
Test(unigram, a_trie_longer_than_its_map_is_refused) {
    for (uint8_t trie = 8; trie <= 20; trie += 4) {
        const uint8_t map[16] = {trie};
        struct tokenizer *t = NULL;
        struct err err = {0};

        begin();
        gw_init(&writer);
        tiny_put(&vocab, &writer, "t5", NULL);
        gw_array(&writer, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, 16, map, 16);
        cr_expect_eq(expect_load(&t, &writer, &err), trie <= 12 ? 0 : -EINVAL, "%u", trie);
        cr_expect_eq(strstr(err.message, "has no trie") != NULL, trie > 12, "%s", err.message);
        gw_deinit(&writer);
        tokenizer_free(t);
    }
}

Test(unigram, a_map_that_is_none_is_named) {
    static const uint8_t short_map[3] = {0};
    static const char *const words[] = {"a"};

    for (int i = 0; i < 2; i++) {
        struct tokenizer *t = NULL;
        struct err err = {0};

        begin();
        gw_init(&writer);
        tiny_put(&vocab, &writer, "t5", NULL);
        if (i == 0)
            gw_array(&writer, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, 3, short_map, 3);
        else
            gw_strings(&writer, "tokenizer.ggml.precompiled_charsmap", 1, words);
        cr_expect_eq(expect_load(&t, &writer, &err), -EINVAL);
        cr_expect(strstr(err.message, "precompiled_charsmap is not an array of bytes"), "%s",
                  err.message);
        gw_deinit(&writer);
    }
}

/* Whatever the units are, nothing outside of the map is read. */
Test(unigram, a_broken_map_is_no_harm) {
    struct rng rng = {9};
    uint8_t map[3000];

    for (int round = 0; round < 300; round++) {
        size_t n = make_map(map);

        begin();
        tiny_add(&vocab, "b", TOKEN_NORMAL, -1);
        for (int k = 0; k < 40; k++)
            map[4 + rng_below(&rng, 2048)] = (uint8_t)rng_below(&rng, 256);
        CLEANUP(tokenizer_freep) struct tokenizer *t = finish(map, n);
        for (int k = 0; k < 20; k++) {
            char text[20];

            for (size_t i = 0; i < sizeof(text); i++)
                text[i] = (char)rng_below(&rng, 256);
            struct tokens got = expect_encode(t, text, sizeof(text), 0);
            tokens_deinit(&got);
        }
    }
}
