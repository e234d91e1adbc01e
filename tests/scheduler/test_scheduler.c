/* Tests on the simulation, one promise each. The simulation always checks that each client gets its
 * right tokens. */

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "kvpager/tier_private.h"
#include "tests/support/sched_sim.h"

static struct sim sim;

static uint64_t rows_computed(void) {
    return sim.seen.n_rows;
}

/* Teaches the scheduler that this session answers briefly, so that it admits more requests than
 * will fit. */
static void promise_short_answers(void) {
    for (int i = 0; i < 6; i++)
        sim_submit(&sim, sim_client(&sim, 8, 900 + (uint32_t)i, 0, 1), 0);
    sim_run(&sim, 200);
}

Test(scheduler, preemption_changes_no_token) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        sim_init(&sim, &(struct sim_opts){.sched.depth = depth, .n_pages = 24});
        promise_short_answers();
        for (uint32_t i = 0; i < 5; i++) {
            struct sim_client *c = sim_client(&sim, 20, i, 0, 150 + i);
            c->m.sampling.temperature = 1;
            c->m.sampling.frequency_penalty = 0.5;
            sim_submit(&sim, c, 0);
        }
        sim_run(&sim, 3000);
        cr_expect_geq(sim.stats.n_preemptions, 2);
        for (uint32_t i = 6; i < sim.n_clients; i++)
            cr_expect_eq(sim.client[i].finish, FINISH_LENGTH);
        sim_deinit(&sim);
    }
}

/* Other programs use the host's processors, also if these compute only a part of the model. */
Test(scheduler, a_device_is_its_own_unless_the_host_computes_too) {
    static const struct telltale machine[] = {
        {.device = false}, {.device = true, .host_part = true}, {.device = true}};
    double least[ARRAY_SIZE(machine)];

    for (size_t i = 0; i < ARRAY_SIZE(machine); i++) {
        sim_init(&sim, &(struct sim_opts){.n_pages = 24, .machine = machine[i]});
        least[i] = sim.sched->cost.least_noise;
        sim_deinit(&sim);
    }
    cr_expect_eq(least[1], least[0]);
    cr_expect_lt(least[2], least[0]);
}

/* A first conversation is evicted from the device by others and comes back from host memory. */
Test(scheduler, what_the_device_dropped_comes_back_from_the_host) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = {.sched = {.depth = depth}, .n_pages = 24, .n_host_pages = 200};

        sim_init(&sim, &o);
        sim_submit(&sim, sim_client(&sim, 200, 1, 192, 20), 0);
        sim_run(&sim, 500);
        for (uint32_t i = 2; i < 6; i++) {
            sim_submit(&sim, sim_client(&sim, 200, i, 0, 20), 0);
            sim_run(&sim, 500);
        }
        uint64_t rows = rows_computed();
        sim_submit(&sim, sim_client(&sim, 200, 1, 192, 20), 0);
        sim_run(&sim, 500);
        const struct sim_client *c = &sim.client[sim.n_clients - 1];
        cr_expect_eq(c->n_cached, 192);
        cr_expect_eq(rows_computed() - rows, 200 - 192 + 19);
        cr_expect_geq(sim.sched->tier->offload.counts.n_fetched_tokens, 192);
        sim_deinit(&sim);
    }
}

/* No request needs to run: turns that have ended are saved in steps of their own. */
Test(scheduler, an_idle_device_saves_what_has_ended) {
    struct sim_opts o = {.n_pages = 200, .n_host_pages = 400};

    sim_init(&sim, &o);
    sim_submit(&sim, sim_client(&sim, 1600, 1, 1600, 20), 0);
    sim_run(&sim, 500);
    cr_expect_geq(sim.sched->tier->offload.counts.n_saved_tokens, 1600);
    cr_expect_eq(sim.sched->tier->offload.n_jobs, 0);
    sched_stats(sim.sched, &sim.stats);
    cr_expect_eq(sim.stats.n_host_pages, 400);
    cr_expect_geq(sim.stats.n_host_used, 1600 / 16);
    cr_expect_eq(sim.stats.n_host_held, 0, "idle pages press on nobody");
    sim_deinit(&sim);
}

