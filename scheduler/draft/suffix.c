/*
 * suffix - the sequence's own text, which often repeats itself: edited code, names, quotations,
 * loops. The draft is the text after the last occurrence of the latest tokens. As long as the model
 * follows that copy, the source stays in it: the match grows longer and does not jump to a later
 * place.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "scheduler/draft/draft.h"
#include "scheduler/draft/ngram.h"

#define SLOTS_MAX 65536u
#define ROOM 2048u /* tokens of output to make room for at first */

struct suffix {
    struct ngram grams;
    uint32_t n_seen;
    /* copy that the draft follows: tokens[at] comes next; len 0: none */
    uint32_t at, len;
};

static int suffix_begin(void **state, void *common, const struct draft_text *t) {
    struct suffix *s = calloc(1, sizeof(*s));

    (void)common;
    if (!s)
        return -ENOMEM;
    if (ngram_init(&s->grams, t->n_tokens + ROOM, SLOTS_MAX) < 0) {
        free(s);
        return -ENOMEM;
    }
    *state = s;
    return 0;
}

static void suffix_end(void *state) {
    struct suffix *s = state;

    ngram_deinit(&s->grams);
    free(s);
}

/* Adds the n-grams of new tokens. The newest n-gram is added only when a token follows it. */
static void catch_up(struct suffix *s, const struct draft_text *t) {
    uint32_t until = MIN(t->n_tokens, s->n_seen + DRAFT_CATCH_UP);

    assert(s->n_seen <= t->n_tokens && s->at <= s->n_seen);
    for (; s->n_seen < until; s->n_seen++) {
        if (s->len > 0 && t->tokens[s->at] == t->tokens[s->n_seen])
            s->at++, s->len++;
        else
            s->len = 0;
        ngram_add(&s->grams, t->tokens, s->n_seen);
    }
}

static uint32_t suffix_propose(void *state, const struct draft_text *t, int32_t *out,
                               uint32_t max) {
    struct suffix *s = state;

    catch_up(s, t);
    if (s->n_seen < t->n_tokens)
        return 0;
    if (s->len < NGRAM_LONG) {
        uint32_t len,
            at = ngram_find(&s->grams, t->tokens, t->n_tokens, t->tokens, t->n_tokens, &len);

        if (len > s->len)
            s->at = at, s->len = len;
    }
    if (s->len == 0)
        return 0;
    /* Past the end the draft repeats itself, as a loop does. */
    uint32_t n_known = t->n_tokens - s->at;
    assert(n_known > 0 && s->at < t->n_tokens);
    for (uint32_t i = 0; i < max; i++)
        out[i] = i < n_known ? t->tokens[s->at + i] : out[i - n_known];
    return max;
}

const struct draft_source draft_suffix = {
    .name = "suffix",
    .prior = 0.5F,
    .begin = suffix_begin,
    .end = suffix_end,
    .propose = suffix_propose,
};
