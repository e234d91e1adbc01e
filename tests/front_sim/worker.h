#pragma once

/*
 * worker - the simulated worker process: the protocol of daemon/worker/worker.c, with the real
 * scheduler on the tell-tale engine. It dies, hangs and refuses as the scenario says.
 */

#include <stdint.h>

struct worker_faults {
    /* one load in this many sends FAILED; 0: none */
    uint32_t refuses;
    /* one load in this many ends without a message */
    uint32_t dies_loading;
    /* one step in this many ends the process */
    uint32_t dies_serving;
    /* one step in this many is the last one, and the process stays */
    uint32_t hangs;
    /* One frame in this many reaches the front damaged. The process ends soon after it, as one
     * whose memory is damaged does. */
    uint32_t damages;
    /* mean time of a step */
    uint32_t step_ns;
    /* mean time of loading */
    uint32_t load_ns;
    uint32_t n_pages;
};

extern struct worker_faults worker_faults;

/* Returns the number of requests at all workers that have not ended. */
uint32_t workers_sim_requests(void);
/* Numbers of faults so far. */
extern uint32_t worker_n_deaths, worker_n_hangs, worker_n_refused, worker_n_ready;
