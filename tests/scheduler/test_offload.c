/* Order in which pages are copied to host memory, and whether they are. */

#include <criterion/criterion.h>

#include "kvpager/offload.h"
#include "scheduler/cost.h"

#define T 4u /* tokens of a page */
#define PAGES 64u

static const struct kv_isolation share;
static struct kv_pager *device;
static struct offload offload;
static struct cost cost;

static double compute_ns(void *ctx, uint32_t from, uint32_t to) {
    const struct cost_shape none = {0};
    struct cost_shape all = none;

    cost_add(&all, from, to - from);
    return (double)(cost_expect_ns(ctx, &all) - cost_expect_ns(ctx, &none));
}

static double copy_ns(void *ctx, uint32_t n_pages) {
    return (double)cost_copies_ns(ctx, n_pages);
}

static const struct kv_prices prices = {&cost, compute_ns, copy_ns};

static void setup(void) {
    struct kv_opts o = {
        .n_pages = PAGES, .page_tokens = T, .max_seqs = 32, .max_seq_tokens = PAGES * T};

    cost_init(&cost);
    cr_assert_eq(kv_pager_new(&device, &o), 0);
    cr_assert_eq(offload_init(&offload, &prices, &o, 2 * PAGES, 0), 0);
}

static void teardown(void) {
    offload_deinit(&offload);
    kv_pager_free(device);
}

TestSuite(offload, .init = setup, .fini = teardown);

/* @n pages of tokens that begin with @first, computed. */
static struct kv_seq *compute(int32_t first, uint32_t n, int32_t *tokens) {
    struct kv_seq *s;

    for (uint32_t i = 0; i < n * T; i++)
        tokens[i] = first + (int32_t)i;
    cr_assert_eq(kv_seq_new(&s, device, &share), 0);
    cr_assert_eq(kv_seq_grow(s, n * T), 0);
    kv_seq_commit(s, tokens, n * T);
    return s;
}

static uint32_t n_saved(int32_t first, uint32_t n) {
    int32_t tokens[PAGES * T];

    for (uint32_t i = 0; i < n * T; i++)
        tokens[i] = first + (int32_t)i;
    return offload_has(&offload, &share, tokens, n * T) / T;
}

/* Ends a turn of @n pages. */
static void end_turn(int32_t first, uint32_t n) {
    int32_t tokens[PAGES * T];

    kv_seq_free(compute(first, n, tokens));
    offload_save(&offload, &share, tokens, n * T, true);
}

static void take(void) {
    cr_assert_leq(offload.n_copies, 1024);
    offload_taken(&offload);
}

Test(offload, the_oldest_is_saved_first) {
    for (int32_t i = 0; i < 6; i++)
        end_turn(1000 * i, 10);
    offload_work(&offload, device, false, 1); /* 16 pages */
    cr_expect_eq(n_saved(0, 10), 10);
    cr_expect_eq(n_saved(1000, 10), 6);
    cr_expect_eq(n_saved(5000, 10), 0);
}

Test(offload, a_full_queue_forgets_the_oldest) {
    for (int32_t i = 0; i < (int32_t)OFFLOAD_JOBS + 1; i++)
        end_turn(1000 + 10 * i, 1);
    cr_expect_eq(offload.n_jobs, OFFLOAD_JOBS);
    while (offload.n_jobs > 0)
        offload_work(&offload, device, true, 1);
    cr_expect_eq(n_saved(1000, 1), 0);
    cr_expect_eq(n_saved(1010, 1), 1);
    cr_expect_eq(n_saved(1000 + 10 * (int32_t)OFFLOAD_JOBS, 1), 1);
}

Test(offload, without_host_memory_nothing_is_found) {
    const struct kv_opts o = {
        .n_pages = PAGES, .page_tokens = T, .max_seqs = 32, .max_seq_tokens = PAGES * T};
    int32_t tokens[PAGES * T];
    struct offload none;

    cr_assert_eq(offload_init(&none, &prices, &o, 0, 0), 0);
    struct kv_seq *s = compute(1000, 4, tokens);
    offload_save(&none, &share, tokens, 4 * T, true);
    offload_work(&none, device, true, 1);
    cr_expect_eq(offload_has(&none, &share, tokens, 4 * T), 0);
    cr_expect_eq(offload_fetch(&none, device, s, &share, tokens, 4 * T, PAGES, 0), 4 * T);
    cr_expect_eq(none.n_copies, 0);
    kv_seq_free(s);
    offload_deinit(&none);
}

Test(offload, a_step_has_a_bounded_number_of_copies) {
    int32_t tokens[PAGES * T];

    for (int32_t i = 0; i < 12; i++) {
        struct kv_seq *s = compute(1000 * i, 60, tokens);

        offload_swap(&offload, s, &share, tokens);
        kv_seq_free(s);
    }
    cr_expect_leq(offload.n_copies, OFFLOAD_SWAP_PAGES);
    take();
}

/* Learns steps with a row and 16 copies that take @page_ns each. */
static void learn_copies(int64_t page_ns) {
    for (int i = 0; i < 200; i++) {
        struct cost_shape s = {.copies = 16};

        cost_add(&s, 0, 1);
        cost_learn(&cost, &s, 1100000 + 16 * page_ns);
    }
}

/* Learns steps whose rows take @row_ns each. */
static void learn_rows(int64_t row_ns) {
    for (uint32_t i = 0; i < 60; i++) {
        struct cost_shape s = {0};

        cost_add(&s, 0, 16 + 16 * (i % 4));
        cost_learn(&cost, &s, 1000000 + row_ns * s.rows);
    }
}

Test(offload, swapped_or_computed_again_as_is_faster) {
    int32_t tokens[PAGES * T];
    struct kv_seq *s = compute(1000, 40, tokens);

    learn_rows(100000); /* 400 us for a page */
    learn_copies(500000);
    cr_expect_not(offload_pays(&offload, 0, 40 * T));
    offload_swap(&offload, s, &share, tokens);
    cr_expect_eq(offload.counts.n_not_swapped, 1);
    cr_expect_eq(n_saved(1000, 40), 0);
    learn_copies(300000);
    cr_expect(offload_pays(&offload, 0, 40 * T));
    offload_swap(&offload, s, &share, tokens);
    cr_expect_eq(offload.counts.n_swapped, 1);
    cr_expect_eq(n_saved(1000, 40), 40);
    learn_copies(1000000);
    cr_expect_not(offload_pays(&offload, 0, 40 * T));
    /* the pages are in host memory, so nothing is copied */
    offload_swap(&offload, s, &share, tokens);
    cr_expect_eq(offload.counts.n_swapped, 2);
    kv_seq_free(s);
}