/* If copying takes longer than computing, nothing is copied back. */
Test(scheduler, what_is_faster_computed_is_computed) {
    struct sim_opts o = {
        .n_pages = 24, .n_host_pages = 200, .row_ns = 100000, .machine.copy_ns = 20000000};

    sim_init(&sim, &o);
    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t i = 1; i < 6; i++) {
            sim_submit(&sim, sim_client(&sim, 200, i, 192, 20), 0);
            sim_run(&sim, 500);
        }
    cr_expect_geq(sim.stats.n_left_tokens, 4 * 192);
    cr_expect_eq(sim.sched->tier->offload.counts.n_fetched_tokens, 0);
    sim_deinit(&sim);
}

static void preempt_some(int64_t copy_ns) {
    struct sim_opts o = {.n_pages = 24, .n_host_pages = 200, .machine.copy_ns = copy_ns};

    sim_init(&sim, &o);
    for (uint32_t i = 0; i < 4; i++) { /* learns the time of copies */
        sim_submit(&sim, sim_client(&sim, 200, 100 + i, 0, 20), 0);
        sim_run(&sim, 500);
    }
    promise_short_answers();
    for (uint32_t i = 0; i < 5; i++)
        sim_submit(&sim, sim_client(&sim, 20, i, 0, 150 + i), 0);
    sim_run(&sim, 3000);
    cr_expect_geq(sim.stats.n_preemptions, 2);
}

Test(scheduler, a_request_that_yields_is_swapped_or_computed_again_as_is_faster) {
    preempt_some(1000);
    cr_expect_geq(sim.stats.n_swapped, 2);
    cr_expect_geq(sim.sched->tier->offload.counts.n_fetched_tokens, 16);
    sim_deinit(&sim);
    preempt_some(20000000);
    cr_expect_geq(sim.stats.n_not_swapped, 2);
    cr_expect_eq(sim.stats.n_swapped, 0);
    sim_deinit(&sim);
}

/* Beside other requests a long prefix comes back in parts, so that no request waits for the
 * whole. */
Test(scheduler, what_comes_back_does_not_hold_others_up) {
    struct sim_opts o = {.n_pages = 700, .page_tokens = 1, .n_host_pages = 2000};

    sim_init(&sim, &o);
    sim_submit(&sim, sim_client(&sim, 400, 1, 399, 2), 0);
    sim_run(&sim, 500);
    sim_submit(&sim, sim_client(&sim, 20, 4, 0, 60), 0);
    sim_run(&sim, 500); /* while it is saved */
    sim_submit(&sim, sim_client(&sim, 500, 2, 0, 190), 0);
    sim_run(&sim, 2000); /* evicts the first one from the device */
    sim_submit(&sim, sim_client(&sim, 20, 3, 0, 60), 0);
    sim_submit(&sim, sim_client(&sim, 400, 1, 399, 2), 0);
    uint32_t most = 0;
    while (sim.n_live > 0) {
        uint64_t before = sim.sched->tier->offload.counts.n_fetched_tokens;

        cr_assert_geq(sim_step(&sim), 0);
        most = MAX(most, (uint32_t)(sim.sched->tier->offload.counts.n_fetched_tokens - before));
    }
    cr_expect_eq(most, OFFLOAD_FETCH_PAGES);
    cr_expect_eq(sim.client[sim.n_clients - 1].n_cached, 399);
    sim_deinit(&sim);
}

Test(scheduler, siblings_compute_their_common_prefix_once) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        for (uint32_t chunk = 0; chunk <= 40; chunk += 20) {
            struct sim_opts o = {.sched = {.depth = depth, .force_chunk = chunk}, .n_pages = 400};
            sim_init(&sim, &o);
            for (uint32_t i = 0; i < 6; i++) /* 12 common pages, then 8 tokens that differ */
                sim_submit(&sim, sim_client(&sim, 200, 7, 192, 1), 0);
            sim_run(&sim, 500);
            cr_expect_eq(rows_computed(), 200 + 5 * 8, "%lu rows", rows_computed());
            cr_expect_eq(sim.stats.n_cached_tokens, 5 * 192);
            for (uint32_t i = 1; i < 6; i++)
                cr_expect_eq(sim.client[i].n_cached, 192);
            sim_deinit(&sim);
        }
    }
}

