/*
 * plan_time - step 5 of a plan: divides the time that decode leaves among prompts.
 *
 * A step should end within its target: the strictest pace of the requests that decode, and
 * max_step_ns always. Where the target cannot be kept, the limit follows from the cost of a step:
 *
 *  - Where decode and one row of a prompt take more than 3/4 of the target, the limit is 4/3 of
 *    their time, and on a slow device up to twice their time (plan_limit_beside()). So prompts have
 *    at least a quarter of every step, and half of it where a step takes many targets. The row is
 *    counted because no step with a prompt is shorter: far into a long prompt, one row reads all of
 *    its keys. Besides, the cost model of a busy machine cannot tell whether a step waits for its
 *    rows or for its sequences; their sum is known well.
 *  - Where nothing decodes, the limit rises to the time of the smallest efficient chunk, at most
 *    ten times the time of one row (plan_set_prompt_limit()).
 *  - Some of these steps are probes with few rows of prompts, or, where nothing decodes, with twice
 *    as many (plan_time_probe()).
 *
 * Where it can be kept, steps are cut for tenants that may arrive (plan_time_cut()), since an
 * arrival waits for the end of the step. And the first prompts behind steps that only decoded have
 * half of the time: the price of their rows may have changed since (cost_is_of_decode()).
 *
 * Tenants share the time by weight, the one furthest behind first, and the next tenant gets what
 * one leaves. Among the prompts of a tenant, the oldest has half of the time and what the others
 * leave; the others share the other half evenly, the shortest first. Such a share may be too short
 * for a chunk. So the shortest prompt is due after it was passed over PLAN_PASSED_MOST times, or
 * once where the limit was raised. A request that follows another one's pages has no rows.
 *
 * Models whose prompts are computed whole (plan.whole) divide nothing: the oldest request of the
 * tenant furthest behind has all its rows, then others while rows and time are left.
 *
 * The first prompt gets a few rows whatever the estimate says (plan_min_chunk()).
 *
 * Followers: of two requests with equal pages the one further ahead leads; at the same position,
 * the one of higher priority. So no cycle can form, and when the leader ends the next one leads. A
 * request that lacks a page is not followed, since it may be waiting for pages of its follower; nor
 * is one that waits for a picture, which may need the memory of pictures that its follower holds.
 * While nothing decodes, a leader's prompt does not end in the step that computes the last followed
 * page. So the prompts of leader and followers end in the same step, before decode of any of them
 * makes steps short.
 */

#include <assert.h>
#include <math.h>

#include "base/buggify.h"
#include "base/util.h"
#include "scheduler/plan_private.h"
#include "scheduler/policy.h"

#define PLACES 1100u /* max-seqs and the candidates */

/* ---- followers ---- */

static bool leads(const struct plan *p, uint32_t leader, uint32_t follower, uint32_t page) {
    const struct plan_req *a = &p->req[leader], *b = &p->req[follower];

    if (a->n_stored >= (page + 1) * p->page_tokens || a->n_computed < b->n_computed ||
        (a->n_computed == b->n_computed && leader > follower))
        return false;
    if (a->alone || a->stalled || a->waits || a->verdict == PLAN_PREEMPT ||
        a->verdict == PLAN_WAIT_PAGES)
        return false;
    return page < a->n_hashes && a->hash[page] == b->hash[page];
}

/* Positions of requests in dense arrays, since each follower compares all of them. */
struct places {
    uint32_t n_stored[PLACES], n_computed[PLACES];
};

static void note_places(const struct plan *p, struct places *at) {
    uint32_t n = MIN(p->n_running + p->n_waiting, PLACES);

    for (uint32_t i = 0; i < n; i++) {
        const struct plan_req *r = &p->req[i];

        at->n_stored[i] = r->n_stored;
        at->n_computed[i] = r->n_computed;
        if (!plan_is_here(p, i))
            at->n_stored[i] = UINT32_MAX;
    }
}

/* Returns the request that computes the next page of @i, or PLAN_NONE. Requests beyond PLACES lead
 * no others. */
