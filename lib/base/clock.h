#pragma once

/*
 * clock - monotonic time as an object that is passed in, so that everything below daemon/ and api/
 * also runs in virtual time. CLOCK_MONOTONIC is the same in every process of a machine: times may
 * be sent from the front to the worker.
 */

#include <stdint.h>

/* Any thread may read a clock that is not virtual. */
struct clock {
    int64_t (*now_ns)(struct clock *);
};

/* Returns the nanoseconds since an arbitrary start; never goes back. */
static inline int64_t clock_now(struct clock *c) {
    return c->now_ns(c);
}

/* Returns the clock of the machine's CLOCK_MONOTONIC. Static; any thread may read it. */
struct clock *clock_monotonic(void);

/* A clock that stands still until its owner adds to `ns`. */
struct clock_virtual {
    struct clock clock;
    int64_t ns;
};

/* Initialises a clock that stands at @start_ns. For one thread at a time. */
void clock_virtual_init(struct clock_virtual *v, int64_t start_ns);
