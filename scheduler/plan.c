/*
 * plan - decides one step: which requests get how many rows. The batch is one list of rows, so
 * there are no prefill steps and decode steps; a request that lacks one token (n_tokens -
 * n_computed is 1) decodes, one that lacks more is a prompt or recomputes what a preemption freed.
 *
 * The order of decisions is the order of their importance for latency:
 *
 *  1. A quarantined request (it was present at two deaths of a worker) gets every fourth step for
 *     itself, or all steps if no other request runs.
 *  2. Every running request that decodes gets one row: decode is never delayed.
 *  3. Waiting requests are admitted in the given order while there is room (plan_admit.c).
 *  4. Drafts get rows where they bring more tokens per millisecond (plan_draft.c).
 *  5. Prompts get the rest of the step's time (plan_time.c).
 *  6. If the step would take more than twice as long as the rows of tenants that are behind, it has
 *     only these rows: a short request of a tenant that seldom asks does not wait for the rows of
 *     the others. Each request has such steps for a quarter of itl_ns, its head start, and the
 *     others wait no longer than that in a row.
 *
 * Time. The cost model (cost.h) predicts how long a step with given rows takes. Decode rows and
 * admissions do not depend on it; drafts and prompts fill the step up to a limit that the strictest
 * decoding request sets.
 *
 * Pages. The running requests are ordered by virtual arrival; a request is lower than those before
 * it. A request that lacks a page takes it by preempting the lowest running request, whose pages
 * that no other request holds become free; the preempted request waits again and later recomputes
 * what is not cached any more. No request takes pages from a higher one; one that gets none keeps
 * its pages and waits. Only the first of the prompts takes pages from others, one page per step.
 *
 * Progress. If some request can run and no step is in flight, the plan has a row, or it preempts or
 * admits a request, and the next plan has a row. The first prompt gets a few rows whatever the cost
 * model says (plan_min_chunk()). If all pages are shared, so that no preemption frees one,
 * break_tie() preempts the lowest request, until one request has the whole pool. So no request
 * starves, and no set of requests waits for each other for ever.
 *
 * The functions change only the output members of struct plan and its requests, and struct
 * plan_work, which keeps the pages, rows and shape given out so far: plan_set_rows() is the only
 * way to give or take rows, so these sums are always right.
 */

#include <assert.h>

#include "base/util.h"
#include "scheduler/plan_private.h"
#include "scheduler/policy.h"

void plan_set_rows(struct plan_work *w, struct plan_req *r, uint32_t n_rows) {
    uint32_t before = plan_pages_to_add(w->p, r, r->n_rows),
             now = plan_pages_to_add(w->p, r, n_rows);

    if (r->n_rows > 0) {
        cost_remove(&w->shape, r->n_computed, r->n_rows);
        w->available += before;
        w->rows -= r->n_rows;
    }
    r->n_rows = n_rows;
    if (n_rows > 0) {
        assert(now <= w->available);
        cost_add(&w->shape, r->n_computed, n_rows);
        w->available -= now;
        w->rows += n_rows;
        r->verdict = PLAN_RUN;
    }
}

void plan_preempt(struct plan_work *w, struct plan_req *r) {
    plan_set_rows(w, r, 0);
    assert(w->p->n_drafts >= r->n_draft);
    w->p->n_drafts -= r->n_draft;
    r->n_draft = 0;
    r->verdict = PLAN_PREEMPT;
    w->available += r->n_exclusive;
    w->p->n_preempted++;
    w->short_of_pages = true;
}

bool plan_make_room(struct plan_work *w, uint32_t i, uint32_t n_rows) {
    struct plan *p = w->p;
    uint32_t need = plan_pages_to_add(p, &p->req[i], n_rows);

    /* Requests admitted in this plan may share the pages that a preemption would free. */
    if (p->n_admitted > 0)
        return need <= w->available;
    for (uint32_t v = p->n_running; need > w->available && v > i + 1; v--) {
        struct plan_req *r = &p->req[v - 1];

        if (r->verdict != PLAN_PREEMPT && r->n_exclusive > 0)
            plan_preempt(w, r);
    }
    return need <= w->available;
}

