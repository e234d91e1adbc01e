/*
 * plan - one step, decided in this order:
 *
 *  1. A request that must be alone gets every fourth step for itself, or all when there is no
 *     other.
 *  2. Every running request that lacks one token gets one row: decode is never put off.
 *  3. Waiting requests are admitted in the given order while the room lasts. Room is what is
 *     available less what the running ones are expected to take. One that does not fit may be
 *     overtaken max_bypass times; then everybody behind it waits. The last sequences and pages
 *     are kept for tenants that have less than their part.
 *  4. Drafts, where they let the step bring more tokens for each millisecond (plan_draft.c).
 *  5. What is left of the step's time goes to those that lack more than one token: to tenants by
 *     weight, the one whose turn it is first, what one leaves to the next. Of those of a tenant
 *     the one of highest standing has half and what the others leave; the others share the other
 *     half, the shortest first, so a short prompt is not stuck behind a long one and the long one
 *     still ends.
 *
 * Time: the step is to end within the strictest pace of those that decode and within max_step_ns
 * always. When the decode rows alone take longer, the first prefill still gets a few rows
 * (min_chunk()).
 *
 * Pages: who lacks a page takes it from the lowest standing running request, which is preempted.
 * Nobody takes pages from a higher one; who can take none waits and keeps what it has. Only the
 * first prefill takes pages from others, and only one page a step.
 *
 * Followers: a request whose next page is being computed by another waits for it. Who is ahead
 * leads; of two at the same position, the one of higher standing. So nobody waits in a circle,
 * and when the leader is gone the next one leads without anybody having been told. A leader
 * without a page to go on is not followed, or it might be waiting for its follower's pages.
 */

#include <assert.h>
#include <math.h>
#include "base/buggify.h"
#include "base/util.h"
#include "scheduler/plan_private.h"

#define MIN_ROWS 4u   /* that a prefill gets, if a row costs ever so much */
#define ALONE_TURNS 4 /* one step in so many is for those that must be alone */
#define PLACES 1100u  /* max-seqs and the candidates */
#define FULL_NUM 31   /* a step is full when 31/32 of its time are given out */
#define FULL_DEN 32

void plan_set_rows(struct plan_work *w, struct plan_req *r, uint32_t n_rows) {
    uint32_t before = plan_pages_to_take(w->p, r, r->n_rows),
             now = plan_pages_to_take(w->p, r, n_rows);

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

static void preempt(struct plan_work *w, struct plan_req *r) {
    plan_set_rows(w, r, 0);
    w->p->n_drafts -= r->n_draft;
    r->n_draft = 0;
    r->verdict = PLAN_PREEMPT;
    w->available += r->n_sole;
    w->p->n_preempted++;
    w->short_of_pages = true;
}

/* Pages for @n_rows rows of running request @i, taken from lower ones if need be. Requests whose
 * preemption would free nothing are left alone. */
static bool make_room(struct plan_work *w, uint32_t i, uint32_t n_rows) {
    struct plan *p = w->p;
    uint32_t need = plan_pages_to_take(p, &p->req[i], n_rows);

    /* What was admitted in this plan may have found the pages that preemption would free. */
    if (p->n_admitted > 0)
        return need <= w->available;
    for (uint32_t v = p->n_running; need > w->available && v > i + 1; v--) {
        struct plan_req *r = &p->req[v - 1];

        if (r->verdict != PLAN_PREEMPT && r->n_sole > 0)
            preempt(w, r);
    }
    return need <= w->available;
}

/* Step 2. When not all fit into a batch they take turns, and prefill keeps some rows. */
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
        } else if (make_room(w, i, 1)) {
            plan_set_rows(w, r, 1);
        } else {
            r->verdict = PLAN_WAIT_PAGES;
            w->short_of_pages = true;
        }
    }
}

/* ---- sharing ---- */

