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
    struct recent_request *q = &r->list[r->n++ % RECENT_MAX];

    *q = (struct recent_request){
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
    for (uint64_t i = 0; i < MIN(r->n, RECENT_MAX); i++)
        if (gen && r->list[i].gen == gen)
            return &r->list[i];
    return NULL;
}

/* Puts @q into the list of the @n slowest requests, of which @max are kept. Returns their
 * number. */
static uint32_t recent_insert(const struct recent_request **out, uint32_t n, uint32_t max,
                              const struct recent_request *q) {
    uint32_t at = MIN(n, max - 1);

    if (n == max && out[at]->total_ns >= q->total_ns)
        return n;
    for (; at > 0 && out[at - 1]->total_ns < q->total_ns; at--)
        out[at] = out[at - 1];
    out[at] = q;
    return MIN(n + 1, max);
}

uint32_t recent_find(const struct recent *r, const struct recent_filter *f, int64_t now,
                     const struct recent_request **out, uint32_t max) {
    uint32_t n = 0;

    assert(max > 0);
    for (uint64_t i = 0; i < MIN(r->n, RECENT_MAX); i++) {
        const struct recent_request *q = &r->list[(r->n - 1 - i) % RECENT_MAX];
        int64_t age = now - q->ended_ns;

        if ((!f->all_tenants && q->tenant != f->tenant) || age > f->oldest_ns || age < f->newest_ns)
            continue;
        if (f->slowest)
            n = recent_insert(out, n, max, q);
        else if (n < max)
            out[n++] = q;
    }
    return n;
}
