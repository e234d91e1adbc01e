/* The contract of text/tokenizer.h with vocabularies that the test writes itself. */

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/rng.h"
#include "tests/support/few.h"
#include "tests/text/expect.h"
#include "tests/text/tiny.h"

static struct tiny tiny;

static struct tokenizer *load(struct gguf_writer *w) {
    struct tokenizer *t = NULL;
    struct err err = {0};

    cr_assert_eq(expect_load(&t, w, &err), 0, "%s", err.message);
    gw_deinit(w);
    return t;
}

static struct tokenizer *bytes_tokenizer(const char *pre) {
    struct gguf_writer w;

    gw_init(&w);
    tiny_bytes(&tiny);
    tiny_put(&tiny, &w, "gpt2", pre);
    gw_u32(&w, "tokenizer.ggml.eos_token_id", tiny.n - 6);
    gw_u32(&w, "tokenizer.ggml.bos_token_id", tiny.n - 6);
    return load(&w);
}

static struct tokenizer *scores_tokenizer(void) {
    struct gguf_writer w;

    gw_init(&w);
    tiny_scores(&tiny);
    tiny_put(&tiny, &w, "llama", NULL);
    return load(&w);
}

static int32_t id_of(const struct tokenizer *t, const char *text) {
    int32_t id = tokenizer_find(t, text, strlen(text));

    cr_assert_geq(id, 0, "%s", text);
    return id;
}

/* Encodes and compares with the texts of tokens, ending with NULL. */
static void check(const struct tokenizer *t, const char *text, unsigned flags,
                  const struct text_range *user, size_t n_user, const char *const *want) {
    struct tokens got = {0};
    int32_t ids[64];
    size_t n = 0;

    for (; want[n]; n++)
        ids[n] = id_of(t, want[n]);
    cr_assert_eq(tokenizer_encode(t, text, strlen(text), flags, user, n_user, &got), 0);
    expect_ids(&got, ids, n, text);
    tokens_deinit(&got);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SP "\xC4\xA0"

static void check_decode(const struct tokenizer *t, const struct tokens *ids, bool special,
                         const char *want, size_t len) {
    struct buf b;

    buf_init(&b, 1 << 24);
    cr_assert_eq(tokenizer_decode(t, ids->id, ids->n, special, &b), 0);
    cr_assert_eq(b.len, len, "%zu bytes, expected %zu", b.len, len);
    cr_assert(len == 0 || memcmp(b.data, want, len) == 0);
    buf_deinit(&b);
}

Test(text_tokenizer, words_merge_as_the_vocabulary_says) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = bytes_tokenizer("gpt-2");

    check(t, "hello world", 0, NULL, 0, LIST("hello", SP "wor", "l", "d"));
    check(t, "hellohello", 0, NULL, 0, LIST("hello", "hello"));
    check(t, "\xC3\xA9", 0, NULL, 0, LIST("\xC3\x83", "\xC2\xA9"));
    check(t, "", 0, NULL, 0, (const char *const[]){NULL});
    cr_assert_eq(tokenizer_n_vocab(t), tiny.n);
    cr_assert_eq(tokenizer_find(t, "hello!", 6), -1);
    cr_assert_eq(tokenizer_find(t, "", 0), -1);
    cr_assert_eq(tokenizer_text(t, id_of(t, "hello")).len, 5);
    cr_assert_eq(tokenizer_text(t, -1).len, 0);
    cr_assert_eq(tokenizer_text(t, (int32_t)tiny.n).len, 0);
}

static struct pre {
    char name[12];
} pres[] = {{"gpt-2"}, {"smollm"}, {"llama-bpe"}, {"qwen2"}, {"qwen35"}};

ParameterizedTestParameters(text_tokenizer, any_bytes_come_back) {
    return cr_make_param_array(struct pre, pres, ARRAY_SIZE(pres));
}

