#pragma once

/* sim_gaps - how long steps take in which requests decode beside prompts, without noise; rule GAPS.
 * Private to the simulation. */

#include <stdint.h>

struct sim;

/* Steps of a worker beside decode, by their time in terms of the even time: the strictest pace of
 * the requests that decode, or 4/3 of what decode takes if that is more. */
struct sim_gaps {
    uint32_t n_steps;
    uint32_t n_long; /* longer than 5/4 of the even time */
};

/* Counts the step just launched; @target_ns: the strictest pace. */
void sim_gaps_after(struct sim *s, int64_t target_ns);
/* Checks that few steps were long: an eighth, and ten while the cost model learns. */
void sim_gaps_at_end(const struct sim *s);
