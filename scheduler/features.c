/*
 * features - tells the features of the scheduler what happens to a request. Features that only plan
 * or run a step are called by the files of a step.
 */

#include <assert.h>

#include "scheduler/scheduler_private.h"

/* A feature that follows requests of clients. NULL members: it has nothing to do then. */
struct feature {
    /* @r was accepted and is not queued yet. */
    void (*on_submit)(struct sched *s, struct request *r, const struct submit *m);
    /* A step may follow. */
    void (*on_step)(struct sched *s);
    /* @r ends and is not DONE yet. */
    void (*on_finish)(struct sched *s, struct request *r, const struct feature_end *end);
};

/* ---- deadlines ---- */

static void feature_note_deadline(struct sched *s, struct request *r, const struct submit *m) {
    (void)m;
    if (r->deadline_ns > 0)
        s->next_deadline_ns = MIN(s->next_deadline_ns, r->deadline_ns);
}

static void feature_expire_list(struct sched *s, struct list *l, int64_t now) {
    LIST_FOREACH_ENTRY(r, l, struct request, queued.link) {
        if (r->deadline_ns == 0)
            continue;
        if (r->deadline_ns <= now)
            sched_finish(s, r, FINISH_DEADLINE);
        else
            s->next_deadline_ns = MIN(s->next_deadline_ns, r->deadline_ns);
    }
}

static void feature_expire(struct sched *s) {
    int64_t now = clock_now(s->clock);

    if (now < s->next_deadline_ns)
        return;
    s->next_deadline_ns = INT64_MAX;
    feature_expire_list(s, &s->waiting, now);
    feature_expire_list(s, &s->running, now);
    feature_expire_list(s, &s->compiling, now);
}

/* ---- prewarms, records, tenants, sessions ---- */

static void feature_end_prewarms(struct sched *s, struct request *r, const struct submit *m) {
    (void)m;
    prewarm_note_turn(&s->prewarm, r);
}

static void feature_record_arrival(struct sched *s, struct request *r, const struct submit *m) {
    (void)m;
    recorder_note(&s->recorder, r, WHY_QUEUED, 0);
}

static void feature_record_end(struct sched *s, struct request *r, const struct feature_end *end) {
    recorder_note(&s->recorder, r, WHY_ENDED, end->why);
}

static void feature_enter_tenant(struct sched *s, struct request *r, const struct submit *m) {
    fair_enter_request(&s->fair, r, m->tenant, m->weight_milli, m->class);
}

static void feature_exit_tenant(struct sched *s, struct request *r, const struct feature_end *end) {
    (void)end;
    fair_exit_request(&s->fair, r);
}

static void feature_note_turn(struct sched *s, struct request *r, const struct submit *m) {
    (void)m;
    pin_note_turn(&s->pins, r->session, r->tenant, clock_now(s->clock));
}

static void feature_pin_turn(struct sched *s, struct request *r, const struct feature_end *end) {
    if (end->well)
        pin_turn(&s->pins, r, clock_now(s->clock));
}

/* ---- pages, and what waits for them ---- */

static void feature_save_pages(struct sched *s, struct request *r, const struct feature_end *end) {
    pin_save(&s->view, r, end->n_stored);
}

static void feature_free_pages(struct sched *s, struct request *r, const struct feature_end *end) {
    (void)s;
    (void)end;
    request_free_pages(r);
    drafter_drop(r);
}

/* Ends the wait for pages from the disk, or for a constraint. */
static void feature_end_wait(struct sched *s, struct request *r, const struct feature_end *end) {
    (void)end;
    if (r->loading)
        tier_cancel_load(s, r);
    else if (r->grammar.compiling && r->grammar.constraints->forget)
        r->grammar.constraints->forget(r->grammar.constraints->ctx, r->id);
    r->grammar.compiling = false;
}

static void feature_release_pictures(struct sched *s, struct request *r,
                                     const struct feature_end *end) {
    (void)end;
    pictures_release(&s->pictures, r);
}

/* ---- what is learnt ---- */

static void feature_learn_output(struct sched *s, struct request *r,
                                 const struct feature_end *end) {
    if (!end->well || request_pools(r))
        return;
    estimate_learn(&s->estimate, r->session, request_n_out(r));
    spec_finish(&s->spec, r);
}

/* ---- the table ---- */

/* Rows are told in this order. The pages are saved once their session is known to return, and
 * freed once they are pinned or saved; pictures that no page holds are released after them. */
static const struct feature features[] = {
    {feature_note_deadline, feature_expire, NULL},
    {NULL, tier_step, NULL},
    {feature_end_prewarms, NULL, NULL},
    {feature_record_arrival, NULL, feature_record_end},
    {feature_enter_tenant, NULL, feature_exit_tenant},
    {feature_note_turn, NULL, feature_pin_turn},
    {NULL, NULL, feature_save_pages},
    {NULL, NULL, feature_free_pages},
    {NULL, NULL, feature_end_wait},
    {NULL, NULL, feature_release_pictures},
    {NULL, NULL, feature_learn_output},
};

void features_submit(struct sched *s, struct request *r, const struct submit *m) {
    for (size_t i = 0; i < ARRAY_SIZE(features); i++)
        if (features[i].on_submit)
            features[i].on_submit(s, r, m);
}

void features_step(struct sched *s) {
    for (size_t i = 0; i < ARRAY_SIZE(features); i++)
        if (features[i].on_step)
            features[i].on_step(s);
}

void features_finish(struct sched *s, struct request *r, enum finish_reason why) {
    bool well = why == FINISH_STOP || why == FINISH_LENGTH;
    struct feature_end end = {
        .why = why,
        .well = well,
        .n_stored = well ? request_n_stored(r) : 0,
    };

    for (size_t i = 0; i < ARRAY_SIZE(features); i++)
        if (features[i].on_finish)
            features[i].on_finish(s, r, &end);
}
