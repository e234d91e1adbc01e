#include "tests/support/sim_flight.h"

#include <string.h>

#include "tests/support/plan_again.h"
#include "tests/support/sched_sim.h"

#define AGAIN_STEPS 64 /* the last plan is repeated every so many steps */
#define AGAIN_LAST 8   /* number of plans that are repeated after a worker has died */
#define STORY 16

/* Returns true if @f may be the last record of a request in its state. */
static bool may_be_last(const struct request *r, const struct flight_record *f) {
    switch (r->state) {
    case REQUEST_RUNNING:
        return (f->why >= WHY_PROMPT && f->why <= WHY_PAGES) || f->why == WHY_ALONE ||
               f->why == WHY_PICTURE || f->why == WHY_ENCODE || f->why == WHY_ADMITTED;
    case REQUEST_WAITING:
        return f->why == WHY_QUEUED || f->why == WHY_TURN || f->why == WHY_SHARE ||
               f->why == WHY_PAGES || f->why == WHY_SEQS || f->why == WHY_ALONE ||
               f->why == WHY_PREEMPTED;
    default:
        return f->why == WHY_ENDED && f->detail == (uint32_t)r->end.finish;
    }
}

static void check_last(const struct sim *s, const struct sim_client *c, const struct request *r) {
    const struct flight *f = s->flight;

    if (r->end.refused && r->record == 0) /* refused before it was queued */
        return;
    HOLD(s, c, RECORDED, r->record > 0 && r->record <= f->n_records);
    if (r->record + FLIGHT_RECORDS <= f->n_records)
        return;
    const struct flight_record *last = &f->record[(r->record - 1) % FLIGHT_RECORDS];
    HOLD(s, c, RECORDED, last->id == r->id && (last->n_steps > 0 || last->why == WHY_DECODE));
    HOLD(s, c, RECORDED, last->from_ns <= last->until_ns && last->until_ns <= s->clock.ns);
    HOLD(s, c, RECORDED, may_be_last(r, last));
}

/* Returns whether @t has computed the end of a prompt of @r. */
static bool ends_prompt(const struct batch *t, const struct request *r) {
    for (uint32_t i = 0; i < t->b.n_seqs; i++)
        if (t->item[i].request == r)
            return t->item[i].samples && t->item[i].n_rows - t->item[i].n_draft > 1;
    return false;
}

/* Checks that the records of prompts end with @t, which has ended last, whatever was planned while
 * it ran. */
static void check_prompts(const struct sim *s, const struct batch *t) {
    for (uint32_t i = 0; i < s->n_live; i++) {
        const struct sim_client *c = &s->client[s->live[i]];
        const struct request *r = c->request;

        if (r->state != REQUEST_RUNNING || sim_is_prewarm(c) || !ends_prompt(t, r) ||
            r->record + FLIGHT_RECORDS <= s->flight->n_records)
            continue;
        const struct flight_record *last = &s->flight->record[(r->record - 1) % FLIGHT_RECORDS];
        HOLD(s, c, RECORDED, last->why == WHY_DECODE);
        HOLD(s, c, RECORDED, last->from_ns == s->sched->last_end_ns);
    }
}

/* Checks that the last record of each request in the last plan has the reason of its verdict. */
static void check_verdicts(const struct sim *s) {
    static const uint8_t why[] = {
        [PLAN_LAST] = WHY_LAST,        [PLAN_FOLLOW] = WHY_FOLLOW,
        [PLAN_WAIT_TIME] = WHY_TIME,   [PLAN_WAIT_ROWS] = WHY_ROWS,
        [PLAN_WAIT_PAGES] = WHY_PAGES, [PLAN_WAIT_SEQS] = WHY_SEQS,
        [PLAN_WAIT_TURN] = WHY_TURN,   [PLAN_WAIT_ALONE] = WHY_ALONE,
        [PLAN_WAIT_SHARE] = WHY_SHARE, [PLAN_WAIT_PICTURE] = WHY_PICTURE,
    };
    const struct sched *d = s->sched;
    const struct plan *p = &d->plan;
    const struct batch *t = &d->batch[d->n_launched % SCHED_DEPTH_MAX];

    for (uint32_t i = 0; p->n_rows > 0 && i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *q = &p->req[i];
        const struct request *r = d->planned[i];
        const struct sim_client *c = &s->client[r->id - 1];
        const struct flight_record *last = &s->flight->record[(r->record - 1) % FLIGHT_RECORDS];

        bool prompt_ended = last->why == WHY_DECODE && last->from_ns == d->last_end_ns;
        if (sim_is_prewarm(c) || r->state == REQUEST_DONE || q->verdict == PLAN_UNSEEN ||
            q->verdict == PLAN_PREEMPT || r->record + FLIGHT_RECORDS <= s->flight->n_records ||
            r->ends_prompt || prompt_ended)
            continue;
        enum why due = q->verdict != PLAN_RUN            ? (enum why)why[q->verdict]
                       : q->n_tokens - q->n_computed > 1 ? WHY_PROMPT
                                                         : WHY_DECODE;
        bool computed = due == WHY_PICTURE && last->why == WHY_ENCODE;
        HOLD(s, c, RECORDED, last->why == due || computed);
        HOLD(s, c, RECORDED, last->n_rows >= q->n_rows);
        HOLD(s, c, RECORDED, last->until_ns <= t->launched_ns && last->until_ns >= s->was.begin_ns);
    }
}

