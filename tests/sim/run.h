#pragma once

/*
 * run - runs seeds in separate processes: a violation ends a process, and its parent reports the
 * seed, the command that repeats it, and a smaller case that fails too.
 */

#include "tests/sim/swarm.h"

struct run_opts {
    /* seeds */
    uint64_t first, last;
    uint32_t n_processes;
    /* base: number of steps, and set features; for one seed: the kept actions */
    struct swarm_case base;
    /* most steps of a process, after which it starts no new seed; 0: no limit */
    uint64_t max_steps;
    /* processor time after which a seed counts as hanging; 0: 60 s */
    uint32_t hang_s;
    bool no_shrink;
    /* fails if a rare path (tests/support/buggify.h) is never taken, neither in these seeds nor in
     * the next RARE_RANGES - 1 ranges of as many */
    bool all_rare;
};

/* Returns 0: every invariant held; 1: some did not; 2: nothing could be run. */
int run_seeds(const struct run_opts *o);

/* Runs one case in a process, whose output on stderr is copied to @says. Returns true if it failed.
 * *@at: the step that it reached. */
bool run_fails(const struct swarm_case *c, char *says, size_t size, uint64_t *at);

/* End of a process that ran seeds. */
struct run_result {
    bool failed;
    /* the last seed that ran */
    uint64_t seed, n_steps;
    char says[4096];
};
/* Runs @n processes at the same time: number i runs the seeds of o[i]. */
void run_processes(const struct run_opts *o, uint32_t n, struct run_result *out);

/* Makes the failing case @c smaller: fewer steps, actions and features, as long as it breaks the
 * same invariant. */
void run_shrink(struct swarm_case *c);
/* Writes the command that runs the case. */
void run_command(const struct swarm_case *c, char *out, size_t size);
