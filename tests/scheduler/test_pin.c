/* Pages of a session's last turn, kept for its next turn; with the simulation. */

#include <criterion/criterion.h>

#include "proto/flight.h"
#include "tests/support/sched_sim.h"

#define SECOND INT64_C(1000000000)

static struct sim sim;

static struct sim_client *come_back(const struct sim_client *before, uint32_t n_more) {
    struct sim_client *c = sim_client_after(&sim, before, n_more, 8);

    c->m.session = before->m.session;
    c->m.arrived_ns = sim.clock.ns;
    sim_submit(&sim, c, 0);
    return c;
}

/* Runs an agent's turn, then @n small requests of others through a pool of 64 pages, then the agent
 * again. Returns its cached tokens. */
static uint32_t cached_after(uint32_t n, bool off) {
    sim_init(&sim, &(struct sim_opts){.sched.no_pins = off});
    struct sim_client *turn = sim_ask(&sim, 320, 8, 7);
    sim_run(&sim, 500);
    for (uint32_t i = 0; i < n; i++) {
        sim_ask(&sim, 200, 4, 0);
        sim_run(&sim, 500);
    }
    struct sim_client *next = come_back(turn, 20);
    sim_run(&sim, 500);
    uint32_t n_cached = next->n_cached;
    sim_deinit(&sim);
    return n_cached;
}

Test(pin, a_turn_finds_the_pages_of_the_last_one) {
    cr_expect_eq(cached_after(8, true), 0, "as far as pressure is concerned, this is a test");
    cr_expect_geq(cached_after(8, false), 320);
}

Test(pin, who_needs_pages_to_go_on_gets_them_before_anybody_yields) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 40});
    sim_ask(&sim, 320, 8, 7);
    sim_run(&sim, 500);
    cr_expect_geq(sim.stats.n_pinned, 20);
    cr_expect_eq(sim.stats.n_used, 0, "pinned pages are not counted as used");
    struct sim_client *large = sim_ask(&sim, 300, 250, 0);
    sim_run(&sim, 1000);
    cr_expect_eq(large->n_got, 250);
    cr_expect_eq(sim.stats.n_preemptions, 0);
    cr_expect_eq(sim.stats.n_pins_dropped, 1);
    sim_deinit(&sim);
}

Test(pin, a_session_waits_for_pages_but_not_for_ever) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 64, .step_ns = 100000000});
    sim_ask(&sim, 600, 8, 7); /* 38 of 64 pages are kept */
    sim_run(&sim, 500);
    struct sim_client *busy = sim_ask(&sim, 40, 400, 8); /* runs for a while */
    for (int i = 0; i < 3; i++)
        sim_step(&sim);
    struct sim_client *other = sim_ask(&sim, 500, 8, 9);
    int64_t begin = sim.clock.ns;
    for (int i = 0; i < 20; i++)
        sim_step(&sim);
    cr_expect_eq(other->n_got, 0, "the kept turn is not given up at once");
    cr_expect_eq(sim.stats.n_pins_dropped, 0);
    while (other->n_got == 0 && busy->n_ends == 0)
        sim_step(&sim);
    cr_expect_gt(other->n_got, 0);
    cr_expect_eq(busy->n_ends, 0);
    cr_expect_leq(sim.clock.ns - begin, 35 * SECOND);
    sim_run(&sim, 1000);
    sim_deinit(&sim);
}

static struct sim_client *ask_as(uint32_t tenant, uint32_t n_prompt, uint32_t n_output,
                                 uint64_t session) {
    struct sim_client *c = sim_client(&sim, n_prompt, sim.n_clients + 1, n_prompt, n_output);

    c->m.tenant = tenant;
    c->m.session = session;
    c->m.arrived_ns = sim.clock.ns;
    sim_submit(&sim, c, 0);
    return c;
}

/* Pins @n turns of @n_prompt tokens of tenant 1 in a pool of 64 pages, and lets another turn of it
 * run. */
static void pin_turns(uint32_t n, uint32_t n_prompt) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 64, .step_ns = 100000000});
    for (uint32_t i = 0; i < n; i++) {
        ask_as(1, n_prompt, 8, 7 + i);
        sim_run(&sim, 500);
    }
    ask_as(1, 40, 80, 100);
    for (int i = 0; i < 3; i++)
        sim_step(&sim);
}