Test(scheduler, when_the_leader_goes_a_sibling_takes_over) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = {.sched = {.depth = depth, .force_chunk = 32}, .n_pages = 400};
        sim_init(&sim, &o);
        for (uint32_t i = 0; i < 4; i++)
            sim_submit(&sim, sim_client(&sim, 200, 7, 192, 3), 0);
        for (uint32_t i = 0; i < 3; i++)
            sim_step(&sim);
        sim_cancel(&sim, &sim.client[0]);
        sim_run(&sim, 500);
        /* At most the chunk under way is lost. */
        cr_expect_leq(rows_computed(), 200 + 2 * 8 + 32 * depth + 3 * 3 + depth);
        sim_deinit(&sim);
    }
}

Test(scheduler, a_hit_leaves_the_last_token_to_compute) {
    sim_init(&sim, &(struct sim_opts){0});
    for (int i = 0; i < 2; i++) {
        sim_submit(&sim, sim_client(&sim, 64, 5, 64, 2), 0);
        sim_run(&sim, 50);
    }
    cr_expect_eq(sim.client[0].n_cached, 0);
    cr_expect_eq(sim.client[1].n_cached, 48);
    sim_deinit(&sim);
}

Test(scheduler, prompt_log_probabilities_are_never_taken_from_the_cache) {
    struct sim_opts o = {.sched.force_chunk = 10};
    sim_init(&sim, &o);
    for (int i = 0; i < 2; i++) {
        struct sim_client *c = sim_client(&sim, 64, 5, 64, 2);
        c->m.flags |= SUBMIT_PROMPT_LOGPROBS;
        c->m.n_prompt_top = i * 3;
        sim_submit(&sim, c, 0);
        sim_run(&sim, 50);
        cr_expect(c->got_prompt_lp);
        cr_expect_eq(c->n_cached, 0);
    }
    sim_deinit(&sim);
}

/* ---- ends ---- */

Test(scheduler, a_stop_string_is_found_across_tokens) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        char text[64] = "";

        sim_init(&sim, &(struct sim_opts){.sched.depth = depth});
        struct sim_client *a = sim_client(&sim, 10, 1, 10, 20),
                          *b = sim_client(&sim, 10, 1, 10, 20);
        sim_submit(&sim, a, 0);
        sim_run(&sim, 100);
        for (int i = 5; i < 8; i++)
            strcat(text, sim_piece(a->tokens[10 + i]));
        /* From the middle of token 5 to the last letter but one of token 7. */
        size_t skip = strlen(sim_piece(a->tokens[15])) - 1;
        size_t cut = strlen(sim_piece(a->tokens[17])) > 1;
        b->m.n_stops = 1;
        b->m.stops[0] = (struct str){text + skip, (uint32_t)(strlen(text) - skip - cut)};
        sim_submit(&sim, b, 0);
        sim_run(&sim, 100);
        cr_expect_eq(b->finish, FINISH_STOP);
        cr_expect_leq(b->n_got, 8);
        sim_deinit(&sim);
    }
}

Test(scheduler, end_tokens_wait_for_min_new_and_may_be_ignored) {
    sim_init(&sim, &(struct sim_opts){.end_per_1024 = 900});
    struct sim_client *a = sim_client(&sim, 10, 1, 10, 60), *b = sim_client(&sim, 10, 2, 10, 60);
    struct sim_client *c = sim_client(&sim, 10, 3, 10, 60);
    b->m.min_new = 20;
    c->m.sampling.ignore_eos = 1;
    sim_submit(&sim, a, 0);
    sim_submit(&sim, b, 0);
    sim_submit(&sim, c, 0);
    sim_run(&sim, 200);
    cr_expect(a->finish == FINISH_STOP && a->n_got < 10);
    cr_expect(b->finish == FINISH_STOP && b->n_got > 20 && b->n_got < 40, "%u", b->n_got);
    cr_expect(c->finish == FINISH_LENGTH && c->n_got == 60);
    sim_deinit(&sim);
}

