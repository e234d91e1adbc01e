/*
 * PLaMo's tokenizer: ids of llama.cpp 0.7.0 on a small vocabulary; on random vocabularies the least
 * cost of all ways to cut a text, by trying each; vocabularies that are refused.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "tests/text/expect.h"
#include "tests/text/tiny.h"

enum { FIRST = 3 + 256 }; /* the first token of text, behind the special ones and the bytes */

static struct tiny vocab;
static struct gguf_writer writer;

/* Begins a vocabulary without the byte @left_out; 256: with all. */
static void begin(unsigned left_out) {
    memset(&vocab, 0, sizeof(vocab));
    tiny_add(&vocab, "<|plamo:unk|>", TOKEN_UNKNOWN, 0);
    tiny_add(&vocab, "<|plamo:bos|>", TOKEN_CONTROL, 0);
    tiny_add(&vocab, "<|plamo:eos|>", TOKEN_CONTROL, 0);
    for (unsigned b = 0; b < 256; b++) {
        char name[8];

        snprintf(name, sizeof(name), "<0x%02X>", b);
        if (b != left_out)
            tiny_add(&vocab, name, TOKEN_BYTE, 0);
    }
}

static int load(struct tokenizer **t, struct err *err) {
    gw_init(&writer);
    tiny_put(&vocab, &writer, "plamo2", NULL);
    gw_u32(&writer, "tokenizer.ggml.bos_token_id", 1);
    gw_u32(&writer, "tokenizer.ggml.eos_token_id", 2);
    int r = expect_load(t, &writer, err);
    gw_deinit(&writer);
    return r;
}

static struct tokenizer *finish(void) {
    struct tokenizer *t = NULL;
    struct err err = {0};

    cr_assert_eq(load(&t, &err), 0, "%s", err.message);
    return t;
}

/* Ties of cost, characters without a token, scores as low as those of bytes and lower, byte order
 * marks, bytes that are no UTF-8. */
Test(plamo, ids_are_those_of_llama_cpp) {
    static const struct {
        const char *text;
        float score;
    } tokens[] = {{" ", -3},
                  {"a", -2},
                  {"b", -2},
                  {"c", -2.5F},
                  {"ab", -3.99995F},
                  {"bc", -3},
                  {"abc", -6},
                  {"ca", -2},
                  {"aa", -4},
                  {" a", -2.5F},
                  {"  ", -1},
                  {"\n", -9},
                  {"\xE6\x97\xA5", -1.25F},
                  {"\xE6\x97\xA5\xE6\x9C\xAC", -1.5F},
                  {"\xC3\xA9", -999},
                  {"x\xE2\x96\x81", -4.5F},
                  {"zz", -1000.5F},
                  {"y", -2500},
                  {"aaaa", -7.9999F}};
    static const struct {
        const char *text;
        int32_t id[8];
    } cases[] = {{"abc", {260, 264}},
                 {"aab", {260, 263}},
                 {"abca", {263, 266}},
                 {"aaaaa", {277, 260}},
                 {"  a b", {269, 260, 259, 261}},
                 {"   ", {269, 259}},
                 {"\xE6\x97\xA5\xE6\x9C\xAC\xE6\x97\xA5", {272, 271}},
                 {"\xC3\xA9", {273}},
                 {"zz", {275}},
                 {"y", {124}},
                 {"x\xE2\x96\x81"
                  "a",
                  {274, 260}},
                 {"q", {116}},
                 {"\xF0\x9F\x98\x80", {243, 162, 155, 131}},
                 {"\xEF\xBB\xBF"
                  "ab",
                  {263}},
                 {"a\xEF\xBB\xBF"
                  "b",
                  {260, 242, 190, 194, 261}},
                 {" \n a", {259, 270, 268}},
                 {"a\xFF"
                  "b",
                  {260, 242, 194, 192, 261}},
                 {"\xE6\x97"
                  "a",
                  {242, 194, 192, 242, 194, 192, 260}},
                 {"", {0}}};

    begin(256);
    for (size_t i = 0; i < ARRAY_SIZE(tokens); i++)
        tiny_add(&vocab, tokens[i].text, TOKEN_NORMAL, tokens[i].score);
    CLEANUP(tokenizer_freep) struct tokenizer *t = finish();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *text = cases[i].text;
        struct tokens got = expect_encode(t, text, strlen(text), 0);
        size_t n = 0;

        while (n < ARRAY_SIZE(cases[i].id) && cases[i].id[n])
            n++;
        expect_ids(&got, cases[i].id, n, text);
        tokens_deinit(&got);
    }
}

