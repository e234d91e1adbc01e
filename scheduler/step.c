/*
 * step - one step: what the plan is to know is gathered from the requests and the pager, the plan is
 * applied, the batch launched; later its results are waited for and taken back.
 *
 * With two steps under way the host is one sample behind: when step N + 1 is planned, the samples of N are
 * pending (request.n_pending). A request that N turns out to have ended still has a row in N + 1; it is
 * discarded, and the pages that it wrote are given out at the earliest to step N + 2, which the engine
 * runs after N + 1. Likewise a request that is preempted while N has it: the sample of N is right and is
 * taken, but what N computed lies in pages that are no longer its own. It gets no new ones before N is
 * taken back.
 *
 * A draft follows the last token, so a step with drafts is planned when nothing is under way, and nothing is
 * launched while it runs: how many tokens it brings decides where everybody goes on. Whether the next step
 * should have drafts is asked before it is known what the step under way brings (propose()): then it is
 * waited for first.
 *
 * Where output is constrained, the masks of N + 1 depend on the samples of N. N + 1 is launched all the same, computes
 * logits, and samples when the masks are there (seal()): right after N has been taken back. Nobody waits for it, and
 * no step is launched in between.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include "base/buggify.h"
#include "base/mutant.h"
#include "scheduler/constrain.h"
#include "scheduler/scheduler_private.h"

#define HOST_MAX_NS 1000000     /* beyond it, the host was not busy but idle */
#define AHEAD_MAX_NS 12000000   /* no step is launched behind one that takes longer */
#define AHEAD_SHARED_NS 4000000 /* likewise, with several tenants */
#define LOOK_AGAIN 16 /* steps after which a waiting request's prefix is looked up again */

/* ---- what the plan is to know ---- */

/* Whether pages that others published can be attached right now: nothing of the next page exists. */
static bool can_attach(const struct sched *s, const struct request *r) {
    uint32_t n_pages;

    kv_seq_pages(r->seq, &n_pages);
    return MUTANT(attached_under_way, r->n_in_flight == 0, true) && !BUGGIFY(step_attaches_late) &&
           r->n_computed == n_pages * s->rules.page_tokens;
}

/* @r has its first @n tokens without having computed them. */
static void note_cached(struct sched *s, struct request *r, uint32_t n) {
    if (MUTANT(cached_counted_again, r->n_preempted == 0, true)) {
        uint32_t from = MIN(r->n_computed, r->n_prompt), to = MIN(n, r->n_prompt);
        r->n_cached += to - from;
        s->stats.n_cached_tokens += request_is_prewarm(r) ? 0 : to - from;
    }
    r->n_computed = n;
}

static void attach(struct sched *s, struct request *r) {
    note_cached(s, r,
                request_is_prewarm(r) ? prewarm_attach(&s->prewarm, r)
                                      : kv_seq_attach(r->seq, r->tokens, request_shareable(r)));
}

/*
 * Brings back from host memory what comes next of @r. Where others wait for the step it is done in parts; until the last
 * one @r has nothing to compute. Where nothing comes, since it is gone or there is no page, it is computed.
 */
static void fetch(struct sched *s, struct request *r) {
    bool alone = s->running.next == s->running.prev && list_empty(&s->waiting);
    uint32_t before = r->n_computed, most = UINT32_MAX;

    if (!alone)
        most = offload_fetch_room(&s->offload);
    if (most == 0)
        return;
    note_cached(s, r,
                offload_fetch(&s->offload, s->pager, r->seq, &r->share, r->tokens, r->n_host, most,
                              s->plan.n_running));
    if (r->n_computed == before || r->n_computed >= r->n_host)
        r->n_host = 0;
}

/*
 * What the plan is to know of the draft of @r. While its last token is still to come, the draft's first token
 * stands for it: the rest is what could be drafted behind, if it comes true.
 */
static void propose(struct sched *s, struct request *r, struct plan_req *q) {
    uint32_t n_pending = r->n_pending;

    if (q->last || q->alone || q->n_tokens - q->n_computed != 1)
        return;
    spec_propose(&s->spec, r);
    if (!r->spec || r->spec->n_draft <= n_pending)
        return;
    if (sched_n_in_flight(s) == 0 &&
        (BUGGIFY(draft_no_memory) || request_reserve(r, r->spec->n_draft) < 0))
        return; /* no memory, no drafts */
    q->n_draft_max = r->spec->n_draft - n_pending;
    q->survival = r->spec->survival + n_pending;
    q->try_draft = spec_probes(r);
}