static uint32_t leader_of(const struct plan *p, const struct places *at, uint32_t i) {
    const struct plan_req *r = &p->req[i];
    uint32_t page = r->n_computed / p->page_tokens, end = (page + 1) * p->page_tokens;
    uint32_t n = MIN(p->n_running + p->n_waiting, PLACES);

    if (r->n_computed % p->page_tokens || r->n_computed + p->page_tokens > r->n_share ||
        page >= r->n_hashes || r->n_stored != r->n_computed)
        return PLAN_NONE;
    for (uint32_t j = 0; j < n; j++)
        if (at->n_stored[j] < end && at->n_computed[j] >= r->n_computed && j != i &&
            leads(p, j, i, page))
            return j;
    return PLAN_NONE;
}

/* Raises leader->n_led to the position where @r stops following. Must not be called while a step of
 * the leader is in flight, because @r could not continue at once. */
static void note_follower(const struct plan *p, struct plan_req *leader, const struct plan_req *r) {
    uint32_t page = r->n_computed / p->page_tokens;
    uint32_t n = MIN(MIN(leader->n_hashes, r->n_hashes), r->n_share / p->page_tokens);

    if (p->whole || leader->n_stored != leader->n_computed)
        return;
    while (page < n && leader->hash[page] == r->hash[page])
        page++;
    leader->n_led = MAX(leader->n_led, page * p->page_tokens);
}

/* ---- chunks ---- */

/* Returns the greatest n in [low, high] rows of @r with which the step ends by @limit_ns, or
 * @low. */
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

/* Returns the rows, present ones included, that the batch and the free pages allow @r. */
static uint32_t fit_space(const struct plan_work *w, const struct plan_req *r) {
    const struct plan *p = w->p;
    uint64_t pages =
        (uint64_t)MAX(r->n_pages, plan_pages(p, r->n_computed + r->n_rows)) + w->available;
    uint64_t n = pages * p->page_tokens - r->n_computed;

    n = MIN(n, plan_lag(r));
    if (r->n_led > r->n_computed && !r->whole)
        n = MIN(n, r->n_led - r->n_computed);
    return (uint32_t)MIN(n, (uint64_t)r->n_rows + w->max_rows - w->rows);
}

/* Returns @n, cut to the end of a page unless the chunk completes the prompt, so that others can
 * share the page. */
static uint32_t align(const struct plan_work *w, const struct plan_req *r, uint32_t n) {
    uint32_t over = (r->n_computed + n) % w->p->page_tokens;

    if (n == plan_lag(r) || n < over + PLAN_MIN_CHUNK || w->p->force_chunk)
        return n;
    return n - over;
}

void plan_extend(struct plan_work *w, struct plan_req *r, int64_t limit_ns, uint32_t cap) {
    if (r->verdict == PLAN_PREEMPT) /* by a prompt that must have rows; others have its pages */
        return;
    uint32_t space = fit_space(w, r), high = MIN(space, cap);
    uint32_t n = align(w, r, fit_time(w, r, r->n_rows, MAX(high, r->n_rows), limit_ns));

    bool whole = w->p->whole || r->whole;
    if (whole && n < plan_lag(r))
        return;
    if (n > r->n_rows && n >= MIN(PLAN_MIN_CHUNK, high)) {
        if (BUGGIFY(plan_chunk_short) && !whole)
            n -= (n - r->n_rows) / 2;
        plan_set_rows(w, r, n);
    } else if (r->n_rows == 0 && space == 0) {
        r->verdict = PLAN_WAIT_PAGES;
        if (w->rows >= w->max_rows)
            r->verdict = PLAN_WAIT_ROWS;
    }
}

/* Returns the limit of the prompts of the tenant of @r behind rows that take @begin_ns; while
 * another tenant is expected, at most a turn's. */
static int64_t plan_time_turn(const struct plan_work *w, const struct plan_req *r,
                              int64_t begin_ns) {
    const struct plan *p = w->p;

    if (!p->expects || r->behind)
        return w->limit_ns;
    return MIN(w->limit_ns, MAX(plan_turn_ns(p), begin_ns + begin_ns / PLAN_ADD_PART));
}

