/* Vocabularies that lie: refused with one line that names what is wrong, or used without harm. */

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/text/expect.h"
#include "tests/text/tiny.h"

static struct tiny tiny;

enum wrong {
    MODEL_MISSING,
    MODEL_UNKNOWN,
    MODEL_NUMBER,
    TOKENS_MISSING,
    TOKENS_NUMBERS,
    TOKENS_EMPTY,
    TOKEN_LONG,
    TYPES_SHORT,
    TYPES_STRINGS,
    TYPE_77,
    TYPE_NEGATIVE,
    PRE_MISSING,
    PRE_UNKNOWN,
    PRE_BINARY,
    PRE_NUMBER,
    MERGES_MISSING,
    MERGES_NUMBERS,
    MERGE_ONE_PART,
    MERGE_EMPTY,
    EOS_OUT_OF_RANGE,
    BOS_MINUS_ONE,
    EOT_STRING,
    ADD_BOS_NUMBER,
    SCORES_MISSING,
    SCORES_SHORT,
    SCORES_BOOLS,
    SCORE_NAN,
    PREFIX_STRING,
    N_WRONG,
};

struct row {
    enum wrong wrong;
    char message[80];
};

static struct row rows[] = {
    {MODEL_MISSING, "tokenizer.ggml.model is missing"},
    {MODEL_UNKNOWN, "tokenizer.ggml.model is not supported; supported are gpt2, llama"},
    {MODEL_NUMBER, "tokenizer.ggml.model is missing"},
    {TOKENS_MISSING, "tokenizer.ggml.tokens is missing"},
    {TOKENS_NUMBERS, "tokenizer.ggml.tokens is not an array of strings"},
    {TOKENS_EMPTY, "tokenizer.ggml.tokens has 0 entries"},
    {TOKEN_LONG, "tokenizer.ggml.tokens[7] has 1025 bytes, more than 1024"},
    {TYPES_SHORT, "tokenizer.ggml.token_type has 3 entries for 273 tokens"},
    {TYPES_STRINGS, "tokenizer.ggml.token_type is not an array of integers"},
    {TYPE_77, "tokenizer.ggml.token_type[5] is 77"},
    {TYPE_NEGATIVE, "tokenizer.ggml.token_type[5] is -1"},
    {PRE_MISSING, "tokenizer.ggml.pre is missing; known are: gpt-2, "},
    {PRE_UNKNOWN, R"(pre-tokenizer "best-bpe" is not supported; known are: gpt-2, )"},
    {PRE_BINARY, R"(pre-tokenizer "a?b??c" is not supported)"},
    {PRE_NUMBER, "tokenizer.ggml.pre is not a string; known are: gpt-2, "},
    {MERGES_MISSING, "tokenizer.ggml.merges is missing"},
    {MERGES_NUMBERS, "tokenizer.ggml.merges is not an array of strings"},
    {MERGE_ONE_PART, "tokenizer.ggml.merges[11] has no space"},
    {MERGE_EMPTY, "tokenizer.ggml.merges[11] has no space"},
    {EOS_OUT_OF_RANGE, "tokenizer.ggml.eos_token_id is not a token id below 273"},
    {BOS_MINUS_ONE, "tokenizer.ggml.bos_token_id is not a token id"},
    {EOT_STRING, "tokenizer.ggml.eot_token_id is not a token id"},
    {ADD_BOS_NUMBER, "tokenizer.ggml.add_bos_token is not a bool"},
    {SCORES_MISSING, "tokenizer.ggml.scores is not an array with a number for each"},
    {SCORES_SHORT, "tokenizer.ggml.scores is not an array with a number for each"},
    {SCORES_BOOLS, "tokenizer.ggml.scores is not an array with a number for each"},
    {SCORE_NAN, "tokenizer.ggml.scores[9] is not a number"},
    {PREFIX_STRING, "tokenizer.ggml.add_space_prefix is not a bool"},
};

static void put_tokens(struct gguf_writer *w, enum wrong wrong) {
    static char big[TOKEN_TEXT_MAX + 2];
    const char *types[3] = {"1", "1", "1"};

    memset(big, 'x', TOKEN_TEXT_MAX + 1);
    if (wrong == TOKEN_LONG)
        tiny.token[7] = big;
    if (wrong == TYPE_77 || wrong == TYPE_NEGATIVE)
        tiny.type[5] = wrong == TYPE_77 ? 77 : -1;
    if (wrong == TOKENS_NUMBERS)
        gw_array(w, "tokenizer.ggml.tokens", GGUF_I32, 4, tiny.type, 16);
    else if (wrong != TOKENS_MISSING)
        gw_strings(w, "tokenizer.ggml.tokens", wrong == TOKENS_EMPTY ? 0 : tiny.n, tiny.token);
    if (wrong == TYPES_STRINGS)
        gw_strings(w, "tokenizer.ggml.token_type", 3, types);
    else
        gw_array(w, "tokenizer.ggml.token_type", GGUF_I32, wrong == TYPES_SHORT ? 3 : tiny.n,
                 tiny.type, 4 * (wrong == TYPES_SHORT ? 3 : tiny.n));
}

