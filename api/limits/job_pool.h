#pragma once

/*
 * job_pool - base/jobs.h on the front's loop: runs long tokenisations, renderings, grammars and
 * other work that would block the loop for more than about a millisecond. Threads are made by
 * job_pool_init().
 */

#include <uv.h>

#include "base/jobs.h"

struct tenant;

/* Invariant: the handle is open from job_pool_init() until, after job_pool_close(), the end of the
 * last job has been delivered. */
struct job_pool {
    struct jobs *jobs;
    /* signals that a job has ended */
    uv_async_t ended;
    bool closing;
};

/* @waits: jobs wait for others rather than compute, so that all threads may run at once. 0 or
 * -errno. The clock is read by all threads. */
int job_pool_init(struct job_pool *p, uv_loop_t *loop, struct clock *clock, bool waits);
/* Frees the pool after job_pool_close(), when the loop has run out; accepts a zeroed one. */
void job_pool_deinit(struct job_pool *p);
/* Abandons every job; the handle is closed when the end of the last one has been delivered. */
void job_pool_close(struct job_pool *p);
/* Runs @j, whose run and done are set, for @t, which is charged. Returns 0 or -ENOMEM. */
int job_pool_submit(struct job_pool *p, struct job *j, const struct tenant *t);
void job_pool_abandon(struct job_pool *p, struct job *j); /* like jobs_abandon() */