void plan_min_chunk(struct plan_work *w, uint32_t i) {
    struct plan *p = w->p;
    struct plan_req *r = &p->req[i];
    uint32_t page_left = p->page_tokens - r->n_computed % p->page_tokens;
    uint32_t n = MIN(MIN(plan_lag(r), PLAN_MIN_CHUNK), w->max_rows - w->rows);

    if (r->n_rows > 0 || w->rows >= (r->whole ? p->max_rows : w->max_rows))
        return;
    if (r->verdict == PLAN_PREEMPT)
        return;
    bool whole = p->whole || r->whole;
    if (whole && plan_lag(r) > p->max_rows - w->rows)
        return;
    /* Alone it is not cut to a turn: in steps of two rows a prompt takes many times as long. */
    int64_t until_ns = w->limit_ns;
    if (w->rows > 0)
        until_ns = plan_time_turn(w, r, cost_bound_ns(p->cost, &w->shape));
    if (whole)
        n = plan_lag(r);
    else
        n = fit_time(w, r, 1, n, until_ns);
    if (plan_pages_to_add(p, r, n) > w->available && !whole)
        n = MIN(n, page_left);
    if (i < p->n_running && !plan_make_room(w, i, n))
        w->short_of_pages = true;
    if (plan_pages_to_add(p, r, n) <= w->available)
        plan_set_rows(w, r, n);
    else
        r->verdict = PLAN_WAIT_PAGES;
    w->max_rows = MAX(w->max_rows, w->rows); /* beyond the trusted rows */
}

static inline uint32_t plan_time_group(const struct plan_req *r) {
    return r->group;
}

/* Sorts @list by @key of its requests, ascending and stable. */
static inline void sort_by(uint32_t (*key)(const struct plan_req *), const struct plan *p,
                           uint32_t *list, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        uint32_t x = list[i], j = i, of = key(&p->req[x]);

        for (; j > 0 && key(&p->req[list[j - 1]]) > of; j--)
            list[j] = list[j - 1];
        list[j] = x;
    }
}

static void force_chunks(struct plan_work *w, const uint32_t *list, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) {
        struct plan_req *r = &w->p->req[list[k]];
        uint32_t cap = w->p->force_chunk;

        if (r->whole)
            cap = UINT32_MAX;
        plan_extend(w, r, INT64_MAX, cap);
    }
}

/* Returns whether the smallest chunk of @r ends by @until; cheaper than plan_extend(). */
static bool may_fit(const struct plan_work *w, const struct plan_req *r, int64_t until) {
    struct cost_shape s = w->shape;

    cost_add(&s, r->n_computed, MIN(plan_lag(r), PLAN_MIN_CHUNK));
    return cost_bound_ns(w->p->cost, &s) <= until;
}

static void plan_time_swap(uint32_t *a, uint32_t *b) {
    uint32_t x = *a;

    *a = *b;
    *b = x;
}

/* Part of a step: the time by which it ends and the total rows of the step at its end. */
struct part {
    int64_t limit_ns;
    uint32_t max_rows;
};

/* Returns true if @r was passed over so often that it must have rows in this step. */
static bool plan_time_is_due(const struct plan_work *w, const struct plan_req *r) {
    return r->n_passed >= PLAN_PASSED_MOST || (w->misses && r->n_passed > 0);
}

/* Divides @part among the prompts of one tenant, which @list has in order of virtual arrival. Half
 * of it is divided evenly among all but the oldest, the shortest first; the oldest gets the
 * remaining time. If the shortest prompt is due, it may take all of that half; if the half has no
 * room for its chunk, it takes the place of the oldest. The prompt that gets the remaining time
 * comes first in @list. */
static void share_part(struct plan_work *w, uint32_t *list, uint32_t n, struct part part) {
    struct plan *p = w->p;
    int64_t now = cost_bound_ns(p->cost, &w->shape);
    int64_t half = now + (part.limit_ns - now) / 2;
    uint32_t rows_half = (part.max_rows - MIN(w->rows, part.max_rows)) / 2, k = 1;

    assert(n > 0);
    sort_by(plan_lag, p, list + 1, n - 1);
    struct plan_req *shortest = &p->req[list[n > 1]];
    if (n > 1 && plan_time_is_due(w, shortest)) {
        if (rows_half > 0 && may_fit(w, shortest, half)) {
            plan_extend(w, shortest, half, rows_half);
            rows_half -= shortest->n_rows;
            now = cost_bound_ns(p->cost, &w->shape);
            k = 2;
        } else if (plan_lag(shortest) < plan_lag(&p->req[list[0]])) {
            plan_time_swap(&list[0], &list[1]);
            k = n;
        }
    }
    for (; k < n; k++) {
        struct plan_req *r = &p->req[list[k]];
        int64_t until = now + MAX(half - now, 0) / (n - k);

        if (!may_fit(w, r, until))
            continue;
        plan_extend(w, r, until, MAX(rows_half / (n - k), MIN(PLAN_MIN_CHUNK, rows_half)));
        rows_half -= r->n_rows;
        if (r->n_rows > 0)
            now = cost_bound_ns(p->cost, &w->shape);
    }
    plan_extend(w, &p->req[list[0]], part.limit_ns, part.max_rows - MIN(w->rows, part.max_rows));
}

