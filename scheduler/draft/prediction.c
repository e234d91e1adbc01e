/*
 * prediction - the output that the client expects, as an editor sends when it asks for a changed
 * file. The draft follows it from its beginning. Where the output leaves it, the source looks ahead
 * for the place where both meet again after a replaced, missing or inserted token; further away an
 * n-gram finds the place.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "scheduler/draft/draft.h"
#include "scheduler/draft/ngram.h"

#define SLOTS_MAX 65536u
#define AHEAD 48u /* most tokens that the output may have skipped */

struct prediction {
    struct ngram grams;
    uint32_t n_indexed;
    /* output tokens that were followed */
    uint32_t n_seen;
    uint32_t at;
    /* true: prediction[at] comes next; false: the output left the prediction at `at` */
    bool on;
};

static int prediction_begin(void **state, void *common, const struct draft_text *t) {
    struct prediction *p;

    (void)common;
    if (t->n_prediction == 0)
        return 0;
    p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    if (ngram_init(&p->grams, t->n_prediction, SLOTS_MAX) < 0) {
        free(p);
        return -ENOMEM;
    }
    p->on = true;
    *state = p;
    return 0;
}

static void prediction_end(void *state) {
    struct prediction *p = state;

    ngram_deinit(&p->grams);
    free(p);
}

/* Returns whether the last two output tokens x, y mean that prediction[at] comes next, for at in
 * [left, left + AHEAD]. */
static bool meet_again(struct prediction *p, const struct draft_text *t, int32_t x, int32_t y) {
    uint32_t last = MIN(p->at + AHEAD, t->n_prediction);

    for (uint32_t j = p->at; j < last; j++) {
        bool follows = j <= p->at + 1; /* x was inserted, or replaces prediction[at] */

        if (t->prediction[j] == y && (follows || t->prediction[j - 1] == x)) {
            p->at = j + 1;
            return true;
        }
    }
    return false;
}

/* Follows output token @i, the next one. */
static void prediction_follow(struct prediction *p, const struct draft_text *t, uint32_t i) {
    int32_t y = t->tokens[i];

    if (p->on && p->at < t->n_prediction && t->prediction[p->at] == y) {
        p->at++;
    } else if (p->on) {
        p->on = false;
    } else {
        p->on = meet_again(p, t, t->tokens[i - 1], y);
    }
}

/* Looks for the last tokens of the output anywhere in the prediction. */
static void search(struct prediction *p, const struct draft_text *t) {
    uint32_t len, at = ngram_find(&p->grams, t->prediction, t->n_prediction,
                                  t->tokens + t->n_prompt, t->n_tokens - t->n_prompt, &len);

    if (len > 0) {
        p->on = true;
        p->at = at;
    }
}

static uint32_t prediction_propose(void *state, const struct draft_text *t, int32_t *out,
                                   uint32_t max) {
    struct prediction *p = state;
    uint32_t until = MIN(t->n_prediction, p->n_indexed + DRAFT_CATCH_UP), n = 0;

    assert(t->n_prompt + p->n_seen <= t->n_tokens && p->at <= t->n_prediction);
    while (p->n_indexed < until)
        ngram_add(&p->grams, t->prediction, p->n_indexed++);
    for (; t->n_prompt + p->n_seen < t->n_tokens; p->n_seen++)
        prediction_follow(p, t, t->n_prompt + p->n_seen);
    if (!p->on)
        search(p, t);
    while (p->on && n < max && p->at + n < t->n_prediction)
        out[n] = t->prediction[p->at + n], n++;
    return n;
}

const struct draft_source draft_prediction = {
    .name = "prediction",
    .prior = 0.7F,
    .begin = prediction_begin,
    .end = prediction_end,
    .propose = prediction_propose,
};
