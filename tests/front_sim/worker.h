#pragma once

/*
 * worker - the simulated worker process: the protocol of daemon/worker/worker.c, with the real
 * scheduler on the tell-tale engine. It dies, hangs and refuses as the scenario asks for.
 */

#include <stdint.h>

struct worker_faults {
    uint32_t refuses;      /* one load in so many says FAILED; 0: none */
    uint32_t dies_loading; /* one load in so many ends without a word */
    uint32_t dies_serving; /* one step in so many */
    uint32_t hangs;        /* one step in so many is the last, and the process stays */
    uint32_t step_ns;      /* the mean time of a step */
    uint32_t load_ns;      /* the mean time of loading */
    uint32_t n_pages;
};

extern struct worker_faults worker_faults;

/* Requests at all workers that have not ended. */
uint32_t workers_sim_requests(void);
/* Faults that have happened so far. */
extern uint32_t worker_n_deaths, worker_n_hangs, worker_n_refused, worker_n_ready;
