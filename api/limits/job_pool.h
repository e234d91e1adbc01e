#pragma once

/*
 * job_pool - base/jobs.h on the front's loop: long tokenisations, renderings, grammars, and
 * whatever else would keep the loop from its other clients for more than about a millisecond.
 * Threads are made by job_pool_init().
 */

#include <uv.h>
#include "base/jobs.h"

struct tenant;

/* Invariant: the handle is open from job_pool_init() until the last job after job_pool_close() has
 * been notified of its end. */
struct job_pool {
    struct jobs *jobs;
    uv_async_t ended; /* a job has */
    bool closing;
};

/* @waits: jobs wait for others rather than compute, so that all threads may run at once. 0 or
 * -errno. The clock is read by all threads. */
int job_pool_init(struct job_pool *p, uv_loop_t *loop, struct clock *clock, bool waits);
/* After job_pool_close() and the loop has run out; accepts a zeroed one. */
void job_pool_deinit(struct job_pool *p);
/* Abandons every job; the handle is closed when the last one has been told its end. */
void job_pool_close(struct job_pool *p);
/* Runs @j, whose run and done are set, for @t, which is charged. Returns 0 or -ENOMEM. */
int job_pool_put(struct job_pool *p, struct job *j, const struct tenant *t);
void job_pool_abandon(struct job_pool *p, struct job *j); /* like jobs_abandon() */
