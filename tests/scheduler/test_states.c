/* Sessions of a model with recurrent layers: the parts of their prompts that are computed; with the
 * simulation, with the sizes of a 27B model (48 recurrent layers and 16 others: 150 MiB a state, 64
 * KiB of keys and values a token). */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "scheduler/policy.h"
#include "tests/support/few.h"
#include "tests/support/sched_sim.h"

#define END_OF_MESSAGE 1 /* a special token */
#define TAIL 5           /* number of tokens that the template puts behind the last message */

static struct sim sim;
static struct rng rng;
static uint64_t n_prompt, n_computed, n_new;
static uint32_t n_pages = 4000, n_host;

static uint32_t between(uint32_t low, uint32_t high) {
    return low + rng_below(&rng, high - low + 1);
}

static uint64_t draw = 7;

static void begin(uint32_t n_snapshots) {
    struct sim_opts o = {
        .n_states = 8,
        .n_snapshots = n_snapshots,
        .n_pages = n_pages,
        .n_host_pages = n_host,
        .page_tokens = 32,
        .max_context = 65536,
        .max_clients = 512,
        .sched = {.max_rows = 2048, .max_seqs = 16, .depth = 2},
        .unwatched = true,
        .step_ns = 250000, /* 16.5 GB in 4 bits on an H200, states over PCIe */
        .row_ns = 78000,
        .key_ns = 16,
        .machine = {.read_ns = 4040000, .seq_ns = 2000, .pair_ns = 0.57, .state_ns = 3100000},
    };

    n_prompt = n_computed = n_new = 0;
    rng = (struct rng){draw};
    sim_init(&sim, &o);
}

static void submit(struct sim_client *c, uint64_t session, uint32_t n_known) {
    c->m.arrived_ns = sim.clock.ns;
    c->m.session = session;
    c->tokens[c->m.n_prompt - TAIL] = END_OF_MESSAGE;
    n_prompt += c->m.n_prompt;
    n_new += c->m.n_prompt - n_known;
    sim_submit(&sim, c, 0);
}

static void finish(const struct sim_client *c) {
    while (c->n_ends == 0)
        sim_step(&sim);
    cr_assert_eq(c->finish, FINISH_LENGTH);
    n_computed += c->m.n_prompt - c->n_cached;
}

/* Submits the first turn of an agent with instructions and tools of its kind. Each statement
 * draws one number, because the order in which a call's arguments are evaluated depends on the
 * compiler. */
static struct sim_client *first_turn(uint32_t kind, uint32_t n_system) {
    uint32_t n_output = between(60, 300);
    uint32_t n_own = between(100, 600);
    struct sim_client *c = sim_client(&sim, n_system + n_own, kind, n_system, n_output);

    c->tokens[n_system - 1] = END_OF_MESSAGE;
    return c;
}

static struct sim_client *next_turn(const struct sim_client *before) {
    uint32_t n_output = between(60, 300);
    uint32_t n_more = between(50, 1500);

    return sim_client_after(&sim, before, n_more, n_output);
}

static uint32_t known(const struct sim_client *before) {
    return before->m.n_prompt + before->n_got;
}

/* Runs three subagents at once with three turns each: with instructions of their own, or with the
 * whole conversation of @parent. */
static void run_subagents(const struct sim_client *parent, bool fork, bool again) {
    struct sim_client *c[3], *before[3];

    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 3; i++) {
            c[i] = turn > 0 ? next_turn(before[i]) : fork ? next_turn(parent) : first_turn(2, 3000);
            uint32_t n = turn > 0         ? known(before[i])
                         : fork           ? known(parent)
                         : i > 0 || again ? 3000
                                          : 0;
            submit(c[i], 10 + (uint64_t)i, n);
        }
        for (int i = 0; i < 3; i++)
            finish(before[i] = c[i]);
    }
}

/* Runs a session of 20 turns, three of which wait for three subagents. */
static void run_session(uint32_t kind, bool fork) {
    struct sim_client *c = first_turn(kind, 6000);

    submit(c, kind, 0);
    for (int turn = 1;; turn++) {
        finish(c);
        if (turn == 20)
            return;
        if (turn % 6 == 0)
            run_subagents(c, fork, turn > 6);
        struct sim_client *next = next_turn(c);
        submit(next, kind, known(c));
        c = next;
    }
}

static void report(const char *what) {
    printf("# %s: %llu prompt tokens, %llu new, %llu computed (%+.1f %% of the new, %+.1f %% of "
           "all); %llu snapshots made, "
           "%llu used, %llu evicted\n",
           what, (unsigned long long)n_prompt, (unsigned long long)n_new,
           (unsigned long long)n_computed,
           100.0 * ((double)n_computed - (double)n_new) / (double)n_new,
           100.0 * ((double)n_computed - (double)n_new) / (double)n_prompt,
           (unsigned long long)sim.stats.n_snapshots_made,
           (unsigned long long)sim.stats.n_snapshots_used,
           (unsigned long long)sim.stats.n_snapshots_evicted);
}