Test(scheduler, stop_ids_end_a_request) {
    sim_init(&sim, &(struct sim_opts){0});
    struct sim_client *a = sim_client(&sim, 10, 1, 10, 20), *b = sim_client(&sim, 10, 1, 10, 20);
    sim_submit(&sim, a, 0);
    sim_run(&sim, 100);
    int32_t id = a->tokens[10 + 6];
    b->m.stop_ids = &id;
    b->m.n_stop_ids = 1;
    sim_submit(&sim, b, 0);
    sim_run(&sim, 100);
    cr_expect_eq(b->finish, FINISH_STOP);
    cr_expect_leq(b->n_got, 7);
    sim_deinit(&sim);
}

Test(scheduler, the_context_ends_a_request) {
    sim_init(&sim, &(struct sim_opts){.max_context = 50});
    struct sim_client *c = sim_client(&sim, 40, 1, 0, 100);
    sim_submit(&sim, c, 0);
    sim_run(&sim, 100);
    cr_expect_eq(c->finish, FINISH_LENGTH);
    cr_expect_eq(c->n_got, 10);
    sim_deinit(&sim);
}

Test(scheduler, the_pool_ends_a_request_that_has_all_of_it) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 4});
    struct sim_client *c = sim_client(&sim, 40, 1, 0, 100);
    sim_submit(&sim, c, 0);
    sim_run(&sim, 100);
    cr_expect_eq(c->finish, FINISH_LENGTH);
    cr_expect_eq(c->n_got, 25); /* the last token needs no page */
    sim_deinit(&sim);
}

Test(scheduler, what_can_never_fit_is_refused_in_words) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 4, .max_context = 128});
    struct sim_client *a = sim_client(&sim, 128, 1, 0, 1), *b = sim_client(&sim, 100, 1, 0, 1);
    struct sim_client *c = sim_client(&sim, 10, 1, 0, 1), *d = sim_client(&sim, 10, 1, 0, 1);
    struct sim_client *e = sim_client(&sim, 10, 1, 0, 1);
    struct submit_bias bias = {SIM_VOCAB, 1};
    c->tokens[4] = SIM_VOCAB;
    d->m.bias = &bias;
    d->m.n_bias = 1;
    e->m.n_prompt = 0;
    struct sim_client *all[] = {a, b, c, d, e};
    c->invalid = d->invalid = e->invalid = true;
    for (int i = 0; i < 5; i++)
        sim_submit(&sim, all[i], 0);
    cr_expect_eq(sim_step(&sim), SCHED_NO_STEP);
    for (int i = 0; i < 5; i++)
        cr_expect(all[i]->end == EVENT_REJECTED && all[i]->n_ends == 1);
    cr_expect(strstr(a->text, "maximum context length is 128 tokens"), "%s", a->text);
    cr_expect(strstr(b->text, "KV cache holds 64 tokens"), "%s", b->text);
    cr_expect(strstr(c->text, "Token id 64"), "%s", c->text);
    cr_expect(strstr(d->text, "logit_bias"), "%s", d->text);
    cr_expect(strstr(e->text, "prompt is empty"), "%s", e->text);
    cr_expect_eq(sim.stats.n_rejected, 5);
    sim_deinit(&sim);
}

Test(scheduler, breakers_reach_the_sampler_as_bits) {
    static const int32_t ids[] = {3, 31, 40};
    sim_init(&sim, &(struct sim_opts){0});
    struct sim_client *c = sim_client(&sim, 10, 1, 0, 5);
    c->m.sampling.dry_multiplier = 1;
    c->m.sampling.dry_penalty_last_n = -1;
    c->m.breakers = (struct str){(const char *)ids, sizeof(ids)};
    sim_submit(&sim, c, 0);
    const struct engine_samplers *e = (*sched_slot(sim.sched, c->m.id))->sampling.param.samplers;
    cr_assert(e && e->breakers);
    cr_expect_eq(e->breakers[0], 1u << 3 | 1u << 31);
    cr_expect_eq(e->breakers[1], 1u << 8);
    sim_run(&sim, 50);
    sim_deinit(&sim);
}

Test(scheduler, an_id_is_used_once_and_unknown_ones_are_ignored) {
    sim_init(&sim, &(struct sim_opts){0});
    struct sim_client *c = sim_client(&sim, 10, 1, 0, 5);
    sim_submit(&sim, c, 0);
    cr_expect_eq(sched_submit(sim.sched, &c->m), -EPROTO);
    sched_cancel(sim.sched, 12345);
    sim_run(&sim, 50);
    sched_cancel(sim.sched, c->m.id); /* crossed the end of the request */
    cr_expect_eq(sim_step(&sim), SCHED_NO_STEP);
    sim_deinit(&sim);
}

