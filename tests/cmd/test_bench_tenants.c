#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "cmd/bench_tenants.h"

#define S INT64_C(1000000000)

/* A stream that was due at @due and sent a piece at @first and each @gap after, in seconds. */
static struct bench_request stream(double due, double first, double gap, uint32_t n_pieces) {
    struct bench_request q;

    bench_request_init(&q);
    q.due_ns = (int64_t)(due * 1e9);
    q.first_ns = (int64_t)(first * 1e9);
    q.n_pieces = n_pieces;
    q.output_tokens = n_pieces;
    q.prompt_tokens = 100;
    q.cached_tokens = 40;
    q.end_ns = q.first_ns + (int64_t)((n_pieces - 1) * gap * 1e9);
    for (uint32_t i = 1; i < n_pieces; i++)
        cr_assert(samples_add(&q.gaps, gap) == 0);
    return q;
}

static void finish(struct bench_tenants *r, uint32_t tenant, struct bench_request q,
                   uint32_t n_output) {
    r->tenant[tenant].n_turns++;
    cr_assert(bench_tenants_finished(r, &r->tenant[tenant], &q, n_output) == 0);
    bench_request_deinit(&q);
}

static bool near(double a, double b) {
    return fabs(a - b) < 1e-9;
}

Test(bench_tenants, times_and_tokens_add_up) {
    struct bench_tenants r = {.tenant[1] = {.here = true, .weight = 1}, .start_ns = 0};
    struct tenant *t = &r.tenant[1];

    finish(&r, 1, stream(1, 1.5, 0.1, 5), 5);
    finish(&r, 1, stream(3, 3.25, 0.2, 3), 4);
    cr_assert(t->n_finished == 2 && t->n_short == 1 && t->n_prompt == 200 && t->n_cached == 80);
    cr_assert(t->n_out == 8 && r.end_ns == (int64_t)(3.65 * 1e9));
    struct summary ttft = samples_summary(&t->ttft), itl = samples_summary(&t->itl),
                   worst = samples_summary(&t->worst);
    cr_assert(ttft.n == 2 && near(ttft.min, 0.25) && near(ttft.max, 0.5));
    cr_assert(itl.n == 6 && near(itl.mean, (4 * 0.1 + 2 * 0.2) / 6));
    cr_assert(worst.n == 2 && near(worst.min, 0.1) && near(worst.max, 0.2));
    bench_tenants_deinit(&r);
}

Test(bench_tenants, who_waits_at_the_end_counts_with_its_wait) {
    struct bench_tenants r = {.tenant[1] = {.here = true, .weight = 1}, .end_ns = 10 * S};
    struct bench_request q = stream(4, 6, 0.5, 3), none = stream(9, 0, 0, 1);

    none.first_ns = 0;
    cr_assert(bench_tenants_cut(&r, &r.tenant[1], &q, q.due_ns) == 0);
    cr_assert(bench_tenants_cut(&r, &r.tenant[1], &none, none.due_ns) == 0);
    cr_assert(bench_tenants_cut(&r, &r.tenant[1], NULL, 2 * S) == 0); /* paused after a refusal */
    struct summary s = samples_summary(&r.tenant[1].ttft);
    cr_assert(s.n == 3 && near(s.min, 1) && near(s.p50, 2) && near(s.max, 8));
    cr_assert(r.tenant[1].n_unanswered == 2 && r.tenant[1].n_finished == 0);
    cr_assert(r.tenant[1].itl.n == 2 && r.tenant[1].n_received == 3);
    bench_request_deinit(&q);
    bench_request_deinit(&none);
    bench_tenants_deinit(&r);
}

Test(bench_tenants, jain_is_of_all_or_of_those_that_could_use_more) {
    struct bench_tenants r = {.start_ns = 0};
    uint32_t n;

    for (uint32_t i = 1; i <= 3; i++)
        r.tenant[i] = (struct tenant){.here = true, .weight = i == 2 ? 2 : 1};
    /* 1 and 2 wait for 9.5 of 10 seconds, in spans that overlap; 3 for one. */
    finish(&r, 1, stream(0, 6, 0.1, 2), 2);
    finish(&r, 1, stream(3, 9.5, 0.1, 2), 2);
    finish(&r, 2, stream(0, 9.5, 0.1, 2), 2);
    finish(&r, 3, stream(4, 5, 5, 2), 2);
    r.tenant[2].n_prompt = 300; /* served 204, 302 / 2 and 102 */
    double jain = bench_tenants_jain(&r, true, &n);
    cr_assert(n == 2 && near(jain, 355.0 * 355 / (2 * (204.0 * 204 + 151 * 151))), "%u %f", n,
              jain);
    jain = bench_tenants_jain(&r, false, &n);
    cr_assert(n == 3 && near(jain, 457.0 * 457 / (3 * (204.0 * 204 + 151 * 151 + 102 * 102))));
    bench_tenants_deinit(&r);
}

Test(bench_tenants, gaps_during_anothers_wait_are_told_apart) {
    struct bench_tenants r = {.start_ns = 0};
    struct samples gaps;

    r.tenant[1] = r.tenant[2] = (struct tenant){.here = true, .weight = 1};
    finish(&r, 1, stream(0, 1, 1, 10), 10); /* pieces at 1, 2 ... 10 */
    finish(&r, 2, stream(4.5, 6.5, 0.1, 2), 2);
    cr_assert(bench_tenants_during(&r.tenant[1], &r.tenant[2], &gaps) == 0);
    cr_assert(gaps.n == 3 && near(samples_summary(&gaps).max, 1)); /* 4-5, 5-6, 6-7 */
    samples_deinit(&gaps);
    cr_assert(bench_tenants_during(&r.tenant[2], &r.tenant[1], &gaps) == 0 && gaps.n == 0);
    bench_tenants_deinit(&r);
}

Test(bench_tenants, refusals_are_counted_apart) {
    struct bench_tenants r = {.tenant[1] = {.here = true, .weight = 1}};
    struct bench_request q;

    bench_request_init(&q);
    q.answer_s = 0.002;
    q.retry_s = 3;
    cr_assert(bench_tenants_refused(&r.tenant[1], &q) == 0);
    q.retry_s = 0;
    cr_assert(bench_tenants_refused(&r.tenant[1], &q) == 0);
    snprintf(q.error, sizeof(q.error), "why");
    bench_tenants_failed(&r, &r.tenant[1], &q);
    cr_assert(r.tenant[1].n_refused == 2 && r.tenant[1].n_unexplained == 1);
    cr_assert(near(samples_summary(&r.tenant[1].refusal).max, 0.002));
    cr_assert(r.tenant[1].n_failed == 1);
    cr_assert_str_eq(r.first_error, "why");
    bench_request_deinit(&q);
    bench_tenants_deinit(&r);
}
