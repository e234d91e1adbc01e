/*
 * Ids of other implementations, for every text of every vocabulary, and the way back.
 */

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "base/buf.h"
#include "tests/support/test_data.h"
#include "tests/text/expect.h"
#include "text/tokenizer_private.h"

static const char separator[] = "\n__ggml_vocab_test__\n";

struct name {
    char text[24];
};

static struct name all[] = {{"gpt-2"},     {"llama-bpe"}, {"qwen2"},  {"qwen35"},
                            {"llama-spm"}, {"phi-3"},     {"gemma-4"}};
static struct name with_extra[] = {{"gpt-2"}, {"llama-bpe"}, {"qwen2"}, {"qwen35"}, {"llama-spm"}};

static struct tokenizer *open_vocab(const char *name) {
    char file[64];

    snprintf(file, sizeof(file), "ggml-vocab-%s.gguf", name);
    return expect_tokenizer(expect_data("vocab", file));
}

/* llama.cpp never normalises: its ids of text that is not in NFC are compared without that step. */
static bool set_nfc(struct tokenizer *t, bool on) {
    bool before = t->nfc;

    t->nfc = on;
    return before;
}

static bool is_nfc(const char *text, size_t len) {
    struct buf b;
    bool changed;

    buf_init(&b, 1 << 24);
    cr_assert_eq(unicode_nfc(text, len, &b, &changed), 0);
    buf_deinit(&b);
    return !changed;
}

/* The numbers of one line. */
static size_t read_line(const char **at, int32_t *ids, size_t max) {
    size_t n = 0;
    const char *s = *at;

    while (*s && *s != '\n') {
        char *end;

        cr_assert_lt(n, max);
        ids[n++] = (int32_t)strtol(s, &end, 10);
        for (s = end; *s == ' ';)
            s++;
    }
    *at = s + (*s == '\n');
    return n;
}

static void check_way_back(const struct tokenizer *t, const char *text, size_t len,
                           const struct tokens *ids) {
    struct buf got;

    buf_init(&got, 1 << 24);
    cr_assert_eq(tokenizer_decode(t, ids->id, ids->n, false, &got), 0);
    cr_assert_eq(got.len, len, "%s", text);
    cr_assert(got.len == 0 || memcmp(got.data, text, got.len) == 0, "%s", text);
    buf_deinit(&got);
}

/* Encodes as llama.cpp does: without normalising; when the text is in NFC, normalising changes
 * nothing. */
static void check_text(struct tokenizer *t, const char *text, size_t len, unsigned flags,
                       const int32_t *want, size_t n_want, const char *what) {
    bool nfc = set_nfc(t, false);
    struct tokens got = expect_encode(t, text, len, flags);

    expect_ids(&got, want, n_want, what);
    if (!flags)
        check_way_back(t, text, len, &got);
    tokens_deinit(&got);
    set_nfc(t, nfc);
    if (!nfc || !is_nfc(text, len))
        return;
    got = expect_encode(t, text, len, flags);
    expect_ids(&got, want, n_want, what);
    tokens_deinit(&got);
}

ParameterizedTestParameters(text_vocabularies, ids_are_llama_cpps) {
    return cr_make_param_array(struct name, all, ARRAY_SIZE(all));
}

ParameterizedTest(struct name *name, text_vocabularies, ids_are_llama_cpps) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_vocab(name->text);
    char file[64];
    size_t len, n_texts = 0;
    int32_t want[4096];

    snprintf(file, sizeof(file), "ggml-vocab-%s.gguf.inp", name->text);
    CLEANUP(freep) char *inp = expect_read(expect_data("vocab", file), &len);
    snprintf(file, sizeof(file), "ggml-vocab-%s.gguf.out", name->text);
    CLEANUP(freep) char *out = expect_read(expect_data("vocab", file), &len);
    const char *line = out;

    for (char *text = inp; text; n_texts++) {
        char *end = strstr(text, separator);
        size_t n = end ? (size_t)(end - text) : strlen(text);
        size_t n_want = read_line(&line, want, ARRAY_SIZE(want));
        char what[64];

        snprintf(what, sizeof(what), "%s, text %zu", name->text, n_texts);
        check_text(t, text, n, 0, want, n_want, what);
        text = end ? end + strlen(separator) : NULL;
    }
    cr_assert_geq(n_texts, 46);
}

static size_t read_ids(yyjson_val *array, int32_t *ids, size_t max) {
    size_t n = yyjson_arr_size(array);

    cr_assert_leq(n, max);
    for (size_t i = 0; i < n; i++)
        ids[i] = yyjson_get_int(yyjson_arr_get(array, i));
    return n;
}

static void check_extra(struct tokenizer *t, yyjson_val *o) {
    static int32_t want[65536];
    yyjson_val *special = yyjson_obj_get(o, "ids_parse_special"),
               *after_nfc = yyjson_obj_get(o, "ids_after_nfc");
    const char *name = yyjson_get_str(yyjson_obj_get(o, "name"));
    yyjson_val *text_val = yyjson_obj_get(o, "text");
    const char *text = yyjson_get_str(text_val);
    size_t len = yyjson_get_len(text_val);
    size_t n = read_ids(yyjson_obj_get(o, "ids"), want, ARRAY_SIZE(want));

    check_text(t, text, len, 0, want, n, name);
    if (special)
        n = read_ids(special, want, ARRAY_SIZE(want));
    check_text(t, text, len, TOKENIZE_SPECIAL, want, n, name);
    if (after_nfc) {
        struct tokens got = expect_encode(t, text, len, 0);

        n = read_ids(after_nfc, want, ARRAY_SIZE(want));
        expect_ids(&got, want, n, name);
        tokens_deinit(&got);
    }
}

