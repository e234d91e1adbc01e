/* The order in which requests are submitted, compared with a search through all of them. */

#include <criterion/criterion.h>

#include "api/limits/pending.h"
#include "base/loop_bytes.h"
#include "base/rng.h"

#define N 300
#define ACCOUNTS 7

struct request {
    struct pending_item item;
    uint32_t account;
    /* in its account and queue: lower comes first */
    int64_t place;
};

struct scene {
    struct pending queues[2];
    struct pending_account accounts[ACCOUNTS];
    struct request r[N];
    double now;
    int64_t n_added;
};

static void scene_init(struct scene *s) {
    memset(s, 0, sizeof(*s));
    for (uint32_t i = 0; i < 2; i++)
        pending_init(&s->queues[i]);
    for (uint32_t i = 0; i < ACCOUNTS; i++)
        pending_account_init(&s->accounts[i]);
    for (uint32_t i = 0; i < N; i++)
        pending_item_init(&s->r[i].item, i);
}

/* Returns the first request of @account in queue @q by a search through all, or NULL. */
static struct request *first_by_search(struct scene *s, uint32_t q, uint32_t account) {
    struct request *first = NULL;

    for (uint32_t i = 0; i < N; i++) {
        struct request *r = &s->r[i];

        if (r->item.queue == &s->queues[q] && r->account == account &&
            (!first || r->place < first->place))
            first = r;
    }
    return first;
}

static struct request *next_by_search(struct scene *s, uint32_t q) {
    struct request *best = NULL;
    double least = 0;

    for (uint32_t a = 0; a < ACCOUNTS; a++) {
        struct request *r = first_by_search(s, q, a);
        double begins = MAX(s->accounts[a].virtual_bytes, s->now);

        if (r &&
            (!best || begins < least || (begins == least && r->item.number < best->item.number))) {
            best = r;
            least = begins;
        }
    }
    return best;
}

static void add(struct scene *s, struct request *r, uint32_t q, uint32_t account) {
    const struct request *first = first_by_search(s, q, account);

    r->account = account;
    r->place = ++s->n_added;
    if (first && r->item.number < first->item.number)
        r->place = first->place - 1;
    pending_add(&s->queues[q], &r->item, &s->accounts[account]);
}

/* Submits the next request, of 1 to 100 bytes. */
static void submit(struct scene *s, struct rng *rng, uint32_t q) {
    struct pending_item *i = pending_next(&s->queues[q], s->now);
    const struct request *expected = next_by_search(s, q);

    cr_assert_eq(i, expected ? &expected->item : NULL);
    if (!i)
        return;
    s->now = pending_begins(i->account, s->now);
    i->account->virtual_bytes = s->now + 1 + rng_below(rng, 100);
    pending_withdraw(i);
}

Test(pending, the_order_is_that_of_a_search_through_all) {
    static struct scene s;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        struct rng rng = {seed};

        scene_init(&s);
        for (uint32_t step = 0; step < 4000; step++) {
            struct request *r = &s.r[rng_below(&rng, N)];
            uint32_t q = rng_below(&rng, 2);

            if (rng_below(&rng, 3) == 0)
                submit(&s, &rng, q);
            else if (!r->item.queue)
                add(&s, r, q, rng_below(&rng, ACCOUNTS));
            else if (rng_below(&rng, 4) == 0)
                pending_withdraw(&r->item);
        }
        for (uint32_t q = 0; q < 2; q++)
            while (next_by_search(&s, q))
                submit(&s, &rng, q);
        for (uint32_t i = 0; i < N; i++)
            cr_assert(!s.r[i].item.queue && list_empty(&s.r[i].item.behind));
    }
}

static size_t n_items;

static void count_items(size_t bytes, size_t items) {
    n_items += items;
}

Test(pending, the_work_does_not_grow_with_the_number_of_requests) {
    static struct scene s;

    scene_init(&s);
    loop_watch = count_items;
    for (uint32_t i = 0; i < N; i++)
        add(&s, &s.r[i], 0, i % ACCOUNTS);
    for (uint32_t i = 0; i < N; i++)
        pending_withdraw(pending_next(&s.queues[0], 0));
    loop_watch = NULL;
    cr_expect_leq(n_items, 2 * (size_t)N * ACCOUNTS, "%zu", n_items);
    cr_expect_null(pending_next(&s.queues[0], 0));
}
