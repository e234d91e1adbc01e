/* Prefixes computed ahead for turns that have not arrived; with the simulation, which also checks
 * that a prewarm is never in a step with other requests and has no event but its end. */

#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/sched_sim.h"

#define SECOND INT64_C(1000000000)

static struct sim sim;

/* Submits a prewarm for the turn after @before: its first 2 outputs are repeated, and 100 tokens
 * are new. */
static struct sim_client *warm(const struct sim_client *before, uint32_t n_more) {
    struct sim_client *c = sim_client_prewarm(&sim, before, 2, n_more);

    c->m.arrived_ns = sim.clock.ns;
    sim_submit(&sim, c, 0);
    return c;
}

/* Submits the expected turn: the prewarmed tokens, and a question. */
static struct sim_client *come_back(const struct sim_client *ahead) {
    struct sim_client *c = sim_client(&sim, ahead->m.n_prompt + 20, 1, 1, 8);

    memcpy(c->tokens, ahead->tokens, ahead->m.n_prompt * sizeof(*c->tokens));
    c->m.session = ahead->m.session;
    c->m.arrived_ns = sim.clock.ns;
    sim_submit(&sim, c, 0);
    return c;
}

static uint32_t whole(uint32_t n) {
    return n / 16 * 16;
}

Test(warm, the_next_turn_finds_what_was_computed_ahead) {
    for (int off = 0; off < 2; off++)
        for (uint32_t depth = 1; depth <= 2; depth++) {
            sim_init(&sim, &(struct sim_opts){.sched.no_pins = off, .sched.depth = depth});
            struct sim_client *turn = sim_ask(&sim, 320, 8, 7);
            sim_run(&sim, 500);
            struct sim_client *ahead = warm(turn, 100);
            sim_run(&sim, 500);
            cr_expect_eq(ahead->finish, FINISH_LENGTH);
            cr_expect_eq(ahead->n_got, 0);
            cr_expect_eq(sim.stats.n_prewarm_tokens, ahead->m.n_prompt - 320);
            struct sim_client *next = come_back(ahead);
            sim_run(&sim, 500);
            cr_expect_eq(next->n_cached, whole(ahead->m.n_prompt));
            cr_expect_eq(sim.stats.n_prewarm_hit_tokens, whole(ahead->m.n_prompt - 1) - 320);
            sim_deinit(&sim);
        }
}

/* The front has found a stop string, which the worker does not know. */
Test(warm, a_turn_that_the_front_ends_is_kept_like_any_other) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        sim_init(&sim, &(struct sim_opts){.sched.depth = depth});
        struct sim_client *turn = sim_ask(&sim, 320, 200, 7);
        while (turn->n_got < 8)
            sim_step(&sim);
        struct turn_end end = {.id = turn->m.id, .session = 7};
        sched_turn_end(sim.sched, &end);
        turn->expect = FINISH_STOP;
        turn->n_expect = 8;
        sim_run(&sim, 500);
        cr_expect_eq(turn->finish, FINISH_STOP);
        cr_expect_eq(sim.stats.n_cancelled, 0);
        cr_expect_gt(sim.stats.n_pinned, 0);
        struct sim_client *ahead = warm(turn, 100);
        sim_run(&sim, 500);
        cr_expect_eq(ahead->finish, FINISH_LENGTH);
        struct sim_client *next = come_back(ahead);
        sim_run(&sim, 500);
        cr_expect_eq(next->n_cached, whole(ahead->m.n_prompt));
        sim_deinit(&sim);
    }
}

Test(warm, it_leaves_no_trace_in_what_is_counted) {
    struct msg_stats with, without;

    for (int k = 0; k < 2; k++) {
        sim_init(&sim, &(struct sim_opts){0});
        struct sim_client *turn = sim_ask(&sim, 320, 8, 7);
        sim_run(&sim, 500);
        if (k == 0)
            warm(turn, 100);
        sim_run(&sim, 500);
        *(k == 0 ? &with : &without) = sim.stats;
        sim_deinit(&sim);
    }
    cr_expect_eq(with.n_finished, without.n_finished);
    cr_expect_eq(with.n_cancelled, without.n_cancelled);
    cr_expect_eq(with.n_prompt_tokens, without.n_prompt_tokens);
    cr_expect_eq(with.n_cached_tokens, without.n_cached_tokens);
    cr_expect_eq(with.n_output_tokens, without.n_output_tokens);
    cr_expect_eq(with.n_lookup_tokens, without.n_lookup_tokens);
    cr_expect_eq(with.n_hit_tokens, without.n_hit_tokens);
    cr_expect_eq(with.n_recomputed_tokens, without.n_recomputed_tokens);
    cr_expect_gt(with.n_prewarm_tokens, 0);
    cr_expect_gt(with.n_steps, without.n_steps);
}

