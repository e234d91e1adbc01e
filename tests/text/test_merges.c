/*
 * Both tokenizers against their definitions, written down naively over strings, with random small
 * vocabularies: long words take the heap, short ones the array, and the results must be the same.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tests/text/expect.h"
#include "text/tokenizer_private.h"

#define LETTERS 4
#define TOKENS_MAX 80
#define WORD_MAX 300

struct tiny {
    char text[TOKENS_MAX][64];
    const char *tokens[TOKENS_MAX];
    float score[TOKENS_MAX];
    int32_t type[TOKENS_MAX];
    uint32_t n;
    char merge[TOKENS_MAX][64];
    const char *merges[TOKENS_MAX];
    uint32_t n_merges;
};

static int find(const struct tiny *t, const char *s, size_t len) {
    for (uint32_t i = 0; i < t->n; i++) {
        if (strlen(t->text[i]) == len && memcmp(t->text[i], s, len) == 0)
            return (int)i;
    }
    return -1;
}

static void add_token(struct tiny *t, const char *s, float score, int32_t type) {
    snprintf(t->text[t->n], sizeof(t->text[0]), "%s", s);
    t->tokens[t->n] = t->text[t->n];
    t->score[t->n] = score;
    t->type[t->n++] = type;
}

/* Joins two random tokens with a result that is not too long. NULL: not this time. */
static const char *join(const struct tiny *t, struct rng *r, uint32_t first, char *out, char sep) {
    const char *a = t->text[first + rng_below(r, t->n - first)];
    const char *b = t->text[first + rng_below(r, t->n - first)];

    if (strlen(a) + strlen(b) > 20)
        return NULL;
    if (sep)
        sprintf(out, "%s%c%s", a, sep, b);
    else
        sprintf(out, "%s%s", a, b);
    return out;
}

/* Symbols as pieces of the text: the state of both naive tokenizers. */
struct pieces {
    size_t begin[WORD_MAX + 1];
    size_t n;
};

static void start_pieces(struct pieces *p, size_t len) {
    p->n = len;
    for (size_t i = 0; i <= len; i++)
        p->begin[i] = i;
}

static void join_pieces(struct pieces *p, size_t at) {
    memmove(&p->begin[at + 1], &p->begin[at + 2], (p->n - at - 1) * sizeof(p->begin[0]));
    p->n--;
}

static void naive_bpe(const struct tiny *t, const char *s, struct pieces *p) {
    for (uint32_t best; p->n > 1;) {
        size_t where = 0;

        best = UINT32_MAX;
        for (size_t i = 0; i + 1 < p->n; i++) {
            size_t a = p->begin[i], b = p->begin[i + 1], c = p->begin[i + 2];

            for (uint32_t k = 0; k < t->n_merges && k < best; k++) {
                const char *m = t->merge[k];

                if (strlen(m) == c - a + 1 && m[b - a] == ' ' && memcmp(m, s + a, b - a) == 0 &&
                    memcmp(m + (b - a) + 1, s + b, c - b) == 0) {
                    best = k;
                    where = i;
                }
            }
        }
        if (best == UINT32_MAX)
            return;
        join_pieces(p, where);
    }
}

static void naive_scores(const struct tiny *t, const char *s, struct pieces *p) {
    for (;;) {
        size_t where = SIZE_MAX;
        float best = 0;

        for (size_t i = 0; i + 1 < p->n; i++) {
            int id = find(t, s + p->begin[i], p->begin[i + 2] - p->begin[i]);

            if (id >= 0 && t->type[id] == TOKEN_NORMAL &&
                (where == SIZE_MAX || t->score[id] > best)) {
                best = t->score[id];
                where = i;
            }
        }
        if (where == SIZE_MAX)
            return;
        join_pieces(p, where);
    }
}

static void random_word(struct rng *r, char *s, size_t len) {
    bool repeat = rng_below(r, 3) == 0;

    for (size_t i = 0; i < len; i++)
        s[i] = (char)('a' + (repeat && i > 2 ? s[i - 2] - 'a' : (int)rng_below(r, LETTERS)));
    s[len] = 0;
}