/* Chance decides which of a few snapshots is evicted, so the test sums several draws. */
Test(states, a_session_computes_little_more_than_what_is_new) {
    static const uint32_t n_snapshots[] = {6, 10, 20, 54};

    for (int k = 0; k < 8; k += FEWER(1, 7)) { /* the fewest snapshots, the most */
        uint64_t n_all = 0, n_all_new = 0, n_more = 0;
        char what[80];

        snprintf(what, sizeof(what), "%u snapshots, %s", n_snapshots[k / 2],
                 k % 2 ? "forks" : "own instructions");
        for (draw = 1; draw <= FEWER(4, 3); draw++) {
            begin(n_snapshots[k / 2]);
            run_session(1, k % 2);
            report(what);
            n_all += n_prompt;
            n_all_new += n_new;
            n_more += n_computed - n_new;
            sim_deinit(&sim);
        }
        if (n_snapshots[k / 2] >= 54) /* 8 GiB */
            cr_expect_leq(n_more, n_all_new / 20, "%s", what);
        else if (n_snapshots[k / 2] == 6)
            cr_expect_leq(n_more, n_all * 7 / 100, "%s", what);
        else
            cr_expect_leq(n_more, n_all / 20, "%s", what);
    }
}

/* Two sessions take turns on a device with room for one: the turn before comes back from host
 * memory with the state behind it, and no part of it is computed again. */
Test(states, what_the_device_gives_up_comes_back_with_its_state) {
    for (uint32_t n_host_pages = 0; n_host_pages <= 1000; n_host_pages += 1000) {
        struct sim_client *c[2];

        n_pages = 300;
        n_host = n_host_pages;
        begin(54);
        for (uint32_t i = 0; i < 2; i++) {
            c[i] = first_turn(i, 6000);
            submit(c[i], 1 + i, 0);
            finish(c[i]);
            while (sim_step(&sim) == 0)
                ;
        }
        uint64_t n_first = n_computed;
        for (int turn = 0; turn < 4; turn++)
            for (uint32_t i = 0; i < 2; i++) {
                struct sim_client *next = sim_client_after(&sim, c[i], 20, 40);
                submit(next, 1 + i, known(c[i]));
                finish(c[i] = next);
                while (sim_step(&sim) == 0) /* what has ended is saved */
                    ;
            }
        if (n_host_pages > 0) {
            cr_expect_leq(n_computed - n_first, 8 * (20 + 2 * 32));
            cr_expect_geq(sim.stats.n_fetched_tokens, 7 * 6000);
        } else {
            cr_expect_geq(n_computed - n_first, 7 * 6000);
        }
        sim_deinit(&sim);
    }
}

/* A session with the same instructions waits for the state behind them, and no longer. */
Test(states, instructions_are_computed_once_and_no_request_waits_for_more) {
    struct sim_client *c[3];

    begin(54);
    for (int i = 0; i < 3; i++) {
        c[i] = sim_client(&sim, 3100, 2, 3000, i > 0 ? 20 : 400);
        c[i]->tokens[2999] = END_OF_MESSAGE;
        submit(c[i], 1 + (uint64_t)i, i > 0 ? 3000 : 0);
    }
    for (int i = 0; i < 3; i++)
        finish(c[i]);
    cr_expect_leq(n_computed, n_new + 3 * 32);
    cr_expect_lt(c[1]->end_ns, c[0]->end_ns);
    cr_expect_lt(c[2]->end_ns, c[0]->end_ns);
    sim_deinit(&sim);
}

/* A client gives up while its prompt is computed and sends it again: the second request begins at
 * the last snapshot, at most STATE_FAR tokens before the position where the first one stopped. */
Test(states, a_prompt_that_a_client_gave_up_goes_on_at_its_last_snapshot) {
    begin(54);
    struct sim_client *first = sim_client(&sim, 20000, 2, 3000, 20);
    struct sim_client *again = sim_client(&sim, 20000, 2, 3000, 20);

    memcpy(again->tokens, first->tokens, 20000 * sizeof(*first->tokens));
    submit(first, 1, 0);
    while (sim.stats.n_prompt_tokens < 9000)
        sim_step(&sim);
    sim_cancel(&sim, first);
    while (sim_step(&sim) == 0)
        ;
    uint64_t done = sim.stats.n_prompt_tokens;
    submit(again, 2, 0);
    finish(again);
    cr_expect_lt(done, 20000);
    cr_expect_geq(again->n_cached + STATE_FAR, done, "%u of %llu", again->n_cached,
                  (unsigned long long)done);
    sim_deinit(&sim);
}