/* ---- time ---- */

Test(scheduler, a_long_prompt_leaves_decoders_their_rate) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = {.sched = {.depth = depth, .max_rows = 1024, .max_seqs = 16},
                             .n_pages = 2000,
                             .max_context = 8192,
                             .key_ns = 100};
        sim_init(&sim, &o);
        for (uint32_t i = 0; i < 6; i++)
            sim_submit(&sim, sim_client(&sim, 30, i, 0, 400), 0);
        for (uint32_t i = 0; i < 60; i++)
            sim_step(&sim);
        struct sim_client *longer = sim_client(&sim, 6000, 50, 0, 5);
        sim_submit(&sim, longer, 0);
        sim.max_step_ns = 0;
        uint32_t before = sim.client[0].n_got, steps = 0;
        for (; longer->n_got == 0 && steps < 200; steps++)
            sim_step(&sim);
        /* Decode went on in every step and in time, and the steps were well filled. */
        cr_expect_geq(sim.client[0].n_got - before + 2 * depth, steps);
        cr_expect_leq(sim.max_step_ns, 52 * 1000000, "%ld us", (long)sim.max_step_ns / 1000);
        cr_expect_lt(longer->first_ns - longer->m.arrived_ns, INT64_C(1600000000));
        sim_run(&sim, 1000);
        sim_deinit(&sim);
    }
}

Test(scheduler, no_step_is_longer_than_max_step) {
    struct sim_opts o = {.sched = {.max_rows = 2048}, .n_pages = 600, .max_context = 8192};
    o.row_ns = 1000000;
    o.key_ns = 1000;
    sim_init(&sim, &o);
    sim_submit(&sim, sim_client(&sim, 5000, 50, 0, 5), 0);
    sim_run(&sim, 200);
    cr_expect_leq(sim.max_step_ns, 205 * 1000000);
    cr_expect_gt(sim.max_rows_seen, 120);
    sim_deinit(&sim);
}

Test(scheduler, a_short_prompt_passes_a_long_one) {
    struct sim_opts o = {.sched.max_rows = 512, .n_pages = 600, .max_context = 8192};
    sim_init(&sim, &o);
    sim_submit(&sim, sim_client(&sim, 6000, 50, 0, 5), 0);
    for (int i = 0; i < 3; i++)
        sim_step(&sim);
    struct sim_client *shorter = sim_client(&sim, 40, 51, 0, 5);
    sim_submit(&sim, shorter, 0);
    for (int i = 0; i < 3; i++)
        sim_step(&sim);
    cr_expect_gt(shorter->n_got, 0);
    cr_expect_eq(sim.client[0].n_got, 0);
    sim_run(&sim, 500);
    sim_deinit(&sim);
}

Test(scheduler, a_large_request_is_not_starved_by_small_ones) {
    sim_init(&sim, &(struct sim_opts){.n_pages = 40});
    uint32_t steps = 0;
    for (uint32_t i = 0; i < 6; i++)
        sim_submit(&sim, sim_client(&sim, 60, i, 0, 20), 0);
    struct sim_client *large = sim_client(&sim, 560, 40, 0, 20);
    sim_submit(&sim, large, 0);
    for (; large->n_ends == 0 && steps < 1000; steps++) {
        if (steps % 4 == 0 && sim.n_clients < SIM_CLIENTS)
            sim_submit(&sim, sim_client(&sim, 60, steps, 0, 20), 0);
        sim_step(&sim);
    }
    cr_expect_lt(steps, 200, "%u steps", steps);
    cr_expect_lt(sim.n_clients, SIM_CLIENTS);
    sim_run(&sim, 2000);
    sim_deinit(&sim);
}

