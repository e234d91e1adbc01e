#include "api/limits/job_pool.h"

#include <assert.h>

#include "api/http/loop_lag.h"
#include "api/limits/tenant.h"
#include "base/cpus.h"

/*
 * At least two jobs run at once, because one tenant may keep all places but one. The loop comes
 * first: the pool's threads have the priority of a worker that computes on the same cores.
 */
#define RUNNING_MIN 2
#define RUNNING_MAX 5
#define THREADS 16        /* jobs that may have begun: each may hold some 100 MB for a moment */
#define NICE 5            /* that of a worker without a device */
#define DELIVER_NS 500000 /* budget of the loop for jobs that have ended, in an iteration */

static void job_pool_on_ended(uv_async_t *a) {
    struct job_pool *p = CONTAINER_OF(a, struct job_pool, ended);

    loop_lag_mark("jobs of the pool that have ended");
    if (jobs_deliver(p->jobs, DELIVER_NS))
        uv_async_send(a);
    if (p->closing && jobs_n(p->jobs) == 0 && !uv_is_closing((uv_handle_t *)a))
        uv_close((uv_handle_t *)a, NULL);
}

static void job_pool_wake(void *ctx) {
    struct job_pool *p = ctx;

    uv_async_send(&p->ended);
}

int job_pool_init(struct job_pool *p, uv_loop_t *loop, struct clock *clock, bool waits) {
    struct jobs_opts o = {
        .name = "weft-pool",
        .n_running = waits ? THREADS : MIN(MAX(cpus_usable(), RUNNING_MIN), RUNNING_MAX),
        .n_threads = THREADS,
        .nice = NICE,
        .clock = clock,
        .ctx = p,
        .wake = job_pool_wake,
    };
    int r = jobs_new(&p->jobs, &o);

    if (r == 0 && (r = uv_async_init(loop, &p->ended, job_pool_on_ended)) < 0)
        job_pool_deinit(p);
    return r;
}

void job_pool_deinit(struct job_pool *p) {
    p->jobs = jobs_free(p->jobs);
}

void job_pool_close(struct job_pool *p) {
    assert(!p->closing);
    p->closing = true;
    jobs_abandon_all(p->jobs);
    job_pool_on_ended(&p->ended);
}

int job_pool_submit(struct job_pool *p, struct job *j, const struct tenant *t) {
    j->tenant = t->number;
    j->weight = tenant_weight(t);
    return jobs_submit(p->jobs, j);
}

void job_pool_abandon(struct job_pool *p, struct job *j) {
    jobs_abandon(p->jobs, j);
}
