#pragma once

/*
 * jobs - a pool of threads for work that is too long for an event loop, shared fairly by tenants
 * (fairq.h).
 *
 *     jobs_submit ──> waits for its turn ──> jobs_run() on a thread ──> done() by jobs_deliver()
 *                        |                  |  ^
 *                        |                  '--' job_pause(): another tenant's turn
 *                        '-- abandoned: done() without jobs_run()
 *
 * All threads are created at the start, so that no later request fails because a thread cannot be
 * created. Only n_running of them work at the same time; the others hold jobs that were paused in
 * the middle. Long work calls job_pause() every few tens of microseconds, as the text libraries do
 * in their loops. A turn therefore lasts JOBS_SLICE_NS even if the job is large, and an abandoned
 * job ends at its next call.
 *
 * What done() takes on the owner's thread is charged to the tenant, too, and the tenant with the
 * least time is the next whose job is delivered. An owner with other work gives jobs_deliver() a
 * budget.
 *
 * jobs_submit(), jobs_abandon(), jobs_deliver() and jobs_free() are for one thread, the owner.
 */

#include <pthread.h>
#include <stdatomic.h>

#include "base/fairq.h"

#define JOBS_SLICE_NS 2000000
#define JOBS_WITHOUT_BUDGET INT64_MAX /* jobs_deliver() delivers all that have ended */

struct clock;
struct jobs;

/*
 * IDLE, DONE --put--> WAITING --turn--> BEGUN --run() returns--> ENDED --jobs_deliver()--> DONE;
 * abandoned: WAITING -> ENDED. Changed under the pool's mutex, but for the last step.
 */
enum job_state { JOB_IDLE, JOB_WAITING, JOB_BEGUN, JOB_ENDED, JOB_DONE };

/* A job, embedded in the owner's struct and zeroed by the owner, who from jobs_submit() to done()
 * touches it only through jobs_abandon(). */
struct job {
    /* Set by the owner. done() may free the job. */
    /* called on a thread */
    void (*run)(struct job *j);
    /* called on the owner's thread */
    void (*done)(struct job *j);
    uint32_t tenant;
    double weight;
    /* runs only when no job waits that is not in the background */
    bool background;
    /* Fields of the pool. */
    struct fairq_item item;
    /* jobs.out */
    struct list link;
    struct jobs *jobs;
    /* condition that wakes its thread */
    pthread_cond_t *resumed;
    /* time when its turn began */
    int64_t slice_ns;
    enum job_state state;
    atomic_bool abandoned;
};

/* Options; name and clock stay the caller's, and outlive the pool. */
struct jobs_opts {
    /* name of the threads */
    const char *name;
    /* jobs that work at the same time */
    uint32_t n_running;
    /* most jobs that have begun, >= n_running */
    uint32_t n_threads;
    /* added to the nice value of each thread */
    int nice;
    /* any thread may read it */
    struct clock *clock;
    void *ctx;
    /* Called on any thread when a result can be delivered. It returns before that result is
     * delivered, so the loop that it wakes may be closed once no job is left. It must not wait. */
    void (*wake)(void *ctx);
    /* NULL, or called on the thread of @j when its turn begins (@has) or ends. With n_running 1
     * at most one job has the turn. */
    void (*turn)(void *ctx, struct job *j, bool has);
};

struct jobs_stats {
    /* n_waiting: jobs that have not begun; n_begun: jobs that have begun and not ended */
    uint32_t n_waiting, n_begun;
    uint64_t n_done;
    /* time that jobs have run, added over all threads */
    uint64_t busy_ns;
};

/* Makes all threads. Returns 0 or -errno (-EAGAIN: the system does not allow as many threads). */
int jobs_new(struct jobs **out, const struct jobs_opts *opts);
/* Ends and joins all threads. All jobs must have been delivered. Accepts NULL, returns NULL. */
struct jobs *jobs_free(struct jobs *p);
DEFINE_FREEP(struct jobs, jobs)
/* Takes over @j until done(). Returns 0 or -ENOMEM. */
int jobs_submit(struct jobs *p, struct job *j);
/* Abandons @j, which was put: it ends soon, and done() is still called, later. */
void jobs_abandon(struct jobs *p, struct job *j);
void jobs_abandon_all(struct jobs *p); /* abandons all jobs that were put and not delivered */
/* Calls done() of jobs that have ended: of one, and of others until @budget_ns have passed. Returns
 * true if further ones have ended. */
bool jobs_deliver(struct jobs *p, int64_t budget_ns);
/* Returns the number of jobs that were put and not delivered. */
uint32_t jobs_n(const struct jobs *p);
/* Fills @out with current gauges and counters since the start. */
void jobs_stats(struct jobs *p, struct jobs_stats *out);

/* Lets other jobs have their turn; called inside jobs_run(), at any depth. Returns -ECANCELED once
 * the job was abandoned, and 0 on a thread that runs no job. */
int job_pause(void);
