/*
 * plan_draft - step 4 of a plan: how many drafted rows the step gets, and which requests get them.
 *
 * Every drafted token is a slot, and its worth is its survival, the probability that it is sent.
 * Survival falls within a draft, so the n best slots of all drafts are always beginnings of drafts.
 * n slots bring E + (sum of their survivals) tokens in the predicted time of a step with n more
 * rows, and the best n is found by trying each: rows may be cheap up to a point and expensive
 * beyond it. Survivals are counted in classes, so nothing is sorted.
 */

#include <assert.h>
#include <math.h>

#include "base/buggify.h"
#include "base/util.h"
#include "scheduler/plan_private.h"
#include "scheduler/policy.h"

#define DRAFT_CLASSES 64 /* classes of survival probability */

/* Slots by class; survival grows with the class. */
struct slots {
    uint32_t n[DRAFT_CLASSES];
    double sum[DRAFT_CLASSES];
};

static uint32_t plan_class(float survival) {
    return MIN((uint32_t)(survival * DRAFT_CLASSES), DRAFT_CLASSES - 1);
}

static bool may_draft(const struct plan *p, uint32_t i) {
    const struct plan_req *r = &p->req[i];

    return r->verdict == PLAN_RUN && r->n_rows == 1 && plan_is_decode(r);
}

static bool plan_count_slots(const struct plan *p, struct slots *s) {
    bool any = false;

    for (uint32_t i = 0; i < p->n_running; i++) {
        const struct plan_req *r = &p->req[i];
        uint32_t n = r->n_draft_max;

        if (!may_draft(p, i))
            continue;
        any |= n > 0;
        for (uint32_t k = 0; k < n; k++) {
            assert(k == 0 || r->survival[k] <= r->survival[k - 1]);
            s->n[plan_class(r->survival[k])]++;
            s->sum[plan_class(r->survival[k])] += r->survival[k];
        }
    }
    return any;
}

/* Room for drafts. Prefill keeps some rows and half of the time. One request's draft may not delay
 * all others much, so a step takes at most 3/2 as long where others decode, 3 times where none
 * does. Where decode alone misses the target and nothing prefills, max_step_ns is the limit, or
 * limit_ns if that is later. */
struct draft_room {
    uint32_t n_rows;
    int64_t limit_ns;
};

static int64_t plan_limit(int64_t now_ns, uint32_t rows, int64_t target_ns, int64_t max_ns) {
    int64_t stretched = now_ns * 3;

    if (rows > 1)
        stretched = now_ns / 2 * 3;
    if (now_ns <= target_ns)
        return MIN(target_ns, stretched);
    return MIN(max_ns, stretched);
}

static struct draft_room draft_room(const struct plan_work *w) {
    const struct plan *p = w->p;
    int64_t now = cost_bound_ns(p->cost, &w->shape);
    struct draft_room room = {.n_rows = w->max_rows - w->rows};
    bool beside_prefill = false;

    room.limit_ns = plan_limit(now, w->rows, w->target_ns, MAX(p->max_step_ns, w->limit_ns));
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++)
        beside_prefill |= plan_is_here(p, i) && plan_is_prefill(&p->req[i]);
    if (beside_prefill) {
        room.n_rows -= MIN(PLAN_MIN_CHUNK, room.n_rows);
        room.limit_ns = now + (MIN(room.limit_ns, w->limit_ns) - now) / 2;
    }
    room.n_rows = MIN(room.n_rows, PLAN_DRAFT_ROWS);
    return room;
}

/* Returns @base with @n drafted rows, spread evenly over sequences of equal length. */
static struct cost_shape with_drafts(const struct cost_shape *base, uint32_t n) {
    struct cost_shape s = *base;
    uint64_t context = s.context / MAX(s.seqs, 1u);

    s.rows += n;
    s.context += n;
    s.pairs += (n + MIN(n, s.seqs)) * context;
    return s;
}

/* Adds the cost of recurrent states for @n drafted rows, of which @right are expected to be right:
 * copies, and rows that are computed again. A draft is wrong somewhere more often than its mean
 * token. */
static void plan_add_states(const struct plan *p, uint32_t n, double right, struct cost_shape *s) {
    uint32_t n_seqs = MIN(n, s->seqs);
    double wrong = fmin(1, 2 * (1 - right / n));

    s->copies += (uint32_t)(n_seqs * p->state_pages * (1 + wrong) + 0.5);
    s->rows += (uint32_t)(wrong * (n_seqs + right) + 0.5);
}

/* Returns the expected time, in ns, of a step of shape @base with @n drafted rows (> 0), of which
 * @right are expected to be right; INFINITY: longer than @limit_ns. */
