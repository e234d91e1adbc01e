/*
 * Random scenarios: pools and batches of all sizes, depth 1 and 2, prompts with common beginnings, all
 * sampling parameters, cancels, deadlines, a front that does not listen for a while, a worker that
 * dies. What is checked is at the top of tests/support/sched_sim.h.
 */

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include "tests/support/sched_sim.h"

#define SEEDS 200

static uint64_t groups[] = {1000, 2000, 3000, 4000, 5000};

ParameterizedTestParameters(telltale_random, clients_get_what_they_would_get_alone) {
    return cr_make_param_array(uint64_t, groups, sizeof(groups) / sizeof(groups[0]));
}

ParameterizedTest(uint64_t *first, telltale_random, clients_get_what_they_would_get_alone) {
    struct sim_total t = {0};

    for (uint64_t seed = *first; seed < *first + SEEDS; seed++)
        sim_random(seed, &t);
    /* The scenarios are worth something. */
    cr_expect_eq(t.n_runs, SEEDS);
    cr_expect_gt(t.n_preemptions, SEEDS / 10);
    cr_expect_gt(t.n_cached, 100);
    cr_expect_gt(t.n_restarts, 0);
    cr_expect_gt(t.n_accepted, 1000);
    cr_expect_gt(t.n_drafted - t.n_accepted, 1000);
    for (int why = FINISH_STOP; why <= FINISH_ERROR; why++)
        cr_expect_gt(t.n_end[why], 0, "nobody ended by %d", why);
}
