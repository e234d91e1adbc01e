#pragma once

/*
 * admit - how many generations may be at the worker and how many may wait for that, first come first
 * served. All generations of a request are admitted together. The bound is the front's, so that
 * overload is answered at once, whatever the worker does.
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "base/err.h"
#include "base/list.h"

struct api;

struct waiter {          /* embedded in what waits */
    struct list link;    /* admit.waiting */
    uint32_t n;          /* generations */
    int64_t deadline_ns; /* 0: none */
    void (*admitted)(struct waiter *w);
    void (*expired)(struct waiter *w); /* it is no longer queued; may free @w */
};

struct admit {
    struct list waiting; /* waiter.link */
    uint32_t n_running, n_queued;
    double mean_ms; /* of a generation's stay */
    uv_timer_t tick;
    bool ticking;
};

void admit_init(struct api *a);
void admit_close(struct api *a); /* the timer; nothing may wait */

/* Admits @w now or queues it. 429 with *retry_ms when the queue is full. */
int admit_enter(struct api *a, struct waiter *w, uint32_t *retry_ms, struct err *err);
void admit_cancel(struct api *a, struct waiter *w); /* it waits no longer, if it did */
bool admit_is_waiting(const struct waiter *w);
/* @n generations have left; others follow. */
void admit_release(struct api *a, uint32_t n);
void admit_took(struct api *a, int64_t ns); /* how long a generation took, for Retry-After */
/* Looks again soon at what the worker did not take and at deadlines. */
void admit_tick_later(struct api *a);
