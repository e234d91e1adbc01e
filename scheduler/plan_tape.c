/* ---- equal pages ---- */

#include "scheduler/plan_tape.h"

#include <stdlib.h>
#include <string.h>

#include "base/try.h"

/* Returns whether a plan may read the hashes of request @i: it computes pages that others can
 * share, or waits. */
static bool plan_tape_shares(const struct plan *p, uint32_t i) {
    const struct plan_req *r = &p->req[i];

    return r->n_hashes > 0 && (i >= p->n_running || r->n_stored / p->page_tokens < r->n_hashes);
}

/* Returns the number of first pages that @a and @b have in common. */
static uint32_t common_pages(const struct plan_req *a, const struct plan_req *b) {
    uint32_t lo = 0, hi = MIN(a->n_hashes, b->n_hashes);

    while (lo < hi) { /* the first lo pages agree, page hi and later ones do not */
        uint32_t mid = lo + (hi - lo) / 2;

        if (a->hash[mid] == b->hash[mid])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static int by_hash(const void *a, const void *b, void *ctx) {
    const struct plan *p = ctx;
    const struct plan_req *x = &p->req[*(const uint32_t *)a], *y = &p->req[*(const uint32_t *)b];
    uint32_t n = common_pages(x, y);

    if (n == x->n_hashes || n == y->n_hashes)
        return (x->n_hashes > y->n_hashes) - (x->n_hashes < y->n_hashes);
    return x->hash[n] < y->hash[n] ? -1 : 1;
}

static void note_common(const struct plan *p, struct plan_tape_item *item) {
    uint32_t *list = p->scratch, n = 0;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++)
        if (plan_tape_shares(p, i))
            list[n++] = i;
    qsort_r(list, n, sizeof(*list), by_hash, (void *)p);
    for (uint32_t k = 0; k < n; k++) {
        item[list[k]].place = k + 1;
        if (k > 0)
            item[list[k]].n_common = common_pages(&p->req[list[k - 1]], &p->req[list[k]]);
    }
}

/* ---- writing ---- */

static struct plan_tape_head plan_tape_head_of(const struct plan *p, uint64_t step, int64_t at_ns) {
    struct plan_tape_head h = {
        .version = PLAN_TAPE_VERSION,
        .cost_max_rows = p->cost->max_rows,
        .step = step,
        .at_ns = at_ns,
        .cost_error = p->cost->error,
        .cost_speed = p->cost->speed,
        .cost_least_noise = p->cost->least_noise,
        .cost_decodes = p->cost->decodes,
        .has_parts = p->group_part != NULL,
        .has_overs = p->group_over != NULL,
        .plan = *p,
    };

    memcpy(h.cost_a, p->cost->a, sizeof(h.cost_a));
    h.plan.req = NULL;
    h.plan.scratch = NULL;
    h.plan.group_weight = h.plan.group_part = NULL;
    h.plan.group_over = NULL;
    h.plan.cost = NULL;
    return h;
}

int plan_tape_begin(struct buf *out, const struct plan *p, uint64_t step, int64_t at_ns) {
    uint32_t n = p->n_running + p->n_waiting, n_groups = p->n_groups;
    struct plan_tape_head h = plan_tape_head_of(p, step, at_ns);

    TRY(buf_reserve(out, sizeof(h) + n * sizeof(struct plan_tape_item)));
    TRY(buf_add(out, &h, sizeof(h)));
    for (uint32_t i = 0; i < n; i++) {
        struct plan_tape_item item = {.req = p->req[i]};

        item.req.hash = NULL;
        item.req.survival = NULL;
        TRY(buf_add(out, &item, sizeof(item)));
    }
    note_common(p, plan_tape_items(out));
    if (n_groups > 0)
        TRY(buf_add(out, p->group_weight, n_groups * sizeof(float)));
    if (n_groups > 0 && p->group_part)
        TRY(buf_add(out, p->group_part, n_groups * sizeof(float)));
    for (uint32_t i = 0; i < n; i++)
        if (p->req[i].n_draft_max > 0)
            TRY(buf_add(out, p->req[i].survival, p->req[i].n_draft_max * sizeof(float)));
    if (n_groups > 0 && p->group_over)
        TRY(buf_add(out, p->group_over, n_groups * sizeof(bool)));
    return 0;
}

void plan_tape_end(struct buf *out, const struct plan *p) {
    struct plan_tape_head *h = (struct plan_tape_head *)out->data;
    struct plan_tape_item *item = plan_tape_items(out);

    memcpy(h->decided, (const char *)p + PLAN_DECIDED, sizeof(h->decided));
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++)
        memcpy(item[i].decided, (const char *)&p->req[i] + PLAN_REQ_DECIDED,
               sizeof(item[i].decided));
}
