#pragma once

/*
 * admit - how many generations may be at the worker and how many may wait for that: in all, and of each
 * tenant. All generations of a request are admitted together. The bounds are the front's, so that overload is
 * answered at once, whatever the worker does.
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "base/err.h"
#include "base/list.h"

struct api;

struct tenant;

struct waiter {       /* embedded in what waits */
    struct list link; /* tenant.waiting, or admit.dropped */
    struct tenant *tenant;
    uint32_t n;          /* generations */
    uint64_t n_context;  /* tokens that they may come to hold */
    int64_t deadline_ns; /* 0: none */
    bool dropped;        /* its place in the queue went to another tenant */
    void (*admitted)(struct waiter *w);
    /* The next two: it is no longer queued; may free @w. */
    void (*expired)(struct waiter *w);
    void (*refused)(struct waiter *w, const struct err *err, uint32_t retry_ms);
};

struct admit {
    struct list busy;    /* tenant.link: those that have generations or waiters */
    struct list dropped; /* waiter.link: to be told */
    uint32_t n_running, n_queued;
    double mean_ms;      /* of a generation's stay */
    double each_ms;      /* between places that become free while others wait; 0: not known */
    int64_t last_end_ns; /* when one did; 0: nobody waited */
    uv_timer_t tick;
    bool ticking;
};

void admit_init(struct api *a);
void admit_close(struct api *a); /* the timer; nothing may wait */

/* Admits @w now or queues it. 429 with *retry_ms when the queue or the tenant's part of it is full. */
int admit_enter(struct api *a, struct waiter *w, uint32_t *retry_ms, struct err *err);
bool admit_is_free(const struct api *a, const struct waiter *w); /* it need not wait */
/* Before a request of @t is read: 429 where admit_enter() would refuse even the smallest, else 0. A flood then costs what
 * its heads cost, not its prompts: those are neither parsed nor tokenised. */
int admit_glance(struct api *a, struct tenant *t, uint32_t *retry_ms, struct err *err);
/* The same for one that has been in before, for a part of what it came for: it is not sent away. Its
 * `refused` is NULL. */
void admit_again(struct api *a, struct waiter *w);
void admit_cancel(struct api *a, struct waiter *w); /* it waits no longer, if it did */
bool admit_is_waiting(const struct waiter *w);
/* @n generations have left (their charges are settled); others follow. */
void admit_release(struct api *a, struct tenant *t, uint32_t n);
void admit_took(struct api *a, int64_t ns); /* how long a generation took, for Retry-After */
/* Looks again soon at what the worker did not take and at deadlines. */
void admit_tick_later(struct api *a);
