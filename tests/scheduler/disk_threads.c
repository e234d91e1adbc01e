/*
 * The disk tier with its thread, for ThreadSanitizer: prefixes are written and read while steps
 * run, requests are cancelled, and workers end meanwhile. The clients' tokens are always checked.
 */

#include <stdio.h>

#include "kvpager/tier_private.h"
#include "tests/support/sched_sim.h"

#define FILE_BYTES (4096u + 60 * 8192u) /* 60 pages */
#define ROUNDS 30u
#define FAMILIES 4u
#define SLEEP_MS 1000

static struct sim sim;

static void step(void) {
    if (sim_step(&sim) == SCHED_NO_STEP)
        disk_sleep(sim.sched->tier->offload.disk, SLEEP_MS);
}

static struct sim_client *submit(uint32_t family) {
    struct sim_client *c = sim_client(&sim, 200, family, 192, 20);

    sim_submit(&sim, c, 0);
    return c;
}

static void ask(uint32_t family) {
    const struct sim_client *c = submit(family);

    while (c->n_ends == 0)
        step();
    sched_flush(sim.sched, INT64_MAX);
}

/* Ends workers after @k steps with two requests, one of which has pages on the disk. Returns the
 * tokens that came from it. */
static uint64_t round_of(uint32_t k) {
    struct sim_opts o = {
        .n_pages = 24, .n_host_pages = 30, .disk_bytes = FILE_BYTES, .disk_thread = true};

    sim_init(&sim, &o);
    for (uint32_t i = 0; i < FAMILIES + 2; i++)
        ask(i % FAMILIES);
    sim_restart(&sim);
    struct sim_client *one = submit(1);
    submit(FAMILIES);
    for (uint32_t i = 0; i < k; i++)
        step();
    if (k % 3 == 0 && one->n_ends == 0)
        sim_cancel(&sim, one);
    sim_restart(&sim);
    ask(1);
    while (!sim_all_ended(&sim))
        step();
    uint64_t n_loaded = sim.stats.n_disk_loaded_tokens;
    sim_deinit(&sim);
    return sim.n_notes > 0 ? 0 : n_loaded;
}

int main(void) {
    for (uint32_t k = 0; k < ROUNDS; k++)
        if (round_of(k) == 0)
            return fprintf(stderr, "round %u: nothing was read\n", k), 1;
    return 0;
}