static void check_step(struct sim *s) {
    const struct flight *f = s->flight;
    const struct sched *d = s->sched;

    HOLD(s, NULL, RECORDED, f->n_steps == s->was.n_told_steps + d->n_waited);
    if (d->n_waited == 0)
        return;
    const struct flight_step *last = &f->step[(f->n_steps - 1) % FLIGHT_STEPS];
    const struct batch *t = &d->batch[d->n_waited % SCHED_DEPTH_MAX];
    HOLD(s, NULL, RECORDED, last->step == t->b.step && last->at_ns == d->last_end_ns);
    HOLD(s, NULL, RECORDED, last->rows == s->stats.last_rows && last->seqs == s->stats.last_seqs);
    HOLD(s, NULL, RECORDED, last->took_us == s->stats.last_step_us);
}

/* Repeats the last @n plans of the tape and compares the results. */
static void check_plans(struct sim *s, uint32_t n) {
    CLEANUP(buf_deinit) struct buf out = {.max = FLIGHT_FILE_MAX};
    uint32_t len, n_records = 0, k = 0;

    int e = flight_tape_read(flight_tape_of(s->flight), sim_tape_bytes(s), &out);
    HOLD(s, NULL, RECORDED, e == 0);
    for (size_t at = 0; at < out.len; at += sizeof(len) + len, n_records++)
        memcpy(&len, out.data + at, sizeof(len));
    for (size_t at = 0; at < out.len; at += sizeof(len) + len, k++) {
        struct plan_again a;

        memcpy(&len, out.data + at, sizeof(len));
        if (k + n < n_records)
            continue;
        e = plan_again_read(&a, out.data + at + sizeof(len), len);
        HOLD(s, NULL, RECORDED, e == 0 && a.at_ns <= s->clock.ns);
        for (uint32_t i = 0; i < a.plan.n_running + a.plan.n_waiting; i++)
            HOLD(s, NULL, RECORDED, a.id[i] >= 1 && a.id[i] <= s->n_clients);
        /* otherwise the repeated plan would use random numbers of the next one */
        if (s->opts.repeats)
            HOLD(s, NULL, AGAIN, !plan_again(&a));
        plan_again_deinit(&a);
    }
}

void sim_flight_after(struct sim *s) {
    for (uint32_t i = 0; i < s->n_live; i++) {
        const struct sim_client *c = &s->client[s->live[i]];

        if (!sim_is_prewarm(c))
            check_last(s, c, c->request);
    }
    check_step(s);
    if (s->sched->last_end_ns > s->was.begin_ns)
        check_prompts(s, &s->sched->batch[s->sched->n_waited % SCHED_DEPTH_MAX]);
    if (s->sched->n_launched > s->was.n_launched)
        check_verdicts(s);
    if (s->n_steps % AGAIN_STEPS == 0)
        check_plans(s, 1);
}

void sim_flight_at_death(struct sim *s) {
    struct flight_record r[STORY];

    for (uint32_t i = 0; i < s->n_live; i++) {
        const struct sim_client *c = &s->client[s->live[i]];
        const struct request *q = *sched_slot(s->sched, c->m.id);
        uint32_t n = flight_story(s->flight, c->m.id, r, STORY);

        if (!q || sim_is_prewarm(c) || q->end.refused ||
            q->record + FLIGHT_RECORDS <= s->flight->n_records)
            continue;
        HOLD(s, c, RECORDED, n > 0 && may_be_last(q, &r[n - 1]));
        for (uint32_t k = 1; k < n; k++)
            HOLD(s, c, RECORDED, r[k].from_ns >= r[k - 1].from_ns && r[k].id == c->m.id);
    }
    check_plans(s, AGAIN_LAST);
}