/* The front compares it with the context, but not with the size of the KV cache. */
Test(warm, one_that_is_too_long_is_not_counted) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 24});
    struct sim_client *turn = sim_ask(&sim, 320, 8, 7);
    sim_run(&sim, 500);
    struct sim_client *ahead = warm(turn, 100);
    sim_run(&sim, 500);
    cr_expect_eq(ahead->finish, FINISH_ERROR);
    cr_expect_eq(sim.stats.n_rejected, 0);
    sim_deinit(&sim);
}

Test(warm, what_it_takes_is_its_tenants_time) {
    sim_init(&sim, &(struct sim_opts){0});
    struct sim_client *turn = sim_ask(&sim, 320, 8, 7);
    sim_run(&sim, 500);
    double before = sim.sched->fair.tenant[0].recent_ns;
    warm(turn, 300);
    sim_run(&sim, 500);
    cr_expect_gt(sim.sched->fair.tenant[0].recent_ns, before);
    sim_deinit(&sim);
}

Test(warm, it_waits_while_anybody_is_there) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 128});
    struct sim_client *turn = sim_ask(&sim, 320, 8, 7);
    sim_run(&sim, 500);
    struct sim_client *other = sim_ask(&sim, 40, 60, 8), *ahead = warm(turn, 200);
    while (other->n_ends == 0) {
        cr_expect_eq(sim.stats.n_prewarm_tokens, 0);
        cr_expect_eq(ahead->n_ends, 0);
        cr_expect_null(sim.sched->prewarm.now, "it does not even begin");
        sim_step(&sim);
    }
    sim_run(&sim, 500);
    cr_expect_eq(ahead->finish, FINISH_LENGTH);
    sim_deinit(&sim);
}

Test(warm, who_comes_waits_for_the_end_of_a_short_step_only) {
    int64_t alone_ns = 0, beside_ns;

    for (int k = 0; k < 2; k++) { /* 1000 rows of 0.5 ms: half a second in all */
        sim_init(&sim, &(struct sim_opts){.n_pages = 128, .row_ns = 500000, .step_ns = 1000000});
        struct sim_client *turn = sim_ask(&sim, 320, 8, 7);
        sim_run(&sim, 500);
        struct sim_client *ahead = k ? warm(turn, 1000) : NULL;
        for (int i = 0; i < 8 && ahead; i++)
            sim_step(&sim);
        cr_assert(!ahead || ahead->n_ends == 0);
        struct sim_client *other = sim_ask(&sim, 60, 4, 8);
        int64_t begin = sim.clock.ns;
        while (other->n_got == 0)
            sim_step(&sim);
        beside_ns = sim.clock.ns - begin;
        if (k == 0)
            alone_ns = beside_ns;
        uint64_t done = sim.stats.n_prewarm_tokens;
        sim_run(&sim, 1000);
        if (ahead) { /* continues where it was */
            cr_expect_eq(ahead->finish, FINISH_LENGTH);
            cr_expect_gt(done, 0);
            cr_expect_leq(sim.stats.n_prewarm_tokens, ahead->m.n_prompt - 320 + 16);
            cr_expect_eq(come_back(ahead)->n_got, 0);
            sim_run(&sim, 500);
            cr_expect_geq(sim.stats.n_prewarm_hit_tokens, 960);
        }
        sim_deinit(&sim);
    }
    cr_expect_leq(beside_ns, alone_ns + 20000000, "%ld %ld", beside_ns, alone_ns);
}

