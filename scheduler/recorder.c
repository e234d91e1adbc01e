#include "scheduler/recorder.h"

#include <assert.h>

#include "base/clock.h"
#include "base/probe.h"
#include "proto/flight_tape.h"
#include "scheduler/batch.h"
#include "scheduler/pictures.h"
#include "scheduler/pin.h"
#include "scheduler/plan_tape.h"
#include "scheduler/request.h"
#include "scheduler/view.h"

static enum why why_of(const struct plan_req *q) {
    static const uint8_t why[] = {
        [PLAN_UNSEEN] = WHY_QUEUED,    [PLAN_LAST] = WHY_LAST,
        [PLAN_FOLLOW] = WHY_FOLLOW,    [PLAN_WAIT_TIME] = WHY_TIME,
        [PLAN_WAIT_ROWS] = WHY_ROWS,   [PLAN_WAIT_PAGES] = WHY_PAGES,
        [PLAN_WAIT_SEQS] = WHY_SEQS,   [PLAN_WAIT_TURN] = WHY_TURN,
        [PLAN_WAIT_ALONE] = WHY_ALONE, [PLAN_PREEMPT] = WHY_PREEMPTED,
        [PLAN_WAIT_SHARE] = WHY_SHARE, [PLAN_WAIT_PICTURE] = WHY_PICTURE,
    };

    if (q->verdict == PLAN_RUN)
        return q->n_tokens - q->n_computed > 1 ? WHY_PROMPT : WHY_DECODE;
    return (enum why)why[q->verdict];
}

void recorder_init(struct recorder *c, const struct sched_view *view, struct flight *flight,
                   struct flight_tape *tape, uint32_t tape_bytes) {
    *c = (struct recorder){view, flight, tape, tape_bytes, {0}};
    buf_init(&c->record, tape_bytes);
}

void recorder_deinit(struct recorder *c) {
    buf_deinit(&c->record);
}

void recorder_note(struct recorder *c, struct request *r, enum why why, uint32_t detail) {
    if (why == WHY_PREEMPTED)
        PROBE2(preempt, r->id, detail);
    if (why == WHY_ADMITTED && detail > 0)
        PROBE3(prefix__hit, r->id, detail, r->n_prompt);
    r->ends_prompt = false;
    if (c->flight)
        flight_note(c->flight, &r->record, r->id, why, 0, detail, clock_now(c->view->clock));
}

void recorder_prompt_end(struct recorder *c, struct request *r, int64_t now) {
    if (!r->ends_prompt)
        return;
    r->ends_prompt = false;
    flight_note_token(c->flight, &r->record, r->id, now);
    if (r->n_in_flight > 0)
        flight_note(c->flight, &r->record, r->id, WHY_DECODE, r->n_in_flight, 0, now);
}

void recorder_plan(struct recorder *c, const struct plan *p, struct request *const *planned,
                   int64_t now) {
    uint32_t row_us = (uint32_t)MIN(cost_row_ns(p->cost) / 1000, UINT32_MAX);

    for (uint32_t i = 0; i < p->n_running + p->n_waiting && c->flight; i++) {
        const struct plan_req *q = &p->req[i];
        struct request *r = planned[i];
        enum why why = why_of(q);
        if (why == WHY_PICTURE && pictures_why(r) == WHY_ENCODE)
            why = WHY_ENCODE;
        bool has_row_us = why == WHY_TIME || why == WHY_PROMPT;

        if (q->verdict == PLAN_PREEMPT || q->verdict == PLAN_UNSEEN || request_is_prewarm(r) ||
            r->ends_prompt)
            continue;
        flight_note(c->flight, &r->record, r->id, why, q->n_rows, has_row_us ? row_us : 0, now);
        r->ends_prompt =
            why == WHY_PROMPT && q->n_computed + q->n_rows >= r->n_tokens + r->n_pending;
    }
}

void recorder_asks(struct recorder *c, const struct plan *p, struct request *const *planned,
                   uint64_t step) {
    if (!c->tape)
        return;
    buf_clear(&c->record);
    if (plan_tape_begin(&c->record, p, step, clock_now(c->view->clock)) < 0) {
        buf_clear(&c->record); /* no memory, no record */
        return;
    }
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++)
        plan_tape_items(&c->record)[i].id = planned[i]->id;
}

void recorder_decided(struct recorder *c, const struct plan *p) {
    if (!c->tape || c->record.len == 0)
        return;
    assert(c->record.len <= c->tape_bytes);
    plan_tape_end(&c->record, p);
    flight_tape_write(c->tape, c->tape_bytes, c->record.data, (uint32_t)c->record.len);
}

void recorder_step(struct recorder *c, const struct plan *p, const struct batch *t,
                   uint32_t plan_us, int64_t ns, int64_t now) {
    PROBE3(step__end, t->b.step, t->b.n_rows, ns);
    if (!c->flight)
        return;
    struct pin_pages pages = pin_pages(c->view->pins);
    struct flight_step f = {
        .step = t->b.step,
        .at_ns = now,
        .took_us = (uint32_t)(ns / 1000),
        .expect_us = (uint32_t)(t->expect_ns / 1000),
        .plan_us = plan_us,
        .rows = t->b.n_rows,
        .seqs = t->b.n_seqs,
        .drafts = p->n_drafts,
        .running = p->n_running + p->n_admitted - p->n_preempted,
        .waiting = p->n_waiting,
        .admitted = p->n_admitted,
        .preempted = p->n_preempted,
        .available = pages.n_available,
        .pinned = pages.n_pinned,
    };
    flight_note_step(c->flight, &f);
}
