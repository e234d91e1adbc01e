/* model - drafts of the small model, or of the model's own block, computed beforehand for all
 * requests at once (scheduler/drafter.c). */

#include <string.h>

#include "base/util.h"
#include "scheduler/draft/draft.h"

static void draft_model_begin(const struct draft_source *source, void **state,
                              const struct draft_text *t) {
    static char on;

    *state = t->drafted && t->drafted->by == source ? &on : NULL;
}

static int begin_model(void **state, void *common, const struct draft_text *t) {
    (void)common;
    draft_model_begin(&draft_model, state, t);
    return 0;
}

static int begin_mtp(void **state, void *common, const struct draft_text *t) {
    (void)common;
    draft_model_begin(&draft_mtp, state, t);
    return 0;
}

static void draft_model_end(void *state) {
    (void)state;
}

static uint32_t draft_model_propose(void *state, const struct draft_text *t, int32_t *out,
                                    uint32_t max) {
    const struct draft_tokens *g = t->drafted;
    uint32_t n = g->at == t->n_tokens ? MIN(g->n, max) : 0;

    (void)state;
    memcpy(out, g->token, n * sizeof(*out));
    return n;
}

const struct draft_source draft_model = {
    .name = "model",
    .prior = 0.6F,
    .begin = begin_model,
    .end = draft_model_end,
    .propose = draft_model_propose,
};

const struct draft_source draft_mtp = {
    .name = "mtp",
    .prior = 0.6F,
    .begin = begin_mtp,
    .end = draft_model_end,
    .propose = draft_model_propose,
};
