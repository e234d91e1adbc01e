/*
 * plamo - the tokenizer of PLaMo 2 and 3. Of all ways to cut a text into tokens it takes the one
 * with the least cost. A token costs -10000 times its score, rounded; any character may be spelled
 * by its bytes, too, at a cost that published scores do not reach. Costs are whole numbers, and the
 * way is found from the end of the text: so of ways with the same cost the one with the longest
 * first token is taken. Texts are not normalised, and spaces are spaces.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>

#include "base/jobs.h"
#include "base/try.h"
#include "text/tokenizer_private.h"

#define COST_BYTES 10000000
#define COST_MAX 20000000 /* a token that costs as much is never taken */
#define SCORE_UNIT 1e4
#define PAUSE_CHARS 256u
#define BYTE_ORDER_MARK 0xFEFFu
#define REPLACEMENT "\xEF\xBF\xBD"

/* Least cost of the text from here to its end, and the first token of it, which has @len bytes.
 * id TOKEN_NONE: the bytes of a character. */
struct piece {
    int64_t cost;
    uint32_t id, len;
};

int plamo_load(struct tokenizer *t, const struct gguf *g, struct err *err) {
    TRY(special_ids_load(&t->special, &t->vocab, g, false, err));
    TRY(unigram_read_scores(t, g, err));
    for (uint32_t i = 0; i < t->unigram.n_sorted; i++) {
        uint32_t id = t->unigram.sorted[i];

        if (t->unigram.score[id] > COST_MAX / SCORE_UNIT)
            return err_set(err, 0, NULL, "%s[%u] is too large", VOCAB_SCORES, id);
    }
    for (unsigned b = 0; b < 256; b++)
        if (t->byte_token[b] == TOKEN_NONE)
            return err_set(err, 0, NULL, "the vocabulary has no token <0x%02X>", b);
    return 0;
}

/* Copies @s to @out with replacement characters for what is no UTF-8, and without a byte order mark
 * at its beginning. */
static int plamo_clean(const char *s, size_t len, struct buf *out) {
    uint32_t cp;

    out->len = 0;
    for (size_t i = 0, n; i < len; i += n) {
        n = unicode_decode(s + i, s + len, &cp);
        if (cp == UNICODE_INVALID) {
            TRY(buf_add_str(out, REPLACEMENT));
            n = 1;
        } else if (i || cp != BYTE_ORDER_MARK) {
            TRY(buf_add(out, s + i, n));
        }
    }
    return 0;
}

static int64_t token_cost(const struct tokenizer *t, uint32_t id) {
    double cost = -(double)t->unigram.score[id] * SCORE_UNIT;

    if (cost >= COST_MAX)
        return COST_MAX;
    return -(int64_t)round(-cost);
}

/* Finds the best way from @at on, where a character of @n_char bytes begins; @best has those behind
 * it. */
static void plamo_step(const struct tokenizer *t, const char *s, uint32_t len, uint32_t at,
                       uint32_t n_char, struct piece *best) {
    struct piece found = {best[at + n_char].cost + COST_BYTES, TOKEN_NONE, n_char};
    struct unigram_walk w = unigram_walk(t, s + at, len - at);

    assert(at + n_char <= len);
    while (unigram_next(t, &w)) {
        int64_t own = token_cost(t, w.id), cost = best[at + w.n].cost + own;

        if (own < COST_MAX && cost <= found.cost)
            found = (struct piece){cost, w.id, w.n};
    }
    best[at] = found;
}

/* Adds the tokens of the best way through the @n bytes at @s. */
static int plamo_add_way(struct words *w, const char *s, uint32_t n, const struct piece *best) {
    for (uint32_t at = 0; at < n; at += best[at].len) {
        if (best[at].id != TOKEN_NONE) {
            TRY(tokens_add(w->out, (int32_t)best[at].id));
            continue;
        }
        for (uint32_t i = 0; i < best[at].len; i++)
            TRY(tokens_add(w->out, (int32_t)w->t->byte_token[(uint8_t)s[at + i]]));
    }
    return 0;
}

int plamo_encode(struct words *w, const char *text, size_t len) {
    CLEANUP(freep) struct piece *best = NULL;
    uint32_t n_chars = 0;

    TRY(plamo_clean(text, len, &w->normal));
    if (w->normal.len >= UINT32_MAX / sizeof(*best))
        return -EMSGSIZE;
    const char *s = w->normal.data;
    uint32_t n = (uint32_t)w->normal.len, end = n;

    best = malloc(((size_t)n + 1) * sizeof(*best));
    if (!best)
        return -ENOMEM;
    best[n] = (struct piece){0, TOKEN_NONE, 0};
    for (uint32_t at = n; at > 0;) {
        at--;
        if (((uint8_t)s[at] & 0xC0) == 0x80) {
            best[at] = (struct piece){INT64_MAX / 2, TOKEN_NONE, 0}; /* inside a character */
            continue;
        }
        plamo_step(w->t, s, n, at, end - at, best);
        end = at;
        if (++n_chars % PAUSE_CHARS == 0)
            TRY(job_pause());
    }
    TRY(plamo_add_way(w, s, n, best));
    w->normal.len = 0;
    return 0;
}
