/*
 * step - one step of the engine: step_gather.c fills the plan's input from the requests and the
 * pager, step_apply.c applies the plan, this file launches the batch, and step_complete.c waits for
 * it and takes its results.
 *
 * With two steps in flight the host is one sample behind: when step N + 1 is planned, the samples
 * of N are pending (request.n_pending). A request that N turns out to have ended still has a row in
 * N + 1, which is discarded; its pages are given out to step N + 2 at the earliest, which runs
 * after N + 1. A request may also be preempted while N has it. The sample of N is right and is
 * taken, but the positions that N computed are in pages that it does not own any more. It gets no
 * new pages before the results of N are taken.
 *
 * A draft follows the last token. So a step with drafts is planned when no step is in flight, and
 * no step is launched while it runs, because the accepted drafts decide where every sequence
 * continues. propose() decides whether the next step should have drafts before the results of the
 * step in flight are known; if it should, that step is waited for first.
 *
 * Where output is constrained, the masks of N + 1 depend on the samples of N. N + 1 is launched all
 * the same, computes logits, and samples when the masks are there (seal()), right after the results
 * of N were taken. No step is launched in between.
 *
 * A mask that takes long does not delay the other requests of a step: the request's sample is
 * discarded, a thread makes the mask, and the row is computed again with it (late.h).
 */

#include <assert.h>

#include "base/buggify.h"
#include "base/probe.h"
#include "base/try.h"
#include "scheduler/constrain.h"
#include "scheduler/late.h"
#include "scheduler/policy.h"
#include "scheduler/scheduler_private.h"

/* ---- the crash page ---- */

void step_write_crash_page(struct sched *s, int64_t now, bool drafts) {
    struct crash_page *page = s->opts.crash_page;
    uint32_t n = 0;

    if (!page)
        return;
    __atomic_store_n(&page->n, 0, __ATOMIC_RELEASE);
    for (uint64_t step = s->n_waited + 1; step <= s->n_launched; step++) {
        const struct batch *t = &s->batch[step % SCHED_DEPTH_MAX];

        for (uint32_t i = 0; i < t->b.n_seqs && n < CRASH_PAGE_MAX; i++)
            page->ids[n++] = t->item[i].request->id;
    }
    for (const struct list *l = s->running.next; drafts && l != &s->running; l = l->next) {
        const struct request *r = LIST_ENTRY(l, const struct request, queued.link);

        if (r->draft.drafter && r->draft.drafter->n_asked > 0 && n < CRASH_PAGE_MAX)
            page->ids[n++] = r->id;
    }
    page->started_ns = 0;
    if (n > 0)
        page->started_ns = now;
    page->step++;
    __atomic_store_n(&page->n, n, __ATOMIC_RELEASE);
}

/* ---- pictures ---- */

/* Returns how many ns pieces of a picture may take before the next step: a part of decode's time,
 * and no more than prompts beside decode may add; half of that where prompts wait. */
static int64_t pictures_ns(const struct sched *s) {
    const struct plan *p = &s->plan;
    struct cost_shape decode = {0};
    int64_t target_ns = p->max_step_ns;
    bool prompts = !list_empty(&s->waiting);

    LIST_FOREACH_ENTRY(r, &s->running, struct request, queued.link) {
        if (pictures_block(r))
            continue;
        if (r->n_tokens - r->n_computed > 1) {
            prompts = true;
            continue;
        }
        cost_add(&decode, r->n_computed, 1);
        target_ns = MIN(target_ns, plan_pace_ns(p, (enum plan_pace)r->class));
    }
    if (decode.rows == 0)
        return (int64_t)(PICTURE_ALONE * (double)p->max_step_ns);
    int64_t decode_ns = cost_bound_ns(&s->cost, &decode);
    int64_t beside_ns = plan_limit_beside(decode_ns, target_ns) - decode_ns;
    if (prompts)
        beside_ns /= 2;
    return MIN((int64_t)(PICTURE_BESIDE * (double)decode_ns), beside_ns);
}

