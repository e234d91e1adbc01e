/*
 * Speculation never loses time, and gains where it can: machines and loads of all kinds in virtual
 * time, each scenario with drafts and without.
 */

#include <criterion/criterion.h>

#include "tests/support/few.h"
#include "tests/support/sched_sim.h"

static struct sim sim;

struct machine {
    const char *name;
    int64_t step_ns, row_ns, key_ns;
    /* time of copying a recurrent state; 0: there is none */
    int64_t state_ns;
};

static const struct machine machines[] = {
    {"slow, compute bound", 33000000, 13000000, 0, 0},
    {"slow, bandwidth bound", 40000000, 2000000, 100, 0},
    {"fast, bandwidth bound", 4000000, 30000, 20, 0},
    {"fast, dear rows", 1000000, 800000, 50, 0},
    {"rows cost everything", 100000, 5000000, 0, 0},
};

/* Returns the virtual time after which @n_clients have their answers, on average. */
static int64_t duration(const struct machine *m, uint32_t n_clients, uint32_t depth,
                        enum sim_drafts drafts, bool off) {
    struct sim_opts o = {
        .sched = {.depth = depth,
                  .max_seqs = 16,
                  .max_rows = 256,
                  .itl_target_ms = 400,
                  .max_step_ms = 400,
                  .no_speculation = off},
        .drafts = drafts,
        .n_pages = 1200,
        .step_ns = m->step_ns,
        .row_ns = m->row_ns,
        .key_ns = m->key_ns,
        .machine.state_ns = m->state_ns,
        .n_states = m->state_ns > 0 ? 16 : 0,
        .n_snapshots = m->state_ns > 0 ? 40 : 0,
    };

    sim_init(&sim, &o);
    for (uint32_t i = 0; i < n_clients; i++)
        sim_submit(&sim, sim_client(&sim, 40 + i, i, 0, 400), 0);
    sim_run(&sim, 100000);
    int64_t ns = 0;
    for (uint32_t i = 0; i < n_clients; i++)
        ns += (sim.client[i].end_ns - 1000000000) / n_clients;
    sim_deinit(&sim);
    return ns;
}

/* Returns the speed with drafts divided by that without. */
static double gain(const struct machine *m, uint32_t n_clients, uint32_t depth,
                   enum sim_drafts drafts) {
    int64_t off = duration(m, n_clients, depth, drafts, true);

    return (double)off / (double)duration(m, n_clients, depth, drafts, false);
}

/* On a new worker, which knows nothing of its machine yet and makes most mistakes. */
Test(spec_gain, never_a_loss) {
    for (size_t k = 0; k < FEWER(sizeof(machines) / sizeof(machines[0]), 1); k++)
        for (uint32_t depth = 1; depth <= 2; depth++)
            for (uint32_t n = 1; n <= 16; n *= 4)
                for (enum sim_drafts d = SIM_DRAFTS_REAL; d < SIM_DRAFTS_KINDS; d++) {
                    double g = gain(&machines[k], n, depth, d);

                    cr_expect_geq(g, 0.955, "%s, %u clients, depth %u, drafts %d: %.3f",
                                  machines[k].name, n, depth, d, g);
                }
}

Test(spec_gain, right_drafts_are_used_where_rows_are_cheap) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        cr_expect_geq(gain(&machines[0], 1, depth, SIM_DRAFTS_RIGHT), 2.2);
        cr_expect_geq(gain(&machines[1], 1, depth, SIM_DRAFTS_RIGHT), 6);
        cr_expect_geq(gain(&machines[1], 4, depth, SIM_DRAFTS_RIGHT), 2.2);
        cr_expect_geq(gain(&machines[2], 1, depth, SIM_DRAFTS_RIGHT), 9);
        cr_expect_geq(gain(&machines[2], 16, depth, SIM_DRAFTS_RIGHT), 3);
        cr_expect_geq(gain(&machines[2], 1, depth, SIM_DRAFTS_PARTLY), 1.8);
    }
}

/* Models with recurrent layers: a state is copied before each draft, and back after a wrong one,
 * whose right tokens are computed again. If a state is half of the bytes that a step reads, and
 * every step so far had copies, it takes longer to learn their cost. */
Test(spec_gain, never_a_loss_with_states) {
    for (size_t k = 0; k < FEWER(sizeof(machines) / sizeof(machines[0]), 1); k++)
        /* a state as a part of the bytes that a step reads */
        for (int64_t part = 100; part >= 2; part /= 7)
            for (uint32_t n = 1; n <= 16; n *= 4)
                for (enum sim_drafts d = SIM_DRAFTS_REAL; d < SIM_DRAFTS_KINDS; d++) {
                    struct machine m = machines[k];

                    m.state_ns = m.step_ns / part;
                    double g = gain(&m, n, 2, d);
                    cr_expect_geq(g, part > 2 ? 0.955 : 0.93,
                                  "%s, states of 1/%d, %u clients, drafts %d: %.3f", m.name,
                                  (int)part, n, d, g);
                }
}

Test(spec_gain, right_drafts_are_used_with_states) {
    struct machine m = machines[1];

    m.state_ns = m.step_ns / 60;
    cr_expect_geq(gain(&m, 1, 2, SIM_DRAFTS_RIGHT), 5);
    cr_expect_geq(gain(&m, 4, 2, SIM_DRAFTS_RIGHT), 1.8);
    m = machines[2];
    m.state_ns = m.step_ns / 60;
    cr_expect_geq(gain(&m, 1, 2, SIM_DRAFTS_RIGHT), 7);
    cr_expect_geq(gain(&m, 1, 2, SIM_DRAFTS_PARTLY), 1.2);
}

/* A block that is never right, beside which no source drafts: its keys are left out except in the
 * steps before a probe, whose draft then sees the keys that it needs most. */
Test(spec_gain, keys_of_a_block_that_rests_are_left_out) {
    struct sim_opts o = {
        .sched =
            {.depth = 2, .max_seqs = 8, .max_rows = 256, .itl_target_ms = 400, .max_step_ms = 400},
        .drafts = SIM_DRAFTS_RIGHT, /* only those of the block */
        .block = true,
        .draft_wrong = 1024,
        .draft_step_ns = 1000000,
        .n_pages = 1200,
        .step_ns = 33000000,
        .row_ns = 5000000,
    };
    struct telltale_seen seen;

    sim_init(&sim, &o);
    for (uint32_t i = 0; i < 8; i++)
        sim_submit(&sim, sim_client(&sim, 40 + i, i, 0, 1500), 0);
    sim_run(&sim, 100000);
    telltale_seen(sim.engine, &seen);
    sim_deinit(&sim);
    cr_expect_geq(seen.n_hole_steps, 1000, "%d of %d", (int)seen.n_hole_steps, (int)seen.n_steps);
    cr_expect_eq(seen.n_holes_near, 0);
}
