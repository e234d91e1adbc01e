#include "api/service/recent.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "api/http/dialect.h"
#include "api/http/exchange.h"

#define MAX_AGE_NS (10 * 60 * 1000000000ll) /* age up to which an ended request is shown */

void recent_note(struct recent *r, const struct exchange *x, int64_t now) {
    if (!x->route || !x->route->generates)
        return;
    assert(now >= x->started_ns);
    struct recent_request *q = &r->list[r->n++ % RECENT_MAX];

    *q = (struct recent_request){
        .path = x->route->path,
        .finish = x->finish ? x->finish : "-",
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

/* Compares requests; the slowest comes first. */
static int by_time(const void *a, const void *b) {
    const struct recent_request *const *x = a, *const *y = b;

    return ((*x)->total_ns < (*y)->total_ns) - ((*x)->total_ns > (*y)->total_ns);
}

uint32_t recent_slowest(const struct recent *r, uint32_t tenant, int64_t now,
                        const struct recent_request *out[RECENT_SHOWN]) {
    const struct recent_request *all[RECENT_MAX];
    uint32_t n = 0;

    for (uint64_t i = 0; i < MIN(r->n, RECENT_MAX); i++)
        if (r->list[i].tenant == tenant && now - r->list[i].ended_ns <= MAX_AGE_NS)
            all[n++] = &r->list[i];
    qsort(all, n, sizeof(all[0]), by_time);
    n = MIN(n, RECENT_SHOWN);
    memcpy(out, all, n * sizeof(all[0]));
    return n;
}
