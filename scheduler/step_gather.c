/*
 * step_gather - fills the input of a plan: running requests and candidates for admission, as
 * numbers. Pages that other requests have published are attached first, and pages in host memory
 * are copied back, so that the plan spends no rows on them.
 */

#include <assert.h>

#include "base/buggify.h"
#include "scheduler/late.h"
#include "scheduler/policy.h"
#include "scheduler/scheduler_private.h"

/* Returns whether published pages can be attached to @r now: it has computed nothing of its next
 * page. */
static bool can_attach(const struct sched *s, const struct request *r) {
    assert(r->seq);
    return r->n_in_flight == 0 && !BUGGIFY(step_attaches_late) &&
           r->n_computed == request_n_pages(r) * s->view.page_tokens;
}

/* Notes that @r has its first @n tokens from pages, without computing them. */
static void note_cached(struct sched *s, struct request *r, uint32_t n) {
    if (r->n_preempted == 0) {
        uint32_t from = MIN(r->n_computed, r->n_prompt), to = MIN(n, r->n_prompt);
        r->n_cached += to - from;
        if (!request_is_prewarm(r))
            s->stats.n_cached_tokens += to - from;
    }
    if (n > r->n_computed)
        r->n_found = n;
    r->n_computed = n;
}

void step_attach(struct sched *s, struct request *r) {
    uint32_t n = s->states.on ? r->seen_hit : request_shareable(r);

    if (r->picture.two_way)
        n = request_match(r, s->pager, n, s->view.page_tokens).n_tokens;
    uint32_t before = request_n_stored(r);
    uint32_t has = kv_seq_attach(r->seq, request_keys(r), n);

    if (request_is_prewarm(r))
        prewarm_count(&s->prewarm, before, n, has);
    note_cached(s, r, has);
    if (!s->states.on || r->n_computed == 0)
        return;
    bool found = states_load(&s->states, r);
    assert(found);
}

/* Continues a hybrid model's request behind its pages, at @n, if all of them and the snapshot
 * exist; otherwise at the position where it began. */
static void go_on_at(struct sched *s, struct request *r, uint32_t n, bool more) {
    if (n < r->n_host && more)
        return;
    if (n == r->n_host && !BUGGIFY(host_state_gone) && states_load(&s->states, r))
        note_cached(s, r, n);
    else
        kv_seq_truncate(r->seq, r->n_computed);
    r->n_host = 0;
}

/*
 * Copies the next pages of @r back from host memory, in parts where others wait for the step; @r
 * computes nothing until the last part. Pages that are gone, or for which there is no room, are
 * computed.
 */
static void step_fetch(struct sched *s, struct request *r) {
    bool alone = s->running.next == s->running.prev && list_empty(&s->waiting);
    uint32_t before = request_n_stored(r), most = UINT32_MAX, n;

    if (!alone)
        most = kv_tier_fetch_room(s->tier);
    if (most == 0)
        return;
    struct kv_keys k = request_prefix(r, r->n_host);
    n = kv_tier_fetch(s->tier, r->seq, &k, most, s->plan.n_running);
    if (s->states.on) {
        go_on_at(s, r, n, n > before);
        return;
    }
    note_cached(s, r, n);
    if (r->n_computed == before || r->n_computed >= r->n_host)
        r->n_host = 0;
    n = request_cut(r, r->n_computed, s->view.page_tokens);
    if (r->n_host == 0 && n < r->n_computed) { /* the remaining rows of a picture were evicted */
        kv_seq_truncate(r->seq, n);
        r->n_computed = n;
    }
}

/* Describes the draft of @r to the plan. While its last token is in flight, the draft's first token
 * stands for it, and the remaining tokens are the draft behind it. */
static void step_propose(struct sched *s, struct request *r, struct plan_req *q) {
    uint32_t n_pending = r->n_pending;

    if (q->last || q->alone || q->n_tokens - q->n_computed != 1 ||
        q->n_tokens < r->n_tokens + n_pending)
        return;
    spec_propose(&s->spec, r);
    if (!r->draft.spec || r->draft.spec->n_draft <= n_pending || !states_may_draft(&s->states))
        return;
    if (sched_n_in_flight(s) == 0 &&
        (BUGGIFY(draft_no_memory) || request_reserve(r, r->draft.spec->n_draft) < 0))
        return; /* no memory, no drafts */
    q->n_draft_max = r->draft.spec->n_draft - n_pending;
    q->survival = r->draft.spec->survival + n_pending;
    q->try_draft = spec_probes(r);
}