/* Returns whether prefill of tenant @group may take only its share of a step in which other tenants
 * decode: it is far ahead, and their tokens should come at their rate, not at the slowest allowed
 * one. */
static bool plan_time_is_held(const struct plan *p, uint16_t group) {
    if (p->n_groups < 2 || !p->group_part || p->group_part[group] >= 1)
        return false;
    for (uint32_t i = 0; i < p->n_running; i++)
        if (plan_is_decode(&p->req[i]) && p->req[i].group != group &&
            p->group_part[p->req[i].group] >= 1)
            return true;
    return false;
}

/* Returns whether no tenant but @group has anything to compute in this step. */
static bool plan_time_is_lone(const struct plan *p, uint16_t group) {
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *r = &p->req[i];

        if (plan_is_here(p, i) && !r->last && r->group != group)
            return false;
    }
    return true;
}

/* Returns whether prefill of tenant @group beside decode should keep steps short for tenants that
 * may arrive. */
static bool is_ahead(const struct plan *p, uint16_t group) {
    return p->add_ns > 0 &&
           ((p->group_part && p->group_part[group] < 1) || (p->group_over && p->group_over[group]));
}

static void share_rest(struct plan_work *w, const uint32_t *list, uint32_t n) {
    for (uint32_t k = w->p->n_groups <= 1; k < n && w->rows < w->max_rows; k++) {
        if (plan_time_is_held(w->p, w->p->req[list[k]].group) ||
            is_ahead(w->p, w->p->req[list[k]].group) ||
            (w->p->expects && !w->p->req[list[k]].behind))
            continue;
        if (cost_bound_ns(w->p->cost, &w->shape) >= w->limit_ns / PLAN_FULL_DEN * PLAN_FULL_NUM)
            break;
        plan_extend(w, &w->p->req[list[k]], w->limit_ns, UINT32_MAX);
    }
}

/* Returns the number of requests at the beginning of @list that are of the same tenant. */
static uint32_t end_of_group(const struct plan *p, const uint32_t *list, uint32_t n) {
    uint32_t k = 1;

    while (k < n && p->req[list[k]].group == p->req[list[0]].group)
        k++;
    return k;
}

/* Divides the step's time among @list, which is in order of virtual arrival. Each part ends at a
 * time counted from the beginning of the step, so time that a tenant does not use goes to the
 * following tenants, and time that remains at the end goes to those that can use it. */
static void share_time(struct plan_work *w, uint32_t *list, uint32_t n) {
    struct plan *p = w->p;
    int64_t begin = cost_bound_ns(p->cost, &w->shape);
    uint32_t rows = w->rows, keep = 0, k = 0, len;
    double sum = 0, have = 0;

    if (p->n_groups > 1)
        sort_by(plan_time_group, p, list, n);
    for (; p->n_groups > 1 && k < n; k += end_of_group(p, list + k, n - k))
        sum += p->group_weight[p->req[list[k]].group];
    for (k = 0; k < n; k += len) {
        struct part part = {w->limit_ns, w->max_rows};

        len = n;
        if (p->n_groups > 1)
            len = end_of_group(p, list + k, n - k);
        if (len < n) {
            have += p->group_weight[p->req[list[k]].group];
            part.limit_ns = begin + (int64_t)((double)(w->limit_ns - begin) * have / sum);
            /* Rounds up, so that the first tenant gets a row even if rows are few. */
            part.max_rows = rows + (uint32_t)ceil((w->max_rows - rows) * have / sum);
            if (k == 0 && !may_fit(w, &p->req[list[0]], part.limit_ns))
                /* must have rows, so it may use the whole step */
                part = (struct part){w->limit_ns, w->max_rows};
        }
        uint16_t group = p->req[list[k]].group;
        if (is_ahead(p, group) && (w->decodes || !w->misses))
            part.limit_ns = MIN(part.limit_ns, begin + MAX(p->add_ns, begin / PLAN_ADD_PART));
        part.limit_ns = MIN(part.limit_ns, plan_time_turn(w, &p->req[list[k]], begin));
        if (plan_time_is_held(p, group)) {
            double of = (double)p->group_part[group];
            int64_t most =
                cost_bound_ns(p->cost, &w->shape) + (int64_t)((double)begin * of / (1 - of));

            part.limit_ns = MIN(part.limit_ns, most);
        }
        share_part(w, list + k, len, part);
        if (k == 0 && p->req[list[0]].n_rows == 0 && w->rows < w->max_rows) {
            w->max_rows--; /* the others leave the row that plan_min_chunk() gives it */
            keep = 1;
        }
    }
    share_rest(w, list, n);
    w->max_rows += keep;
}

