#include "scheduler/plan_tape.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is equal to what ---- */

/* Whether a plan may ask for the hashes of @r: it computes pages that others can have, or waits. */
static bool shares(const struct plan *p, uint32_t i) {
    const struct plan_req *r = &p->req[i];

    return r->n_hashes > 0 && (i >= p->n_running || r->n_stored / p->page_tokens < r->n_hashes);
}

/* The pages that the prompts of @a and @b have in common. */
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
        if (shares(p, i))
            list[n++] = i;
    qsort_r(list, n, sizeof(*list), by_hash, (void *)p);
    for (uint32_t k = 0; k < n; k++) {
        item[list[k]].place = k + 1;
        if (k > 0)
            item[list[k]].n_common = common_pages(&p->req[list[k - 1]], &p->req[list[k]]);
    }
}

/* ---- writing ---- */

static struct plan_tape_head head_of(const struct plan *p, uint64_t step, int64_t at_ns) {
    const struct cost *c = p->cost;
    struct plan_tape_head h = {
        .version = PLAN_TAPE_VERSION,
        .n_running = p->n_running,
        .n_waiting = p->n_waiting,
        .n_groups = p->n_groups,
        .step = step,
        .turn = p->turn,
        .at_ns = at_ns,
        .itl_ns = p->itl_ns,
        .max_step_ns = p->max_step_ns,
        .add_ns = p->add_ns,
        .page_tokens = p->page_tokens,
        .n_available = p->n_available,
        .max_rows = p->max_rows,
        .max_seqs = p->max_seqs,
        .max_bypass = p->max_bypass,
        .force_chunk = p->force_chunk,
        .force_draft = p->force_draft,
        .reserve_pages = p->reserve_pages,
        .draft_slower = p->draft_slower,
        .state_pages = p->state_pages,
        .cost_max_rows = c->max_rows,
        .cost_n_seen = c->n_seen,
        .cost_error = c->error,
    };

    memcpy(h.cost_a, c->a, sizeof(h.cost_a));
    h.flags = (p->fair_preempt ? TAPE_FAIR : 0) | (p->fair_preempt_begun ? TAPE_FAIR_BEGUN : 0) |
              (p->fair_preempted ? TAPE_FAIR_PREEMPTED : 0) | (p->group_part ? TAPE_PARTS : 0) |
              (p->group_over ? TAPE_OVERS : 0) | (c->has_copied ? TAPE_COPIED : 0) |
              (p->prewarm ? TAPE_PREWARM : 0) | (p->whole ? TAPE_WHOLE : 0);
    return h;
}

static struct plan_tape_item item_of(const struct plan_req *r) {
    return (struct plan_tape_item){
        .n_tokens = r->n_tokens,
        .n_computed = r->n_computed,
        .n_stored = r->n_stored,
        .n_pages = r->n_pages,
        .n_exclusive = r->n_exclusive,
        .n_target = r->n_target,
        .n_hit = r->n_hit,
        .n_idle = r->n_idle,
        .n_share = r->n_share,
        .n_hashes = r->n_hashes,
        .n_draft_max = r->n_draft_max,
        .leave_seqs = r->leave_seqs,
        .n_bypassed = r->n_bypassed,
        .group = r->group,
        .pace = r->pace,
        .flags = (uint8_t)((r->unfit ? TAPE_UNFIT : 0) | (r->last ? TAPE_LAST : 0) |
                           (r->alone ? TAPE_ALONE : 0) | (r->stalled ? TAPE_STALLED : 0) |
                           (r->try_draft ? TAPE_TRY : 0) | (r->over ? TAPE_OVER : 0) |
                           (r->begun ? TAPE_BEGUN : 0) | (r->victim ? TAPE_VICTIM : 0)),
    };
}

int plan_tape_begin(struct buf *out, const struct plan *p, uint64_t step, int64_t at_ns) {
    uint32_t n = p->n_running + p->n_waiting, n_groups = p->n_groups;
    struct plan_tape_head h = head_of(p, step, at_ns);
    int e = buf_reserve(out, sizeof(h) + n * sizeof(struct plan_tape_item));

    if (e < 0)
        return e;
    e = buf_add(out, &h, sizeof(h));
    for (uint32_t i = 0; i < n && e == 0; i++) {
        struct plan_tape_item item = item_of(&p->req[i]);

        e = buf_add(out, &item, sizeof(item));
    }
    if (e == 0)
        note_common(p, plan_tape_items(out));
    if (e == 0 && n_groups > 0)
        e = buf_add(out, p->group_weight, n_groups * sizeof(float));
    if (e == 0 && n_groups > 0 && p->group_part)
        e = buf_add(out, p->group_part, n_groups * sizeof(float));
    for (uint32_t i = 0; i < n && e == 0; i++)
        if (p->req[i].n_draft_max > 0)
            e = buf_add(out, p->req[i].survival, p->req[i].n_draft_max * sizeof(float));
    if (e == 0 && n_groups > 0 && p->group_over)
        e = buf_add(out, p->group_over, n_groups * sizeof(bool));
    return e;
}

void plan_tape_end(struct buf *out, const struct plan *p) {
    struct plan_tape_head *h = (struct plan_tape_head *)out->data;
    struct plan_tape_item *item = plan_tape_items(out);

    h->n_rows = p->n_rows;
    h->n_seqs = p->n_seqs;
    h->n_drafts = p->n_drafts;
    h->n_admitted = p->n_admitted;
    h->n_preempted = p->n_preempted;
    h->n_left = p->n_left;
    h->alone = p->alone;
    h->fair_preempted = p->fair_preempted;
    h->expect_ns = p->expect_ns;
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *r = &p->req[i];

        item[i].n_rows = r->n_rows;
        item[i].n_draft = r->n_draft;
        item[i].n_bypassed_then = r->n_bypassed;
        item[i].verdict = (uint8_t)r->verdict;
        item[i].admitted = r->admitted;
    }
}
