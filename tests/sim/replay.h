#pragma once

/*
 * replay - a trace under a policy, and what its tenants saw: times to the first token, between
 * tokens and of whole jobs, how evenly the device was shared, what was computed twice.
 */

#include "tests/sim/trace.h"

struct replay_opts {
    const char *trace, *policy; /* NULL: weft */
    const char *machine;        /* NULL: the trace's */
    int64_t without;            /* this tenant is not there; -1: all are */
};

/* Names of policies for the usage, and whether there is one. */
extern const char replay_policies[];

/* Prints a table. 0; 1: an invariant is broken ends the process; 2: it cannot be run. */
int replay_run(const struct replay_opts *o);
