/* The draft model's tokens, computed beforehand for all requests at once (scheduler/drafter.c). */

#include <string.h>
#include "base/util.h"
#include "scheduler/draft/draft.h"

static int begin(void **state, void *common, const struct draft_text *t) {
    static char on;

    (void)common;
    *state = t->drafted ? &on : NULL;
    return 0;
}

static void end(void *state) {
    (void)state;
}

static uint32_t propose(void *state, const struct draft_text *t, int32_t *out, uint32_t max) {
    const struct draft_tokens *g = t->drafted;
    uint32_t n = g->at == t->n_tokens ? MIN(g->n, max) : 0;

    (void)state;
    memcpy(out, g->token, n * sizeof(*out));
    return n;
}

const struct draft_source draft_model = {
    .name = "model",
    .prior = 0.6F,
    .begin = begin,
    .end = end,
    .propose = propose,
};