static void describe(const struct sched *s, const struct request *r, struct plan_req *q) {
    uint32_t n_out = request_n_out(r), max_new = r->max_tokens - r->n_prompt;
    uint32_t n_tokens = r->n_tokens + MUTANT(pending_forgotten, r->n_pending, 0);
    uint32_t target = r->n_prompt + estimate_output(&s->estimate, r->session, n_out, max_new);

    if (BUGGIFY(step_answers_grow))
        target = r->max_tokens;

    *q = (struct plan_req){
        .n_tokens = n_tokens,
        .n_computed = r->n_computed,
        .n_target = MAX(target, n_tokens),
        .n_share = request_shareable(r) / s->rules.page_tokens * s->rules.page_tokens,
        .n_hashes = r->n_hashes,
        .hash = r->hash,
        .last = request_is_last(r),
        .alone = r->alone,
        .begun = request_n_out(r) + r->n_pending > 0,
        .stalled = r->stalled,
        .n_bypassed = r->n_bypassed,
        .group = s->turns.group[r->turn.tenant],
        .pace = r->class, /* enum plan_pace is in the same order */
    };
    if (r->seq) {
        q->n_stored = kv_seq_committed(r->seq);
        kv_seq_pages(r->seq, &q->n_pages);
    }
    if (r->n_host > 0) { /* nothing to compute before its pages are there */
        q->n_tokens = q->n_computed;
        q->last = true;
    }
}

/* The prefix that a waiting request would find. A lookup costs a hash for each page, so a long prompt
 * that waits for @room is not looked up in every step: what it found last time says that it cannot fit. */
static void look_up(struct sched *s, struct request *r, struct plan_req *q, uint64_t room) {
    uint32_t need = plan_pages(&s->plan, q->n_target) - r->seen_hit / s->rules.page_tokens;
    struct kv_match m;

    if (!BUGGIFY(step_looks_again) && r->seen_step > 0 && need > room &&
        s->n_launched < r->seen_step + LOOK_AGAIN) {
        q->n_hit = r->seen_hit;
        q->unfit = MUTANT(stale_hit, true, false);
        return;
    }
    m = kv_pager_match(s->pager, &r->share, r->tokens, q->n_share);
    q->n_hit = r->seen_hit = m.n_tokens;
    q->n_idle = m.n_idle;
    r->seen_step = s->n_launched + 1;
}

/* What preemption would free is counted page by page, so only when it may come to that. */
static void count_sole_pages(struct sched *s) {
    struct plan *p = &s->plan;

    if (plan_next_pages(p) <= p->n_available)
        return;
    for (uint32_t i = 0; i < p->n_running; i++)
        p->req[i].n_sole = kv_seq_sole(s->planned[i]->seq);
}

static void gather_running(struct sched *s) {
    struct plan *p = &s->plan;

    p->n_running = 0;
    turns_begin(&s->turns, clock_now(s->clock));
    /* Those who stand lowest come last. */
    for (int over = 0; over <= (s->turns.n_groups > 1); over++)
        LIST_FOREACH(node, &s->running) {
            struct request *r = LIST_ENTRY(node, struct request, queued.link);

            if (turns_is_over(&s->turns, r) != (bool)over)
                continue;
            if (r->n_computed + 1 < r->n_tokens && can_attach(s, r))
                attach(s, r);
            if (r->n_host > 0)
                fetch(s, r);
            s->planned[p->n_running] = r;
            describe(s, r, &p->req[p->n_running]);
            propose(s, r, &p->req[p->n_running++]);
        }
}