Test(warm, its_own_turn_ends_it_and_finds_what_there_is) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 128, .row_ns = 500000, .step_ns = 1000000});
    struct sim_client *turn = sim_ask(&sim, 320, 8, 7);
    sim_run(&sim, 500);
    struct sim_client *ahead = warm(turn, 800);
    while (sim.stats.n_prewarm_tokens < 200)
        sim_step(&sim);
    int64_t begin = sim.clock.ns;
    struct sim_client *next = come_back(ahead);
    sim_step(&sim);
    sim_run(&sim, 500);
    cr_expect_eq(ahead->finish, FINISH_CANCELLED);
    cr_expect_geq(next->n_cached, 320 + 192);
    /* The remaining tokens take 0.5 ms each; some steps are short, and one was under way. */
    int64_t least = (next->m.n_prompt - next->n_cached) * INT64_C(500000);
    cr_expect_leq(next->first_ns - begin, least + least / 4 + 50000000, "%ld of %ld",
                  next->first_ns - begin, least);
    cr_expect_eq(sim.stats.n_prewarm_hit_tokens, next->n_cached - 320);
    sim_deinit(&sim);
}

Test(warm, another_question_of_its_session_does_not_end_it) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 128});
    struct sim_client *turn = sim_ask(&sim, 320, 8, 7), *ahead;
    sim_run(&sim, 500);
    sim_ask(&sim, 100, 8, 7); /* for example a title for the conversation */
    ahead = warm(turn, 100);
    sim_ask(&sim, 60, 8, 7);
    sim_run(&sim, 500);
    cr_expect_eq(ahead->finish, FINISH_LENGTH);
    sim_ask(&sim, 60, 8, 7);
    sim_run(&sim, 500);
    cr_expect_eq(come_back(ahead)->n_ends, 0);
    sim_run(&sim, 500);
    cr_expect_geq(sim.stats.n_prewarm_hit_tokens, 80);
    sim_deinit(&sim);
}

Test(warm, one_that_comes_too_late_or_for_nobody_is_ended_at_once) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 128});
    struct sim_client *turn = sim_ask(&sim, 320, 8, 7), *next;
    sim_run(&sim, 500);
    next = sim_client_after(&sim, turn, 20, 8); /* its session has returned */
    next->m.session = 7;
    sim_submit(&sim, next, 0);
    sim_run(&sim, 500);
    cr_expect_eq(sim.stats.n_prewarm_tokens, 0);
    struct sim_client *late = warm(turn, 100);
    sim_run(&sim, 10);
    cr_expect_eq(late->finish, FINISH_CANCELLED);
    struct sim_client *unknown = sim_client_prewarm(&sim, turn, 2, 100);
    unknown->m.session = 99;
    sim_submit(&sim, unknown, 0);
    sim_run(&sim, 10);
    cr_expect_eq(unknown->finish, FINISH_CANCELLED);
    cr_expect_eq(sim.stats.n_prewarm_tokens, 0);
    sim_deinit(&sim);
}

Test(warm, it_takes_no_page_that_is_kept_for_others) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 64});
    struct sim_client *other = sim_ask(&sim, 500, 8, 9), *turn;
    sim_run(&sim, 500);
    turn = sim_ask(&sim, 160, 8, 7);
    sim_run(&sim, 500);
    struct sim_client *ahead = warm(turn, 600);
    sim_run(&sim, 500);
    cr_expect_eq(ahead->finish, FINISH_CANCELLED, "40 pages more do not fit");
    cr_expect_eq(sim.stats.n_pins_dropped, 0);
    struct sim_client *next = sim_client_after(&sim, other, 10, 8);
    next->m.session = 9;
    sim_submit(&sim, next, 0);
    sim_run(&sim, 500);
    cr_expect_geq(next->n_cached, 496);
    sim_deinit(&sim);
}

Test(warm, it_is_kept_in_place_of_the_turn) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 64});
    struct sim_client *turn = sim_ask(&sim, 160, 100, 7);
    sim_run(&sim, 500);
    uint32_t kept = sim.stats.n_pinned;
    struct sim_client *ahead = warm(turn, 100);
    sim_run(&sim, 500);
    cr_expect_eq(sim.stats.n_pinned, (ahead->m.n_prompt) / 16, "%u, %u before", sim.stats.n_pinned,
                 kept);
    for (int i = 0; i < 6; i++) { /* makes pages scarce */
        sim_ask(&sim, 400, 4, 0);
        sim_run(&sim, 500);
    }
    struct sim_client *next = come_back(ahead);
    sim_run(&sim, 500);
    cr_expect_eq(next->n_cached, whole(ahead->m.n_prompt));
    sim_deinit(&sim);
}