int step_pictures(struct sched *s) {
    struct sched_picture *failed;
    struct err why = {0};

    assert(sched_n_in_flight(s) == 0);
    if (s->opts.crash_page) {
        s->opts.crash_page->ids[0] = pictures_payer(&s->pictures)->id;
        s->opts.crash_page->started_ns = clock_now(s->clock);
        __atomic_store_n(&s->opts.crash_page->n, 1, __ATOMIC_RELEASE);
    }
    int64_t ns = pictures_step(&s->pictures, pictures_ns(s), &failed, &why);
    step_write_crash_page(s, 0, false);
    if (failed)
        sched_fail_picture(s, failed, &why);
    s->plan.spent_ns = MAX(ns, 0);
    return (int)MIN(ns, 0);
}

/* ---- launch ---- */

/* Runs the draft model. Returns 0; 1: only after the step in flight; -EIO. */
static int step_draft(struct sched *s, struct batch *t) {
    t->draft_ns = 0;
    if (!s->drafter)
        return 0;
    step_begin_drafts(s);
    if (drafter_choose(s->drafter, &s->spec, &s->plan, &s->running) == 0)
        return 0;
    if (sched_n_in_flight(s) > 0)
        return 1;
    step_write_crash_page(s, clock_now(s->clock), true);
    int64_t ns = drafter_run(s->drafter, &s->running);
    if (ns < 0)
        return (int)ns;
    step_write_crash_page(s, 0, false); /* clears the ids: perhaps no step follows these drafts */
    t->draft_ns = ns;
    return 0;
}

static bool has_late(const struct sched *s) {
    LIST_FOREACH_ENTRY(r, &s->running, struct request, queued.link) {
        if (late_waits(r))
            return true;
    }
    return false;
}

/* Returns whether a running request waits for the rows of a picture. */
static bool has_missing_picture(const struct sched *s) {
    LIST_FOREACH_ENTRY(r, &s->running, struct request, queued.link) {
        if (pictures_block(r))
            return true;
    }
    return false;
}

/* Plans until there is a step to launch; a plan that only preempts, admits or copies pages back
 * does not count. Returns 0; 1: no request can run now. */
static int step_plan(struct sched *s, int64_t now) {
    struct plan *p = &s->plan;
    uint32_t n_places = 0;

    p->fair_preempted = false;
    for (;;) {
        assert(n_places <= 2 * (s->opts.max_seqs + SCHED_CANDIDATES));
        step_gather(s);
        recorder_asks(&s->recorder, p, s->planned, s->step + 1);
        plan_step(p);
        recorder_decided(&s->recorder, p);
        /* Quarantined requests and drafts wait until no step is in flight. */
        if ((p->alone != PLAN_NONE || p->n_drafts > 0) && sched_n_in_flight(s) > 0)
            return 1;
        bool again = step_look_in_host(s);
        step_apply_places(s, now);
        n_places += p->n_preempted + p->n_admitted > 0;
        if (again)
            continue;
        step_apply_rows(s);
        recorder_plan(&s->recorder, p, s->planned, clock_now(s->clock));
        if (p->n_rows > 0)
            return 0;
        if (p->n_preempted + p->n_admitted + tier_fetch_more(s) == 0)
            break;
    }
    /* plan_step() guarantees that some request can make progress, is in flight, or waits for its
     * mask or its picture. */
    assert(sched_n_in_flight(s) > 0 || p->n_running + p->n_waiting == 0 || has_late(s) ||
           has_missing_picture(s));
    return 1;
}