static void gather_waiting(struct sched *s) {
    struct plan *p = &s->plan;
    uint64_t promised = plan_promised(p), room;
    struct request *candidate[SCHED_CANDIDATES];
    struct turns_limits limits[SCHED_CANDIDATES];

    p->n_waiting = 0;
    room = p->n_available - MIN(promised, p->n_available);
    p->fair_preempt = turns_preempts(&s->turns, clock_now(s->clock));
    for (uint32_t i = 0; i < p->n_running; i++)
        p->req[i].victim = turns_is_victim(&s->turns, s->planned[i]);
    if (p->n_running == p->max_seqs || list_empty(&s->waiting))
        return;
    /* Not those that have just been preempted and whose samples are still to come. */
    p->n_waiting = turns_waiting(&s->turns, room, candidate, limits, SCHED_CANDIDATES);
    pin_release_for_waiting(&s->pins, candidate, p->n_waiting, promised, clock_now(s->clock));
    p->n_available = kv_pager_available(s->pager);
    room = p->n_available - MIN(promised, p->n_available);
    if (p->n_running == 0)
        room = UINT64_MAX; /* whoever is the first fits */
    for (uint32_t k = 0; k < p->n_waiting; k++) {
        uint32_t i = p->n_running + k;

        s->planned[i] = candidate[k];
        describe(s, candidate[k], &p->req[i]);
        look_up(s, candidate[k], &p->req[i], room);
        p->req[i].over = limits[k].over;
        p->req[i].leave_seqs = limits[k].leave_seqs;
    }
}

static void begin_drafts(struct sched *s) {
    spec_begin_step(&s->spec, s->n_launched, s->plan.n_running);
}

static void gather(struct sched *s) {
    begin_drafts(s);
    s->plan.draft_slower = spec_slower(&s->spec);
    gather_running(s);
    pin_begin_step(&s->pins, clock_now(s->clock));
    s->plan.n_available = kv_pager_available(s->pager);
    s->plan.turn = s->n_launched;
    gather_waiting(s);
    count_sole_pages(s);
}

/* ---- applying it ---- */

static void preempt(struct sched *s, struct request *r) {
    recorder_preempted(&s->recorder, r, kv_seq_sole(r->seq));
    offload_swap(&s->offload, r->seq, &r->share, r->tokens);
    r->seq = kv_seq_free(r->seq);
    drafter_drop(r);
    r->n_computed = MUTANT(preempted_still_computed, 0, r->n_computed);
    r->n_tokens -= MUTANT(preempted_token_lost, 0, request_n_out(r) > 0);
    r->queued.standing.key += MUTANT(preempted_to_the_back, 0, 1000000000);
    r->n_host = 0;
    r->n_preempted++;
    r->n_bypassed = 0;
    r->seen_step = 0;
    r->stalled = false;
    r->since_ns = clock_now(s->clock);
    request_set_state(r, REQUEST_WAITING);
    list_remove(&r->queued.link);
    queue_insert(&s->waiting, &r->queued);
    s->stats.n_preemptions++;
}

static void admit(struct sched *s, struct request *r, const struct plan_req *q, int64_t now) {
    int e = kv_seq_new(&r->seq, s->pager, &r->share);

    assert(e == 0);
    (void)e;
    request_set_state(r, REQUEST_RUNNING);
    list_remove(&r->queued.link);
    queue_insert(&s->running, &r->queued);
    if (q->n_share > 0)
        attach(s, r);
    assert(r->n_computed == q->n_hit);
    r->n_host = r->n_host > r->n_computed ? r->n_host : 0;
    r->n_bypassed = 0;
    if (request_is_prewarm(r))
        return;
    pin_admitted(&s->pins, r);
    prewarm_found(&s->prewarm, r);
    recorder_admitted(&s->recorder, r);
    if (r->first_step_ns == 0) {
        r->first_step_ns = now;
        s->stats.n_prompt_tokens += r->n_prompt;
    }
}

/* Whether somebody who is admitted has more in host memory than the device has, and gets it faster from there. */
static bool look_in_host(struct sched *s) {
    const struct plan *p = &s->plan;
    bool found = false;

    for (uint32_t i = p->n_running; s->offload.host && i < p->n_running + p->n_waiting; i++) {
        struct request *r = s->planned[i];

        if (!p->req[i].admitted)
            continue;
        r->n_host = offload_has(&s->offload, &r->share, r->tokens, request_shareable(r));
        if (r->n_host > p->req[i].n_hit && !offload_pays(&s->offload, p->req[i].n_hit, r->n_host)) {
            s->offload.n_left_tokens += r->n_host - p->req[i].n_hit;
            r->n_host = 0;
        }
        if (r->n_host <= p->req[i].n_hit)
            r->n_host = 0;
        found |= r->n_host > 0;
    }
    return found;
}

