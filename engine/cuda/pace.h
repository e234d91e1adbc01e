#pragma once

/*
 * pace - how long the host sleeps before it polls for the end of a step. Polling all the time costs
 * most of a core, and sleeping too long delays the next step. A step of a size that has a graph
 * takes about as long as the last one, so the host sleeps for 90 % of that and polls for the rest.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/util.h"

#define PACE_MOST_NS 100000000 /* the longest sleep */
#define PACE_LEAST_NS 100000   /* shorter ones are not worth a wake-up */
#define PACE_READY_NS 20000    /* a wait of less than this has found the step ended */

/* Returns how long to sleep at @now for a step that began at @start, if the last one took @took ns;
 * 0: not at all. */
static inline int64_t pace_sleep(int64_t took, int64_t start, int64_t now) {
    int64_t left = start + took / 10 * 9 - now;

    return left < PACE_LEAST_NS ? 0 : MIN(left, PACE_MOST_NS);
}

/* Returns the new time of a step that took @took ns before. The host came to wait at @came, after
 * sleeping (@slept), and the step was seen to have ended at @now. If it had ended before the host
 * came, only a sleep that was too long tells something. */
static inline int64_t pace_took(int64_t took, int64_t start, int64_t came, int64_t now,
                                bool slept) {
    if (now - came >= PACE_READY_NS)
        return now - start;
    return slept ? took / 10 * 9 : took;
}