static void step_describe(const struct sched *s, const struct request *r, struct plan_req *q) {
    uint32_t n_tokens = r->n_tokens + r->n_pending;
    uint32_t target = request_target(r, &s->estimate);

    if (BUGGIFY(step_answers_grow))
        target = r->max_tokens;

    *q = (struct plan_req){
        .n_tokens = n_tokens,
        .n_computed = r->n_computed,
        .n_target = MAX(target, n_tokens),
        .n_share = request_shareable(r) / s->view.page_tokens * s->view.page_tokens,
        .n_hashes = r->n_hashes,
        .hash = r->hash,
        .last = request_is_last(r),
        .alone = r->alone,
        .begun = request_n_out(r) + r->n_pending > 0,
        .behind = fair_is_behind(&s->fair, r),
        .stalled = r->stalled,
        .n_bypassed = r->n_bypassed,
        .n_passed = r->n_passed,
        .group = s->fair.group[r->tenant],
        .pace = r->class, /* enum plan_pace is in the same order */
    };
    bool is_short = q->n_target <= r->n_prompt + PLAN_HEAD_TOKENS;
    q->starts = q->behind && (!q->begun || is_short) && r->head_start_ns < s->plan.add_ns;
    q->n_stored = request_n_stored(r);
    q->n_pages = request_n_pages(r);
    if (s->states.on)
        states_describe(&s->states, r, r->n_computed, q);
    /* No row can be computed before the pages are copied back or the mask is made. */
    if (r->n_host > 0 || (r->state == REQUEST_RUNNING && late_waits(r))) {
        q->n_tokens = q->n_computed;
        q->last = true;
    }
}

/* Cuts the plan's view of @r, of which @n_computed tokens are computed, at @reach, the first
 * picture without rows; where a picture must be in one step, also before and after the next
 * picture. */
static void bound_by_pictures(const struct request *r, uint32_t n_computed, uint32_t reach,
                              struct plan_req *q) {
    for (uint32_t i = 0; r->picture.two_way && i < r->picture.n; i++) {
        const struct submit_picture *p = &r->picture.list[i].in;

        if (p->at + p->n_rows <= n_computed)
            continue;
        q->whole = p->at == n_computed && p->n_rows > 1;
        assert(p->at >= n_computed);
        uint32_t end = p->at;
        if (p->at == n_computed)
            end += p->n_rows;
        q->n_tokens = MIN(q->n_tokens, end);
        break;
    }
    q->n_tokens = MIN(q->n_tokens, MAX(reach, n_computed));
    if (q->n_tokens > n_computed)
        return;
    q->last = q->waits = true;
    q->whole = false;
}

/* Looks up the cached prefix of waiting request @r. A lookup hashes every page, so a long prompt
 * that waits for @room is not looked up in every step: the last result shows that it cannot fit. */
static void step_look_up(struct sched *s, struct request *r, struct plan_req *q, uint64_t room) {
    uint32_t need = plan_pages(&s->plan, q->n_target) - r->seen_hit / s->view.page_tokens;
    struct kv_match m;

    if (!BUGGIFY(step_looks_again) && r->seen_step > 0 && need > room &&
        s->n_launched < r->seen_step + STEP_LOOK_AGAIN) {
        q->unfit = true;
    } else {
        if (s->states.on)
            m = states_match(&s->states, r);
        else
            m = request_match(r, s->pager, q->n_share, s->view.page_tokens);
        r->seen_hit = m.n_tokens;
        r->seen_step = s->n_launched + 1;
        q->n_idle = m.n_idle;
    }
    q->n_hit = r->seen_hit;
    if (s->states.on) {
        states_describe(&s->states, r, q->n_hit, q);
        q->n_share = q->n_hit;
    }
    if (r->picture.n > 0) /* a waiting request holds none */
        bound_by_pictures(r, q->n_hit, pictures_first(r, q->n_hit), q);
}

/* Returns whether @r waits for a snapshot that one of the first @n requests of the plan is about to
 * make. */