/* Step 2: decode rows. Requests that do not all fit take turns, and prefill keeps some rows. */
static void plan_decodes(struct plan_work *w) {
    struct plan *p = w->p;
    uint32_t n = 0, cap = p->max_rows, from = 0;
    bool any_prefill = false;

    for (uint32_t i = 0; i < p->n_running; i++) {
        n += plan_is_decode(&p->req[i]);
        any_prefill |= plan_is_prefill(&p->req[i]);
    }
    if (any_prefill)
        cap -= MIN(PLAN_MIN_CHUNK, p->max_rows / 2);
    if (n > cap)
        from = (uint32_t)(p->turn * cap % p->n_running);
    for (uint32_t k = 0; k < p->n_running; k++) {
        uint32_t i = (from + k) % p->n_running;
        struct plan_req *r = &p->req[i];

        if (!plan_is_decode(r) || r->verdict == PLAN_PREEMPT)
            continue;
        if (w->rows >= cap) {
            r->verdict = PLAN_WAIT_ROWS;
        } else if (plan_make_room(w, i, 1)) {
            plan_set_rows(w, r, 1);
        } else {
            r->verdict = PLAN_WAIT_PAGES;
            w->short_of_pages = true;
        }
    }
}

/* ---- pages ---- */

uint32_t plan_promised_to(const struct plan *p, const struct plan_req *r) {
    uint32_t target = plan_pages(p, r->n_target);

    return target - MIN(target, r->n_pages);
}

uint64_t plan_promised(const struct plan *p) {
    uint64_t n = 0;

    for (uint32_t i = 0; i < p->n_running; i++)
        n += plan_promised_to(p, &p->req[i]);
    return n;
}

uint64_t plan_next_pages(const struct plan *p) {
    uint64_t need = 0;

    for (uint32_t i = 0; i < p->n_running; i++) {
        const struct plan_req *q = &p->req[i];
        uint32_t pages = plan_pages(p, MIN(q->n_tokens, q->n_computed + PLAN_MIN_CHUNK));

        if (pages > q->n_pages)
            need += pages - q->n_pages;
    }
    return need;
}

/* ---- the plan ---- */

/* Step 1: returns the quarantined request whose turn it is to run alone, or PLAN_NONE. */
static uint32_t pick_alone(const struct plan *p) {
    uint32_t n = 0, k, i;
    bool others = false;

    for (i = 0; i < p->n_running; i++) {
        n += p->req[i].alone && !p->req[i].last;
        others |= !p->req[i].alone && !p->req[i].waits;
    }
    if (n == 0 || (others && p->turn % PLAN_ALONE_TURNS))
        return PLAN_NONE;
    k = (uint32_t)(p->turn / PLAN_ALONE_TURNS % n);
    for (i = 0; i < p->n_running; i++)
        if (p->req[i].alone && !p->req[i].last && k-- == 0)
            break;
    return i;
}

/* Returns the verdict of running request @r before the plan gives it rows: @other unless it waits
 * for a picture or its last token is under way. */
static enum plan_verdict first_verdict(const struct plan_req *r, enum plan_verdict other) {
    if (r->waits)
        return PLAN_WAIT_PICTURE;
    if (r->last)
        return PLAN_LAST;
    return other;
}

static void plan_alone(struct plan_work *w, uint32_t i) {
    struct plan *p = w->p;
    struct plan_req *r = &p->req[i];

    for (uint32_t k = 0; k < p->n_running; k++)
        if (k != i)
            p->req[k].verdict = first_verdict(&p->req[k], PLAN_WAIT_ALONE);
    plan_set_prompt_limit(w, r);
    if (p->force_chunk && !p->whole && !r->whole)
        plan_extend(w, r, INT64_MAX, p->force_chunk);
    else
        plan_extend(w, r, w->limit_ns, UINT32_MAX);
    plan_min_chunk(w, i);
    if (r->n_rows > 0)
        p->alone = i;
}