ParameterizedTest(struct pre *pre, text_tokenizer, any_bytes_come_back) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = bytes_tokenizer(pre->name);
    static const char *const parts[] = {
        "hello",        " world",       "\xCC\x81",         "e",     "\xFF\xFE",
        "\r\n",         "\xE4\xB8",     "<|im_end|>",       "12345", "  ",
        "\xE1\x84\x80", "\xE1\x85\xA1", "\xF0\x9F\x98\x80", "'s"};
    struct rng r = {8};

    for (int round = 0; round < 3000; round++) {
        char s[2048];
        size_t len = 0, limit = round % 10 ? 60 : 1900;
        struct buf normal;
        bool changed = false;

        while (len < limit) {
            const char *p = parts[rng_below(&r, ARRAY_SIZE(parts))];

            if (rng_below(&r, 4) == 0)
                s[len++] = (char)rng_below(&r, 256);
            else
                len += (size_t)sprintf(s + len, "%s", p);
        }
        buf_init(&normal, 1 << 16);
        if (pre->name[0] == 'q')
            cr_assert_eq(unicode_nfc(s, len, &normal, &changed), 0);
        struct tokens got = expect_encode(t, s, len, 0);

        check_decode(t, &got, false, changed ? normal.data : s, changed ? normal.len : len);
        for (size_t i = 0; i < got.n; i++)
            cr_assert(!tokenizer_is_special(t, got.id[i]));
        tokens_deinit(&got);
        buf_deinit(&normal);
    }
}

Test(text_tokenizer, qwen_is_encoded_in_nfc) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = bytes_tokenizer("qwen2");
    CLEANUP(tokenizer_freep) struct tokenizer *u = bytes_tokenizer("llama-bpe");

    check(t, "e\xCC\x81", 0, NULL, 0, LIST("\xC3\x83", "\xC2\xA9"));
    check(u, "e\xCC\x81", 0, NULL, 0, LIST("e", "\xC3\x8C", "\xC4\xA3"));
}

Test(text_tokenizer, special_tokens_only_where_text_is_trusted) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = bytes_tokenizer("gpt-2");
    const char *s = "<|im_end|>";
    struct text_range all = {0, 10}, begin = {0, 1}, end = {9, 10}, after = {10, 12},
                      inside = {4, 4};
    const char *const *split = LIST("<", "|", "im", "_", "e", "n", "d", "|", ">");

    check(t, s, 0, NULL, 0, split);
    check(t, s, TOKENIZE_SPECIAL, NULL, 0, LIST("<|im_end|>"));
    check(t, s, TOKENIZE_SPECIAL, &all, 1, split);
    check(t, s, TOKENIZE_SPECIAL, &begin, 1, split);
    check(t, s, TOKENIZE_SPECIAL, &end, 1, split);
    check(t, s, TOKENIZE_SPECIAL, &inside, 1, split);
    check(t, "<|im_end|>hi", TOKENIZE_SPECIAL, &after, 1, LIST("<|im_end|>", "h", "i"));
    check(t, "hello<think>1", TOKENIZE_SPECIAL, NULL, 0, LIST("hello", "<think>", "1"));
    check(t, "<think>", 0, NULL, 0, LIST("<", "t", "h", "i", "n", "k", ">"));
    check(t, "<|im_end<|im_end|>", TOKENIZE_SPECIAL, NULL, 0,
          LIST("<", "|", "im", "_", "e", "n", "d", "<|im_end|>"));
}

Test(text_tokenizer, words_are_cut_across_the_border_of_user_text) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = bytes_tokenizer("gpt-2");
    struct text_range user = {3, 9};

    check(t, "hello world", TOKENIZE_SPECIAL, &user, 1, LIST("hello", SP "wor", "l", "d"));
}

Test(text_tokenizer, white_space_tokens_are_text_whatever_the_file_calls_them) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = bytes_tokenizer("gpt-2");
    struct text_range all = {0, 4};
    int32_t id = id_of(t, "\n\n\n");
    size_t len;

    check(t, "a\n\n\n", TOKENIZE_SPECIAL, &all, 1, LIST("a", "\n\n\n"));
    check(t, "a\n\n\n", 0, NULL, 0, LIST("a", "\n\n\n"));
    cr_assert(!tokenizer_is_special(t, id));
    cr_assert_eq(memcmp(tokenizer_piece(t, id, false, &len), "\n\n\n", 3), 0);
    cr_assert_eq(len, 3);
}

/* Random mixtures of special texts, with random user ranges. A byte-level piece is as long as its
 * text, so the place of every token is known. */