uint32_t plan_common_pages(const struct plan_req *a, const struct plan_req *b, uint32_t lo) {
    uint32_t hi = MIN(a->n_hashes, b->n_hashes);

    if (lo >= hi || a->hash[lo] != b->hash[lo])
        return lo;
    while (lo < hi) { /* the first lo pages agree, page hi and later ones do not */
        uint32_t mid = lo + (hi - lo) / 2;

        if (a->hash[mid] == b->hash[mid])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool leads(const struct plan *p, uint32_t leader, uint32_t follower, uint32_t page) {
    const struct plan_req *a = &p->req[leader], *b = &p->req[follower];

    if (a->n_stored >= (page + 1) * p->page_tokens || a->n_computed < b->n_computed ||
        (a->n_computed == b->n_computed && leader > follower))
        return false;
    if (a->alone || a->stalled || a->verdict == PLAN_PREEMPT || a->verdict == PLAN_WAIT_PAGES)
        return false;
    return page < a->n_hashes && a->hash[page] == b->hash[page];
}

/* Where each request is, close together: every follower looks at all of them. */
struct places {
    uint32_t n_stored[PLACES], n_computed[PLACES];
};

static void note_places(const struct plan *p, struct places *at) {
    uint32_t n = MIN(p->n_running + p->n_waiting, PLACES);

    for (uint32_t i = 0; i < n; i++) {
        const struct plan_req *r = &p->req[i];
        bool here = i < p->n_running || r->admitted;

        at->n_stored[i] = here ? r->n_stored : UINT32_MAX;
        at->n_computed[i] = r->n_computed;
    }
}

/* Whether somebody computes the next page of @i, so that it need not. Those beyond PLACES lead
 * nobody. */
static bool follows(const struct plan *p, const struct places *at, uint32_t i) {
    const struct plan_req *r = &p->req[i];
    uint32_t page = r->n_computed / p->page_tokens, end = (page + 1) * p->page_tokens;
    uint32_t n = MIN(p->n_running + p->n_waiting, PLACES);

    if (r->n_computed % p->page_tokens || r->n_computed + p->page_tokens > r->n_share ||
        page >= r->n_hashes || r->n_stored != r->n_computed)
        return false;
    for (uint32_t j = 0; j < n; j++)
        if (at->n_stored[j] < end && at->n_computed[j] >= r->n_computed && j != i &&
            leads(p, j, i, page))
            return true;
    return false;
}

/* ---- step 3 ---- */

uint64_t plan_promised(const struct plan *p) {
    uint64_t n = 0;

    for (uint32_t i = 0; i < p->n_running; i++) {
        uint32_t target = plan_pages(p, p->req[i].n_target);

        n += target > p->req[i].n_pages ? target - p->req[i].n_pages : 0;
    }
    return n;
}

uint64_t plan_next_pages(const struct plan *p) {
    uint64_t need = 0;

    for (uint32_t i = 0; i < p->n_running; i++) {
        const struct plan_req *q = &p->req[i];
        uint32_t pages = plan_pages(p, MIN(q->n_tokens, q->n_computed + PLAN_MIN_CHUNK));

        need += pages > q->n_pages ? pages - q->n_pages : 0;
    }
    return need;
}

/* Pages that waiting request @i will have to take, the idle ones that it finds among them. Pages
 * that a running request is going to compute are not counted: it will find them. */
static uint32_t full_need(const struct plan *p, uint32_t i) {
    const struct plan_req *r = &p->req[i];
    uint32_t shared = r->n_hit / p->page_tokens, most = r->n_share / p->page_tokens;

    for (uint32_t j = 0; j < i && shared < most; j++) {
        const struct plan_req *o = &p->req[j];

        if (j >= p->n_running && !o->admitted)
            continue;
        if (o->n_stored / p->page_tokens < o->n_hashes && !o->alone && !o->stalled)
            shared = plan_common_pages(o, r, shared);
    }
    return plan_pages(p, r->n_target) - MIN(shared, most) + r->n_idle;
}

static void admit(struct plan_work *w, uint32_t i) {
    struct plan_req *r = &w->p->req[i];

    r->admitted = true;
    r->n_computed = r->n_stored = r->n_hit;
    r->n_pages = r->n_hit / w->p->page_tokens;
    w->available -= r->n_idle;
    w->p->n_admitted++;
    r->verdict = PLAN_WAIT_TIME;
    if (r->alone)
        r->verdict = PLAN_WAIT_ALONE;
    else if (plan_lag(r) == 1 && w->rows < w->max_rows &&
             plan_pages_to_take(w->p, r, 1) <= w->available)
        plan_set_rows(w, r, 1);
}

/* Whether @r has to leave what there is to others: the last sequences; if it is over, also the
 * last pages. */
static bool leaves_rest(const struct plan *p, const struct plan_req *r, uint32_t need,
                        int64_t room) {
    uint32_t in = p->n_running + p->n_admitted;

    if (in == 0)
        return false;
    if (r->leave_seqs > 0 && in + r->leave_seqs >= p->max_seqs)
        return true;
    return r->over && need + (int64_t)p->reserve_pages > room;
}

static void plan_admissions(struct plan_work *w) {
    struct plan *p = w->p;
    uint32_t n = p->n_running + p->n_waiting, overtakes = UINT32_MAX;
    int64_t room = (int64_t)p->n_available - (int64_t)plan_promised(p);

    if (BUGGIFY(plan_admits_nobody) && p->n_running > 0)
        return;
    for (uint32_t i = p->n_running; i < n; i++) {
        struct plan_req *r = &p->req[i];

        r->verdict = p->n_running + p->n_admitted >= p->max_seqs ? PLAN_WAIT_SEQS
                     : overtakes == 0                            ? PLAN_WAIT_TURN
                                                                 : PLAN_WAIT_PAGES;
        if (r->verdict != PLAN_WAIT_PAGES)
            continue;
        uint32_t need = full_need(p, i);
        if (leaves_rest(p, r, need, room)) {
            r->verdict = PLAN_WAIT_SHARE; /* nobody behind it waits for that */
            continue;
        }
        /* Alone in the pool everybody fits, whatever the estimate of its output says. */
        bool possible = !r->unfit && r->n_idle <= w->available;
        if (!possible || (need > room && p->n_running + p->n_admitted > 0)) {
            overtakes = MIN(overtakes, p->max_bypass - MIN(p->max_bypass, r->n_bypassed));
            continue;
        }
        room -= need;
        admit(w, i);
        if (overtakes == UINT32_MAX)
            continue;
        overtakes--;
        for (uint32_t j = p->n_running; j < i; j++)
            p->req[j].n_bypassed += !p->req[j].admitted && p->req[j].verdict != PLAN_WAIT_SHARE;
    }
}

/* ---- step 5 ---- */

/* The greatest n in [low, high] with which @r keeps the step under @limit_ns, or @low. */
static uint32_t fit_time(const struct plan_work *w, const struct plan_req *r, uint32_t low,
                         uint32_t high, int64_t limit_ns) {
    struct cost_shape others = w->shape;

    if (r->n_rows > 0)
        cost_remove(&others, r->n_computed, r->n_rows);
    while (low < high) {
        uint32_t mid = low + (high - low + 1) / 2;
        struct cost_shape s = others;

        cost_add(&s, r->n_computed, mid);
        if (cost_bound_ns(w->p->cost, &s) <= limit_ns)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* Rows for @r that the batch and the free pages allow, those that it has included. */
static uint32_t fit_space(const struct plan_work *w, const struct plan_req *r) {
    const struct plan *p = w->p;
    uint64_t pages =
        (uint64_t)MAX(r->n_pages, plan_pages(p, r->n_computed + r->n_rows)) + w->available;
    uint64_t n = pages * p->page_tokens - r->n_computed;

    n = MIN(n, plan_lag(r));
    return (uint32_t)MIN(n, (uint64_t)r->n_rows + w->max_rows - w->rows);
}

/* A chunk that does not finish ends at a page, so that others can have the page. */
static uint32_t align(const struct plan_work *w, const struct plan_req *r, uint32_t n) {
    uint32_t over = (r->n_computed + n) % w->p->page_tokens;

    return n < plan_lag(r) && n >= over + PLAN_MIN_CHUNK && !w->p->force_chunk ? n - over : n;
}

/* Gives @r what it can have until @limit_ns; less than PLAN_MIN_CHUNK only if that is all
 * there is. */
static void extend(struct plan_work *w, struct plan_req *r, int64_t limit_ns, uint32_t cap) {
    uint32_t space = fit_space(w, r), high = MIN(space, cap);
    uint32_t n = align(w, r, fit_time(w, r, r->n_rows, MAX(high, r->n_rows), limit_ns));

    if (n > r->n_rows && n >= MIN(PLAN_MIN_CHUNK, high))
        plan_set_rows(w, r, BUGGIFY(plan_chunk_short) ? n - (n - r->n_rows) / 2 : n);
    else if (r->n_rows == 0 && space == 0)
        r->verdict = w->rows >= w->max_rows ? PLAN_WAIT_ROWS : PLAN_WAIT_PAGES;
}

/* The first prefill gets something in any case, though it be slow; so it ends one day. */
static void min_chunk(struct plan_work *w, uint32_t i) {
    struct plan *p = w->p;
    struct plan_req *r = &p->req[i];
    uint32_t page_left = p->page_tokens - r->n_computed % p->page_tokens;
    uint32_t n = MIN(MIN(plan_lag(r), PLAN_MIN_CHUNK), w->max_rows - w->rows);

    if (r->n_rows > 0 || w->rows >= w->max_rows)
        return;
    n = fit_time(w, r, MIN(n, MIN_ROWS), n, w->min_chunk_ns);
    if (plan_pages_to_take(p, r, n) > w->available)
        n = MIN(n, page_left);
    if (i < p->n_running && !make_room(w, i, n))
        w->short_of_pages = true;
    if (plan_pages_to_take(p, r, n) <= w->available)
        plan_set_rows(w, r, n);
    else
        r->verdict = PLAN_WAIT_PAGES;
}

/* Sorts @list by what its requests lack, the least first; equal ones keep their order. */
static void sort_by_lag(const struct plan *p, uint32_t *list, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        uint32_t x = list[i], j = i;

        for (; j > 0 && plan_lag(&p->req[list[j - 1]]) > plan_lag(&p->req[x]); j--)
            list[j] = list[j - 1];
        list[j] = x;
    }
}

static void force_chunks(struct plan_work *w, const uint32_t *list, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) {
        struct plan_req *r = &w->p->req[list[k]];

        if (r->verdict != PLAN_PREEMPT)
            extend(w, r, INT64_MAX, w->p->force_chunk);
    }
}

/* Whether the smallest chunk of @r ends by @until: cheaper to ask than extend(). */
static bool may_fit(const struct plan_work *w, const struct plan_req *r, int64_t until) {
    struct cost_shape s = w->shape;

    cost_add(&s, r->n_computed, MIN(plan_lag(r), PLAN_MIN_CHUNK));
    return cost_bound_ns(w->p->cost, &s) <= until;
}

/* A part of the step's time and rows: until when, and how many in all. */
struct part {
    int64_t limit_ns;
    uint32_t max_rows;
};

/* The requests of one tenant, in order of standing. */
static void share_part(struct plan_work *w, uint32_t *list, uint32_t n, struct part part) {
    struct plan *p = w->p;
    struct plan_req *first = &p->req[list[0]];
    int64_t now = cost_bound_ns(p->cost, &w->shape);
    int64_t half = now + (part.limit_ns - now) / 2;
    uint32_t rows_half = (part.max_rows - MIN(w->rows, part.max_rows)) / 2;

    sort_by_lag(p, list + 1, n - 1);
    for (uint32_t k = 1; k < n; k++) {
        struct plan_req *r = &p->req[list[k]];
        int64_t until = now + MAX(half - now, 0) / (n - k);
        uint32_t rows = rows_half / (n - k);

        if (!may_fit(w, r, until))
            continue;
        extend(w, r, until, MAX(rows, MIN(PLAN_MIN_CHUNK, rows_half)));
        rows_half -= r->n_rows;
        now = r->n_rows > 0 ? cost_bound_ns(p->cost, &w->shape) : now;
    }
    extend(w, first, part.limit_ns, part.max_rows - MIN(w->rows, part.max_rows));
}

/* Whether tenant @group had so much more than others that its prefill may only take its part of a
 * step in which they decode: their tokens come at the rate that is theirs, not at the slowest
 * that is allowed. */
static bool is_held(const struct plan *p, uint16_t group) {
    if (p->n_groups < 2 || !p->group_part || p->group_part[group] >= 1)
        return false;
    for (uint32_t i = 0; i < p->n_running; i++)
        if (plan_is_decode(&p->req[i]) && p->req[i].group != group &&
            p->group_part[p->req[i].group] >= 1)
            return true;
    return false;
}

/* Whether tenant @group's prefill should leave steps short, for those that are not here now. */
static bool is_ahead(const struct plan *p, uint16_t group) {
    return p->add_ns > 0 &&
           ((p->group_part && p->group_part[group] < 1) || (p->group_over && p->group_over[group]));
}

static void share_rest(struct plan_work *w, const uint32_t *list, uint32_t n) {
    for (uint32_t k = w->p->n_groups <= 1; k < n && w->rows < w->max_rows; k++) {
        if (is_held(w->p, w->p->req[list[k]].group) || is_ahead(w->p, w->p->req[list[k]].group))
            continue;
        if (cost_bound_ns(w->p->cost, &w->shape) >= w->limit_ns / FULL_DEN * FULL_NUM)
            break;
        extend(w, &w->p->req[list[k]], w->limit_ns, UINT32_MAX);
    }
}

/* Sorts @list by group; those of one keep their order. */
static void sort_by_group(const struct plan *p, uint32_t *list, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        uint32_t x = list[i], j = i;

        for (; j > 0 && p->req[list[j - 1]].group > p->req[x].group; j--)
            list[j] = list[j - 1];
        list[j] = x;
    }
}

/* The end of the run of @list's first group. */
static uint32_t end_of_group(const struct plan *p, const uint32_t *list, uint32_t n) {
    uint32_t k = 1;

    while (k < n && p->req[list[k]].group == p->req[list[0]].group)
        k++;
    return k;
}

/* @list in order of standing. Parts are counted from the beginning, so what a tenant leaves goes
 * to those after it, and what all leave to whoever can use it. */
static void share_time(struct plan_work *w, uint32_t *list, uint32_t n) {
    struct plan *p = w->p;
    int64_t begin = cost_bound_ns(p->cost, &w->shape);
    uint32_t rows = w->rows, k = 0, len;
    double sum = 0, have = 0;

    if (p->n_groups > 1)
        sort_by_group(p, list, n);
    for (; p->n_groups > 1 && k < n; k += end_of_group(p, list + k, n - k))
        sum += p->group_weight[p->req[list[k]].group];
    for (k = 0; k < n; k += len) {
        struct part part = {w->limit_ns, w->max_rows};

        len = p->n_groups > 1 ? end_of_group(p, list + k, n - k) : n;
        if (len < n) {
            have += p->group_weight[p->req[list[k]].group];
            part.limit_ns = begin + (int64_t)((double)(w->limit_ns - begin) * have / sum);
            /* Rounded up: where rows are few the first gets some, not the last. */
            part.max_rows = rows + (uint32_t)ceil((w->max_rows - rows) * have / sum);
        }
        uint16_t group = p->req[list[k]].group;
        if (is_ahead(p, group))
            part.limit_ns = MIN(part.limit_ns, begin + p->add_ns);
        if (is_held(p, group)) {
            double of = (double)p->group_part[group];
            int64_t most =
                cost_bound_ns(p->cost, &w->shape) + (int64_t)((double)begin * of / (1 - of));

            part.limit_ns = MIN(part.limit_ns, most);
        }
        share_part(w, list + k, len, part);
    }
    share_rest(w, list, n);
}

static void plan_prefills(struct plan_work *w) {
    struct plan *p = w->p;
    struct places at;
    uint32_t n = 0;

    note_places(p, &at);
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        struct plan_req *r = &p->req[i];
        bool here = i < p->n_running ? r->verdict != PLAN_PREEMPT : r->admitted;

        if (!here || !plan_is_prefill(r))
            continue;
        r->verdict = PLAN_WAIT_TIME;
        if (follows(p, &at, i))
            r->verdict = PLAN_FOLLOW;
        else
            p->scratch[n++] = i;
    }
    if (n == 0)
        return;
    uint32_t highest = p->scratch[0];
    if (p->force_chunk)
        force_chunks(w, p->scratch, n);
    else
        share_time(w, p->scratch, n);
    min_chunk(w, p->scratch[0]);
    if (p->req[p->scratch[0]].n_rows == 0)
        min_chunk(w, highest); /* it may take pages that the other may not */
    for (uint32_t k = 0; k < n; k++)
        w->short_of_pages |= p->req[p->scratch[k]].verdict == PLAN_WAIT_PAGES;
}