static void put_merges(struct gguf_writer *w, enum wrong wrong) {
    const char *bad = wrong == MERGE_ONE_PART ? "hello" : "";

    if (wrong == MERGE_ONE_PART || wrong == MERGE_EMPTY) {
        tiny.merge[tiny.n_merges++] = bad;
        /* The length of this merge, which follows the bad one, has the byte of a space. */
        tiny.merge[tiny.n_merges++] = "0123456789 0123456789 0123456789";
    }
    if (wrong == MERGES_NUMBERS)
        gw_array(w, "tokenizer.ggml.merges", GGUF_I32, 4, tiny.type, 16);
    else if (wrong != MERGES_MISSING)
        gw_strings(w, "tokenizer.ggml.merges", tiny.n_merges, tiny.merge);
}

static void put_scores(struct gguf_writer *w, enum wrong wrong) {
    uint32_t n = wrong == SCORES_SHORT ? 5 : tiny.n;

    if (wrong == SCORE_NAN)
        tiny.score[9] = NAN;
    if (wrong == SCORES_BOOLS)
        memset(tiny.score, 0, sizeof(tiny.score));
    if (wrong == PREFIX_STRING)
        gw_string(w, "tokenizer.ggml.add_space_prefix", "yes");
    if (wrong != SCORES_MISSING)
        gw_array(w, "tokenizer.ggml.scores", wrong == SCORES_BOOLS ? GGUF_BOOL : GGUF_F32, n,
                 tiny.score, wrong == SCORES_BOOLS ? n : 4 * n);
}

/* A file that is right but for @wrong (N_WRONG: entirely). */
static void build(struct gguf_writer *w, enum wrong wrong, bool scores) {
    gw_init(w);
    if (scores)
        tiny_scores(&tiny);
    else
        tiny_bytes(&tiny);
    if (wrong == MODEL_NUMBER)
        gw_u32(w, "tokenizer.ggml.model", 1);
    else if (wrong != MODEL_MISSING)
        gw_string(w, "tokenizer.ggml.model",
                  wrong == MODEL_UNKNOWN ? "rwkv"
                  : scores               ? "llama"
                                         : "gpt2");
    if (wrong == PRE_NUMBER)
        gw_u32(w, "tokenizer.ggml.pre", 1);
    else if (wrong != PRE_MISSING)
        gw_string(w, "tokenizer.ggml.pre",
                  wrong == PRE_UNKNOWN  ? "best-bpe"
                  : wrong == PRE_BINARY ? "a\nb\x1B\xFF"
                                          "c"
                                        : "qwen2");
    put_tokens(w, wrong);
    if (scores)
        put_scores(w, wrong);
    else
        put_merges(w, wrong);
    gw_u32(w, "tokenizer.ggml.eos_token_id", wrong == EOS_OUT_OF_RANGE ? tiny.n : 2);
    if (wrong == BOS_MINUS_ONE)
        gw_u32(w, "tokenizer.ggml.bos_token_id", UINT32_MAX);
    if (wrong == EOT_STRING)
        gw_string(w, "tokenizer.ggml.eot_token_id", "2");
    if (wrong == ADD_BOS_NUMBER)
        gw_u32(w, "tokenizer.ggml.add_bos_token", 1);
}

ParameterizedTestParameters(text_hostile_vocab, is_refused_with_one_line) {
    return cr_make_param_array(struct row, rows, ARRAY_SIZE(rows));
}

ParameterizedTest(struct row *row, text_hostile_vocab, is_refused_with_one_line) {
    struct tokenizer *t = NULL;
    struct gguf_writer w;
    struct err err = {0};

    build(&w, row->wrong, row->wrong >= SCORES_MISSING);
    cr_assert_eq(expect_load(&t, &w, &err), -EINVAL);
    cr_assert_eq(strncmp(err.message, row->message, strlen(row->message)), 0,
                 R"("%s", expected "%s")", err.message, row->message);
    cr_assert_null(t);
    for (const char *s = err.message; *s; s++)
        cr_assert(*s >= ' ' && *s <= '~');
    gw_deinit(&w);
}

Test(text_hostile_vocab, every_error_is_tried) {
    cr_assert_eq(ARRAY_SIZE(rows), N_WRONG);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        cr_assert_eq(rows[i].wrong, i);
}

