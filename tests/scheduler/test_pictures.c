/* Pictures in prompts, with the tell-tale engine: how often they are computed, which requests wait
 * for them, and the end of requests whose pictures are unavailable. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/sched_sim.h"

static struct sim sim;

static struct sim_opts with_pictures(void) {
    return (struct sim_opts){
        .n_pictures = SIM_PICTURES,
        .n_pages = 256,
        .pixel_ns = 100000,
        .sched.picture_bytes = 1 << 20,
    };
}

/* Submits a prompt of 60 unique tokens behind picture @i of the pool. */
static struct sim_client *ask(uint32_t i, uint32_t key, uint32_t tenant) {
    struct sim_client *c = sim_client(&sim, 60, sim.n_clients + 100, 60, 8);

    sim_put_picture(&sim, c, i, 3);
    c->m.isolation_key[15] = (uint8_t)key;
    c->m.tenant = tenant;
    sim_submit(&sim, c, 0);
    return c;
}

Test(pictures, agents_with_one_picture_compute_it_once) {
    struct sim_opts o = with_pictures();

    sim_init(&sim, &o);
    for (uint32_t i = 0; i < 10; i++)
        ask(2, 0, i % 3);
    sim_run(&sim, 2000);
    cr_expect_eq(sim.seen.n_pictures, 1);
    cr_expect_eq(sim.stats.n_pictures_computed, 1);
    ask(2, 1, 0); /* another key must not learn that the rows exist */
    sim_run(&sim, 2000);
    cr_expect_eq(sim.seen.n_pictures, 2);
    sim_deinit(&sim);
}

/* The pages suffice, even if the rows were evicted. */
Test(pictures, a_prefix_with_a_picture_is_found_without_it) {
    struct sim_opts o = with_pictures();

    o.sched.picture_bytes = 0;
    sim_init(&sim, &o);
    struct sim_client *a = ask(2, 0, 0);
    sim_run(&sim, 2000);
    cr_expect_eq(sim.stats.picture_bytes, 0);
    struct sim_client *b = sim_client_after(&sim, a, 10, 4);
    sim_submit(&sim, b, 0);
    sim_run(&sim, 2000);
    cr_expect_geq(b->n_cached, 48);
    cr_expect_eq(sim.seen.n_pictures, 1);
    sim_deinit(&sim);
}

/* The picture differs in the last byte of its digest, at the same place. */
Test(pictures, a_prefix_with_another_picture_is_not_found) {
    struct sim_opts o = with_pictures();

    sim_init(&sim, &o);
    struct sim_client *a = sim_client(&sim, 60, 1, 60, 4), *b = sim_client(&sim, 60, 1, 60, 4);
    sim_put_picture(&sim, a, 2, 20);
    sim_put_picture(&sim, b, 3, 20);
    sim_submit(&sim, a, 0);
    sim_run(&sim, 2000);
    sim_submit(&sim, b, 0);
    sim_run(&sim, 2000);
    cr_expect_eq(b->n_cached, 16);
    cr_expect_eq(sim.seen.n_pictures, 2);
    sim_deinit(&sim);
}

/* Returns the longest time between two tokens of eight streams; with @picture while a picture of
 * 144 ms is computed. */
static int64_t longest_gap(bool picture) {
    struct sim_opts o = with_pictures();
    struct sim_client *c[8];
    int64_t worst = 0;

    o.pixel_ns = 1000000;
    o.piece = 1;
    o.sched.max_seqs = 9;
    sim_init(&sim, &o);
    for (uint32_t i = 0; i < 8; i++)
        c[i] = sim_ask(&sim, 16, 200, 0);
    while (c[7]->n_got < 20)
        sim_step(&sim);
    for (uint32_t i = 0; i < 8; i++)
        c[i]->worst_ns = 0;
    struct sim_client *p = picture ? ask(2, 0, 1) : NULL;
    for (uint32_t i = 0; i < 100 && sim.seen.n_pictures == 0; i++) {
        for (uint32_t k = 0; k < 8; k++)
            worst = MAX(worst, c[k]->worst_ns);
        sim_step(&sim); /* rows of its prompt are in the step after the last piece */
    }
    cr_expect_eq(sim.seen.n_pictures, picture, "it takes too long");
    sim_run(&sim, 2000);
    cr_expect(!p || p->finish == FINISH_LENGTH);
    sim_deinit(&sim);
    return worst;
}

/* The front would replace a worker whose counter does not change, though it computes one large
 * picture. */
Test(pictures, each_piece_counts_as_progress) {
    struct sim_opts o = with_pictures();

    uint32_t n_pieces = 0;

    o.pixel_ns = 1000000000;
    o.piece = 1;
    sim_init(&sim, &o);
    ask(2, 0, 0);
    while (sim.seen.n_pictures == 0) {
        uint64_t step = sim.crash_page.step, ns = sim.stats.picture_ns_total;

        sim_step(&sim);
        if (sim.stats.picture_ns_total > ns) {
            n_pieces++;
            cr_expect_gt(sim.crash_page.step, step);
        }
    }
    cr_expect_gt(n_pieces, 20);
    sim_run(&sim, 2000);
    sim_deinit(&sim);
}

Test(pictures, streams_go_on_while_a_picture_is_computed) {
    int64_t without = longest_gap(false), with = longest_gap(true);

    cr_expect_gt(with, without);
    cr_expect_lt(with, 2 * without, "%lld ns, not %lld", (long long)with, (long long)without);
}