ParameterizedTestParameters(text_vocabularies, extra_texts) {
    return cr_make_param_array(struct name, with_extra, ARRAY_SIZE(with_extra));
}

ParameterizedTest(struct name *name, text_vocabularies, extra_texts) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_vocab(name->text);
    char file[64];
    size_t len, n = 0;

    snprintf(file, sizeof(file), "extra/%s.jsonl", name->text);
    CLEANUP(freep) char *data = expect_read(expect_data("vocab", file), &len);
    for (char *line = data, *end; *line; line = end + 1, n++) {
        yyjson_doc *doc;

        end = strchr(line, '\n');
        cr_assert_not_null(end);
        doc = yyjson_read(line, (size_t)(end - line), 0);
        cr_assert_not_null(doc);
        check_extra(t, yyjson_doc_get_root(doc));
        yyjson_doc_free(doc);
    }
    cr_assert_geq(n, 80);
}

/* Phi-3's special tokens take the white space behind them, but for three. */
Test(text_vocabularies, special_tokens_of_phi3_swallow_white_space) {
    static const char chat[] =
        "<|system|>\nBe.<|end|>\n<|user|>\n  Hi \n<|end|> \t\n<|assistant|>\n";
    static const int32_t chat_ids[] = {1,    32006, 1522, 29889, 32007, 32010,
                                       6324, 29871, 13,   32007, 32001};
    static const char others[] = "<s> x</s> \n y<|endoftext|> z";
    static const int32_t others_ids[] = {1, 29871, 921, 2, 343, 32000, 29871, 503};
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_vocab("phi-3");
    struct tokens got = expect_encode(t, chat, strlen(chat), TOKENIZE_BOS | TOKENIZE_SPECIAL);

    expect_ids(&got, chat_ids, ARRAY_SIZE(chat_ids), chat);
    tokens_deinit(&got);
    got = expect_encode(t, others, strlen(others), TOKENIZE_SPECIAL);
    expect_ids(&got, others_ids, ARRAY_SIZE(others_ids), others);
    tokens_deinit(&got);
}

/* Gemma 4's </s> is a tag of HTML, no special token. */
Test(text_vocabularies, tags_of_gemma4_are_text) {
    static const char chat[] = "<|turn>user\n<s>a</s><turn|>\n";
    static const int32_t ids[] = {2,      105, 2364,   107,    236820, 236751, 236813,
                                  236746, 954, 236751, 236813, 106,    107};
    CLEANUP(tokenizer_freep) struct tokenizer *t = open_vocab("gemma-4");
    struct tokens got = expect_encode(t, chat, strlen(chat), TOKENIZE_BOS | TOKENIZE_SPECIAL);

    expect_ids(&got, ids, ARRAY_SIZE(ids), chat);
    tokens_deinit(&got);
    cr_assert(!tokenizer_is_end(t, 212));
    cr_assert(!tokenizer_is_special(t, 212));
}

/* The larger sets have all of them, tests/data the first. */
static struct name models[] = {{"stories260K-f32"}, {"stories15M-q8_0"}, {"minimind2-small-q8_0"}};

/* A prompt's ids, and the text of what the model answered: pieces one by one, as a stream gives
 * them. */
static void check_case(const struct tokenizer *t, yyjson_val *c) {
    static int32_t want[4096];
    yyjson_val *prompt = yyjson_obj_get(c, "rendered"), *greedy = yyjson_obj_get(c, "greedy");
    yyjson_val *text = yyjson_obj_get(c, "text");
    size_t n = read_ids(yyjson_obj_get(c, "prompt_ids"), want, ARRAY_SIZE(want));
    struct tokens got;
    struct buf b;

    if (!prompt)
        prompt = yyjson_obj_get(c, "prompt_text");
    cr_assert_not_null(prompt);
    got = expect_encode(t, yyjson_get_str(prompt), yyjson_get_len(prompt),
                        TOKENIZE_BOS | TOKENIZE_SPECIAL);
    expect_ids(&got, want, n, yyjson_get_str(prompt));
    tokens_deinit(&got);
    buf_init(&b, 1 << 20);
    for (size_t i = 0; i < yyjson_arr_size(greedy); i++) {
        size_t len;
        int32_t id = yyjson_get_int(yyjson_obj_get(yyjson_arr_get(greedy, i), "id"));
        const char *piece = tokenizer_piece(t, id, false, &len);

        cr_assert_eq(buf_add(&b, piece, len), 0);
    }
    cr_assert_eq(b.len, yyjson_get_len(text));
    cr_assert(b.len == 0 || memcmp(b.data, yyjson_get_str(text), b.len) == 0);
    buf_deinit(&b);
}

ParameterizedTestParameters(text_vocabularies, prompts_and_answers_of_models) {
    return cr_make_param_array(struct name, models, test_data_is_larger() ? ARRAY_SIZE(models) : 1);
}

ParameterizedTest(struct name *name, text_vocabularies, prompts_and_answers_of_models) {
    char file[64];
    size_t len;

    snprintf(file, sizeof(file), "%s.gguf", name->text);
    CLEANUP(tokenizer_freep) struct tokenizer *t = expect_tokenizer(expect_data("models", file));

    snprintf(file, sizeof(file), "%s.golden.json", name->text);
    CLEANUP(freep) char *json = expect_read(expect_data("models", file), &len);
    yyjson_doc *doc = yyjson_read(json, len, 0);
    yyjson_val *cases = yyjson_obj_get(yyjson_doc_get_root(doc), "cases");

    cr_assert_geq(yyjson_arr_size(cases), 10);
    for (size_t i = 0; i < yyjson_arr_size(cases); i++)
        check_case(t, yyjson_arr_get(cases, i));
    yyjson_doc_free(doc);
}