/* Opens what it can; the texts are those that the vocabularies speak about. */
static void try_file(const void *data, size_t len, const char *path, size_t *n_used) {
    static const char text[] = "hello world <|im_end|> 12 \xC3\xA9\xFF\n\n\n</s> hellohello";
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    struct tokens out = {0};
    struct err err = {0};
    struct buf b;
    int r;

    gw_save_bytes(path, data, len);
    if (gguf_open(&g, path, &err) < 0)
        return;
    r = tokenizer_new(&t, g, &err);
    if (r < 0) {
        cr_assert(r == -EINVAL && err.message[0] && !strchr(err.message, '\n'));
        return;
    }
    (*n_used)++;
    cr_assert_eq(
        tokenizer_encode(t, text, sizeof(text), TOKENIZE_SPECIAL | TOKENIZE_BOS, NULL, 0, &out), 0);
    for (size_t i = 0; i < out.n; i++)
        cr_assert(out.id[i] >= 0 && (uint32_t)out.id[i] < tokenizer_n_vocab(t));
    buf_init(&b, 1 << 20);
    cr_assert_eq(tokenizer_decode(t, out.id, out.n, true, &b), 0);
    buf_deinit(&b);
    tokens_deinit(&out);
}

static void mutate(bool scores, uint64_t seed) {
    static const uint64_t values[] = {0, 1, 2, 5, 255, 272, 1000, UINT32_MAX, UINT64_MAX / 2};
    char path[] = "/tmp/weft-test-hostile-XXXXXX";
    int fd = mkstemp(path);
    struct gguf_writer w;
    struct rng r = {seed};
    size_t n_used = 0, n = 0;

    cr_assert_geq(fd, 0);
    close(fd);
    build(&w, N_WRONG, scores);
    gw_finish(&w);
    try_file(w.file.data, w.file.len, path, &n_used);
    cr_assert_eq(n_used, 1, "the file is right before it is changed");
    CLEANUP(freep) char *copy = malloc(w.file.len);

    /* Every integer: each value for the first ones, one for the lengths of strings in the
     * arrays. */
    for (size_t i = 0; i < w.n_fields; i++) {
        size_t first = i < 40 ? 0 : rng_below(&r, ARRAY_SIZE(values));
        size_t last = i < 40 ? ARRAY_SIZE(values) : first + 1;

        for (size_t k = first; k < last; k++, n++) {
            memcpy(copy, w.file.data, w.file.len);
            memcpy(copy + w.field[i].at, &values[k], w.field[i].bytes);
            try_file(copy, w.file.len, path, &n_used);
        }
    }
    /* Bytes anywhere: texts, types, scores, merges. */
    for (int i = 0; i < 1500; i++, n++) {
        memcpy(copy, w.file.data, w.file.len);
        for (uint32_t k = 1 + rng_below(&r, 3); k > 0; k--)
            copy[rng_below(&r, (uint32_t)w.file.len)] = (char)rng_next(&r);
        try_file(copy, w.file.len, path, &n_used);
    }
    cr_assert(n_used > 20 && n_used < n, "%zu of %zu", n_used, n);
    unlink(path);
    gw_deinit(&w);
}

Test(text_hostile_vocab, changed_bpe_files_do_no_harm, .timeout = 60) {
    mutate(false, 11);
}

Test(text_hostile_vocab, changed_sentencepiece_files_do_no_harm, .timeout = 60) {
    mutate(true, 12);
}

Test(text_hostile_vocab, empty_tokens_are_harmless) {
    struct tokenizer *t = NULL;
    struct gguf_writer w;
    struct err err = {0};
    size_t len;

    gw_init(&w);
    tiny_bytes(&tiny);
    tiny_add(&tiny, "", TOKEN_CONTROL, 0);
    tiny_add(&tiny, "", TOKEN_NORMAL, 0);
    tiny_put(&tiny, &w, "gpt2", "gpt-2");
    cr_assert_eq(expect_load(&t, &w, &err), 0, "%s", err.message);
    struct tokens got = expect_encode(t, "a<b", 3, TOKENIZE_SPECIAL);

    cr_assert_eq(got.n, 3);
    tokenizer_piece(t, (int32_t)tiny.n - 1, true, &len);
    cr_assert_eq(len, 0);
    tokens_deinit(&got);
    tokenizer_free(t);
    gw_deinit(&w);
}

/* Tokens that are each other's prefixes: the cuts of all of them are tried. */
Test(text_hostile_vocab, many_long_tokens_load_in_time, .timeout = 60) {
    enum { N = 2000 };
    static char texts[N][TOKEN_TEXT_MAX + 1];
    static const char *token[N];
    static float score[N];
    struct tokenizer *t = NULL;
    struct gguf_writer w;
    struct err err = {0};

    for (size_t i = 0; i < N; i++) {
        memset(texts[i], i < TOKEN_TEXT_MAX ? 'a' : 'b', 1 + i % TOKEN_TEXT_MAX);
        token[i] = texts[i];
    }
    gw_init(&w);
    gw_string(&w, "tokenizer.ggml.model", "llama");
    gw_strings(&w, "tokenizer.ggml.tokens", N, token);
    gw_array(&w, "tokenizer.ggml.scores", GGUF_F32, N, score, sizeof(score));
    cr_assert_eq(expect_load(&t, &w, &err), 0, "%s", err.message);
    tokenizer_free(t);
    gw_deinit(&w);
}
