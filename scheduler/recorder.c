#include "scheduler/recorder.h"

#include "proto/flight_tape.h"
#include "scheduler/plan_tape.h"
#include "scheduler/private.h"

static enum why why_of(const struct plan_req *q) {
    static const uint8_t why[] = {
        [PLAN_UNSEEN] = WHY_QUEUED,    [PLAN_LAST] = WHY_LAST,
        [PLAN_FOLLOW] = WHY_FOLLOW,    [PLAN_WAIT_TIME] = WHY_TIME,
        [PLAN_WAIT_ROWS] = WHY_ROWS,   [PLAN_WAIT_PAGES] = WHY_PAGES,
        [PLAN_WAIT_SEQS] = WHY_SEQS,   [PLAN_WAIT_TURN] = WHY_TURN,
        [PLAN_WAIT_ALONE] = WHY_ALONE, [PLAN_PREEMPT] = WHY_PREEMPTED,
        [PLAN_WAIT_SHARE] = WHY_SHARE,
    };

    if (q->verdict == PLAN_RUN)
        return q->n_tokens - q->n_computed > 1 ? WHY_PROMPT : WHY_DECODE;
    return (enum why)why[q->verdict];
}

static void note(struct sched *s, struct request *r, enum why why, uint32_t n_rows, uint32_t detail,
                 int64_t now) {
    if (s->opts.flight)
        flight_note(s->opts.flight, &r->record, r->id, why, n_rows, detail, now);
}

void recorder_came(struct sched *s, struct request *r) {
    note(s, r, WHY_QUEUED, 0, 0, clock_now(s->clock));
}

void recorder_ended(struct sched *s, struct request *r, enum finish_reason why) {
    note(s, r, WHY_ENDED, 0, why, clock_now(s->clock));
}

void recorder_preempted(struct sched *s, struct request *r, uint32_t n_pages) {
    note(s, r, WHY_PREEMPTED, 0, n_pages, clock_now(s->clock));
}

void recorder_admitted(struct sched *s, struct request *r) {
    note(s, r, WHY_ADMITTED, 0, r->n_computed, clock_now(s->clock));
}

void recorder_plan(struct sched *s, int64_t now) {
    const struct plan *p = &s->plan;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting && s->opts.flight; i++) {
        const struct plan_req *q = &p->req[i];

        if (q->verdict != PLAN_PREEMPT && q->verdict != PLAN_UNSEEN &&
            !request_is_warm(s->planned[i]))
            note(s, s->planned[i], why_of(q), q->n_rows, 0, now);
    }
}

void recorder_asks(struct sched *s) {
    const struct plan *p = &s->plan;

    if (!s->opts.tape)
        return;
    buf_clear(&s->record);
    if (plan_tape_begin(&s->record, p, s->n_launched + 1, clock_now(s->clock)) < 0) {
        buf_clear(&s->record); /* no memory, no record */
        return;
    }
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++)
        plan_tape_items(&s->record)[i].id = s->planned[i]->id;
}

void recorder_decided(struct sched *s) {
    if (!s->opts.tape || s->record.len == 0)
        return;
    plan_tape_end(&s->record, &s->plan);
    flight_tape_write(s->opts.tape, s->opts.tape_bytes, s->record.data, (uint32_t)s->record.len);
}

void recorder_step(struct sched *s, const struct batch *t, int64_t ns, int64_t now) {
    struct kv_stats kv;

    if (!s->opts.flight)
        return;
    kv_pager_stats(s->pager, &kv);
    struct flight_step f = {
        .step = t->b.step,
        .at_ns = now,
        .took_us = (uint32_t)(ns / 1000),
        .expect_us = (uint32_t)(t->expect_ns / 1000),
        .plan_us = s->stats.last_plan_us,
        .rows = t->b.n_rows,
        .seqs = t->b.n_seqs,
        .drafts = s->plan.n_drafts,
        .running = s->plan.n_running + s->plan.n_admitted - s->plan.n_preempted,
        .waiting = s->plan.n_waiting,
        .admitted = s->plan.n_admitted,
        .preempted = s->plan.n_preempted,
        .available = kv.n_free + kv.n_cached,
        .kept = kv.n_kept,
    };
    flight_note_step(s->opts.flight, &f);
}
