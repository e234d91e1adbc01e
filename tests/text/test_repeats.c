#include <criterion/criterion.h>
#include "base/rng.h"
#include "text/repeats.h"

/* The definition, tried for each period. */
static uint32_t naive(const int32_t *t, uint32_t n) {
    for (uint32_t p = 1; p < n; p++) {
        uint32_t i = p;

        while (i < n && t[i] == t[i - p])
            i++;
        if (i == n)
            return p;
    }
    return n;
}

Test(repeats, the_smallest_period_is_that_of_the_definition) {
    struct rng rng = {7};
    int32_t t[200];
    uint32_t n_periodic = 0;

    for (int round = 0; round < 20000; round++) {
        uint32_t n = 1 + (uint32_t)(rng_next(&rng) % 200),
                 period = 1 + (uint32_t)(rng_next(&rng) % n);
        int32_t n_kinds = 1 + (int32_t)(rng_next(&rng) % 4);

        for (uint32_t i = 0; i < n; i++)
            t[i] = i < period ? (int32_t)(rng_next(&rng) % (uint64_t)n_kinds) : t[i - period];
        if (rng_next(&rng) % 4 == 0) /* a token that breaks it */
            t[rng_next(&rng) % n] = n_kinds;
        uint32_t want = naive(t, n);
        cr_assert_eq(repeats_period(t, n), want, "%u of %u tokens", want, n);
        n_periodic += want <= n / 4;
    }
    cr_expect_gt(n_periodic, 1000, "%u", n_periodic); /* the rounds have both */
    cr_expect_lt(n_periodic, 19000, "%u", n_periodic);
}

Test(repeats, one_token_and_the_longest) {
    static int32_t t[REPEATS_MAX];

    cr_expect_eq(repeats_period(t, 1), 1);
    cr_expect_eq(repeats_period(t, REPEATS_MAX), 1);
    t[REPEATS_MAX - 1] = 1; /* borders of all lengths fall back to none */
    cr_expect_eq(repeats_period(t, REPEATS_MAX), REPEATS_MAX);
}
