#pragma once

/*
 * mutate - measures how many deliberate bugs of the pager and the scheduler (tests/mutants) random
 * scenarios find, how fast, and by which invariant. Part of weft-sim-mutants only.
 */

#include <stdint.h>

struct mutate_opts {
    /* runs of each bug, with different seeds */
    uint32_t n_runs;
    uint32_t n_processes;
    /* percent of the runs that must find it */
    uint32_t needed;
    /* most steps of a run */
    uint64_t max_steps;
    /* only this bug; NULL: all */
    const char *only;
    /* NULL, or a file of lines "NAME SEED": seeds that found bugs before, which are tried first if
     * n_runs is 1. The present lines are then printed with "# " before them. */
    const char *try_first;
};

/* Prints a table. Returns 0 if each bug was found in as many runs as needed, else 1. */
int mutate(const struct mutate_opts *o);