void plan_note_passed(struct plan_work *w) {
    const struct plan *p = w->p;
    const uint32_t *list = p->scratch;
    uint32_t n = w->n_prompts;

    for (uint32_t k = 0, len; k < n; k += len) {
        bool any = false;

        len = end_of_group(p, list + k, n - k);
        for (uint32_t i = k; i < k + len; i++)
            any |= p->req[list[i]].n_rows > 0;
        for (uint32_t i = k; i < k + len && any; i++) {
            struct plan_req *r = &p->req[list[i]];

            r->n_passed += r->n_passed < UINT8_MAX;
            if (r->n_rows > 0)
                r->n_passed = 0;
        }
    }
}

/* Plans prompts that are computed whole; @list is in order of virtual arrival. */
static void whole_prompts(struct plan_work *w, uint32_t *list, uint32_t n) {
    if (w->p->n_groups > 1)
        sort_by(plan_time_group, w->p, list, n);
    plan_min_chunk(w, list[0]);
    for (uint32_t k = 1; k < n; k++)
        plan_extend(w, &w->p->req[list[k]], w->limit_ns, UINT32_MAX);
}

void plan_prefills(struct plan_work *w) {
    struct plan *p = w->p;
    struct places at;
    uint32_t n = 0;

    note_places(p, &at);
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        struct plan_req *r = &p->req[i];

        if (!plan_is_here(p, i) || !plan_is_prefill(r) || r->verdict == PLAN_PREEMPT)
            continue;
        uint32_t leader = leader_of(p, &at, i);
        r->verdict = PLAN_FOLLOW;
        if (leader == PLAN_NONE) {
            r->verdict = PLAN_WAIT_TIME;
            p->scratch[n++] = i;
        } else if (w->rows == 0) {
            note_follower(p, &p->req[leader], r);
        }
    }
    if (n == 0)
        return;
    uint32_t highest = p->scratch[0];
    plan_set_prompt_limit(w, &p->req[highest]);
    if (p->req[highest].whole)
        plan_min_chunk(w, highest); /* before other prompts take the rows */
    if (p->whole)
        whole_prompts(w, p->scratch, n);
    else if (p->force_chunk)
        force_chunks(w, p->scratch, n);
    else
        share_time(w, p->scratch, n);
    plan_min_chunk(w, p->scratch[0]);
    if (p->req[p->scratch[0]].n_rows == 0)
        plan_min_chunk(w, highest); /* may preempt requests that the other one may not */
    w->n_prompts = n;
    for (uint32_t k = 0; k < n; k++)
        w->short_of_pages |= p->req[p->scratch[k]].verdict == PLAN_WAIT_PAGES;
}

/* ---- limits ---- */

int64_t plan_pace_ns(const struct plan *p, enum plan_pace pace) {
    if (pace == PLAN_PACE_SLOW)
        return 4 * p->itl_ns;
    if (pace == PLAN_PACE_QUICK)
        return p->itl_ns / 2;
    return p->itl_ns;
}

int64_t plan_limit_beside(int64_t decode_ns, int64_t target_ns) {
    assert(decode_ns >= 0 && target_ns > 0);
    return MAX(target_ns, MAX(decode_ns / 3 * 4, 2 * (decode_ns - target_ns)));
}

/* Returns in how many steps one is a probe. */
static uint64_t probe_turns(const struct plan_work *w) {
    if (!w->decodes)
        return PLAN_PROBE_TURNS;
    if (cost_is_sure(w->p->cost))
        return PLAN_PROBE_SURE;
    return PLAN_PROBE_BESIDE;
}

/* Makes some steps whose limit was raised probes: they have no time beyond @least_ns, or, where
 * nothing decodes, twice the time, at most @most_ns. From steps of one size the cost model cannot
 * tell the price of a row from that of a step. */
