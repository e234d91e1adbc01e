#include <criterion/criterion.h>
#include <math.h>

#include "cmd/bench_stats.h"

Test(bench_stats, quantiles_interpolate_like_numpy) {
    const double v[] = {1, 2, 4, 8, 16};

    cr_expect(fabs(stats_quantile(v, 5, 0) - 1) < 1e-12);
    cr_expect(fabs(stats_quantile(v, 5, 0.5) - 4) < 1e-12);
    cr_expect(fabs(stats_quantile(v, 5, 0.25) - 2) < 1e-12);
    cr_expect(fabs(stats_quantile(v, 5, 0.9) - 12.8) < 1e-12); /* 8 + 0.6 * 8 */
    cr_expect(fabs(stats_quantile(v, 5, 1) - 16) < 1e-12);
    cr_expect(fabs(stats_quantile(v, 1, 0.99) - 1) < 1e-12);
}

Test(bench_stats, summary_of_known_samples) {
    struct samples s = {0};

    for (int i = 100; i >= 1; i--) /* out of order on purpose */
        cr_assert(samples_add(&s, i) == 0);
    struct summary m = samples_summary(&s);
    cr_expect(m.n == 100);
    cr_expect(fabs(m.mean - 50.5) < 1e-9);
    cr_expect(fabs(m.sd - 29.011491975882016) < 1e-9);
    cr_expect(fabs(m.p50 - 50.5) < 1e-9);
    cr_expect(fabs(m.p90 - 90.1) < 1e-9);
    cr_expect(fabs(m.p99 - 99.01) < 1e-9);
    cr_expect(m.min == 1 && m.max == 100);
    samples_deinit(&s);
}

Test(bench_stats, no_samples_and_one_sample) {
    struct samples s = {0};
    struct summary m = samples_summary(&s);

    cr_expect(m.n == 0 && m.mean == 0 && m.max == 0);
    cr_assert(samples_add(&s, 3) == 0);
    m = samples_summary(&s);
    cr_expect(m.n == 1 && m.mean == 3 && m.sd == 0 && m.p50 == 3 && m.p99 == 3 && m.max == 3);
    samples_deinit(&s);
}

static struct dist parse(const char *text) {
    struct dist d;

    cr_assert(dist_parse(&d, text, NULL) == 0, "%s", text);
    return d;
}

static double mean_of(const char *text, uint32_t *min, uint32_t *max) {
    struct dist d = parse(text);
    struct rng r = {5};
    double sum = 0;

    *min = UINT32_MAX;
    *max = 0;
    for (int i = 0; i < 100000; i++) {
        uint32_t v = dist_draw(&d, &r);

        sum += v;
        *min = MIN(*min, v);
        *max = MAX(*max, v);
    }
    return sum / 100000;
}

Test(bench_stats, draws_follow_their_distribution) {
    uint32_t min, max;

    cr_expect(mean_of("7", &min, &max) == 7 && min == 7 && max == 7);
    cr_expect(fabs(mean_of("10-20", &min, &max) - 15) < 0.1 && min == 10 && max == 20);
    cr_expect(fabs(mean_of("5,50", &min, &max) - 27.5) < 0.5 && min == 5 && max == 50);
    cr_expect(fabs(mean_of("exp:200", &min, &max) - 200) < 3 && min == 1 && max > 1000);
    /* The mean of a lognormal: median * exp(sigma^2 / 2). */
    cr_expect(fabs(mean_of("lognormal:100:0.5", &min, &max) - 113.3) < 1.5);
    cr_expect(mean_of("exp:1000000", &min, &max) > 0 && max == LENGTH_MAX && min >= 1);
}

Test(bench_stats, wrong_distributions_are_refused) {
    static const char *const wrong[] = {
        "",        "0",  "x",     "5-",   "-5",      "9-3",
        "1000001", "5,", "5,,6",  "exp:", "exp:0",   "lognormal:10",
        "a:b",     "5x", "5-6-7", "1.5",  "exp:nan", "lognormal:10:-1",
    };

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct dist d;

        cr_expect(dist_parse(&d, wrong[i], NULL) < 0, R"("%s" was accepted)", wrong[i]);
    }
}

Test(bench_stats, exponential_times_have_mean_one) {
    struct rng r = {9};
    double sum = 0;

    for (int i = 0; i < 100000; i++) {
        double v = stats_exponential(&r);

        cr_assert(v >= 0 && isfinite(v));
        sum += v;
    }
    cr_expect(fabs(sum / 100000 - 1) < 0.02);
}
