/* The simulation without a test framework: the thread sanitizer's suite. usage: sim_main [first] [n] */

#include <stdio.h>
#include <stdlib.h>
#include "tests/support/sched_sim.h"

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 60;
    struct sim_total t = {0};

    for (uint64_t seed = first; seed < first + n; seed++)
        sim_random(seed, &t);
    printf("%llu runs, %llu steps, %llu requests: %llu stop, %llu length, %llu cancelled, %llu "
           "late, %llu refused; %llu preemptions, %llu cached tokens, %llu restarts; "
           "%llu of %llu drafted tokens accepted\n",
           (unsigned long long)t.n_runs, (unsigned long long)t.n_steps,
           (unsigned long long)t.n_requests, (unsigned long long)t.n_end[FINISH_STOP],
           (unsigned long long)t.n_end[FINISH_LENGTH],
           (unsigned long long)t.n_end[FINISH_CANCELLED],
           (unsigned long long)t.n_end[FINISH_DEADLINE], (unsigned long long)t.n_end[FINISH_ERROR],
           (unsigned long long)t.n_preemptions, (unsigned long long)t.n_cached,
           (unsigned long long)t.n_restarts, (unsigned long long)t.n_accepted,
           (unsigned long long)t.n_drafted);
    return 0;
}