Test(pictures, what_cannot_be_had_ends_those_who_need_it) {
    struct sim_opts o = with_pictures();

    o.broken_picture = true;
    sim_init(&sim, &o);
    struct sim_client *a = ask(SIM_PICTURES - 1, 0, 0), *b = ask(SIM_PICTURES - 1, 0, 0),
                      *c = ask(1, 0, 0);
    sim_run(&sim, 2000);
    cr_expect_eq(a->finish, FINISH_ERROR);
    cr_expect_str_eq(a->text, "broken picture");
    cr_expect_eq(b->finish, FINISH_ERROR);
    cr_expect_eq(c->finish, FINISH_LENGTH);
    sim_deinit(&sim);
}

Test(pictures, a_cancelled_one_is_dropped_unless_another_wants_it) {
    struct sim_opts o = with_pictures();

    o.piece = 1;
    o.pixel_ns = 2000000;
    o.sched.max_step_ms = 20;
    sim_init(&sim, &o);
    struct sim_client *a = ask(2, 0, 0), *b = ask(2, 0, 0), *c = ask(3, 0, 0);
    while (!sim.sched->pictures.now)
        sim_step(&sim);
    sim_cancel(&sim, a);
    sim_cancel(&sim, c);
    sim_run(&sim, 2000);
    cr_expect_eq(b->finish, FINISH_LENGTH);
    cr_expect_eq(sim.seen.n_pictures, 1);
    cr_expect_eq(sim.sched->pictures.n_pixel_bytes, 0);
    sim_deinit(&sim);
}

Test(pictures, its_tenant_pays_for_it) {
    struct sim_opts o = with_pictures();

    o.pixel_ns = 3000000;
    sim_init(&sim, &o);
    ask(2, 0, 5);
    sim_run(&sim, 2000);
    const struct fair_tenant *t = &sim.sched->fair.tenant[0];
    cr_assert_eq(t->id, 5);
    cr_expect_gt(t->own_ns, 144 * 3000000.0);
    sim_deinit(&sim);
}

Test(pictures, a_model_that_takes_none_says_so) {
    struct sim_opts o = with_pictures();

    o.n_pictures = 0;
    sim_init(&sim, &o);
    struct sim_client *c = sim_client(&sim, 20, 1, 20, 4);
    struct submit_picture p = {2, 4, 2, 2, 2, 8, 8, {1}};
    c->m.pictures = &p;
    c->m.n_pictures = 1;
    c->invalid = true;
    sim_submit(&sim, c, 0);
    sim_run(&sim, 100);
    cr_expect_eq(c->end, EVENT_REJECTED);
    cr_expect(strstr(c->text, "takes no pictures") != NULL);
    sim_deinit(&sim);
}

/* Rows that attend to each other are in one step, and a prefix does not end among them. */
Test(pictures, two_way_pictures_are_whole) {
    struct sim_opts o = with_pictures();

    o.two_way = true;
    o.page_tokens = 4;
    sim_init(&sim, &o);
    struct sim_client *a = sim_client(&sim, 40, 1, 40, 4), *b = sim_client(&sim, 40, 1, 21, 4);
    sim_put_picture(&sim, a, 2, 10); /* 9 rows */
    sim_put_picture(&sim, b, 2, 10);
    sim_submit(&sim, a, 0);
    sim_run(&sim, 2000);
    sim_submit(&sim, b, 0);
    sim_run(&sim, 2000);
    cr_expect_eq(b->n_cached, 20);
    struct sim_client *c = sim_client(&sim, 40, 1, 10, 4); /* another text after row 9 */
    sim_put_picture(&sim, c, 2, 10);
    c->tokens[19] = c->seen[19] = 5;
    sim_submit(&sim, c, 0);
    sim_run(&sim, 2000);
    cr_expect_eq(c->n_cached, a->tokens[19] == 5 ? 20 : 8);
    sim_deinit(&sim);
}

/* Another worker reads the pages of a prompt with a picture from the file; a prompt with another
 * picture in its place gets only the pages before it. */
Test(pictures, a_new_worker_finds_the_pages_behind_a_picture) {
    struct sim_opts o = with_pictures();

    o.n_host_pages = 64;
    o.disk_bytes = 1 << 20;
    sim_init(&sim, &o);
    struct sim_client *a = sim_client(&sim, 100, 1, 100, 4);
    sim_put_picture(&sim, a, 2, 20);
    sim_put_picture(&sim, a, 3, 60);
    sim_submit(&sim, a, 0);
    sim_run(&sim, 2000);
    sim_restart(&sim);
    sim_run(&sim, 10);
    uint64_t n_computed = sim.stats.n_pictures_computed;
    struct sim_client *other = sim_client(&sim, 100, 1, 100, 4);
    sim_put_picture(&sim, other, 4, 20);
    sim_submit(&sim, other, 0);
    sim_run(&sim, 2000);
    cr_expect_eq(other->n_cached, 16);
    cr_expect_eq(sim.stats.n_pictures_computed, n_computed + 1);
    struct sim_client *b = sim_client(&sim, 100, 1, 100, 4);
    sim_put_picture(&sim, b, 2, 20);
    sim_put_picture(&sim, b, 3, 60);
    sim_submit(&sim, b, 0);
    sim_run(&sim, 2000);
    cr_expect_eq(b->n_cached, 96);
    cr_expect_eq(sim.stats.n_pictures_computed, n_computed + 1);
    sim_deinit(&sim);
}
