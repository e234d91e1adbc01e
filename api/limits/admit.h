#pragma once

/* admit - limits how many generations are at the worker and how many wait for it, in all and of
 * each tenant. All generations of a request are admitted together. The front enforces the limits,
 * so that overload is answered at once, even if the worker is busy. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "base/list.h"

struct clock;
struct rng;
struct tenant;

/* Embedded in the object that waits. Its owner initialises link, sets the members that are not
 * bool, and may free it in any of the three calls. Invariants: dropped implies that it is in
 * admit.dropped, to be notified; late implies dropped. */
struct waiter {
    /* tenant.waiting, or admit.dropped; empty: it does not wait */
    struct list link;
    struct tenant *tenant;
    /* generations */
    uint32_t n;
    /* most tokens that they may hold */
    uint64_t n_context;
    /* 0: none */
    int64_t deadline_ns;
    /* it has lost its place in the queue: to another tenant, or because its deadline has passed */
    bool dropped, late;
    void (*admitted)(struct waiter *w);
    /* The next two: it is no longer queued; may free @w. */
    void (*expired)(struct waiter *w);
    void (*refused)(struct waiter *w, const struct err *err,
                    /* NULL: its place is never given away */
                    uint32_t retry_ms);
};

struct admit_opts {
    uv_loop_t *loop;
    struct clock *clock;
    struct rng *rng;
    /* generations */
    uint32_t max_running, max_queued;
    void *ctx;
    /* Called by the timer: submits again the generations that the worker did not take. Returns
     * whether it is needed again. */
    bool (*retry)(void *ctx);
};

struct admit {
    struct admit_opts opts;
    /* tenant.link: tenants with generations or waiters */
    struct list busy;
    /* waiter.link: to be notified */
    struct list dropped;
    uint32_t n_running, n_queued;
    /* mean time of a generation at the worker */
    double mean_ms;
    /* between places that become free while others wait; 0: not known */
    double each_ms;
    /* time when a place became free; 0: no request waited */
    int64_t last_end_ns;
    /* time of the last change of n_running */
    int64_t changed_ns;
    /* no waiter has an earlier deadline; 0: none has one */
    int64_t deadline_ns;
    uv_timer_t tick;
    bool ticking, closed;
};

/* Every function runs on the loop's thread. Opens the timer; the objects that @opts points to must
 * outlive @m. */
void admit_init(struct admit *m, const struct admit_opts *opts);
/* Stops admitting waiters when a place becomes free. */
void admit_stop(struct admit *m);
/* Closes the timer; nothing may wait. */
void admit_close(struct admit *m);

/* Admits @w now or queues it. 429 with *retry_ms when the queue or the tenant's part of it is
 * full. */
int admit_enter(struct admit *m, struct waiter *w, uint32_t *retry_ms, struct err *err);
/* returns true if @w need not wait */
bool admit_is_free(const struct admit *m, const struct waiter *w);
/* Called before the body of a request of @t is parsed. Returns the 429 with which admit_enter()
 * would refuse even the smallest request, or 0. A flood therefore costs only its heads: its prompts
 * are neither parsed nor tokenised. */
int admit_precheck(struct admit *m, struct tenant *t, uint32_t *retry_ms, struct err *err);
/* Queues a further part of a request that was admitted: without limit and never refused; its
 * `refused` is NULL. */
void admit_again(struct admit *m, struct waiter *w);
/* Ends the wait of @w, if it waits; calls none of its functions. May admit other waiters. */
void admit_cancel(struct admit *m, struct waiter *w);
/* Reports that @n generations have left (their charges are settled) and admits waiters. */
void admit_release(struct admit *m, struct tenant *t, uint32_t n);
/* Admits the waiters that have a place now; called after the limits of tenants have changed. */
void admit_waiting(struct admit *m);
/* Estimates the time in ms until a request of @t with @n_before others before it has a place. */
double admit_wait_ms(const struct admit *m, const struct tenant *t, uint32_t n_before);
/* reports how long a generation took, for Retry-After */
void admit_took(struct admit *m, int64_t ns);
/* Schedules a check of deadlines and of generations that the worker did not take. */
void admit_tick_later(struct admit *m);
