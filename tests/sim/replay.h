#pragma once

/*
 * replay - runs a trace under a policy and measures what its tenants get: times to the first token,
 * between tokens and of whole jobs, the fairness of the device's time, the tokens computed twice.
 */

#include "tests/sim/trace.h"

struct replay_opts {
    /* NULL: the policy "weft" */
    const char *trace, *policy;
    /* machine of the cost model; NULL: that of the trace */
    const char *machine;
    /* leaves out this tenant; -1: none */
    int64_t without;
};

/* Names of policies for the usage text; returns whether a policy exists. */
extern const char replay_policies[];

/* Prints a table. Returns 0, or 2 if the trace cannot be run; a broken invariant ends the process
 * with 1. */
int replay_run(const struct replay_opts *o);