/* ---- all together ---- */

static int64_t pace_ns(const struct plan *p, const struct plan_req *r) {
    return r->pace == PLAN_PACE_NORMAL ? p->itl_ns
           : r->pace == PLAN_PACE_SLOW ? 4 * p->itl_ns
                                       : p->itl_ns / 2;
}

/* The limits on time and rows, once it is known how many decode. */
static void set_limits(struct plan_work *w) {
    const struct plan *p = w->p;
    int64_t limit = p->max_step_ns;

    for (uint32_t i = 0; i < p->n_running; i++) {
        const struct plan_req *r = &p->req[i];

        if (plan_lag(r) == 1 || r->last)
            limit = MIN(limit, pace_ns(p, r));
    }
    int64_t slower = cost_bound_ns(p->cost, &w->shape) * PLAN_SLOWER_NUM / PLAN_SLOWER_DEN;
    w->limit_ns = limit;
    w->min_chunk_ns = MAX(slower, w->limit_ns);
    uint32_t trusted = MAX(cost_trusted_rows(p->cost), w->rows + PLAN_MIN_CHUNK);
    w->max_rows = p->force_chunk ? p->max_rows : MIN(p->max_rows, trusted);
}

/* Step 1: the request whose turn it is to be alone, or PLAN_NOBODY. */
static uint32_t pick_alone(const struct plan *p) {
    uint32_t n = 0, k, i;
    bool others = false;

    for (i = 0; i < p->n_running; i++) {
        n += p->req[i].alone && !p->req[i].last;
        others |= !p->req[i].alone;
    }
    if (n == 0 || (others && p->turn % ALONE_TURNS))
        return PLAN_NOBODY;
    k = (uint32_t)(p->turn / ALONE_TURNS % n);
    for (i = 0; i < p->n_running; i++)
        if (p->req[i].alone && !p->req[i].last && k-- == 0)
            break;
    return i;
}

