#include "tests/support/sim_drafts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/draft/draft.h"

static const struct sim *stepped;

void sim_drafts_of(const struct sim *s) {
    stepped = s;
}

/* State of a source for a sequence: the client to which it may belong. */
struct sim_draft {
    struct rng rng;
    const struct sim_client *client;
};

static bool is_client_of(const struct sim_client *c, const struct draft_text *t, uint32_t more) {
    return c->m.n_prompt == t->n_prompt && t->n_tokens + more <= c->m.n_prompt + c->m.max_new &&
           memcmp(c->tokens, t->tokens, t->n_tokens * sizeof(*t->tokens)) == 0;
}

/* Returns a client whose prompt and first outputs equal the text of @t and whose output has @more
 * further tokens, or NULL. */
static const struct sim_client *client_of(const struct sim_draft *d, const struct draft_text *t,
                                          uint32_t more) {
    if (d->client && d->client->n_ends == 0 && is_client_of(d->client, t, more))
        return d->client;
    for (uint32_t i = 0; i < stepped->n_live; i++)
        if (is_client_of(&stepped->client[stepped->live[i]], t, more))
            return &stepped->client[stepped->live[i]];
    return NULL;
}

static bool draft_is_right(enum sim_drafts kind, struct rng *r, uint32_t n_out) {
    switch (kind) {
    case SIM_DRAFTS_RIGHT:
        return true;
    case SIM_DRAFTS_FLAPPING:
        return n_out / 8 % 2;
    case SIM_DRAFTS_PARTLY:
        return rng_below(r, 4) > 0;
    default:
        return false;
    }
}

static int begin_draft(void **state, void *common, const struct draft_text *t) {
    struct sim_draft *d = *state = calloc(1, sizeof(*d));

    if (!d)
        return -ENOMEM;
    d->rng.state = t->n_prompt;
    return 0;
}

static uint32_t propose_draft(void *state, const struct draft_text *t, int32_t *out, uint32_t max) {
    struct sim_draft *d = state;
    uint32_t n_out = t->n_tokens - t->n_prompt, n;
    const struct sim_client *c = d->client = client_of(d, t, max);
    struct rng *r = &d->rng;

    if (!c || max == 0)
        return 0;
    n = stepped->opts.drafts == SIM_DRAFTS_RIGHT ? max : rng_below(r, max + 1);
    for (uint32_t i = 0; i < n; i++) {
        int32_t right = c->tokens[t->n_tokens + i];

        out[i] = draft_is_right(stepped->opts.drafts, r, n_out)
                     ? right
                     : (right + 1 + (int32_t)rng_below(r, SIM_VOCAB - 1)) % SIM_VOCAB;
    }
    return n;
}

static const struct draft_source sim_source = {
    .name = "sim",
    .prior = 0.5F,
    .begin = begin_draft,
    .end = free,
    .propose = propose_draft,
};

/* Returns the table of sources for the options. Sources that are always right are left out where a
 * draft model or a block exists, which would never be asked beside them. */
const struct draft_source *const *sim_draft_table(const struct sim_opts *o) {
    static const struct draft_source *const
        sim[] = {&sim_source, NULL},
        *const model[] = {&draft_model, NULL}, *const both[] = {&sim_source, &draft_model, NULL},
        *const block[] = {&draft_mtp, NULL}, *const beside[] = {&sim_source, &draft_mtp, NULL};

    if (o->drafts == SIM_DRAFTS_REAL)
        return NULL;
    if (o->block && o->n_draft_pages == 0)
        return o->drafts == SIM_DRAFTS_RIGHT ? block : beside;
    return o->n_draft_pages == 0 ? sim : o->drafts == SIM_DRAFTS_RIGHT ? model : both;
}