static double drafts_ns(const struct plan *p, const struct cost_shape *base, uint32_t n,
                        double right, int64_t limit_ns) {
    struct cost_shape s = with_drafts(base, n);

    if (cost_bound_ns(p->cost, &s) > limit_ns)
        return INFINITY;
    if (p->state_pages > 0)
        plan_add_states(p, n, right, &s);
    return (double)cost_expect_ns(p->cost, &s) * p->draft_slower;
}

double plan_decode_ns(const struct plan *p, const struct cost_shape *decode, uint32_t n,
                      double right) {
    int64_t now = cost_bound_ns(p->cost, decode);

    if (n == 0)
        return (double)cost_expect_ns(p->cost, decode);
    return drafts_ns(p, decode, n, right, plan_limit(now, decode->rows, p->itl_ns, p->max_step_ns));
}

/* Returns how many of the best slots the step gets. */
static uint32_t best_drafts(const struct plan_work *w, const struct slots *slots,
                            const struct draft_room *room) {
    const struct plan *p = w->p;
    double base = (double)cost_expect_ns(p->cost, &w->shape), tokens = w->rows;
    double best = tokens / MAX(base, 1);
    uint32_t n = 0, chosen = 0;

    for (uint32_t c = DRAFT_CLASSES; c-- > 0;)
        for (uint32_t k = 0; k < slots->n[c] && n < room->n_rows; k++) {
            tokens += slots->sum[c] / slots->n[c];
            double ns = drafts_ns(p, &w->shape, ++n, tokens - w->rows, room->limit_ns);

            if (isinf(ns))
                return chosen;
            double rate = tokens / ns;
            if (rate > best) {
                best = rate;
                chosen = n;
            }
        }
    return chosen;
}

/* Returns the tokens of @r's draft that fit. Drafts take pages only where there are plenty, and
 * preempt no request. */
static uint32_t fit_draft(const struct plan_work *w, const struct plan_req *r, uint32_t n,
                          const struct draft_room *room) {
    const struct plan *p = w->p;
    uint32_t keep = p->n_running + p->n_admitted + PLAN_MIN_CHUNK / p->page_tokens + 2;

    n = MIN(n, room->n_rows);
    while (n > 0) {
        uint32_t more = plan_pages_to_add(p, r, 1 + n) - plan_pages_to_add(p, r, 1);
        struct cost_shape s = w->shape;

        cost_remove(&s, r->n_computed, 1);
        cost_add(&s, r->n_computed, 1 + n);
        bool fits = more == 0 || w->available >= more + keep;
        if (fits && (p->force_draft || cost_bound_ns(p->cost, &s) <= room->limit_ns))
            break;
        n--;
    }
    return n;
}

/* Gives request @i its slots of classes above @least, and of that class while @rest are left. */
static void plan_draft(struct plan_work *w, uint32_t i, uint32_t least, uint32_t *rest,
                       struct draft_room *room) {
    struct plan_req *r = &w->p->req[i];
    uint32_t n = 0;

    for (; n < r->n_draft_max; n++) {
        uint32_t c = plan_class(r->survival[n]);

        if (w->p->force_draft ? n >= w->p->force_draft
                              : !r->try_draft && (c < least || (c == least && *rest == 0)))
            break;
        *rest -= c == least && *rest > 0;
    }
    n = fit_draft(w, r, n, room);
    if (n == 0)
        return;
    assert(r->n_rows == 1 && n <= r->n_draft_max);
    plan_set_rows(w, r, 1 + n);
    r->n_draft = n;
    w->p->n_drafts += n;
    room->n_rows -= n;
    assert(w->p->n_drafts <= PLAN_DRAFT_ROWS);
}

void plan_add_drafts(struct plan_work *w) {
    struct slots slots = {0};
    uint32_t least = DRAFT_CLASSES, n, rest = 0;

    if (w->short_of_pages || BUGGIFY(plan_drops_drafts) || !plan_count_slots(w->p, &slots))
        return;
    struct draft_room room = draft_room(w);
    for (n = best_drafts(w, &slots, &room); n > 0 && rest == 0;) {
        assert(least > 0); /* no more slots were chosen than exist */
        least--;
        if (n < slots.n[least])
            rest = n;
        n -= MIN(n, slots.n[least]);
    }
    if (least < DRAFT_CLASSES && rest == 0)
        rest = UINT32_MAX; /* the last class gets all */
    for (uint32_t i = 0; i < w->p->n_running; i++)
        if (may_draft(w->p, i))
            plan_draft(w, i, least, &rest, &room);
}
