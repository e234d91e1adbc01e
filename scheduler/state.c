#include "scheduler/state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/util.h"

#define TEMPLATE_TAIL 16u /* tokens that a template puts behind the last message, about */

int states_init(struct states *s, struct kv_pager *pager, const struct kv_opts *o) {
    *s = (struct states){.on = o->n_states > 0,
                         .keeps = o->n_snapshots > 0,
                         .pager = pager,
                         .page_tokens = o->page_tokens,
                         .cap_loads = o->n_states};
    s->load = calloc(MAX(s->cap_loads, 1), sizeof(*s->load));
    return s->load ? 0 : -ENOMEM;
}

void states_deinit(struct states *s) {
    free(s->load);
    *s = (struct states){0};
}

/* The first cut behind @n_computed tokens; UINT32_MAX: there is none. */
static uint32_t next_cut(const struct states *s, const struct request *r, uint32_t n_computed) {
    uint32_t t = s->page_tokens, end = 0, cut = UINT32_MAX;

    if (!s->keeps || request_pools(r))
        return cut;
    if (r->n_prompt > TEMPLATE_TAIL)
        end = (r->n_prompt - TEMPLATE_TAIL) / t * t;
    if (end > n_computed)
        cut = end;
    if (r->branch > n_computed)
        cut = MIN(cut, r->branch);
    return cut;
}

struct kv_match states_match(const struct states *s, struct request *r) {
    uint32_t n = request_shareable(r) / s->page_tokens * s->page_tokens;

    r->branch = kv_pager_match(s->pager, &r->share, r->tokens, n).n_tokens;
    return kv_pager_match_state(s->pager, &r->share, r->tokens, r->branch);
}

void states_describe(const struct states *s, const struct request *r, uint32_t n_computed,
                     struct plan_req *q) {
    q->n_tokens = MIN(r->n_tokens + r->n_pending, next_cut(s, r, n_computed));
    q->n_share = q->n_hashes = 0;
    assert(q->n_tokens > n_computed || q->last);
}

void states_load(struct states *s, struct request *r) {
    if (r->n_computed == 0)
        return;
    struct engine_copy load = {
        .src = kv_seq_snapshot(r->seq), .dst = kv_seq_state(r->seq), .dir = COPY_STATE_LOAD};
    uint32_t i = 0;

    assert(load.src != KV_NO_SNAPSHOT);
    while (i < s->n_loads && s->load[i].dst != load.dst) /* of one that was preempted at once */
        i++;
    assert(i < s->cap_loads);
    s->load[i] = load;
    s->n_loads = MAX(s->n_loads, i + 1);
}

int states_build(struct states *s, struct batch *t) {
    if (s->n_loads == 0)
        return 0;
    assert(t->b.n_before == 0); /* no pages come from host memory */
    struct engine_copy *copy = batch_copies(t, s->n_loads);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, s->load, s->n_loads * sizeof(*copy));
    s->n_loads = 0;
    return 0;
}

bool states_is_cut(const struct states *s, const struct request *r) {
    return s->keeps && next_cut(s, r, r->n_computed - 1) == r->n_computed;
}

void states_save(struct states *s, struct batch *t) {
    uint32_t snapshot = kv_snapshot_take(s->pager);

    if (snapshot != KV_NO_SNAPSHOT)
        batch_keep_state(t, snapshot);
}

void states_take(struct states *s, struct batch_item *it) {
    const struct request *r = it->request;

    if (it->snapshot == KV_NO_SNAPSHOT)
        return;
    if (r->seq && kv_seq_committed(r->seq) == it->pos0 + it->n_rows)
        kv_seq_put_snapshot(r->seq, it->snapshot);
    else
        kv_snapshot_give(s->pager, it->snapshot);
    it->snapshot = KV_NO_SNAPSHOT;
}
