/* Effects of tenants on each other; with the simulation, in virtual time. */

#include <criterion/criterion.h>

#include "tests/support/sched_sim.h"

#define MS INT64_C(1000000)

static struct sim sim;

static struct sim_client *ask(uint32_t tenant, uint32_t n_prompt, uint32_t max_new) {
    struct sim_client *c = sim_client(&sim, n_prompt, sim.n_clients + 1, n_prompt, max_new);

    c->m.tenant = tenant;
    c->m.arrived_ns = sim.clock.ns;
    sim_submit(&sim, c, 0);
    return c;
}

static void until(int64_t ns) {
    while (sim.clock.ns < ns && sim.n_live > 0)
        sim_step(&sim);
}

/* Returns the tokens that tenant 1's request has after two seconds while tenant 2 sends @n
 * prompts. */
static uint32_t tokens_beside(uint32_t n, uint32_t n_prompt, bool other_tenant) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 2000,
                                      .max_clients = 512,
                                      .step_ns = 2 * MS,
                                      .sched = {.max_seqs = 16, .max_rows = 512}});
    struct sim_client *c = ask(1, 40, 500);
    until(sim.clock.ns + 300 * MS);
    uint32_t before = c->n_got;
    for (uint32_t i = 0; i < n; i++)
        ask(other_tenant ? 2 : 1, n_prompt, 5);
    int64_t begin = sim.clock.ns;
    until(begin + 2000 * MS);
    uint32_t got = c->n_got - before;
    for (uint32_t i = 0; i < sim.n_clients; i++)
        if (sim.client[i].n_ends == 0)
            sim_cancel(&sim, &sim.client[i]);
    sim_run(&sim, 100);
    sim_deinit(&sim);
    return got;
}

Test(turns, others_prompts_leave_a_tenant_its_rate) {
    uint32_t mine = tokens_beside(60, 1000, false), others = tokens_beside(60, 1000, true);

    /* Prompts of the same tenant may stretch each step to 50 ms. */
    cr_expect_lt(mine, 80, "%u tokens", mine);
    cr_expect_gt(others, 2 * mine, "%u tokens, not %u", others, mine);
}

Test(turns, every_tenant_finds_a_slot_soon) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 1000});
    for (int i = 0; i < 20; i++) /* 8 slots */
        ask(1, 60, 200);
    until(sim.clock.ns + 200 * MS);
    cr_assert_eq(sim.stats.n_running, 8);
    struct sim_client *other = ask(2, 60, 20);
    int64_t begin = sim.clock.ns;
    while (other->n_got == 0)
        sim_step(&sim);
    cr_expect_leq(other->first_ns - begin, 150 * MS, "%ld ms", (other->first_ns - begin) / MS);
    cr_expect_eq(sim.stats.n_preemptions, 1);
    sim_run(&sim, 5000);
    sim_deinit(&sim);
}

Test(turns, then_a_place_is_kept_for_it) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 1000});
    ask(2, 20, 2);
    sim_run(&sim, 100);
    for (int i = 0; i < 20; i++)
        ask(1, 60, 200);
    until(sim.clock.ns + 300 * MS);
    cr_expect_eq(sim.stats.n_running, 7, "the last slot is not the flood's");
    struct sim_client *other = ask(2, 60, 2);
    int64_t begin = sim.clock.ns;
    while (other->n_got == 0)
        sim_step(&sim);
    cr_expect_leq(other->first_ns - begin, 60 * MS);
    cr_expect_eq(sim.stats.n_preemptions, 0);
    sim_run(&sim, 5000);
    sim_deinit(&sim);
}

/* A tenant that was alone is promised all pages for its output. */
Test(turns, promises_of_pages_end_at_the_share) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 64});
    for (int i = 0; i < 4; i++)
        ask(1, 60, 200);
    until(sim.clock.ns + 100 * MS);
    cr_assert_eq(sim.stats.n_running, 3, "the fourth finds too few pages");
    struct sim_client *other = ask(2, 60, 200);
    int64_t begin = sim.clock.ns;
    while (other->n_got == 0)
        sim_step(&sim);
    cr_expect_leq(other->first_ns - begin, 60 * MS, "%ld ms", (other->first_ns - begin) / MS);
    sim_run(&sim, 5000);
    sim_deinit(&sim);
}

/* Slots are left for a tenant that was active lately; of the waiting requests of two others, the
 * first of each is served first. */
Test(turns, a_tenants_first_request_is_not_overtaken_by_its_others) {
    enum { N = 30 };
    struct sim_client *mine[N];

    sim_init(&sim, &(struct sim_opts){.n_pages = 1000, .sched = {.max_seqs = 2}});
    ask(3, 20, 2);
    sim_run(&sim, 100);
    for (int i = 0; i < N; i++) {
        ask(1, 30, 20);
        mine[i] = ask(2, 30, 20);
    }
    for (bool all = false; !all;) {
        sim_step(&sim);
        sim_served_elsewhere(&sim, 2, (uint64_t)MS);
        all = true;
        for (int i = 0; i + 1 < N; i++) {
            cr_assert(mine[i]->n_got > 0 || mine[i + 1]->n_got == 0, "%d was overtaken", i);
            all &= mine[i + 1]->n_ends > 0;
        }
    }
    sim_run(&sim, 5000);
    sim_deinit(&sim);
}

/* Two tenants that always have requests, with weights 1 and 3. */
Test(turns, weights_divide_what_is_done) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 1000, .max_clients = 4096});
    uint64_t had[3] = {0};
    uint32_t n_live[3] = {0}, seen = 0;

    int64_t end = sim.clock.ns + 60000 * MS;
    while (sim.clock.ns < end) {
        for (uint32_t t = 1; t <= 2; t++)
            for (; n_live[t] < 12; n_live[t]++) {
                struct sim_client *c = sim_client(&sim, 100, sim.n_clients + 1, 100, 30);

                c->m.tenant = t;
                c->m.weight_milli = t == 1 ? 1000 : 3000;
                c->m.arrived_ns = sim.clock.ns;
                sim_submit(&sim, c, 0);
            }
        sim_step(&sim);
        for (uint32_t i = seen; i < sim.n_clients; i++) {
            struct sim_client *c = &sim.client[i];

            if (c->n_ends == 1 && c->m.weight_milli > 0) {
                had[c->m.tenant]++;
                n_live[c->m.tenant]--;
                c->m.weight_milli = 0; /* counted */
            }
            seen += i == seen && c->n_ends == 1;
        }
    }
    cr_expect_gt(had[1], 50);
    cr_expect(had[2] > 2.5 * (double)had[1] && had[2] < 3.5 * (double)had[1], "%lu and %lu", had[1],
              had[2]);
    cr_expect_gt(sim.stats.jain, 0.9);
    cr_expect_eq(sim.stats.n_tenants, 2);
    for (uint32_t i = 0; i < sim.n_clients; i++)
        if (sim.client[i].n_ends == 0)
            sim_cancel(&sim, &sim.client[i]);
    sim_run(&sim, 100);
    sim_deinit(&sim);
}