static int64_t cost_of(uint32_t id) {
    return id < FIRST ? 0 : -llround((double)vocab.score[id] * 1e4);
}

/* The least cost of @s, by all cuts. */
static int64_t least(const char *s, size_t len) {
    int64_t best = 0;

    if (len == 0)
        return 0;
    best = 10000000 + least(s + 1, len - 1);
    for (uint32_t i = FIRST; i < vocab.n; i++) {
        size_t n = strlen(vocab.token[i]);

        if (n <= len && memcmp(vocab.token[i], s, n) == 0)
            best = MIN(best, cost_of(i) + least(s + n, len - n));
    }
    return best;
}

/* Expects that @got spells @text, with the least cost. */
static void check_least(const struct tokens *got, const char *text, size_t len) {
    int64_t sum = 0;
    size_t at = 0;

    for (size_t i = 0; i < got->n; i++) {
        uint32_t id = (uint32_t)got->id[i];
        bool is_byte = id < FIRST;
        size_t n = is_byte ? 1 : strlen(vocab.token[id]);

        sum += is_byte ? 10000000 : cost_of(id);
        cr_assert(at + n <= len);
        cr_expect(is_byte ? (uint8_t)text[at] == id - 3
                          : memcmp(text + at, vocab.token[id], n) == 0);
        at += n;
    }
    cr_expect(at == len && sum == least(text, len), "%.*s", (int)len, text);
}

Test(plamo, of_all_cuts_the_cheapest_is_taken) {
    struct rng rng = {11};

    for (int round = 0; round < 100; round++) {
        begin(256);
        for (int i = 0; i < 14; i++) {
            char text[5] = {0};
            bool twice = false;

            for (size_t k = 0, n = 1 + rng_below(&rng, 4); k < n; k++)
                text[k] = "abc"[rng_below(&rng, 3)];
            for (uint32_t k = 0; k < vocab.n; k++)
                twice |= strcmp(vocab.token[k], text) == 0;
            if (!twice)
                tiny_add(&vocab, text, TOKEN_NORMAL, -(float)rng_below(&rng, 40) / 4);
        }
        CLEANUP(tokenizer_freep) struct tokenizer *t = finish();
        for (int k = 0; k < 20; k++) {
            char text[12];
            size_t len = 1 + rng_below(&rng, 9);

            for (size_t i = 0; i < len; i++)
                text[i] = "abcd"[rng_below(&rng, 4)];
            struct tokens got = expect_encode(t, text, len, 0);

            check_least(&got, text, len);
            tokens_deinit(&got);
        }
    }
}

Test(plamo, vocabularies_that_it_cannot_cut_with_are_refused) {
    struct tokenizer *t = NULL;
    struct err err = {0};

    begin(0x41);
    tiny_add(&vocab, "a", TOKEN_NORMAL, -1);
    cr_expect(load(&t, &err) < 0 && strstr(err.message, "no token <0x41>"), "%s", err.message);
    begin(256);
    tiny_add(&vocab, "a", TOKEN_NORMAL, 3000);
    cr_expect(load(&t, &err) < 0 && strstr(err.message, "scores[259] is too large"), "%s",
              err.message);
    begin(256);
    tiny_add(&vocab, "a", TOKEN_NORMAL, -INFINITY);
    cr_expect(load(&t, &err) < 0 && strstr(err.message, "scores[259]"), "%s", err.message);
}