int step_seal(struct sched *s, struct batch *t) {
    int e = 0;

    t->unsealed = false;
    /* Masks are never late with recurrent states, which cannot go one row back. */
    enum constrain_late late = LATE_LONG;
    if (s->opts.force_late)
        late = LATE_ALL;
    if (t->b.n_seqs < 2 || s->states.on)
        late = LATE_NEVER;
    if (!t->constrained)
        return engine_seal(s->engine, t->b.step);
    int64_t begin = clock_now(s->clock);
    for (uint32_t i = 0; i < t->b.n_seqs && e >= 0; i++) {
        struct request *r = t->item[i].request;
        enum constrain_late of = late;

        if (!t->item[i].samples || !request_is_masked(r) || r->state == REQUEST_DONE)
            continue;
        /* The last row of a picture cannot be computed again alone. */
        if (r->picture.two_way && request_keys(r)[r->n_tokens - 1] < 0)
            of = LATE_NEVER;
        e = constrain_item(t, i, s->engine, of);
        s->stats.n_masks_late += t->item[i].n_late > 0;
        if (e > 0)
            sched_finish(s, r, FINISH_ERROR);
    }
    s->stats.mask_ns_total += (uint64_t)(clock_now(s->clock) - begin);
    s->stats.n_masks += t->n_masks;
    TRY(e);
    return engine_seal(s->engine, t->b.step);
}

static int step_launch_batch(struct sched *s, struct batch *t, int64_t now) {
    assert(sched_n_in_flight(s) < s->opts.depth && t->b.step == s->step + 1);
    t->launched_ns = now;
    s->step++;
    s->n_launched++;
    step_write_crash_page(s, now, false);
    PROBE3(step__start, t->b.step, t->b.n_rows, t->b.n_seqs);
    int e = engine_launch(s->engine, &t->b);

    t->unsealed = e == 0 && constrain_must_wait(t);
    if (e < 0 || t->unsealed)
        return e;
    return step_seal(s, t);
}

int step_copies(struct sched *s) {
    struct batch *t = &s->batch[(s->n_launched + 1) % SCHED_DEPTH_MAX];
    struct plan *p = &s->plan;

    if (sched_n_in_flight(s) > 0 || !tier_has_copies(s))
        return 1;
    p->n_running = p->n_waiting = p->n_rows = p->n_seqs = p->n_drafts = 0;
    p->n_admitted = p->n_preempted = 0;
    p->alone = PLAN_NONE;
    p->shape = (struct cost_shape){0};
    p->expect_ns = 0;
    t->draft_ns = 0;
    TRY(step_build(s, t));
    if (t->b.n_before == 0)
        return 1;
    return step_launch_batch(s, t, clock_now(s->clock));
}

bool step_is_long(const struct sched *s) {
    int64_t most_ns = STEP_AHEAD_NS;

    if (fair_is_shared(&s->fair, s->last_end_ns))
        most_ns = STEP_AHEAD_SHARED_NS;
    if (s->plan.expects)
        most_ns = STEP_AHEAD_EXPECTED_NS;
    return BUGGIFY(step_not_ahead) || s->batch[s->n_launched % SCHED_DEPTH_MAX].expect_ns > most_ns;
}

/* Drafts and plans the next step. Returns as step_draft() and step_plan(). */
static int step_draft_and_plan(struct sched *s, struct batch *t, int64_t now) {
    int e = step_draft(s, t);

    if (e != 0)
        return e;
    return step_plan(s, now);
}

int step_launch(struct sched *s) {
    struct batch *t = &s->batch[(s->n_launched + 1) % SCHED_DEPTH_MAX];
    int64_t begin = clock_now(s->clock);

    const struct batch *before = &s->batch[s->n_launched % SCHED_DEPTH_MAX];
    if (sched_n_in_flight(s) > 0 && (before->alone || before->drafts))
        return 1;
    /* An arrival during a long step should not wait for a second step; the pause between two long
     * steps is short beside them. */
    if (sched_n_in_flight(s) > 0 && step_is_long(s))
        return 1;
    int e;
    do {
        prewarm_turn(&s->prewarm);
        if (list_empty(&s->running) && list_empty(&s->waiting))
            return step_copies(s);
        e = step_draft_and_plan(s, t, begin);
    } while (e == 1 && prewarm_is_stuck(&s->prewarm)); /* each time, one ends */
    if (e != 0)
        return e;
    TRY(step_build(s, t));
    int64_t now = clock_now(s->clock);
    s->stats.plan_ns_total += (uint64_t)(now - begin - t->draft_ns);
    s->stats.last_plan_us = (uint32_t)((now - begin - t->draft_ns) / 1000);
    return step_launch_batch(s, t, now);
}
