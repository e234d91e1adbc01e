#pragma once

/*
 * mutate - how many deliberate bugs of the pager and the scheduler (tests/mutants) random scenarios
 * find, how fast, and by which invariant. Part of weft-sim-mutants only.
 */

#include <stdint.h>

struct mutate_opts {
    uint32_t n_runs; /* of each bug, with different seeds */
    uint32_t n_processes;
    uint32_t needed;    /* percent of the runs that must find it */
    uint64_t max_steps; /* of a run */
    const char *only;   /* this bug, or NULL */
    /* NULL, or a file of lines "NAME SEED": seeds that found bugs before, which are tried before
     * others where n_runs is 1. Then the lines of today are printed, with "# " before them. */
    const char *try_first;
};

/* Prints a table. 0: each was found in as many runs as needed; 1: some were not. */
int mutate(const struct mutate_opts *o);
