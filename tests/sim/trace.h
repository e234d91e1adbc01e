#pragma once

/*
 * trace - a workload of agents (cmd/bench_trace.h) and the simulation in which they work.
 */

#include "cmd/bench_trace.h"
#include "tests/support/sched_sim.h"

struct trace {
    struct sim_opts sim;
    struct trace_group group[TRACE_GROUPS];
    uint32_t n_groups;
    uint64_t seed;
    uint32_t until_ms; /* 0: until all have ended */
};

/* 0, or -1 after a line on stderr that says what is wrong where. */
int trace_read(struct trace *t, const char *path);
/* What a step takes on @name; false: no such machine. */
bool trace_machine(struct sim_opts *o, const char *name);