static void compare(const struct tiny *t, const struct tokenizer *tok, const char *s, size_t len,
                    const struct pieces *p, bool bytes, bool spaces) {
    char text[WORD_MAX];
    struct tokens got;
    int32_t want[WORD_MAX];
    size_t n = 0;

    for (size_t i = 0; i < len; i++)
        text[i] = (char)(spaces && s[i] == 'd' ? ' ' : s[i]);
    got = expect_encode(tok, text, len, 0);
    for (size_t i = 0; i < p->n; i++) {
        int id = find(t, s + p->begin[i], p->begin[i + 1] - p->begin[i]);
        char fallback[8];

        if (id < 0 && bytes) {
            snprintf(fallback, sizeof(fallback), "<0x%02X>", (uint8_t)s[p->begin[i]]);
            id = find(t, fallback, 6);
        }
        cr_assert_geq(id, 0);
        want[n++] = id;
    }
    expect_ids(&got, want, n, s);
    tokens_deinit(&got);
}

static void put_tokens(struct gguf_writer *w, const struct tiny *t, const char *model) {
    gw_string(w, "tokenizer.ggml.model", model);
    gw_string(w, "tokenizer.ggml.pre", "gpt-2");
    gw_strings(w, "tokenizer.ggml.tokens", t->n, t->tokens);
    gw_array(w, "tokenizer.ggml.token_type", GGUF_I32, t->n, t->type, t->n * 4);
}

static struct tokenizer *load(struct gguf_writer *w) {
    struct tokenizer *tok = NULL;
    struct err err = {0};

    cr_assert_eq(expect_load(&tok, w, &err), 0, "%s", err.message);
    gw_deinit(w);
    return tok;
}

static size_t random_len(struct rng *r) {
    return 1 + rng_below(r, rng_below(r, 4) ? 40 : WORD_MAX - 1);
}

Test(text_merges, bpe_is_the_naive_algorithm) {
    struct rng r = {6};

    for (int round = 0; round < 60; round++) {
        static struct tiny t;
        struct gguf_writer w;
        char s[WORD_MAX + 1];
        struct pieces p;

        t = (struct tiny){0};
        for (int i = 0; i < LETTERS; i++)
            add_token(&t, (char[]){(char)('a' + i), 0}, 0, TOKEN_NORMAL);
        for (int i = 0; i < 60; i++) {
            char m[64], made[64];
            char *space;

            if (!join(&t, &r, 0, m, ' '))
                continue;
            strcpy(made, m);
            space = strchr(made, ' ');
            memmove(space, space + 1, strlen(space));
            if (find(&t, made, strlen(made)) < 0)
                add_token(&t, made, 0, TOKEN_NORMAL);
            strcpy(t.merge[t.n_merges], m);
            t.merges[t.n_merges] = t.merge[t.n_merges];
            t.n_merges++;
        }
        gw_init(&w);
        put_tokens(&w, &t, "gpt2");
        gw_strings(&w, "tokenizer.ggml.merges", t.n_merges, t.merges);
        CLEANUP(tokenizer_freep) struct tokenizer *tok = load(&w);

        for (int i = 0; i < 60; i++) {
            size_t len = random_len(&r);

            random_word(&r, s, len);
            start_pieces(&p, len);
            naive_bpe(&t, s, &p);
            compare(&t, tok, s, len, &p, false, false);
        }
    }
}

