#include <criterion/criterion.h>
#include "base/rng.h"
#include "scheduler/queue.h"

Test(queue, is_sorted_by_standing) {
    static struct queued q[200];
    struct rng r = {4};
    struct list l;
    uint32_t n = 0;

    list_init(&l);
    for (uint32_t i = 0; i < 200; i++) {
        q[i].standing =
            queue_standing((int64_t)rng_below(&r, 20) * 1000000000, (int)rng_below(&r, 5) - 2, i);
        queue_insert(&l, &q[i]);
    }
    const struct standing *before = NULL;
    LIST_FOREACH(node, &l) {
        const struct standing *s = &LIST_ENTRY(node, struct queued, link)->standing;
        cr_assert(!before || queue_before(before, s));
        before = s;
        n++;
    }
    cr_expect_eq(n, 200);
}

Test(queue, low_priority_is_served_after_a_while) {
    struct standing low = queue_standing(0, 3, 0);
    struct standing soon = queue_standing(2 * QUEUE_LEVEL_NS, 0, 1);
    struct standing late = queue_standing(4 * QUEUE_LEVEL_NS, 0, 2);

    cr_expect(queue_before(&soon, &low));
    cr_expect(queue_before(&low, &late));
}

Test(queue, absurd_priorities_and_times_are_bounded) {
    struct standing a = queue_standing(INT64_MAX, 32767, 0), b = queue_standing(0, 32767, 1);

    cr_expect_eq(a.key, INT64_MAX);
    cr_expect_eq(b.key, QUEUE_LEVELS * QUEUE_LEVEL_NS);
}

Test(estimate, follows_the_session) {
    struct estimate e;

    estimate_init(&e);
    cr_expect_eq(estimate_output(&e, 5, 0, 100000), ESTIMATE_START * 5 / 4);
    for (int i = 0; i < 20; i++)
        estimate_learn(&e, 5, 1000);
    cr_expect_eq(estimate_output(&e, 5, 0, 100000), 1250);
    cr_expect_eq(estimate_output(&e, 5, 0, 80), 80);
    cr_expect_lt(estimate_output(&e, 6, 0, 100000), 800);
    cr_expect_gt(estimate_output(&e, 5, 2000, 100000), 2000);
}