Test(text_tokenizer, user_ranges_never_yield_special_tokens) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = bytes_tokenizer("llama-bpe");
    static const char *const parts[] = {"<|im_end|>", "<|im_start|>",  "<|",    "im_end",
                                        "|>",         "<think>",       "hello", " ",
                                        "</think>",   "<|endoftext|>", "<|im_"};
    struct rng r = {9};
    size_t n_special = 0;

    for (int round = 0; round < 5000; round++) {
        char s[400] = "";
        struct text_range user[20];
        size_t n_user = 0, at = 0, k = 0, len;
        struct tokens got = {0};

        for (uint32_t i = rng_below(&r, 16); i > 0; i--)
            strcat(s, parts[rng_below(&r, ARRAY_SIZE(parts))]);
        len = strlen(s);
        while (n_user < 20 && (at += rng_below(&r, 30)) < len) {
            size_t end = at + rng_below(&r, 20);

            user[n_user++] = (struct text_range){at, MIN(end, len)};
            at = end;
        }
        cr_assert_eq(tokenizer_encode(t, s, len, TOKENIZE_SPECIAL, user, n_user, &got), 0);
        at = 0;
        for (size_t i = 0; i < got.n; i++) {
            size_t n;
            const char *piece = tokenizer_piece(t, got.id[i], true, &n);

            cr_assert_eq(memcmp(piece, s + at, n), 0);
            if (tokenizer_is_special(t, got.id[i])) {
                n_special++;
                for (k = 0; k < n_user; k++)
                    cr_assert(user[k].end <= at || user[k].begin >= at + n);
            }
            at += n;
        }
        cr_assert_eq(at, len);
        tokens_deinit(&got);
    }
    cr_assert_gt(n_special, 1000);
}

Test(text_tokenizer, pieces_of_control_tokens_are_hidden) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = bytes_tokenizer("gpt-2");
    const char *s = "hello<|im_end|><think>";
    struct tokens got = expect_encode(t, s, strlen(s), TOKENIZE_SPECIAL);
    size_t len = 9;

    check_decode(t, &got, false, "hello<think>", 12);
    check_decode(t, &got, true, s, strlen(s));
    cr_assert(tokenizer_is_special(t, got.id[1]));
    cr_assert(tokenizer_is_special(t, got.id[2]));
    tokens_deinit(&got);
    tokenizer_piece(t, (int32_t)tiny.n, true, &len);
    cr_assert_eq(len, 0);
    tokenizer_piece(t, -1, true, &len);
    cr_assert_eq(len, 0);
}

Test(text_tokenizer, long_texts_are_encoded_like_their_words) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = bytes_tokenizer("gpt-2");
    struct rng r = {10};
    char s[20000];
    size_t len = 0;
    struct tokens whole, pieces = {0};

    while (len < sizeof(s) - 64) {
        size_t begin = len, n = 1 + rng_below(&r, 30);

        s[len++] = ' ';
        for (size_t i = 0; i < n; i++)
            s[len++] = "helowrim"[rng_below(&r, 8)];
        cr_assert_eq(tokenizer_encode(t, s + begin, len - begin, 0, NULL, 0, &pieces), 0);
    }
    whole = expect_encode(t, s, len, 0);
    expect_ids(&whole, pieces.id, pieces.n, "cached words");
    tokens_deinit(&whole);
    tokens_deinit(&pieces);
}

Test(text_tokenizer, llama3_keeps_words_that_are_tokens) {
    struct gguf_writer w;

    tiny_bytes(&tiny);
    tiny_add(&tiny, "zig", TOKEN_NORMAL, 0); /* no merge makes it */
    gw_init(&w);
    tiny_put(&tiny, &w, "gpt2", "llama-bpe");
    CLEANUP(tokenizer_freep) struct tokenizer *t = load(&w);

    check(t, "zig zig", 0, NULL, 0, LIST("zig", SP, "z", "i", "g"));
    gw_init(&w);
    tiny_put(&tiny, &w, "gpt2", "qwen2");
    CLEANUP(tokenizer_freep) struct tokenizer *u = load(&w);

    check(u, "zig", 0, NULL, 0, LIST("z", "i", "g"));
}

