/*
 * step_apply - applies a plan: preempts, admits, takes pages, fills the batch. The plan has counted
 * slots, rows and pages, so only lack of memory can fail here.
 */

#include <assert.h>

#include "base/try.h"
#include "scheduler/scheduler_private.h"

static void preempt(struct sched *s, struct request *r) {
    assert(r->state == REQUEST_RUNNING && r->seq);
    recorder_note(&s->recorder, r, WHY_PREEMPTED, kv_seq_exclusive(r->seq));
    tier_swap(s, r);
    request_free_pages(r);
    drafter_drop(r);
    r->n_computed = 0;
    r->draft.n_replay = 0;
    r->n_host = 0;
    r->n_preempted++;
    r->n_bypassed = 0;
    r->seen_step = 0;
    r->stalled = false;
    r->since_ns = clock_now(s->clock);
    request_set_state(r, REQUEST_WAITING);
    pictures_release(&s->pictures, r);
    list_remove(&r->queued.link);
    queue_insert(&s->waiting, &r->queued);
    s->stats.n_preemptions++;
}

static void step_admit(struct sched *s, struct request *r, const struct plan_req *q, int64_t now) {
    assert(r->state == REQUEST_WAITING && !r->seq && r->n_in_flight == 0);
    int e = kv_seq_new(&r->seq, s->pager, &r->share);

    assert(e == 0);
    kv_seq_want(r->seq, r->n_prompt);
    r->begins = true;
    r->n_found = 0;
    request_set_state(r, REQUEST_RUNNING);
    list_remove(&r->queued.link);
    queue_insert(&s->running, &r->queued);
    if (q->n_share > 0)
        step_attach(s, r);
    assert(r->n_computed == q->n_hit);
    if (r->n_host <= r->n_computed)
        r->n_host = 0;
    r->n_bypassed = 0;
    if (request_is_prewarm(r))
        return;
    pin_admitted(&s->pins, r);
    prewarm_found(&s->prewarm, r);
    recorder_note(&s->recorder, r, WHY_ADMITTED, r->n_computed);
    if (r->times.first_step_ns == 0)
        r->times.first_step_ns = now;
}

bool step_look_in_host(struct sched *s) {
    const struct plan *p = &s->plan;
    bool found = false;

    for (uint32_t i = p->n_running; i < p->n_running + p->n_waiting; i++)
        if (p->req[i].admitted)
            found |= tier_look(s, s->planned[i], p->req[i].n_hit);
    return found;
}

/* Preempts first, because admitted requests may attach the freed pages, and attaches before any
 * sequence grows and evicts pages. */
void step_apply_places(struct sched *s, int64_t now) {
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
            step_admit(s, s->planned[i], &p->req[i], now);
    fair_note_admissions(&s->fair, s->planned);
}

void step_apply_rows(struct sched *s) {
    const struct plan *p = &s->plan;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *q = &p->req[i];

        s->planned[i]->n_passed = q->n_passed;
        if (q->n_rows == 0)
            continue;
        if (p->leaves_out)
            s->planned[i]->head_start_ns += p->expect_ns;
        int e = kv_seq_grow(s->planned[i]->seq, q->n_computed + q->n_rows);
        assert(e == 0); /* the plan has counted the pages */
    }
    if (p->leaves_out)
        s->left_out_ns += p->expect_ns;
    else if (p->n_rows > 0)
        s->left_out_ns = 0;
}

/* Returns whether the keys of the model's own block are left out for all rows. Keys of prompts are
 * always computed: they are most of the keys to which the block attends, also in later turns, and
 * cost little compared with the prompt. */
static bool step_skips_draft_keys(const struct sched *s, const struct batch *t) {
    for (uint32_t i = 0; i < t->b.n_seqs; i++)
        if (t->seq[i].pos0 < t->seq[i].n_prompt)
            return false;
    return s->drafter && t->b.n_rows > 0 && drafter_rests(s->drafter, s->spec.turn);
}

int step_build(struct sched *s, struct batch *t) {
    const struct plan *p = &s->plan;

    batch_begin(t, s->step + 1);
    tier_work(s, p->n_rows == 0);
    states_build(&s->states, p, s->planned);
    TRY(tier_build(s, t));
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *q = &p->req[i];
        struct request *r = s->planned[i];

        const int32_t *draft = NULL;

        if (q->n_draft > 0)
            draft = r->draft.spec->draft;
        if (q->n_rows > 0)
            batch_add(t, r, q->n_rows, draft, q->n_draft);
        if (q->n_draft > 0)
            states_back_up(&s->states, t);
        if (q->n_rows > 0)
            states_save(&s->states, t, r, p->expect_ns);
        if (q->n_rows > 0 && q->n_draft_max > 0 && q->n_draft == 0)
            spec_refused(r);
    }
    t->b.holes = step_skips_draft_keys(s, t);
    t->expect_ns = p->expect_ns;
    t->alone = p->alone != PLAN_NONE;
    return 0;
}