static void plan_time_probe(struct plan_work *w, int64_t least_ns, int64_t most_ns) {
    uint64_t turn = w->p->turn + 1;

    w->misses = w->limit_ns > w->target_ns;
    if (!w->misses || turn % probe_turns(w))
        return;
    bool more = !w->decodes && turn % PLAN_PROBE_MORE == PLAN_PROBE_MORE / 2;
    if (more)
        w->limit_ns = MIN(2 * w->limit_ns - least_ns, most_ns);
    else
        w->limit_ns = least_ns;
}

/* Raises the limit of a step whose first prompt chunk is of @r. */
static void raise_limit(struct plan_work *w, const struct plan_req *r) {
    const struct plan *p = w->p;
    struct cost_shape one = {0}, chunk = {0};

    if (p->prewarm)
        return;
    if (w->decodes)
        one = w->decode;
    cost_add(&one, r->n_computed, 1);
    int64_t one_ns = cost_bound_ns(p->cost, &one), most_ns = PLAN_ALONE_TIMES * one_ns;
    if (w->decodes) {
        w->limit_ns = MAX(w->limit_ns, plan_limit_beside(one_ns, w->target_ns));
        plan_time_probe(w, cost_bound_ns(p->cost, &w->shape), INT64_MAX);
        return;
    }
    if (most_ns > w->target_ns) {
        cost_add(&chunk, r->n_computed, cost_efficient_rows(p->cost, r->n_computed, p->max_rows));
        w->limit_ns = MAX(w->limit_ns, MIN(most_ns, cost_bound_ns(p->cost, &chunk)));
    }
    plan_time_probe(w, one_ns, MAX(most_ns, w->limit_ns));
}

/* Cuts the limit of a step for tenants that may arrive: where only one tenant of several lately has
 * anything to compute, or nothing decodes, prompts need no more time than is efficient. @r has the
 * first prompt. */
static void plan_time_cut(struct plan_work *w, const struct plan_req *r) {
    const struct plan *p = w->p;
    int64_t begin_ns = cost_bound_ns(p->cost, &w->shape);
    struct cost_shape chunk = {0};

    if (p->add_ns == 0 || w->misses)
        return;
    if (w->decodes && plan_time_is_lone(p, r->group))
        w->limit_ns = MIN(w->limit_ns, begin_ns + MAX(p->add_ns, begin_ns / PLAN_ADD_PART));
    if (w->decodes)
        return;
    cost_add(&chunk, r->n_computed, cost_efficient_rows(p->cost, r->n_computed, p->max_rows));
    w->limit_ns = MIN(w->limit_ns, begin_ns + cost_bound_ns(p->cost, &chunk));
}

void plan_set_prompt_limit(struct plan_work *w, const struct plan_req *r) {
    raise_limit(w, r);
    plan_time_cut(w, r);
    if (w->decodes && !w->misses && cost_is_of_decode(w->p->cost)) {
        int64_t decode_ns = cost_bound_ns(w->p->cost, &w->shape);

        w->limit_ns = decode_ns + MAX(w->limit_ns - decode_ns, 0) / 2;
    }
    w->limit_ns = MAX(w->limit_ns - w->p->spent_ns, 0);
}

void plan_set_limits(struct plan_work *w) {
    const struct plan *p = w->p;
    struct cost_shape least = w->shape;

    w->decode = w->shape;
    w->target_ns = p->max_step_ns;
    if (p->prewarm)
        w->target_ns = MIN(p->max_step_ns, PLAN_PREWARM_NS);
    for (uint32_t i = 0; i < p->n_running; i++) {
        const struct plan_req *r = &p->req[i];

        if ((plan_lag(r) > 1 && !r->last) || r->waits)
            continue;
        w->target_ns = MIN(w->target_ns, plan_pace_ns(p, (enum plan_pace)r->pace));
        w->decodes = true;
    }
    if (least.rows == 0)
        cost_add(&least, 0, 1);
    w->limit_ns = w->target_ns;
    if (!p->prewarm)
        w->limit_ns = plan_limit_beside(cost_bound_ns(p->cost, &least), w->target_ns);
    w->max_rows = p->max_rows;
    if (!p->force_chunk && !p->whole)
        w->max_rows = MIN(p->max_rows, MAX(cost_trusted_rows(p->cost), w->rows + PLAN_MIN_CHUNK));
}