Test(warm, only_the_latest_are_remembered_and_all_are_told_their_end) {
    sim_init(&sim,
             &(struct sim_opts){
                 .n_pages = 2000, .max_clients = 400, .sched.max_seqs = 4, .sched.no_pins = true});
    struct sim_client *turn[100], *ahead[100];

    for (uint64_t i = 0; i < 100; i++)
        turn[i] = sim_ask(&sim, 40, 2, 100 + i);
    sim_run(&sim, 2000);
    struct sim_client *busy = sim_ask(&sim, 40, 30, 0);
    for (int i = 0; i < 3; i++)
        sim_step(&sim);
    for (int i = 0; i < 100; i++)
        ahead[i] = warm(turn[i], 60);
    cr_expect_eq(sim.sched->prewarm.n_waiting, PREWARM_MAX);
    sim_run(&sim, 2000);
    cr_expect_eq(busy->n_got, 30);
    for (int i = 0; i < 100; i++)
        cr_expect_eq(ahead[i]->finish, i < 36 ? FINISH_CANCELLED : FINISH_LENGTH, "%d", i);
    cr_expect_eq(sim.sched->prewarm.n_waiting, 0);
    sim_deinit(&sim);
}

/* The pixels of a prewarm are gone with its turn. The worker must not sleep with it, nor with the
 * next one: the event that would wake the worker may come in an hour. */
Test(warm, one_whose_picture_is_gone_is_ended_before_the_worker_sleeps) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_client *turn[3], *ahead[3];
        struct sim_opts o = {.n_pictures = SIM_PICTURES,
                             .pixel_ns = 100000,
                             .sched.picture_bytes = 1 << 20,
                             .sched.depth = depth};

        sim_init(&sim, &o);
        for (uint32_t i = 0; i < ARRAY_SIZE(turn); i++)
            turn[i] = sim_ask(&sim, 100, 8, 7 + i);
        sim_run(&sim, 500);
        for (uint32_t i = 0; i < ARRAY_SIZE(turn); i++) {
            ahead[i] = sim_client_prewarm(&sim, turn[i], 2, 100);
            if (i > 0) /* the latest begins */
                sim_put_picture(&sim, ahead[i], i, 150);
            ahead[i]->m.arrived_ns = sim.clock.ns;
            sim_submit(&sim, ahead[i], 0);
        }
        while (sim_step(&sim) != SCHED_NO_STEP)
            ;
        cr_expect_eq(ahead[0]->finish, FINISH_LENGTH);
        cr_expect_eq(ahead[1]->finish, FINISH_CANCELLED);
        cr_expect_eq(ahead[2]->finish, FINISH_CANCELLED);
        cr_expect_eq(sim.seen.n_pictures, 0, "nobody asks for them");
        sim_deinit(&sim);
    }
}

Test(warm, a_cancelled_one_is_over_wherever_it_is) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 128, .row_ns = 500000});
    for (int k = 0; k < 3; k++) {
        struct sim_client *turn = sim_ask(&sim, 320, 8, 7);
        sim_run(&sim, 500);
        if (k == 0)
            sim_ask(&sim, 40, 20, 8);
        struct sim_client *ahead = warm(turn, 600);
        for (int i = 0; i < 4 * k; i++)
            sim_step(&sim);
        cr_expect_eq(ahead->n_ends, 0);
        sim_cancel(&sim, ahead);
        sim_run(&sim, 500);
        cr_expect_eq(ahead->finish, FINISH_CANCELLED);
    }
    sim_deinit(&sim);
}

Test(warm, what_asks_for_more_is_refused) {
    sim_init(&sim, &(struct sim_opts){0});
    struct sim_client *turn = sim_ask(&sim, 100, 8, 7);
    sim_run(&sim, 500);
    for (int k = 0; k < 3; k++) {
        struct sim_client *c = sim_client_prewarm(&sim, turn, 2, 50);
        c->invalid = true;
        c->m.flags |= k == 0 ? SUBMIT_LOGPROBS : 0;
        c->m.session = k == 1 ? 0 : 7;
        c->m.sampling.temperature = 0;
        if (k == 2)
            c->m.grammar = (struct str){"x", 1};
        sim_submit(&sim, c, 0);
        sim_run(&sim, 10);
        cr_expect_eq(c->end, EVENT_REJECTED, "%d", k);
    }
    sim_deinit(&sim);
}