/* Sends a request of tenant 2. Returns the steps until it runs beside the other one, at most 40. */
static uint32_t steps_to_run(uint32_t n_prompt, uint64_t session) {
    uint32_t n = 0;

    ask_as(2, n_prompt, 8, session);
    do {
        sim_step(&sim);
        n++;
    } while (n < 40 && sim.stats.n_running < 2);
    return n;
}

/* The pages for which it would have waited are pinned by the other tenant beyond its share. */
Test(pin, a_tenant_within_its_share_does_not_wait_for_what_another_keeps_beyond_its_own) {
    for (uint64_t session = 0; session < 10; session += 9) {
        pin_turns(4, 180); /* 44 of 64 pages are kept */
        cr_assert_eq(sim.stats.n_pinned, 44);
        cr_expect_leq(steps_to_run(400, session), 2);
        cr_expect_eq(sim.stats.n_pins_dropped, 2, "no more than it needs");
        sim_run(&sim, 1000);
        sim_deinit(&sim);
    }
}

Test(pin, a_tenant_above_its_share_waits_for_what_others_keep) {
    pin_turns(1, 600); /* 38 pages are kept; 34 are more than half of the pool */
    cr_expect_eq(steps_to_run(540, 9), 40);
    cr_expect_eq(sim.stats.n_pins_dropped, 0);
    sim_run(&sim, 1000);
    sim_deinit(&sim);
}

/* The share of three tenants is 21 pages. What a tenant keeps itself counts, too. */
Test(pin, a_tenant_does_not_get_others_pages_beside_its_own_pins) {
    for (uint32_t own = 0; own < 2; own++) {
        pin_turns(4 - own, 180);
        struct sim_client *third = ask_as(3, 20, 2, 0), *c = third;
        if (own > 0)
            c = ask_as(2, 180, 8, 20);
        while (third->n_ends + c->n_ends < 2)
            sim_step(&sim);
        cr_assert_eq(sim.stats.n_pinned, 44);
        uint32_t n = steps_to_run(280, 21); /* 18 pages */
        cr_expect_eq(n == 40, own > 0, "%u", n);
        cr_expect_eq(sim.stats.n_pins_dropped > 0, own == 0);
        sim_run(&sim, 1000);
        sim_deinit(&sim);
    }
}

Test(pin, nobody_waits_for_kept_pages_when_nothing_runs) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 64});
    sim_ask(&sim, 600, 8, 7);
    sim_run(&sim, 500);
    int64_t begin = sim.clock.ns;
    struct sim_client *other = sim_ask(&sim, 600, 8, 9);
    while (other->n_got == 0)
        sim_step(&sim);
    cr_expect_leq(sim.clock.ns - begin, SECOND);
    sim_run(&sim, 500);
    sim_deinit(&sim);
}

Test(pin, the_time_is_learnt_from_pauses) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 200});
    struct sim_client *c = sim_ask(&sim, 160, 8, 7);
    for (int i = 0; i < 30; i++) {
        sim_run(&sim, 500);
        cr_expect_gt(sim.stats.n_pinned, 0, "turn %d", i);
        sim.clock.ns += SECOND;
        c = come_back(c, 4);
    }
    sim_run(&sim, 500);
    sim.clock.ns += 4 * SECOND; /* four times the usual pause */
    sim_ask(&sim, 20, 4, 0);
    sim_run(&sim, 500);
    cr_expect_eq(sim.stats.n_pinned, 0);
    sim_deinit(&sim);
}

Test(pin, sessions_that_never_come_back_are_not_waited_for) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 200});
    for (uint64_t session = 1; session <= 20; session++) {
        sim_ask(&sim, 100, 4, session);
        sim_run(&sim, 500);
    }
    sim.clock.ns += 100 * SECOND;
    sim_ask(&sim, 100, 4, 100);
    sim_run(&sim, 500);
    cr_expect_eq(sim.stats.n_pinned, 0);
    sim_deinit(&sim);
}

