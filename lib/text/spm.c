/*
 * spm - reads SentencePiece's BPE as a table of pairs, so that merges.c can merge for it. Its rule
 * is: of all neighbours whose concatenation is a token, merge those with the best score. Whether
 * two neighbours make a token depends on their texts alone. So every way to cut a token into two
 * symbols is a pair, and its rank is lower the higher the score of the token. A symbol is a token,
 * or a character without a token of its own, which gets a number behind those of the tokens.
 */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/try.h"
#include "text/tokenizer_private.h"

/* Returns the rank of a score: lower for higher scores, equal for equal ones. It is never
 * RANK_NONE, since @score is no NaN. */
static uint32_t spm_rank(float score) {
    uint32_t bits;

    score += 0.0f; /* makes 0 of -0 */
    assert(!isnan(score));
    memcpy(&bits, &score, sizeof(bits));
    if (bits & 0x80000000u)
        return bits;
    return 0x7FFFFFFFu - bits;
}

/* Gives numbers to the characters of tokens that are no tokens themselves. */
static int add_chars(struct vocab *v) {
    for (uint32_t id = 0; id < v->n; id++) {
        uint32_t len = v->text_at[id + 1] - v->text_at[id];

        if (!vocab_is_mergeable(v, id))
            continue;
        for (uint32_t i = 0; i < len;) {
            const char *s = v->text.data + v->text_at[id] + i;
            uint32_t cp;
            unsigned n = unicode_decode(s, s + (len - i), &cp);
            char c[4];

            i += n;
            if (cp == UNICODE_INVALID || vocab_find(v, s, n) != TOKEN_NONE)
                continue;
            memcpy(c, s, n); /* copied, because adding a character moves the texts */
            TRY(vocab_add_char(v, c, n));
        }
    }
    return 0;
}

static bool is_symbol(const struct vocab *v, uint32_t id) {
    return id != TOKEN_NONE && vocab_is_mergeable(v, id);
}

/* Adds all cuts of token @id into two symbols. */
static int add_cuts(struct tokenizer *t, uint32_t id, uint32_t rank) {
    const struct vocab *v = &t->vocab;
    uint32_t len;
    const char *s = vocab_text(v, id, &len);

    for (uint32_t i = 0; i < len;) {
        uint32_t cp, left, right;

        i += unicode_decode(s + i, s + len, &cp);
        left = vocab_find(v, s, i);
        if (i == len || !is_symbol(v, left))
            continue;
        right = vocab_find(v, s + i, len - i);
        if (!is_symbol(v, right))
            continue;
        TRY(pairs_grow(&t->pairs, 1));
        pairs_add(&t->pairs, left, right, rank, id);
    }
    return 0;
}

/* Sets the special tokens that the file does not name to the numbers that SentencePiece gives
 * them. */
static void default_ids(struct special_ids *s, const struct vocab *v) {
    if (s->unk < 0 && v->type[0] == TOKEN_UNKNOWN)
        s->unk = 0;
    if (s->bos < 0 && v->n > 1 && v->type[1] == TOKEN_CONTROL)
        s->bos = 1;
    if (s->eos < 0 && v->n > 2 && v->type[2] == TOKEN_CONTROL)
        special_ids_set_eos(s, 2);
}

int spm_load(struct tokenizer *t, const struct gguf *g, struct err *err) {
    CLEANUP(freep) float *score = NULL;

    TRY(special_ids_load(&t->special, &t->vocab, g, true, err));
    TRY(vocab_read_scores(&t->vocab, g, &score, err));
    default_ids(&t->special, &t->vocab);
    TRY(add_chars(&t->vocab));
    TRY(pairs_init(&t->pairs, t->vocab.key, (size_t)t->vocab.n * 4));
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        if (vocab_is_mergeable(&t->vocab, id) && vocab_is_found(&t->vocab, id))
            TRY(add_cuts(t, id, spm_rank(score[id])));
    }
    return 0;
}
