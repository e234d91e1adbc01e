#include <criterion/criterion.h>

#include "base/rng.h"
#include "scheduler/queue.h"

Test(queue, is_sorted_by_virtual_arrival) {
    static struct queued q[200];
    struct rng r = {4};
    struct list l;
    uint32_t n = 0;

    list_init(&l);
    for (uint32_t i = 0; i < 200; i++) {
        q[i].key = queue_key((int64_t)rng_below(&r, 20) * 1000000000, (int)rng_below(&r, 5) - 2, i);
        queue_insert(&l, &q[i]);
    }
    const struct queue_key *before = NULL;
    LIST_FOREACH(node, &l) {
        const struct queue_key *s = &LIST_ENTRY(node, struct queued, link)->key;
        cr_assert(!before || queue_before(before, s));
        before = s;
        n++;
    }
    cr_expect_eq(n, 200);
}

Test(queue, low_priority_is_served_after_a_while) {
    struct queue_key low = queue_key(0, 3, 0);
    struct queue_key soon = queue_key(2 * QUEUE_LEVEL_NS, 0, 1);
    struct queue_key late = queue_key(4 * QUEUE_LEVEL_NS, 0, 2);

    cr_expect(queue_before(&soon, &low));
    cr_expect(queue_before(&low, &late));
}

Test(queue, absurd_priorities_and_times_are_bounded) {
    struct queue_key a = queue_key(INT64_MAX, 32767, 0), b = queue_key(0, 32767, 1);

    cr_expect_eq(a.arrival, INT64_MAX);
    cr_expect_eq(b.arrival, QUEUE_LEVELS * QUEUE_LEVEL_NS);
}

Test(estimate, follows_the_session) {
    static struct sessions sessions;
    struct estimate e;

    sessions_init(&sessions);
    estimate_init(&e, &sessions);
    cr_expect_eq(estimate_output(&e, 5, 0, 100000), ESTIMATE_START * 5 / 4);
    for (int i = 0; i < 20; i++)
        estimate_learn(&e, 5, 1000);
    cr_expect_eq(estimate_output(&e, 5, 0, 100000), 1250);
    cr_expect_eq(estimate_output(&e, 5, 0, 80), 80);
    cr_expect_lt(estimate_output(&e, 6, 0, 100000), 800);
    cr_expect_gt(estimate_output(&e, 5, 2000, 100000), 2000);
}