/* The entry of the tenant that is idle for longest goes to a new one, without what was learnt. */
Test(pin, a_tenant_does_not_pay_for_sessions_of_the_one_before_it, .timeout = 60) {
    struct sim_client *c = NULL;

    sim_init(&sim, &(struct sim_opts){.n_pages = 200, .max_clients = 300});
    for (uint32_t i = 1; i <= 20; i++) {
        sim_ask(&sim, 100, 4, i);
        sim_run(&sim, 500);
    }
    sim.clock.ns += 100 * SECOND;
    for (uint32_t i = 1; i <= FAIR_TENANTS; i++) {
        c = sim_client(&sim, 100, sim.n_clients + 1, 100, 4);
        c->m.tenant = i;
        c->m.session = i == FAIR_TENANTS ? 100 : 0;
        c->m.arrived_ns = sim.clock.ns;
        sim_submit(&sim, c, 0);
        sim_run(&sim, 500);
    }
    cr_expect_gt(sim.stats.n_pinned, 0);
    sim_deinit(&sim);
}

static void tell_end(const struct sim_client *c, bool calls) {
    struct turn_end m = {.id = c->m.id, .session = c->m.session, .calls = calls};

    sched_turn_end(sim.sched, &m);
}

/* Returns whether the turn of a session that returns 1 s after its calls and 40 s after its answers
 * is still kept after 10 s. */
static bool kept_after(bool told, bool calls) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 400});
    struct sim_client *c = sim_ask(&sim, 160, 8, 7);
    for (int i = 0; i < 24; i++) {
        sim_run(&sim, 500);
        if (told)
            tell_end(c, i % 4 > 0);
        sim.clock.ns += (i % 4 > 0 ? 1 : 40) * SECOND;
        c = come_back(c, 4);
    }
    sim_run(&sim, 500);
    if (told)
        tell_end(c, calls);
    sim.clock.ns += 10 * SECOND;
    sim_ask(&sim, 20, 4, 0);
    sim_run(&sim, 500);
    bool kept = sim.stats.n_pinned > 0;
    sim_deinit(&sim);
    return kept;
}

Test(pin, pauses_after_calls_and_after_answers_are_learnt_apart) {
    cr_expect(kept_after(true, false));
    cr_expect_not(kept_after(true, true));
    cr_expect(kept_after(false, true), "untold, it is as if it were any turn");
}

Test(pin, an_answer_gives_way_before_a_call) {
    for (int longer = 0; longer < 2; longer++) {
        sim_init(&sim, &(struct sim_opts){.n_pages = 64});
        struct sim_client *calls = sim_ask(&sim, longer ? 200 : 330, 8, 7);
        sim_run(&sim, 500);
        tell_end(calls, true);
        struct sim_client *answer = sim_ask(&sim, longer ? 330 : 200, 8, 8);
        sim_run(&sim, 500);
        tell_end(answer, false);
        sim_ask(&sim, 500, 8, 0);
        sim_run(&sim, 500);
        cr_expect_eq(sim.stats.n_pins_dropped, 1);
        struct sim_client *next = come_back(calls, 10);
        sim_run(&sim, 500);
        cr_expect_geq(next->n_cached, calls->m.n_prompt / 16 * 16, "%u", next->n_cached);
        sim_deinit(&sim);
    }
}

/* Runs a turn of 25 pages that ends with calls, then a turn of 20 that ends with an answer or with
 * calls, in a pool of 64 pages while another request decodes. Returns the steps until a new session
 * that needs 30 pages has its first token. */
static uint32_t steps_beside(bool calls) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 64, .step_ns = 100000000});
    struct sim_client *kept = sim_ask(&sim, 200, 8, 7);
    sim_run(&sim, 500);
    tell_end(kept, true);
    struct sim_client *last = sim_ask(&sim, 330, 8, 8);
    sim_run(&sim, 500);
    tell_end(last, calls);
    sim_ask(&sim, 40, 100, 9);
    for (int i = 0; i < 3; i++)
        sim_step(&sim);
    struct sim_client *next = sim_ask(&sim, 480, 8, 10);
    uint32_t n = 0;
    for (; next->n_got == 0 && n < 1000; n++)
        sim_step(&sim);
    sim_run(&sim, 1000);
    sim_deinit(&sim);
    return n;
}

Test(pin, a_session_does_not_wait_for_what_is_kept_after_an_answer) {
    uint32_t answer = steps_beside(false), call = steps_beside(true);

    cr_expect_lt(answer, 60, "%u", answer);
    cr_expect_gt(call, 2 * answer, "%u, %u", call, answer);
}

