/*
 * step_complete - waits for the oldest step in flight and takes its results: tokens go to their
 * requests, drafts are accepted or taken back, tenants are charged, the cost model learns.
 */

#include <assert.h>

#include "base/try.h"
#include "scheduler/scheduler_private.h"

/* a longer pause before a launch was idle time and not work of the host */
#define HOST_MAX_NS 1000000

static const struct cost_shape ONE_ROW = {.rows = 1, .seqs = 1, .context = 1};

static void learn_drafts(struct sched *s, const struct batch_item *it, bool ended) {
    spec_learn(&s->spec, it->request, it->n_draft, it->n_right, ended);
    s->stats.n_drafts++;
    s->stats.n_drafted += it->n_draft;
    s->stats.n_accepted += it->n_right;
    uint32_t source = it->request->draft.spec->source;
    s->stats.drafted_by[source] += it->n_draft;
    s->stats.accepted_by[source] += it->n_right;
}

/* Returns the number of rows of the item that are tokens of its prompt. */
static uint32_t prompt_rows(const struct batch_item *it) {
    uint32_t n = it->request->n_prompt;

    return MIN(it->pos0 + it->n_rows, n) - MIN(it->pos0, n);
}

static void step_count_rows(struct msg_stats *stats, uint32_t n) {
    uint32_t i = 0;

    if (n == 0)
        return; /* the step copied pages */
    while (step_rows_bounds[i] >= 0 && n > step_rows_bounds[i])
        i++;
    stats->step_rows[i]++;
    stats->n_rows += n;
}

/* Notes when the prompt and the latest token were computed, by the step from @begin to @end. */
static void note_times(struct request *r, const struct batch_item *it, int64_t begin, int64_t end) {
    if (r->times.prompt_end_ns == 0)
        r->times.prompt_end_ns = end - (end - begin) / (prompt_rows(it) + 1);
    r->times.computed_ns = end;
}

/* Takes the results of step @t, which ended at @now. */
static int step_handle_results(struct sched *s, struct batch *t, const struct engine_result *res,
                               int64_t now) {
    for (uint32_t i = 0; i < t->b.n_seqs; i++) {
        struct request *r = t->item[i].request;
        uint32_t before = r->n_tokens;

        assert(r->n_in_flight > 0);
        r->n_in_flight--;
        if (!request_is_prewarm(r))
            s->stats.n_prompt_tokens += prompt_rows(&t->item[i]);
        if (r->state == REQUEST_DONE) {
            states_finish(&s->states, &t->item[i]);
            pictures_release(&s->pictures, r);
            sched_maybe_free(s, r);
            continue;
        }
        states_retain_backup(&s->states, &t->item[i]);
        int why = batch_handle(t, i, res);
        states_finish(&s->states, &t->item[i]);
        if (why < 0)
            return why;
        pictures_release(&s->pictures, r);
        if (why == FINISH_STOP && r->flags & SUBMIT_SCORE) {
            r->pool.vector[0] = engine_score(s->engine, r->pool.vector);
            r->pool.n_vector = 1;
        } else if (why == FINISH_STOP && s->info->widens && request_pools_one(r)) {
            engine_widen(s->engine, r->pool.vector);
        }
        if (t->item[i].n_draft > 0)
            learn_drafts(s, &t->item[i], why != FINISH_NONE);
        if (request_is_prewarm(r))
            s->stats.n_prewarm_tokens += t->item[i].n_rows;
        else
            s->stats.n_output_tokens += r->n_tokens - before;
        if (r->n_tokens > before) {
            note_times(r, &t->item[i], MAX(t->launched_ns, s->last_end_ns), now);
            request_note_pending(r, &s->pending);
        }
        if (why != FINISH_NONE)
            sched_finish(s, r, (enum finish_reason)why);
        else if (t->item[i].samples)
            recorder_prompt_end(&s->recorder, r, now);
    }
    return 0;
}

/* Learns from step @t. With two steps in flight a step begins when the one before has ended. */
static void step_learn(struct sched *s, const struct batch *t, uint32_t n_tokens, int64_t now) {
    int64_t ns = now - MAX(t->launched_ns, s->last_end_ns);

    /* The device was idle while the host prepared this step; steps with drafts lose that time where
     * other steps would overlap. */
    int64_t idle = MIN(MAX(t->launched_ns - s->last_end_ns - t->draft_ns, 0), HOST_MAX_NS);
    if (t->b.n_rows > 0 && !t->prefills)
        spec_account(&s->spec, t->b.n_seqs, t->drafts || t->replays || t->draft_ns > 0, n_tokens,
                     ns + t->draft_ns + idle, t->expect_ns + t->draft_ns + idle);
    recorder_step(&s->recorder, &s->plan, t, s->stats.last_plan_us, ns, now);
    if (t->b.n_rows > 0 || s->cost.n_seen > 0) /* the first step with rows sets the scale */
        cost_learn(&s->cost, &t->shape, ns);
    s->last_end_ns = now;
    s->stats.first_row_us = (uint32_t)MIN(cost_expect_ns(&s->cost, &ONE_ROW) / 1000, UINT32_MAX);
    s->stats.next_row_us = (uint32_t)MIN(cost_row_ns(&s->cost) / 1000, UINT32_MAX);
    s->stats.n_steps++;
    s->stats.step_ns_total += (uint64_t)ns;
    s->stats.last_step_us = (uint32_t)(ns / 1000);
    step_count_rows(&s->stats, t->b.n_rows);
    s->stats.last_rows = t->b.n_rows;
    s->stats.last_seqs = t->b.n_seqs;
}

/* Takes the results of @t. A batch behind it that was launched without its rows gets them now. */
static int handle_and_seal(struct sched *s, struct batch *t, const struct engine_result *res,
                           int64_t now) {
    struct batch *next = &s->batch[(s->n_waited + 1) % SCHED_DEPTH_MAX];

    TRY(step_handle_results(s, t, res, now));
    if (sched_n_in_flight(s) == 0 || !next->unsealed)
        return 0;
    return step_seal(s, next);
}

int step_wait(struct sched *s) {
    struct batch *t = &s->batch[(s->n_waited + 1) % SCHED_DEPTH_MAX];
    int64_t begin = clock_now(s->clock);
    struct engine_result res;
    assert(sched_n_in_flight(s) > 0);
    TRY(engine_wait(s->engine, t->b.step, &res));
    int64_t now = clock_now(s->clock);
    s->stats.wait_ns_total += (uint64_t)(now - begin);
    s->n_waited++;
    step_write_crash_page(s, now, false);
    fair_charge_step(&s->fair, t, now - MAX(t->launched_ns, s->last_end_ns), now);
    uint64_t before = s->stats.n_output_tokens;
    int e = handle_and_seal(s, t, &res, now);
    step_learn(s, t, (uint32_t)(s->stats.n_output_tokens - before), now);
    return e;
}
