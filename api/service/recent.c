#include "api/service/recent.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "api/http/dialect.h"
#include "api/http/exchange.h"
#include "base/text.h"

void recent_note(struct recent *r, const struct exchange *x, int64_t now) {
    if (!x->route || !x->route->generates)
        return;
    assert(now >= x->started_ns);
    struct recent_request *q = &r->list[share_ring_add(&r->ring, RECENT_MAX, x->tenant)];

    *q = (struct recent_request){
        .order = r->n++,
        .path = x->route->path,
        .finish = text_or(x->finish, "-"),
        .gen = x->gen,
        .tenant = x->tenant,
        .n_prompt = x->n_prompt,
        .n_cached = x->n_cached,
        .n_output = x->n_output,
        .n_resumed = x->n_resumed,
        .status = x->status,
        .ended_ns = now,
        .queue_ns = x->queue_ns,
        .ttft_ns = x->ttft_ns,
        .total_ns = now - x->started_ns,
    };
    snprintf(q->id, sizeof(q->id), "%s", x->id);
}

const struct recent_request *recent_of_gen(const struct recent *r, uint64_t gen) {
    for (uint32_t i = 0; i < r->ring.n_used; i++)
        if (gen && r->list[i].gen == gen)
            return &r->list[i];
    return NULL;
}

/* Returns whether @a comes before @b in the list: the slower one, and of equal ones the last. */
static bool recent_precedes(bool slowest, const struct recent_request *a,
                            const struct recent_request *b) {
    if (slowest && a->total_ns != b->total_ns)
        return a->total_ns > b->total_ns;
    return a->order > b->order;
}

/* Puts @q into the list of the first @n requests, of which @max are kept. Returns their number. */
static uint32_t recent_insert(bool slowest, const struct recent_request **out, uint32_t n,
                              uint32_t max, const struct recent_request *q) {
    uint32_t at = MIN(n, max - 1);

    if (n == max && recent_precedes(slowest, out[at], q))
        return n;
    for (; at > 0 && recent_precedes(slowest, q, out[at - 1]); at--)
        out[at] = out[at - 1];
    out[at] = q;
    return MIN(n + 1, max);
}

uint32_t recent_find(const struct recent *r, const struct recent_filter *f, int64_t now,
                     const struct recent_request **out, uint32_t max) {
    uint32_t n = 0;

    assert(max > 0);
    for (uint32_t i = 0; i < r->ring.n_used; i++) {
        const struct recent_request *q = &r->list[i];
        int64_t age = now - q->ended_ns;

        if ((!f->all_tenants && q->tenant != f->tenant) || age > f->oldest_ns || age < f->newest_ns)
            continue;
        n = recent_insert(f->slowest, out, n, max, q);
    }
    return n;
}