Test(scheduler, cancelling_takes_one_step_and_frees_the_pages) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        sim_init(&sim, &(struct sim_opts){.sched = {.depth = depth, .force_chunk = 10}});
        struct sim_client *a = sim_client(&sim, 100, 1, 0, 50), *b = sim_client(&sim, 20, 2, 0, 50);
        sim_submit(&sim, a, 0);
        sim_submit(&sim, b, 0);
        for (int i = 0; i < 6; i++)
            sim_step(&sim);
        cr_assert(a->n_got == 0 && b->n_got > 0); /* one in its prompt, one in its output */
        sim_cancel(&sim, a);
        sim_cancel(&sim, b);
        sim_step(&sim);
        cr_expect(a->n_ends == 1 && b->n_ends == 1);
        cr_expect_eq(sim.stats.n_used, 0);
        cr_expect_eq(sim.stats.n_cancelled, 2);
        sim_run(&sim, 5);
        sim_deinit(&sim);
    }
}

/* A row takes 200 ms, and a long prompt with a step in flight has the only slot. When its client
 * cancels it, its pages are free before that step ends, and the waiting prompt is in the next
 * step. */
Test(scheduler, a_client_that_gives_up_frees_its_place_at_once) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sched_opts o = {.depth = depth, .max_seqs = 1};

        sim_init(&sim, &(struct sim_opts){.sched = o, .row_ns = 200000000});
        struct sim_client *a = sim_client(&sim, 300, 1, 0, 5), *b = sim_client(&sim, 20, 2, 0, 5);
        sim_submit(&sim, a, 0);
        sim_submit(&sim, b, 0);
        for (int i = 0; i < 4; i++)
            sim_step(&sim);
        cr_assert(a->request->state == REQUEST_RUNNING && a->n_got == 0);
        cr_assert_eq(b->request->state, REQUEST_WAITING);
        sim_cancel(&sim, a);
        cr_expect_eq(kv_pager_available(sim.sched->pager), sim.sched->info->n_pages);
        sim_step(&sim);
        cr_expect_eq(a->n_ends, 1);
        cr_expect(b->request->state == REQUEST_RUNNING && b->request->n_computed > 0);
        sim_run(&sim, 300);
        cr_expect_eq(b->finish, FINISH_LENGTH);
        sim_deinit(&sim);
    }
}

/* A client cancels in the middle of its prompt and asks again: the computed rows are still
 * there. */
Test(scheduler, the_prefix_of_a_cancelled_prompt_stays) {
    sim_init(&sim, &(struct sim_opts){.sched = {.depth = 1, .force_chunk = 10}});
    struct sim_client *a = sim_client(&sim, 100, 1, 100, 50), *b = sim_client(&sim, 100, 1, 100, 5);

    sim_submit(&sim, a, 0);
    for (int i = 0; i < 6; i++)
        sim_step(&sim);
    sim_cancel(&sim, a);
    sim_run(&sim, 5);
    uint64_t n_computed = rows_computed();
    cr_expect(a->n_got == 0 && n_computed >= 50 && n_computed < 100);
    sim_submit(&sim, b, 0);
    sim_run(&sim, 200);
    cr_expect_geq(b->n_cached, 48);
    cr_expect_leq(rows_computed(), 100 + 2 * 16 + 5);
    sim_deinit(&sim);
}

Test(scheduler, deadlines_hold_for_those_who_run_and_those_who_wait) {
    sim_init(&sim, &(struct sim_opts){.sched.max_seqs = 1});
    struct sim_client *a = sim_client(&sim, 20, 1, 0, 400), *b = sim_client(&sim, 20, 2, 0, 5);
    struct sim_client *c = sim_client(&sim, 20, 3, 0, 5);
    a->m.deadline_ns = sim.clock.ns + 200000000;
    b->m.deadline_ns = sim.clock.ns + 100000000;
    sim_submit(&sim, a, 0);
    sim_submit(&sim, b, 0);
    sim_submit(&sim, c, 0);
    cr_expect_eq(sched_wake_ns(sim.sched), b->m.deadline_ns);
    sim_run(&sim, 200);
    cr_expect(a->finish == FINISH_DEADLINE && a->n_got > 10);
    cr_expect(b->finish == FINISH_DEADLINE && b->n_got == 0);
    cr_expect_eq(c->finish, FINISH_LENGTH);
    cr_expect_lt(b->end_ns, a->end_ns);
    cr_expect_lt(a->end_ns - a->m.deadline_ns, 50000000);
    cr_expect_eq(sched_wake_ns(sim.sched), INT64_MAX);
    sim_deinit(&sim);
}

