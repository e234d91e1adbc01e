#pragma once

/*
 * run - seeds in processes of their own: a violation ends a process, and the one that started it
 * tells which seed it was, how to see it again, and a smaller case that fails too.
 */

#include "tests/sim/swarm.h"

struct run_opts {
    uint64_t first, last; /* seeds */
    uint32_t n_processes;
    struct swarm_case base; /* steps, what is set; one seed: what is kept */
    uint64_t max_steps; /* of a process, which then takes no new seed; 0: as many as there are */
    uint32_t hang_s;    /* processor time after which a seed does not end; 0: 60 s */
    bool no_shrink;
    bool all_rare; /* a rare path (tests/support/buggify.h) that is never taken is a failure */
};

/* 0: every invariant held. 1: some did not. 2: nothing could be run. */
int run_seeds(const struct run_opts *o);

/* Runs one case in a process; what it says on stderr is kept in @says. True: it failed. @at: the
 * step it came to. */
bool run_fails(const struct swarm_case *c, char *says, size_t size, uint64_t *at);

/* How a process that ran seeds ended. */
struct run_result {
    bool failed;
    uint64_t seed, n_steps; /* the last seed that ran */
    char says[4096];
};
/* @n processes at the same time: number i runs the seeds of o[i]. */
void run_processes(const struct run_opts *o, uint32_t n, struct run_result *out);

/* Makes the failing @c smaller: fewer steps, actions and features, as long as it fails by the same
 * invariant. */
void run_shrink(struct swarm_case *c);
/* The command that runs it. */
void run_command(const struct swarm_case *c, char *out, size_t size);