static void plan_alone(struct plan_work *w, uint32_t i) {
    struct plan *p = w->p;
    struct plan_req *r = &p->req[i];

    for (uint32_t k = 0; k < p->n_running; k++)
        if (k != i)
            p->req[k].verdict = p->req[k].last ? PLAN_LAST : PLAN_WAIT_ALONE;
    if (p->force_chunk)
        extend(w, r, INT64_MAX, p->force_chunk);
    else
        extend(w, r, w->limit_ns, UINT32_MAX);
    min_chunk(w, i);
    if (r->n_rows > 0)
        p->alone = i;
}

static void reset(struct plan *p) {
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        struct plan_req *r = &p->req[i];

        assert(r->last || r->n_tokens > r->n_computed);
        assert(r->n_target >= r->n_tokens);
        r->n_rows = r->n_draft = 0;
        r->admitted = false;
        r->verdict = i >= p->n_running ? PLAN_UNSEEN
                     : r->last         ? PLAN_LAST
                     : r->alone        ? PLAN_WAIT_ALONE
                                       : PLAN_WAIT_TIME;
    }
    p->n_admitted = p->n_preempted = p->n_drafts = 0;
    p->alone = PLAN_NOBODY;
}

/* Nobody can go on and nobody may take from another (those that are shared by two hold nothing of
 * their own): the lowest is preempted. Once only one is left it has the whole pool. */