/* ---- faults ---- */

Test(scheduler, a_resumed_request_goes_on_as_if_nothing_had_happened) {
    for (uint32_t n_out = 1; n_out <= 20; n_out++) {
        sim_init(&sim, &(struct sim_opts){0});
        struct sim_client *c = sim_client(&sim, 30, 1, 0, 20);
        c->m.sampling.temperature = 1;
        c->m.sampling.repetition_penalty = 1.3;
        c->m.sampling.presence_penalty = 0.7;
        c->m.min_new = 10;
        sim_submit(&sim, c, n_out); /* after the last token, so it ends at once */
        sim_run(&sim, 60);
        cr_expect_eq(c->n_got, 20);
        cr_expect_eq(c->finish, FINISH_LENGTH);
        sim_deinit(&sim);
    }
}

Test(scheduler, a_stop_string_is_found_across_a_resumption) {
    char text[64] = "";

    sim_init(&sim, &(struct sim_opts){0});
    struct sim_client *a = sim_client(&sim, 10, 1, 10, 20), *b = sim_client(&sim, 10, 1, 10, 20);
    sim_submit(&sim, a, 0);
    sim_run(&sim, 100);
    for (int i = 5; i < 9; i++)
        strcat(text, sim_piece(a->tokens[10 + i]));
    b->m.n_stops = 1;
    b->m.stops[0] = (struct str){text, (uint32_t)strlen(text)};
    sim_submit(&sim, b, 7);
    sim_run(&sim, 100);
    cr_expect_eq(b->finish, FINISH_STOP);
    cr_expect_eq(b->n_got, 9);
    sim_deinit(&sim);
}

Test(scheduler, a_quarantined_request_runs_alone_and_others_go_on) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        sim_init(&sim, &(struct sim_opts){.sched.depth = depth});
        struct sim_client *bad = sim_client(&sim, 100, 1, 0, 30);
        bad->m.n_faults = 2;
        sim_submit(&sim, bad, 0);
        for (uint32_t i = 0; i < 4; i++)
            sim_submit(&sim, sim_client(&sim, 50, 2 + i, 0, 40), 0);
        sim_run(&sim, 400); /* the simulation checks the crash page at each opportunity */
        cr_expect_eq(bad->finish, FINISH_LENGTH);
        for (uint32_t i = 1; i < 5; i++)
            cr_expect_lt(sim.client[i].first_ns, bad->end_ns);
        sim_deinit(&sim);
    }
}

Test(scheduler, a_lost_engine_is_passed_up_and_names_the_ids_in_flight) {
    for (int at_wait = 0; at_wait < 2; at_wait++) {
        struct sim_opts o = {.sched.depth = 2};
        *(at_wait ? &o.fail_wait : &o.fail_launch) = 5;
        sim_init(&sim, &o);
        for (uint32_t i = 0; i < 3; i++)
            sim_submit(&sim, sim_client(&sim, 20, i, 0, 30), 0);
        int r = 0;
        while (r == 0)
            r = sim_step(&sim);
        cr_expect_eq(r, -EIO);
        cr_expect_eq(sched_step(sim.sched), -EIO);
        cr_expect_geq(sim.crash_page.n, 3);
        cr_expect_neq(sim.crash_page.started_ns, 0);
        sim_restart(&sim);
        sim_run(&sim, 200);
        for (uint32_t i = 0; i < 3; i++)
            cr_expect_eq(sim.client[i].n_got, 30);
        sim_deinit(&sim);
    }
}

/* ---- events ---- */

Test(scheduler, what_was_not_delivered_comes_again) {
    sim_init(&sim, &(struct sim_opts){.sched.depth = 2});
    struct sim_client *c = sim_client(&sim, 20, 1, 0, 30);
    c->m.n_top = 3;
    sim_submit(&sim, c, 0);
    sim.deaf = true;
    for (int i = 0; i < 40; i++)
        sim_step(&sim);
    cr_expect(!c->accepted && c->n_got == 0);
    sim.deaf = false;
    cr_expect_eq(sim_step(&sim), SCHED_NO_STEP);
    cr_expect(c->accepted && c->n_got == 30 && c->n_ends == 1);
    sim_deinit(&sim);
}