static void reset(struct plan *p) {
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        struct plan_req *r = &p->req[i];

        assert(r->last || r->n_tokens > r->n_computed);
        assert(r->n_target >= r->n_tokens);
        r->n_rows = r->n_draft = r->n_led = 0;
        r->admitted = false;
        r->verdict = PLAN_UNSEEN;
        if (i >= p->n_running)
            continue;
        r->verdict = first_verdict(r, PLAN_WAIT_TIME);
        if (r->alone && r->verdict == PLAN_WAIT_TIME)
            r->verdict = PLAN_WAIT_ALONE;
    }
    p->n_admitted = p->n_preempted = p->n_drafts = 0;
    p->leaves_out = false;
    p->alone = PLAN_NONE;
}

/* Preempts the lowest request if no request can make progress or preempt another one, because all
 * pages are shared. In the end one request has the whole pool. */
static void break_tie(struct plan_work *w) {
    struct plan *p = w->p;

    if (w->rows > 0 || !w->short_of_pages || p->n_preempted + p->n_admitted > 0 || p->n_running < 2)
        return;
    for (uint32_t i = 0; i < p->n_running; i++)
        if (p->req[i].last || p->req[i].n_stored != p->req[i].n_computed)
            return; /* a step in flight has it, and its end may free pages */
    plan_preempt(w, &p->req[p->n_running - 1]);
}

/* Returns the rows that the first prompt needs in one step, which drafts must leave free. */
static uint32_t whole_rows(const struct plan *p) {
    for (uint32_t i = 0; i < p->n_running; i++)
        if (p->req[i].whole && plan_is_prefill(&p->req[i]))
            return plan_lag(&p->req[i]);
    return 0;
}

/* Leaves all requests that are not `behind` out of a step with one that `starts`, if the step would
 * take more than PLAN_HEAD_TIMES times as long with their rows as without them. */
static void plan_head_start(struct plan_work *w) {
    struct plan *p = w->p;
    struct cost_shape own = {0};
    bool starts = false;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting && p->head_start_ns > 0; i++) {
        const struct plan_req *r = &p->req[i];

        if (r->behind && r->n_rows > 0)
            cost_add(&own, r->n_computed, r->n_rows);
        starts |= r->starts && r->n_rows > 0;
    }
    int64_t own_ns = cost_bound_ns(p->cost, &own);
    if (!starts || own_ns > p->head_start_ns ||
        cost_bound_ns(p->cost, &w->shape) <= PLAN_HEAD_TIMES * own_ns)
        return;
    p->leaves_out = true;
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        struct plan_req *r = &p->req[i];

        if (r->behind || r->n_rows == 0)
            continue;
        plan_set_rows(w, r, 0);
        p->n_drafts -= r->n_draft;
        r->n_draft = 0;
        r->verdict = PLAN_WAIT_TIME;
    }
}

static void plan_together(struct plan_work *w) {
    plan_decodes(w);
    plan_cut_decodes(w);
    plan_set_limits(w);
    if (!w->short_of_pages)
        plan_admissions(w);
    uint32_t max_rows = w->max_rows, keep = MIN(whole_rows(w->p), w->p->max_rows);
    w->max_rows = MIN(max_rows, w->p->max_rows - keep);
    if (w->rows <= w->max_rows)
        plan_add_drafts(w);
    w->max_rows = max_rows;
    plan_prefills(w);
    plan_head_start(w);
    plan_note_passed(w);
    plan_note_turns(w);
}

void plan_step(struct plan *p) {
    struct plan_work w = {.p = p, .available = p->n_available, .max_rows = p->max_rows};

    assert(p->max_rows > 0 && p->page_tokens > 0);
    reset(p);
    uint32_t alone = pick_alone(p);
    if (alone != PLAN_NONE) {
        plan_set_limits(&w);
        plan_alone(&w, alone);
    }
    if (w.rows + p->n_preempted == 0) {
        reset(p);
        w.max_rows = p->max_rows;
        if (!plan_preempt_for_share(&w))
            plan_together(&w);
    }
    break_tie(&w);
    assert(w.rows <= p->max_rows && w.shape.rows == w.rows);
    p->n_rows = w.rows;
    p->n_left = w.available;
    p->n_seqs = w.shape.seqs;
    p->shape = w.shape;
    p->expect_ns = cost_expect_ns(p->cost, &w.shape);
}