/* Preempt first: what is admitted may find the pages. Attach before anything grows and evicts. */
static void apply_places(struct sched *s, int64_t now) {
    struct plan *p = &s->plan;
    uint32_t n = p->n_running + p->n_waiting;

    for (uint32_t i = 0; i < n; i++) {
        struct request *r = s->planned[i];

        r->stalled = i < p->n_running && p->req[i].verdict == PLAN_WAIT_PAGES;
        r->n_bypassed = p->req[i].n_bypassed;
        if (p->req[i].verdict == PLAN_PREEMPT)
            preempt(s, r);
    }
    for (uint32_t i = p->n_running; i < n; i++)
        if (p->req[i].admitted)
            admit(s, s->planned[i], &p->req[i], now);
    turns_note_admissions(&s->turns, s->planned);
}

static void apply_rows(struct sched *s) {
    const struct plan *p = &s->plan;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *q = &p->req[i];

        if (q->n_rows == 0)
            continue;
        int e = kv_seq_grow(s->planned[i]->seq, q->n_computed + q->n_rows);
        assert(e == 0); /* the plan has counted the pages */
        (void)e;
    }
}

static int build(struct sched *s, struct batch *t) {
    const struct plan *p = &s->plan;

    batch_begin(t, s->n_launched + 1);
    offload_work(&s->offload, s->pager, p->n_rows == 0, s->n_launched + 1);
    if (s->offload.n_copies > 0) {
        struct engine_copy *copy = batch_copies(t, s->offload.n_copies);

        if (!copy)
            return -ENOMEM;
        t->shape.copies = s->offload.n_copies;
        offload_take(&s->offload, copy);
    }
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *q = &p->req[i];
        struct request *r = s->planned[i];

        if (q->n_rows > 0)
            batch_add(t, r, q->n_rows, q->n_draft > 0 ? r->spec->draft : NULL, q->n_draft);
        if (q->n_rows > 0 && q->n_draft_max > 0 && q->n_draft == 0)
            spec_refused(r);
    }
    t->expect_ns = p->expect_ns;
    t->alone = p->alone != PLAN_NOBODY;
    return 0;
}

/* ---- the crash page ---- */

/* The ids in flight, for the front to read if this process dies. */
static void write_crash_page(struct sched *s, int64_t now) {
    struct crash_page *page = s->opts.crash_page;
    uint32_t n = 0;

    if (!page)
        return;
    __atomic_store_n(&page->n, 0, __ATOMIC_RELEASE);
    for (uint64_t step = MUTANT(crash_page_of_last_step, s->n_waited + 1, s->n_launched);
         step <= s->n_launched; step++) {
        const struct batch *t = &s->batch[step % SCHED_DEPTH_MAX];

        for (uint32_t i = 0; i < t->b.n_seqs && n < CRASH_PAGE_MAX; i++)
            page->ids[n++] = t->item[i].request->id;
    }
    page->started_ns = n > 0 ? now : 0;
    page->step = s->n_launched;
    __atomic_store_n(&page->n, n, __ATOMIC_RELEASE);
}

/* Likewise while the draft model runs. */
static void write_crash_page_drafts(struct sched *s, int64_t now) {
    struct crash_page *page = s->opts.crash_page;
    uint32_t n = 0;

    if (!page)
        return;
    LIST_FOREACH(node, &s->running) {
        const struct request *r = LIST_ENTRY(node, struct request, queued.link);

        if (r->drafter && r->drafter->n_asked > 0 && n < CRASH_PAGE_MAX)
            page->ids[n++] = r->id;
    }
    page->started_ns = now;
    __atomic_store_n(&page->n, n, __ATOMIC_RELEASE);
}

/* ---- launch ---- */

/* Runs the draft model. 0; 1: when the step under way has been waited for; -EIO, -ENOMEM. */
static int draft(struct sched *s, struct batch *t) {
    t->draft_ns = 0;
    if (!s->drafter)
        return 0;
    begin_drafts(s);
    if (drafter_choose(s->drafter, &s->spec, &s->cost, &s->running) == 0)
        return 0;
    if (sched_n_in_flight(s) > 0)
        return 1;
    write_crash_page_drafts(s, clock_now(s->clock));
    int64_t ns = drafter_run(s->drafter, &s->running);
    if (ns < 0)
        return (int)ns;
    t->draft_ns = ns;
    return 0;
}

/* Plans until there is a step to launch: preempting, admitting and bringing back alone are no step. 0; 1: nobody can
 * run now. */