Test(scheduler, a_small_buffer_gets_the_news_in_parts) {
    struct event_cursor at;
    struct event e;
    struct buf b;
    uint32_t n = 0, parts = 0;

    sim_init(&sim, &(struct sim_opts){.n_pages = 200});
    for (uint32_t i = 0; i < 8; i++)
        sim_submit(&sim, sim_client(&sim, 20, i, 0, 30), 0);
    sim.deaf = true;
    for (int i = 0; i < 60; i++)
        sim_step(&sim);
    buf_init(&b, 2000);
    for (; sched_events(sim.sched, &b) == 0 && parts < 20; parts++) {
        msg_events_begin(&at, b.data, (uint32_t)b.len);
        while (msg_events_next(&at, &e) == 0)
            n += e.kind == EVENT_FINISH;
        sched_delivered(sim.sched);
        buf_clear(&b);
    }
    cr_expect_eq(n, 8);
    cr_expect(parts > 1 && parts < 20);
    cr_expect_eq(sched_wake_ns(sim.sched), INT64_MAX);
    buf_deinit(&b);
    for (uint32_t i = 0; i < 8; i++)
        sim.client[i].n_ends = 1;
    sim_deinit(&sim);
}

/* The counter grows while a long prompt is computed, not only at its end, so that an operator sees
 * its rate. */
Test(scheduler, prompt_tokens_count_step_by_step) {
    uint64_t last = 0, n_grown = 0;

    sim_init(&sim, &(struct sim_opts){.n_pages = 200});
    sim_submit(&sim, sim_client(&sim, 2000, 1, 40, 2), 0);
    for (int i = 0; i < 2000 && sim.stats.n_finished == 0; i++) {
        sim_step(&sim);
        n_grown += sim.stats.n_prompt_tokens > last;
        last = sim.stats.n_prompt_tokens;
    }
    cr_expect_eq(last, 2000, "%llu", (unsigned long long)last);
    cr_expect_gt(n_grown, 3, "%llu", (unsigned long long)n_grown);
    sim_deinit(&sim);
}

/* Clients divide tokens by these times, so a single token has a time, too. */
Test(scheduler, the_times_of_prompt_and_tokens_share_the_step_of_the_first_token) {
    static const struct {
        uint32_t n;
        int64_t ns;
    } row[] = {{1, 590000}, {3, 590000 + 2 * 5100000}};

    for (uint32_t i = 0; i < ARRAY_SIZE(row); i++) {
        sim_init(&sim, &(struct sim_opts){.n_pages = 20});
        struct sim_client *c = sim_ask(&sim, 9, row[i].n, 1);
        sim_run(&sim, 20);
        cr_expect_eq(c->prompt_ns, 9 * 590000, "%ld", c->prompt_ns);
        cr_expect_eq(c->output_ns, row[i].ns, "%ld", c->output_ns);
        sim_deinit(&sim);
    }
}

Test(scheduler, statistics_add_up) {
    uint64_t n_steps = 0;

    sim_init(&sim, &(struct sim_opts){.n_pages = 200});
    for (uint32_t i = 0; i < 5; i++)
        sim_submit(&sim, sim_client(&sim, 50, 1, 40, 10), 0);
    sim_run(&sim, 100);
    cr_expect_eq(sim.stats.n_prompt_tokens, 250 - 4 * 32);
    cr_expect_eq(sim.stats.n_output_tokens, 50);
    cr_expect_eq(sim.stats.n_cached_tokens, 4 * 32);
    cr_expect_eq(sim.stats.n_finished, 5);
    cr_expect_eq(rows_computed(), 250 - 4 * 32 + 5 * 9);
    cr_expect_eq(sim.stats.n_steps, sim.n_steps);
    cr_expect_eq(sim.stats.n_rows, rows_computed());
    for (uint32_t i = 0; i < STEP_ROWS_BUCKETS; i++)
        n_steps += sim.stats.step_rows[i];
    cr_expect(n_steps > 0 && n_steps <= sim.n_steps);
    cr_expect_leq(sim.stats.step_rows[0], n_steps - 1, "the prompts' step has many rows");
    sim_deinit(&sim);
}