Test(text_tokenizer, merges_never_make_special_tokens) {
    struct gguf_writer w;

    tiny_bytes(&tiny);
    tiny_add(&tiny, "<x", TOKEN_CONTROL, 0);
    tiny_merge(&tiny, "<", "x");
    tiny_add(&tiny, "xy", TOKEN_USER, 0);
    tiny_merge(&tiny, "x", "y");
    gw_init(&w);
    tiny_put(&tiny, &w, "gpt2", "gpt-2");
    CLEANUP(tokenizer_freep) struct tokenizer *t = load(&w);

    check(t, "xy<x", 0, NULL, 0, LIST("x", "y", "<", "x"));
}

Test(text_tokenizer, sentencepiece_adds_and_takes_back_a_space) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = scores_tokenizer();
    static const char *const texts[] = {"hello",
                                        " hello",
                                        "  hello  world ",
                                        "",
                                        " ",
                                        "\xF0\x9F\x98\x80\n",
                                        "a\xFF"
                                        "b",
                                        "\xE4\xB8\xAD\xE6\x96\x87"};

    check(t, "hello", 0, NULL, 0, LIST(SPACE_MARK "hello"));
    check(t, "\xC3\xA9?", 0, NULL, 0, LIST(SPACE_MARK, "\xC3\xA9", "<0x3F>"));
    check(t, "<s>hello", TOKENIZE_SPECIAL, NULL, 0, LIST("<s>", SPACE_MARK "hello"));
    check(t, "hello</s>hello", TOKENIZE_SPECIAL, NULL, 0,
          LIST(SPACE_MARK "hello", "</s>", SPACE_MARK "hello"));
    check(t, "hello", TOKENIZE_BOS, NULL, 0, LIST("<s>", SPACE_MARK "hello"));
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        for (unsigned flags = 0; flags <= TOKENIZE_BOS; flags++) {
            struct tokens got = expect_encode(t, texts[i], strlen(texts[i]), flags);

            check_decode(t, &got, false, texts[i], strlen(texts[i]));
            tokens_deinit(&got);
        }
    }
}

/* No bytes in the vocabulary: one replacement for each character that cannot be said. */
Test(text_tokenizer, what_has_no_token_is_replaced) {
    struct gguf_writer w;

    tiny = (struct tiny){0};
    tiny_add(&tiny, "<unk>", TOKEN_UNKNOWN, 0);
    tiny_add(&tiny, "<s>", TOKEN_CONTROL, 0);
    tiny_add(&tiny, "</s>", TOKEN_CONTROL, 0);
    tiny_add(&tiny, "a", TOKEN_NORMAL, 0);
    gw_init(&w);
    tiny_put(&tiny, &w, "llama", NULL);
    gw_bool(&w, "tokenizer.ggml.add_space_prefix", 0);
    CLEANUP(tokenizer_freep) struct tokenizer *t = load(&w);

    check(t,
          "a\xE4\xB8\xAD"
          "a",
          0, NULL, 0, LIST("a", "<unk>", "a"));
    tiny_add(&tiny, "\xEF\xBF\xBD", TOKEN_NORMAL, 0);
    gw_init(&w);
    tiny_put(&tiny, &w, "llama", NULL);
    gw_bool(&w, "tokenizer.ggml.add_space_prefix", 0);
    CLEANUP(tokenizer_freep) struct tokenizer *u = load(&w);

    check(u, "a\xE4\xB8\xAD\xFF", 0, NULL, 0, LIST("a", "\xEF\xBF\xBD", "\xEF\xBF\xBD"));
}

Test(text_tokenizer, beginning_and_end_follow_the_metadata) {
    for (int bos = -1; bos <= 1; bos++) {
        for (int eos = -1; eos <= 1; eos++) {
            struct gguf_writer w;

            gw_init(&w);
            tiny_bytes(&tiny);
            tiny_put(&tiny, &w, "gpt2", bos < 0 ? "llama-bpe" : "gpt-2");
            gw_u32(&w, "tokenizer.ggml.bos_token_id", (uint32_t)'b');
            gw_u32(&w, "tokenizer.ggml.eos_token_id", (uint32_t)'e');
            if (bos >= 0)
                gw_bool(&w, "tokenizer.ggml.add_bos_token", (uint8_t)bos);
            if (eos >= 0)
                gw_bool(&w, "tokenizer.ggml.add_eos_token", (uint8_t)eos);
            CLEANUP(tokenizer_freep) struct tokenizer *t = load(&w);
            const char *want[4] = {NULL};
            size_t n = 0;

            /* llama 3 begins with BOS unless the file says otherwise */
            if (bos)
                want[n++] = "b";
            want[n++] = "x";
            if (eos == 1)
                want[n++] = "e";
            cr_assert_eq(tokenizer_adds_bos(t), bos != 0);
            cr_assert_eq(tokenizer_bos(t), 'b');
            cr_assert_eq(tokenizer_eos(t), 'e');
            check(t, "x", TOKENIZE_BOS, NULL, 0, want);
            check(t, "x", 0, NULL, 0, LIST("x"));
        }
    }
}