static int plan(struct sched *s, int64_t now) {
    struct plan *p = &s->plan;
    uint32_t n_places = 0;

    p->fair_preempted = false;
    for (;;) {
        assert(n_places <= 2 * (s->opts.max_seqs + SCHED_CANDIDATES));
        gather(s);
        recorder_asks(&s->recorder, p, s->planned, s->n_launched + 1);
        plan_step(p);
        recorder_decided(&s->recorder, p);
        /* Who must be alone and who drafts waits until nothing is under way. */
        if ((p->alone != PLAN_NOBODY || p->n_drafts > 0) && sched_n_in_flight(s) > 0)
            return 1;
        bool again = look_in_host(s);
        apply_places(s, now);
        n_places += p->n_preempted + p->n_admitted > 0;
        if (again)
            continue;
        apply_rows(s);
        recorder_plan(&s->recorder, p, s->planned, clock_now(s->clock));
        if (p->n_rows > 0)
            return 0;
        if (p->n_preempted + p->n_admitted + s->offload.n_fetched == 0)
            break;
        s->offload.n_fetched = 0; /* nobody waits for the step: go on bringing back */
    }
    /* A promise of plan_step(): somebody is always able to go on, or is under way. */
    assert(sched_n_in_flight(s) > 0 || p->n_running + p->n_waiting == 0);
    return 1;
}

/* Hands the masks of the step over and lets it sample. */
static int seal(struct sched *s, struct batch *t) {
    int e = 0;

    t->unsealed = false;
    int64_t begin = t->constrained ? clock_now(s->clock) : 0;
    for (uint32_t i = 0; i < t->b.n_seqs && t->constrained && e >= 0; i++) {
        struct request *r = t->item[i].request;

        if (!t->item[i].samples || !r->place || r->state == REQUEST_DONE)
            continue;
        e = constrain_item(t, i, s->engine);
        if (e > 0)
            sched_finish(s, r, FINISH_ERROR);
    }
    if (t->constrained) {
        s->stats.mask_ns_total += (uint64_t)(clock_now(s->clock) - begin);
        s->stats.n_masks += t->n_masks;
    }
    return e < 0 ? e : engine_seal(s->engine, t->b.step);
}

static int launch(struct sched *s, struct batch *t, int64_t now) {
    t->launched_ns = now;
    s->n_launched++;
    write_crash_page(s, now);
    int e = engine_launch(s->engine, &t->b);

    t->unsealed = e == 0 && constrain_must_wait(t);
    return e < 0 || t->unsealed ? e : seal(s, t);
}

/* What waits to be copied, when nobody runs. */
int step_copies(struct sched *s) {
    struct batch *t = &s->batch[(s->n_launched + 1) % SCHED_DEPTH_MAX];
    struct plan *p = &s->plan;

    if (sched_n_in_flight(s) > 0 || !offload_has_work(&s->offload))
        return 1;
    p->n_running = p->n_waiting = p->n_rows = p->n_seqs = p->n_drafts = 0;
    p->n_admitted = p->n_preempted = 0;
    p->alone = PLAN_NOBODY;
    p->shape = (struct cost_shape){0};
    p->expect_ns = 0;
    t->draft_ns = 0;
    int e = build(s, t);
    if (e < 0 || t->b.n_before == 0)
        return e < 0 ? e : 1;
    return launch(s, t, clock_now(s->clock));
}

bool step_is_long(const struct sched *s) {
    return BUGGIFY(step_not_ahead) ||
           s->batch[s->n_launched % SCHED_DEPTH_MAX].expect_ns >
               (share_is_shared(&s->turns.share, s->last_end_ns) ? AHEAD_SHARED_NS : AHEAD_MAX_NS);
}

int step_launch(struct sched *s) {
    struct batch *t = &s->batch[(s->n_launched + 1) % SCHED_DEPTH_MAX];
    int64_t begin = clock_now(s->clock);

    const struct batch *before = &s->batch[s->n_launched % SCHED_DEPTH_MAX];
    if (sched_n_in_flight(s) > 0 && (MUTANT(alone_overlapped, before->alone, false) ||
                                     MUTANT(drafts_overlapped, before->drafts, false)))
        return 1;
    /* What arrives while a long step runs should not wait for another one as well: the pause between two is small
     * beside it. */
    if (sched_n_in_flight(s) > 0 && step_is_long(s))
        return 1;
    prewarm_turn(&s->prewarm);
    if (list_empty(&s->running) && list_empty(&s->waiting))
        return step_copies(s);
    int e = draft(s, t);
    if (e == 0)
        e = plan(s, begin);
    if (e != 0)
        return e;
    e = build(s, t);
    if (e < 0)
        return e;
    int64_t now = clock_now(s->clock);
    s->stats.plan_ns_total += (uint64_t)(now - begin - t->draft_ns);
    s->stats.last_plan_us = (uint32_t)((now - begin - t->draft_ns) / 1000);
    return launch(s, t, now);
}

