/*
 * Duplicates: tokens with the text of another token, in every kind of vocabulary. Encoding takes
 * one of them, decoding knows all, and all duplicates of an end are ends.
 */

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <errno.h>
#include <string.h>

#include "tests/text/expect.h"
#include "tests/text/tiny.h"

struct kind {
    char model[16], pre[8];
    /* text of a token that encoding makes of "hello" */
    char word[16];
    /* text of a control token that is searched in trusted text */
    char control[16];
    /* text of a control token that ends a generation */
    char end[16];
};

static struct kind kinds[] = {
    {"gpt2", "gpt-2", "hello", "<|im_start|>", "<|im_end|>"},
    {"gemma4", "", "hello", "<s>", "</s>"},
    {"llama", "", SPACE_MARK "hello", "<s>", "</s>"},
    {"t5", "", SPACE_MARK "hello", "<s>", "</s>"},
    {"bert", "", SPACE_MARK "hello", "[CLS]", "</s>"},
};

static struct tiny tiny;

static void begin(const struct kind *k) {
    if (strcmp(k->model, "gpt2") == 0)
        tiny_bytes(&tiny);
    else
        tiny_scores(&tiny);
    if (strcmp(k->model, "bert") == 0) {
        tiny_add(&tiny, "[CLS]", TOKEN_CONTROL, 0);
        tiny_add(&tiny, "[SEP]", TOKEN_CONTROL, 0);
        tiny_add(&tiny, "[UNK]", TOKEN_UNKNOWN, 0);
    }
    if (strcmp(k->model, "gemma4") == 0) {
        tiny_merge(&tiny, "h", "e");
        tiny_merge(&tiny, "l", "l");
        tiny_merge(&tiny, "he", "ll");
        tiny_merge(&tiny, "hell", "o");
    }
}

static struct tokenizer *finish(const struct kind *k) {
    struct tokenizer *t = NULL;
    struct gguf_writer w;
    struct err err = {0};

    gw_init(&w);
    tiny_put(&tiny, &w, k->model, *k->pre ? k->pre : NULL);
    cr_assert_eq(expect_load(&t, &w, &err), 0, "%s: %s", k->model, err.message);
    gw_deinit(&w);
    return t;
}

static bool has(const struct tokens *ids, int32_t id) {
    for (size_t i = 0; i < ids->n; i++)
        if (ids->id[i] == id)
            return true;
    return false;
}

static int32_t find(const char *text) {
    for (uint32_t i = 0; i < tiny.n; i++)
        if (strcmp(tiny.token[i], text) == 0)
            return (int32_t)i;
    cr_assert_fail("no token %s", text);
    return -1;
}

/* Checks that @text becomes @id and not @other, and that both give the same bytes. */
static void expect_one(const struct tokenizer *t, const char *text, int32_t id, int32_t other) {
    struct tokens got = expect_encode(t, text, strlen(text), TOKENIZE_SPECIAL);
    size_t n, m;

    cr_assert(has(&got, id), "%s does not become %d", text, id);
    cr_assert_not(has(&got, other), "%s becomes %d", text, other);
    const char *a = tokenizer_piece(t, id, true, &n), *b = tokenizer_piece(t, other, true, &m);

    cr_assert(n > 0 && n == m && memcmp(a, b, n) == 0, "%d and %d", id, other);
    tokens_deinit(&got);
}

ParameterizedTestParameters(text_duplicates, encoding_takes_the_last_and_decoding_knows_all) {
    return cr_make_param_array(struct kind, kinds, ARRAY_SIZE(kinds));
}

ParameterizedTest(struct kind *k, text_duplicates, encoding_takes_the_last_and_decoding_knows_all) {
    begin(k);
    int32_t word = find(k->word), control = find(k->control);
    int32_t middle = tiny_add(&tiny, k->word, TOKEN_NORMAL, 0);
    int32_t last = tiny_add(&tiny, k->word, TOKEN_NORMAL, -50);
    int32_t last_control = tiny_add(&tiny, k->control, TOKEN_CONTROL, 0);
    CLEANUP(tokenizer_freep) struct tokenizer *t = finish(k);

    cr_assert_eq(tokenizer_n_duplicates(t), 3);
    expect_one(t, "hello", last, word);
    expect_one(t, "hello", last, middle);
    expect_one(t, k->control, last_control, control);
    cr_assert_eq(tokenizer_find(t, k->word, strlen(k->word)), last);
    cr_assert_eq(tokenizer_find(t, k->control, strlen(k->control)), last_control);
}

ParameterizedTestParameters(text_duplicates, all_duplicates_of_an_end_are_ends) {
    return cr_make_param_array(struct kind, kinds, ARRAY_SIZE(kinds));
}