Test(pin, what_is_said_of_another_turn_means_nothing) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 400});
    struct sim_client *c = sim_ask(&sim, 160, 8, 7);
    sim_run(&sim, 500);
    for (int i = 0; i < 40; i++) { /* none of these is the session's last turn */
        struct turn_end m = {.id = 99, .session = i % 2 ? 7 : 1000 + (uint64_t)i};
        sched_turn_end(sim.sched, &m);
    }
    struct sim_client *next = come_back(c, 4);
    sim_run(&sim, 500);
    cr_expect_geq(next->n_cached, 160);
    tell_end(c, false); /* too late */
    cr_expect_gt(sim.stats.n_pinned, 0);
    for (int i = 0; i < 3; i++)
        tell_end(next, true); /* counts once */
    cr_expect_eq(sessions_find(&sim.sched->sessions, 7)->pauses.after[1].n_ended, 1);
    sim_deinit(&sim);
}

Test(pin, what_is_computed_again_is_counted) {
    for (int off = 0; off < 2; off++) {
        sim_init(&sim, &(struct sim_opts){.sched.no_pins = off});
        struct sim_client *c = sim_ask(&sim, 320, 8, 7);
        sim_run(&sim, 500);
        sim_ask(&sim, 1000, 4, 0);
        sim_run(&sim, 500); /* needs the whole pool */
        come_back(c, 10);
        sim_run(&sim, 500);
        if (off)
            cr_expect_eq(sim.stats.n_recomputed_tokens, 0, "nothing is known of sessions");
        else
            cr_expect_geq(sim.stats.n_recomputed_tokens, 160);
        sim_deinit(&sim);
    }
}

/* ---- the recorder ---- */

Test(recorder, tells_the_story_of_a_request) {
    struct flight_record r[32];
    uint32_t n, had[WHY_N] = {0};

    sim_init(&sim, &(struct sim_opts){.n_pages = 30});
    sim_ask(&sim, 300, 60, 0);
    for (int i = 0; i < 3; i++)
        sim_step(&sim);
    sim_ask(&sim, 200, 8, 0);
    sim_run(&sim, 1000);
    n = flight_story(sim.flight, 2, r, 32);
    cr_assert_geq(n, 5);
    for (uint32_t i = 0; i < n; i++) {
        had[r[i].why]++;
        cr_expect(i == 0 || r[i].from_ns == r[i - 1].until_ns, "without a gap");
    }
    cr_expect_eq(r[0].why, WHY_QUEUED);
    cr_expect(had[WHY_PAGES] == 1 && had[WHY_ADMITTED] == 1 && had[WHY_PROMPT] > 0);
    cr_expect(r[n - 1].why == WHY_ENDED && r[n - 1].detail == FINISH_LENGTH);
    cr_expect_gt(sim.flight->n_steps, 10);
    cr_expect_gt(sim.flight->step[5].took_us, 0);
    sim_deinit(&sim);
}

/* Returns the step that ended at @at_ns, or NULL. */
static const struct flight_step *step_ended_at(int64_t at_ns) {
    for (uint64_t i = 0; i < sim.flight->n_steps; i++)
        if (sim.flight->step[i].at_ns == at_ns)
            return &sim.flight->step[i];
    return NULL;
}

/* With two steps in flight the step behind the prompt's is planned before that has ended. */
Test(recorder, a_prompt_lasts_until_its_step_has_ended) {
    for (uint32_t n_output = 1; n_output <= 8; n_output *= 2) {
        struct flight_record r[32];

        sim_init(&sim, &(struct sim_opts){.n_pages = 30});
        sim_ask(&sim, 300, n_output, 0);
        sim_run(&sim, 1000);
        uint32_t n = flight_story(sim.flight, 1, r, 32);
        cr_assert_eq(n, n_output > 1 ? 5 : 4);
        cr_expect(r[0].why == WHY_QUEUED && r[1].why == WHY_ADMITTED && r[2].why == WHY_PROMPT);
        cr_expect_eq(r[2].n_rows, 300);
        const struct flight_step *step = step_ended_at(r[2].until_ns);
        cr_assert(step, "the prompt ended between two steps");
        cr_expect_gt(step->rows, 1);
        cr_expect(n_output == 1 || (r[3].why == WHY_DECODE && r[3].n_rows == n_output - 1));
        for (uint32_t i = 1; i < n; i++)
            cr_expect_eq(r[i].from_ns, r[i - 1].until_ns, "without a gap");
        sim_deinit(&sim);
    }
}