static void break_tie(struct plan_work *w) {
    struct plan *p = w->p;

    if (w->rows > 0 || !w->short_of_pages || p->n_preempted + p->n_admitted > 0 || p->n_running < 2)
        return;
    for (uint32_t i = 0; i < p->n_running; i++)
        if (p->req[i].last || p->req[i].n_stored != p->req[i].n_computed)
            return; /* under way: its end may bring pages */
    preempt(w, &p->req[p->n_running - 1]);
}

/* A tenant without its part of the slots gets one from the lowest request of the tenant that has
 * most: of one without a token yet, or else, where fair_preempt_begun allows it, of one that has
 * some. Nothing else is planned: the waiting request is admitted in the next plan, when what was
 * given back is there. */
static bool preempt_for_share(struct plan_work *w) {
    struct plan *p = w->p;

    for (int begun = 0; begun <= p->fair_preempt_begun && p->fair_preempt && !p->fair_preempted;
         begun++)
        for (uint32_t i = p->n_running; i-- > 1 && !p->fair_preempted;) {
            struct plan_req *r = &p->req[i];

            if (!r->victim || r->last || r->begun != (bool)begun)
                continue;
            preempt(w, r);
            p->fair_preempted = true;
        }
    return p->n_preempted > 0;
}

static void plan_together(struct plan_work *w) {
    plan_decodes(w);
    set_limits(w);
    if (!w->short_of_pages)
        plan_admissions(w);
    plan_add_drafts(w);
    plan_prefills(w);
}

void plan_step(struct plan *p) {
    struct plan_work w = {.p = p, .available = p->n_available, .max_rows = p->max_rows};

    assert(p->max_rows > 0 && p->page_tokens > 0);
    reset(p);
    uint32_t alone = pick_alone(p);
    if (alone != PLAN_NOBODY) {
        set_limits(&w);
        plan_alone(&w, alone);
    }
    if (w.rows + p->n_preempted == 0) {
        reset(p);
        w.max_rows = p->max_rows;
        if (!preempt_for_share(&w))
            plan_together(&w);
    }
    break_tie(&w);
    p->n_rows = w.rows;
    p->n_left = w.available;
    p->n_seqs = w.shape.seqs;
    p->shape = w.shape;
    p->expect_ns = cost_expect_ns(p->cost, &w.shape);
}