ParameterizedTest(struct kind *k, text_duplicates, all_duplicates_of_an_end_are_ends) {
    begin(k);
    int32_t end = find(k->end);
    int32_t second = tiny_add(&tiny, k->end, TOKEN_NORMAL, 0);
    int32_t third = tiny_add(&tiny, k->end, TOKEN_CONTROL, 0);
    CLEANUP(tokenizer_freep) struct tokenizer *t = finish(k);
    struct tokens user = expect_encode(t, k->end, strlen(k->end), 0);

    cr_assert(tokenizer_is_end(t, end) && tokenizer_is_special(t, end));
    cr_assert(tokenizer_is_end(t, second) && tokenizer_is_special(t, second));
    cr_assert(tokenizer_is_end(t, third) && tokenizer_is_special(t, third));
    cr_assert_not(has(&user, end) || has(&user, second) || has(&user, third));
    tokens_deinit(&user);
}

/* A control token does not take a text away from the token that merging makes, wherever it is. */
ParameterizedTestParameters(text_duplicates, a_control_token_does_not_hide_a_word) {
    return cr_make_param_array(struct kind, kinds, ARRAY_SIZE(kinds));
}

ParameterizedTest(struct kind *k, text_duplicates, a_control_token_does_not_hide_a_word) {
    begin(k);
    int32_t word = find(k->word);
    int32_t control = tiny_add(&tiny, k->word, TOKEN_CONTROL, 0);
    CLEANUP(tokenizer_freep) struct tokenizer *t = finish(k);
    struct tokens user = expect_encode(t, "hello", 5, 0);

    cr_assert(has(&user, word));
    cr_assert_not(has(&user, control));
    cr_assert_eq(tokenizer_find(t, k->word, strlen(k->word)), control);
    tokens_deinit(&user);
}

/* A text token that looks like a byte does not spell the byte. */
Test(text_duplicates, bytes_stay_bytes) {
    begin(&kinds[2]);
    int32_t byte = find("<0xC3>"), text = tiny_add(&tiny, "<0xC3>", TOKEN_NORMAL, 0);
    CLEANUP(tokenizer_freep) struct tokenizer *t = finish(&kinds[2]);
    struct tokens got = expect_encode(t, "\xC3", 1, 0);

    cr_assert(has(&got, byte));
    cr_assert_not(has(&got, text));
    tokens_deinit(&got);
}

/* A special token that looks like a byte spells nothing: a user's text would write it. */
Test(text_duplicates, special_tokens_are_no_bytes) {
    static const uint8_t types[] = {TOKEN_USER, TOKEN_CONTROL, TOKEN_UNKNOWN};

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        begin(&kinds[2]);
        int32_t id = find("<0xC3>");

        tiny.type[id] = types[i];
        CLEANUP(tokenizer_freep) struct tokenizer *t = finish(&kinds[2]);
        struct tokens got = expect_encode(t, "\xC3", 1, 0);

        cr_expect_not(has(&got, id), "type %d", types[i]);
        tokens_deinit(&got);
    }
}

Test(text_duplicates, the_duplicates_of_ends_are_bounded) {
    struct tokenizer *t = NULL;
    struct gguf_writer w;
    struct err err = {0};

    tiny_bytes(&tiny);
    for (int i = 0; i < 65; i++)
        tiny_add(&tiny, "<|im_end|>", TOKEN_CONTROL, 0);
    gw_init(&w);
    tiny_put(&tiny, &w, "gpt2", "gpt-2");
    cr_assert_eq(expect_load(&t, &w, &err), -EINVAL);
    cr_assert(strstr(err.message, "more than 64 times"), "%s", err.message);
    gw_deinit(&w);
}

/* Pruned vocabularies keep merges of tokens that they lack. */
Test(text_duplicates, merges_without_tokens_are_skipped_and_counted) {
    static char big[TOKEN_TEXT_MAX + 8];
    static const char *const unknown[] = {"he xyz", "xyz he", "x y", big};

    begin(&kinds[0]);
    memset(big, 'y', sizeof(big) - 1);
    big[5] = ' ';
    for (size_t i = 0; i < ARRAY_SIZE(unknown); i++) {
        memmove(&tiny.merge[1], &tiny.merge[0], tiny.n_merges++ * sizeof(tiny.merge[0]));
        tiny.merge[0] = unknown[i];
    }
    CLEANUP(tokenizer_freep) struct tokenizer *t = finish(&kinds[0]);
    struct tokens got = expect_encode(t, "hello", 5, 0);

    cr_assert_eq(tokenizer_n_skipped_merges(t), ARRAY_SIZE(unknown));
    expect_ids(&got, (int32_t[]){find("hello")}, 1, "hello");
    tokens_deinit(&got);
}