/* ---- results ---- */

static void learn_drafts(struct sched *s, const struct batch_item *it, bool ended) {
    spec_learn(&s->spec, it->request, it->n_draft, it->n_right, ended);
    s->stats.n_drafts++;
    s->stats.n_drafted += it->n_draft;
    s->stats.n_accepted += it->n_right;
    uint32_t source = it->request->spec->source;
    s->stats.drafted_by[source] += it->n_draft;
    s->stats.accepted_by[source] += it->n_right;
}

static int take_results(struct sched *s, struct batch *t, const struct engine_result *res) {
    for (uint32_t i = 0; i < t->b.n_seqs; i++) {
        struct request *r = t->item[i].request;
        uint32_t before = r->n_tokens;

        r->n_in_flight--;
        if (MUTANT(finished_twice, r->state == REQUEST_DONE, false)) {
            sched_maybe_free(s, r);
            continue;
        }
        int why = batch_take(t, i, res);
        if (why < 0)
            return why;
        if (t->item[i].n_draft > 0)
            learn_drafts(s, &t->item[i], why != FINISH_NONE);
        if (request_is_prewarm(r))
            s->stats.n_prewarm_tokens += t->item[i].n_rows;
        else
            s->stats.n_output_tokens += r->n_tokens - before;
        if (r->n_tokens > before)
            sched_note_news(s, r);
        if (why != FINISH_NONE)
            sched_finish(s, r, (enum finish_reason)why);
    }
    return 0;
}

/* With two steps under way a step begins when the one before has ended. */
static void learn(struct sched *s, const struct batch *t, uint32_t n_tokens, int64_t now) {
    int64_t ns = now - MAX(t->launched_ns, s->last_end_ns);

    /* While the host worked on this step nothing ran: with drafts that is lost where steps would overlap without. */
    int64_t idle = MIN(MAX(t->launched_ns - s->last_end_ns - t->draft_ns, 0), HOST_MAX_NS);
    if (t->b.n_rows > 0 && !t->prefills)
        spec_account(&s->spec, t->b.n_seqs, t->drafts || t->draft_ns > 0, n_tokens,
                     ns + t->draft_ns + idle, t->expect_ns + t->draft_ns + idle);
    recorder_step(&s->recorder, &s->plan, t, s->stats.last_plan_us, ns, now);
    if (t->b.n_rows > 0 || s->cost.n_seen > 0) /* the first one sets the scale */
        cost_learn(&s->cost, &t->shape, ns);
    if (t->b.n_before > 0)
        offload_learn(&s->offload, t->b.n_before, cost_copies_ns(&s->cost, t->b.n_before));
    s->last_end_ns = now;
    s->stats.n_steps++;
    s->stats.step_ns_total += (uint64_t)ns;
    s->stats.last_step_us = (uint32_t)(ns / 1000);
    s->stats.last_rows = t->b.n_rows;
    s->stats.last_seqs = t->b.n_seqs;
}

int step_wait(struct sched *s) {
    struct batch *t = &s->batch[(s->n_waited + 1) % SCHED_DEPTH_MAX];
    int64_t begin = clock_now(s->clock);
    struct engine_result res;
    int e = engine_wait(s->engine, t->b.step, &res);

    if (e < 0)
        return e;
    int64_t now = clock_now(s->clock);
    s->stats.wait_ns_total += (uint64_t)(now - begin);
    s->n_waited++;
    write_crash_page(s, now);
    turns_charge(&s->turns, t, now - MAX(t->launched_ns, s->last_end_ns), now);
    uint64_t before = s->stats.n_output_tokens;
    e = take_results(s, t, &res);
    struct batch *next = &s->batch[(s->n_waited + 1) % SCHED_DEPTH_MAX];
    if (e == 0 && sched_n_in_flight(s) > 0 && next->unsealed)
        e = seal(s, next);
    learn(s, t, (uint32_t)(s->stats.n_output_tokens - before), now);
    return e;
}