/* What a SentencePiece file does not say are its tokens 1 and 2, if they are controls; </s> would
 * be an end by its text. */
Test(text_tokenizer, beginning_and_end_of_sentencepiece_are_its_own_unless_said) {
    for (int said = 0; said < 2; said++)
        for (int controls = 0; controls < 2; controls++) {
            struct gguf_writer w;

            gw_init(&w);
            tiny_scores(&tiny);
            tiny.token[2] = "<end>";
            if (!controls)
                tiny.type[1] = tiny.type[2] = TOKEN_NORMAL;
            tiny_put(&tiny, &w, "llama", NULL);
            if (said) {
                gw_u32(&w, "tokenizer.ggml.bos_token_id", 10);
                gw_u32(&w, "tokenizer.ggml.eos_token_id", 11);
            }
            CLEANUP(tokenizer_freep) struct tokenizer *t = load(&w);
            cr_expect_eq(tokenizer_bos(t), said ? 10 : controls ? 1 : -1);
            cr_expect_eq(tokenizer_eos(t), said ? 11 : controls ? 2 : -1);
            cr_expect_eq(tokenizer_is_end(t, 2), !said && controls);
            cr_expect_eq(tokenizer_is_end(t, 11), said);
        }
}

static void check_ends(const struct tokenizer *t, const char *const *want) {
    size_t n, n_want = 0;
    const int32_t *ids = tokenizer_end_ids(t, &n);

    for (; want[n_want]; n_want++)
        cr_assert(tokenizer_is_end(t, id_of(t, want[n_want])), "%s", want[n_want]);
    cr_assert_eq(n, n_want);
    for (size_t i = 0; i < n; i++)
        cr_assert(tokenizer_is_end(t, ids[i]));
    cr_assert(!tokenizer_is_end(t, -1));
}

Test(text_tokenizer, every_known_end_ends_a_generation) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = bytes_tokenizer("qwen2");
    struct gguf_writer w;

    check_ends(t, LIST("<|endoftext|>", "<|im_end|>"));
    cr_assert(!tokenizer_is_end(t, id_of(t, "<|im_start|>")));

    /* gpt-oss: <|end|> closes a message, not the turn. eot by key; <|eot_id|> was called text. */
    tiny_bytes(&tiny);
    tiny_add(&tiny, "<|end|>", TOKEN_CONTROL, 0);
    tiny_add(&tiny, "<|return|>", TOKEN_CONTROL, 0);
    tiny_add(&tiny, "<|call|>", TOKEN_CONTROL, 0);
    tiny_add(&tiny, "<|eot_id|>", TOKEN_NORMAL, 0);
    gw_init(&w);
    tiny_put(&tiny, &w, "gpt2", "gpt-2");
    gw_u32(&w, "tokenizer.ggml.eot_token_id", 'x');
    CLEANUP(tokenizer_freep) struct tokenizer *u = load(&w);

    check_ends(u, LIST("<|endoftext|>", "<|im_end|>", "<|return|>", "<|call|>", "<|eot_id|>", "x"));
    cr_assert(tokenizer_is_special(u, id_of(u, "<|eot_id|>")));
    cr_assert_eq(tokenizer_bos(u), -1);
    cr_assert_eq(tokenizer_eos(u), -1);

    /* Solar: so does its <|end|>. Gemma 4: </s> is text. */
    tiny_bytes(&tiny);
    tiny_add(&tiny, "<|end|>", TOKEN_CONTROL, 0);
    tiny_add(&tiny, "<|flush|>", TOKEN_CONTROL, 0);
    tiny_add(&tiny, "<|calls|>", TOKEN_CONTROL, 0);
    tiny_add(&tiny, "</s>", TOKEN_NORMAL, 0);
    tiny_add(&tiny, "<|tool_response>", TOKEN_USER, 0);
    gw_init(&w);
    tiny_put(&tiny, &w, "gpt2", "solar-open");
    CLEANUP(tokenizer_freep) struct tokenizer *v = load(&w);

    check_ends(v,
               LIST("<|endoftext|>", "<|im_end|>", "<|flush|>", "<|calls|>", "<|tool_response>"));
    cr_assert(!tokenizer_is_special(v, id_of(v, "</s>")));
}

