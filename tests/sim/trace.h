#pragma once

/*
 * trace - reads a workload of agents (cmd/bench_trace.h) and the simulation in which they work.
 */

#include "cmd/bench_trace.h"
#include "tests/support/sched_sim.h"

struct trace {
    struct sim_opts sim;
    struct trace_group group[TRACE_GROUPS];
    uint32_t n_groups;
    uint64_t seed;
    /* 0: until all agents have ended */
    uint32_t until_ms;
};

/* Returns 0, or -1 after a line on stderr with the place and the error. */
int trace_read(struct trace *t, const char *path);
/* Sets the times of machine @name. Returns false if there is no such machine. */
bool trace_machine(struct sim_opts *o, const char *name);