static bool follows(const struct sched *s, const struct request *r, uint32_t n) {
    for (uint32_t i = 0; i < n && s->states.on; i++)
        if (states_follows(&s->states, r, s->planned[i]))
            return true;
    return false;
}

/* Counts the pages that preemptions would free. Counting looks at each page, so it is done only
 * when a preemption is possible. */
static void count_sole_pages(struct sched *s) {
    struct plan *p = &s->plan;

    if (plan_next_pages(p) <= p->n_available)
        return;
    for (uint32_t i = 0; i < p->n_running; i++)
        p->req[i].n_exclusive = kv_seq_exclusive(s->planned[i]->seq);
}

static void gather_running(struct sched *s) {
    struct plan *p = &s->plan;

    assert(s->n_waited <= s->n_launched);
    p->n_running = 0;
    states_begin_drafts(&s->states);
    fair_begin_step(&s->fair, clock_now(s->clock));
    p->head_start_ns = MAX(p->add_ns - s->left_out_ns, 0);
    /* Requests of tenants above their share of pages rank lowest and come last. */
    for (int over = 0; over <= (s->fair.n_groups > 1); over++)
        LIST_FOREACH_ENTRY(r, &s->running, struct request, queued.link) {
            if (fair_ranks_low(&s->fair, r) != (bool)over)
                continue;
            if (r->n_computed + 1 < r->n_tokens && !s->states.on && can_attach(s, r))
                step_attach(s, r);
            if (r->n_host > 0)
                step_fetch(s, r);
            assert(p->n_running < p->max_seqs && r->state == REQUEST_RUNNING);
            s->planned[p->n_running] = r;
            step_describe(s, r, &p->req[p->n_running]);
            if (r->picture.n > 0 && r->n_host == 0)
                bound_by_pictures(r, r->n_computed, pictures_hold(&s->pictures, r),
                                  &p->req[p->n_running]);
            step_propose(s, r, &p->req[p->n_running++]);
        }
}

static void gather_waiting(struct sched *s) {
    struct plan *p = &s->plan;
    uint64_t promised = plan_promised(p), room;
    struct request *candidate[SCHED_CANDIDATES];
    struct fair_limits limits[SCHED_CANDIDATES];
    uint32_t n_candidates;

    p->n_waiting = 0;
    room = p->n_available - MIN(promised, p->n_available);
    p->fair_preempt = fair_preempts(&s->fair, clock_now(s->clock));
    for (uint32_t i = 0; i < p->n_running; i++)
        p->req[i].victim = fair_is_victim(&s->fair, s->planned[i]);
    if (p->n_running == p->max_seqs || list_empty(&s->waiting))
        return;
    fair_note_promises(&s->fair, clock_now(s->clock));
    /* Leaves out requests that were just preempted and whose samples are in flight. */
    pin_pause(&s->pins, room, clock_now(s->clock));
    n_candidates = fair_waiting(&s->fair, candidate, limits, SCHED_CANDIDATES);
    pin_release_for_waiting(&s->pins, candidate, n_candidates, promised, clock_now(s->clock));
    p->n_available = kv_pager_available(s->pager);
    room = p->n_available - MIN(promised, p->n_available);
    if (p->n_running == 0)
        room = UINT64_MAX / 2; /* the first candidate always fits */
    for (uint32_t k = 0; k < n_candidates; k++) {
        uint32_t i = p->n_running + p->n_waiting;

        s->planned[i] = candidate[k];
        step_describe(s, candidate[k], &p->req[i]);
        step_look_up(s, candidate[k], &p->req[i], room + limits[k].n_beyond);
        if (follows(s, candidate[k], i))
            continue;
        p->n_waiting++;
        p->req[i].over = limits[k].over;
        p->req[i].leave_seqs = limits[k].leave_seqs;
        p->req[i].n_beyond = limits[k].n_beyond;
    }
}

void step_begin_drafts(struct sched *s) {
    spec_begin_step(&s->spec, s->n_launched, s->plan.n_running);
    s->plan.draft_slower = spec_slower(&s->spec);
}

void step_gather(struct sched *s) {
    step_begin_drafts(s);
    gather_running(s);
    pin_begin_step(&s->pins, clock_now(s->clock));
    s->plan.n_available = kv_pager_available(s->pager);
    s->plan.turn = s->n_launched;
    gather_waiting(s);
    count_sole_pages(s);
}