/* A random vocabulary of at most @joins longer tokens. */
static void random_scores(struct tiny *t, struct rng *r, uint32_t joins) {
    *t = (struct tiny){0};
    add_token(t, "<unk>", 0, TOKEN_UNKNOWN);
    for (int i = 0; i < LETTERS; i++) {
        char byte[8];

        snprintf(byte, sizeof(byte), "<0x%02X>", 'a' + i);
        add_token(t, byte, 0, TOKEN_BYTE);
    }
    /* Special tokens with texts that merging must not make. */
    add_token(t, "ab", 9, TOKEN_CONTROL);
    add_token(t, "ca", 9, TOKEN_USER);
    /* One letter has no token of its own, but takes part in merging. */
    for (int i = 1; i < LETTERS; i++)
        add_token(t, (char[]){(char)('a' + i), 0}, -100, TOKEN_NORMAL);
    add_token(t, "ad", -1, TOKEN_NORMAL);
    for (uint32_t i = 0; i < joins; i++) {
        char made[64];

        /* Few different scores: ties. */
        if (join(t, r, 5, made, 0) && find(t, made, strlen(made)) < 0)
            add_token(t, made, (float)(int)rng_below(r, 6) - 3, TOKEN_NORMAL);
    }
}

/* The same vocabulary with U+2581 for d. */
static void mark_spaces(struct tiny *t) {
    for (uint32_t i = 0; i < t->n; i++) {
        char *s = t->text[i], *d;

        while ((d = strchr(s, 'd'))) {
            memmove(d + 3, d + 1, strlen(d));
            memcpy(d, SPACE_MARK, 3);
        }
    }
}

/* With @spaces, the letter d is a space: words are cut, except where a token reaches across. */
static void check_scores(struct rng *r, uint32_t joins, bool spaces) {
    static struct tiny t, written;
    struct gguf_writer w;
    char s[WORD_MAX + 1];
    struct pieces p;

    random_scores(&t, r, joins);
    written = t;
    for (uint32_t i = 0; i < t.n; i++)
        written.tokens[i] = written.text[i];
    if (spaces)
        mark_spaces(&written);
    gw_init(&w);
    put_tokens(&w, &written, "llama");
    gw_array(&w, "tokenizer.ggml.scores", GGUF_F32, t.n, t.score, t.n * 4);
    gw_bool(&w, "tokenizer.ggml.add_space_prefix", 0);
    CLEANUP(tokenizer_freep) struct tokenizer *tok = load(&w);

    for (int i = 0; i < 60; i++) {
        size_t len = random_len(r);

        random_word(r, s, len);
        start_pieces(&p, len);
        naive_scores(&t, s, &p);
        compare(&t, tok, s, len, &p, true, spaces);
    }
}

Test(text_merges, sentencepiece_is_the_naive_algorithm) {
    struct rng r = {7};

    for (int round = 0; round < 60; round++)
        check_scores(&r, 60, false);
}

Test(text_merges, sentencepiece_words_end_where_no_token_reaches_across) {
    struct rng r = {13};

    for (uint32_t round = 0; round < 120; round++)
        check_scores(&r, round % 60, true);
}

/* The table of pairs grows as it is filled, and the first rank of a pair counts. */
Test(text_merges, pairs_keep_what_they_were_given) {
    struct pairs p;
    struct merger m = {0};

    cr_assert_eq(pairs_init(&p, (struct hash_key){{1, 3}}, 0), 0);
    for (uint32_t i = 0; i < 5000; i++) {
        cr_assert_eq(pairs_grow(&p, 1), 0);
        pairs_add(&p, i, i * 7 + 1, i, 10000 + i);
        pairs_add(&p, i, i * 7 + 1, 0, 1);
    }
    cr_assert_eq(p.n, 5000);
    cr_assert_eq(merger_reserve(&m, 2), 0);
    for (uint32_t i = 0; i < 5000; i++) {
        m.sym[0] = (struct symbol){.id = i, .len = 1};
        m.sym[1] = (struct symbol){.id = i * 7 + 1, .len = 2};
        m.n = 2;
        cr_assert_eq(merger_run(&m, &p), 0);
        cr_assert_eq(m.n, 1);
        cr_assert_eq(m.sym[0].id, 10000 + i);
        cr_assert_eq(m.sym[0].len, 3);
    }
    merger_deinit(&m);
    free(p.slot);
}
