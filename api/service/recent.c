#include "api/service/recent.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "api/http/dialect.h"
#include "api/http/exchange.h"

void recent_note(struct recent *r, const struct exchange *x, int64_t now) {
    if (!x->route || !x->route->generates)
        return;
    assert(now >= x->started_ns);
    struct recent_request *q = &r->list[r->n++ % RECENT_MAX];

    *q = (struct recent_request){
        .path = x->route->path,
        .finish = x->finish ? x->finish : "-",
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
    for (uint64_t i = 0; i < MIN(r->n, RECENT_MAX); i++)
        if (gen && r->list[i].gen == gen)
            return &r->list[i];
    return NULL;
}

/* Compares requests; the slowest comes first. */
static int by_time(const void *a, const void *b) {
    const struct recent_request *const *x = a, *const *y = b;

    return ((*x)->total_ns < (*y)->total_ns) - ((*x)->total_ns > (*y)->total_ns);
}

uint32_t recent_find(const struct recent *r, const struct recent_filter *f, int64_t now,
                     const struct recent_request **out, uint32_t max) {
    const struct recent_request *all[RECENT_MAX];
    uint32_t n = 0;

    for (uint64_t i = 0; i < MIN(r->n, RECENT_MAX); i++) {
        const struct recent_request *q = &r->list[(r->n - 1 - i) % RECENT_MAX];
        int64_t age = now - q->ended_ns;

        if ((f->all_tenants || q->tenant == f->tenant) && age <= f->oldest_ns &&
            age >= f->newest_ns)
            all[n++] = q;
    }
    if (f->slowest)
        qsort(all, n, sizeof(all[0]), by_time);
    n = MIN(n, max);
    memcpy(out, all, n * sizeof(all[0]));
    return n;
}
