/*
 * Replaces base/jobs.c: a job runs as a whole on the one thread, at a random time. Waiting jobs run
 * in random order, as threads give no order either.
 */

#include "base/jobs.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/list.h"
#include "base/loop_bytes.h"
#include "tests/front_sim/sim.h"

struct jobs {
    /* pools */
    struct list link;
    struct jobs_opts opts;
    struct list out, ended;
    uint32_t n_out;
    uint64_t n_done;
};

static struct list pools = {&pools, &pools};
static struct job *current;

int jobs_new(struct jobs **out, const struct jobs_opts *opts) {
    struct jobs *p = calloc(1, sizeof(*p));

    if (!p)
        return -ENOMEM;
    p->opts = *opts;
    list_init(&p->out);
    list_init(&p->ended);
    list_push_back(&pools, &p->link);
    *out = p;
    return 0;
}

struct jobs *jobs_free(struct jobs *p) {
    if (!p)
        return NULL;
    assert(list_empty(&p->out));
    list_remove(&p->link);
    free(p);
    return NULL;
}

int jobs_submit(struct jobs *p, struct job *j) {
    bool was = sim_enter();

    assert(j->state == JOB_IDLE || j->state == JOB_DONE);
    sim_event("job put", j->tenant, 0);
    j->state = JOB_WAITING;
    j->jobs = p;
    atomic_store(&j->abandoned, false);
    list_push_back(&p->out, &j->link);
    p->n_out++;
    sim_leave(was);
    return 0;
}

static void end(struct job *j) {
    struct jobs *p = j->jobs;

    j->state = JOB_ENDED;
    list_push_back(&p->ended, &j->item.link);
    p->opts.wake(p->opts.ctx);
}

void jobs_abandon(struct jobs *p, struct job *j) {
    atomic_store(&j->abandoned, true);
    if (j->state == JOB_WAITING && sim_one_in(2)) /* otherwise a thread has begun it */
        end(j);
}

void jobs_abandon_all(struct jobs *p) {
    LIST_FOREACH(i, &p->out)
    jobs_abandon(p, LIST_ENTRY(i, struct job, link));
}

bool jobs_deliver(struct jobs *p, int64_t budget_ns) {
    int64_t began = sim.ns;

    while (!list_empty(&p->ended)) {
        struct job *j = LIST_ENTRY(p->ended.next, struct job, item.link);

        list_remove(&j->item.link);
        list_remove(&j->link);
        p->n_out--;
        p->n_done++;
        j->state = JOB_DONE;
        j->done(j);
        if (sim.ns - began >= budget_ns)
            break;
    }
    return !list_empty(&p->ended);
}

uint32_t jobs_n(const struct jobs *p) {
    return p->n_out;
}

void jobs_stats(struct jobs *p, struct jobs_stats *out) {
    *out = (struct jobs_stats){.n_waiting = p->n_out, .n_done = p->n_done};
}

int job_pause(void) {
    return current && atomic_load(&current->abandoned) ? -ECANCELED : 0;
}

static struct job *choose(void) {
    struct job *chosen = NULL;
    uint32_t n = 0;

    LIST_FOREACH(pool, &pools) {
        struct jobs *p = LIST_ENTRY(pool, struct jobs, link);

        LIST_FOREACH(i, &p->out) {
            struct job *j = LIST_ENTRY(i, struct job, link);

            if (j->state == JOB_WAITING && sim_below(++n) == 0)
                chosen = j;
        }
    }
    return chosen;
}

bool jobs_sim_wait(void) {
    LIST_FOREACH(pool, &pools) {
        struct jobs *p = LIST_ENTRY(pool, struct jobs, link);

        LIST_FOREACH(i, &p->out)
        if (LIST_ENTRY(i, struct job, link)->state == JOB_WAITING)
            return true;
    }
    return false;
}

bool jobs_sim_run_one(void) {
    struct job *j = choose();

    if (!j)
        return false;
    sim_event("job runs", j->tenant, 0);
    j->state = JOB_BEGUN;
    current = j;
    sim.in_front = true;
    loop_watch = NULL; /* a thread's time is not the loop's */
    j->run(j);
    loop_watch = sim_price;
    end(j);
    sim.in_front = false;
    current = NULL;
    return true;
}