Test(text_tokenizer, the_limit_of_tokens_holds) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = bytes_tokenizer("gpt-2");
    struct tokens out = {.max = 10};
    char s[4000];

    memset(s, '.', sizeof(s));
    cr_assert_eq(tokenizer_encode(t, s, 10, 0, NULL, 0, &out), 0);
    cr_assert_eq(out.n, 10);
    cr_assert_eq(tokenizer_encode(t, s, 1, 0, NULL, 0, &out), -EMSGSIZE);
    cr_assert_eq(tokenizer_encode(t, s, sizeof(s), 0, NULL, 0, &out), -EMSGSIZE);
    cr_assert_eq(out.n, 10);
    out.n = 0;
    memset(s, '\n', sizeof(s)); /* in threes, the longest tokens but for hello */
    cr_assert_eq(tokenizer_encode(t, s, 30, 0, NULL, 0, &out), 0);
    cr_assert_eq(out.n, 10);
    out.n = 0;
    for (size_t i = 0; i < sizeof(s); i++)
        s[i] = "hello"[i % 5];
    cr_assert_eq(tokenizer_encode(t, s, 50, 0, NULL, 0, &out), 0);
    cr_assert_eq(out.n, 10);
    out.n = 0;
    cr_assert_eq(tokenizer_encode(t, s, 55, 0, NULL, 0, &out), -EMSGSIZE);
    tokens_deinit(&out);
    out = (struct tokens){0};
    cr_assert_eq(tokenizer_encode(t, s, (size_t)INT32_MAX + 1, 0, NULL, 0, &out), -EMSGSIZE);
    tokens_deinit(&out);
}

/* From it follows how few tokens a text can have at least. */
Test(text_tokenizer, the_longest_token_may_be_any) {
    static const char longest[] = "aaaaaaaaaaaaaaaaaaaaaaaaa";

    for (int i = 0; i < 2; i++) {
        struct gguf_writer w;

        tiny_scores(&tiny);
        tiny_add(&tiny, longest, TOKEN_NORMAL, -1);
        if (i > 0) { /* it takes the place of the first, which stands behind all others then */
            strcpy(tiny.store[tiny.n - 1], tiny.store[0]);
            strcpy(tiny.store[0], longest);
            tiny.type[tiny.n - 1] = tiny.type[0];
            tiny.type[0] = TOKEN_NORMAL;
        }
        gw_init(&w);
        tiny_put(&tiny, &w, "llama", NULL);
        gw_u32(&w, "tokenizer.ggml.unknown_token_id", i > 0 ? tiny.n - 1 : 0);
        CLEANUP(tokenizer_freep) struct tokenizer *t = load(&w);

        cr_expect_eq(t->longest, sizeof(longest) - 1, "%d", i);
    }
}

/* Quadratic work would take minutes. */
Test(text_tokenizer, a_megabyte_of_anything_is_encoded, .timeout = 120) {
    static const char *const units[] = {
        "a", "he", " ", "\n", "7", "\xCC\x81\xCC\xA3", "\xFF", "\xF0\x9F\x98\x80", "<|im_", "<"};
    struct tokenizer *all[] = {bytes_tokenizer("gpt-2"), bytes_tokenizer("smollm"),
                               bytes_tokenizer("qwen35"), scores_tokenizer()};
    size_t cap = FEWER(1 << 20, 1 << 17);
    CLEANUP(freep) char *s = malloc(cap);

    for (size_t k = 0; k < ARRAY_SIZE(all); k++) {
        for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
            size_t n = strlen(units[i]), len = cap / n * n;

            for (size_t at = 0; at < len; at++)
                s[at] = units[i][at % n];
            struct tokens got = expect_encode(all[k], s, len, TOKENIZE_SPECIAL);

            cr_assert_gt(got.n, len / 64);
            tokens_deinit(&got);
        }
        tokenizer_free(all[k]);
    }
}
