#include <criterion/criterion.h>

#include "base/rng.h"
#include "base/share_ring.h"

enum { PLACES = 16, OWNERS = 5 };

/* A thing of the naive model: its owner and when it came. */
struct thing {
    uint32_t owner;
    uint64_t when;
};

/* Returns the place of the oldest thing of the first owner with the most. */
static uint32_t naive_place(const struct thing *t) {
    uint32_t n[OWNERS] = {0}, most = 0, place = PLACES;

    for (uint32_t i = 0; i < PLACES; i++)
        n[t[i].owner]++;
    for (uint32_t i = 1; i < OWNERS; i++)
        if (n[i] > n[most])
            most = i;
    for (uint32_t i = 0; i < PLACES; i++)
        if (t[i].owner == most && (place == PLACES || t[i].when < t[place].when))
            place = i;
    return place;
}

Test(share_ring, takes_the_oldest_of_the_owner_with_the_most) {
    static struct share_ring r;
    struct thing t[PLACES];
    struct rng rng = {1};

    for (uint64_t i = 0; i < 20000; i++) {
        /* in phases that one owner or another floods */
        uint32_t owner = (uint32_t)(i / 100 % OWNERS);

        if (rng_below(&rng, 3) == 0)
            owner = (uint32_t)rng_below(&rng, OWNERS);
        uint32_t want = i < PLACES ? (uint32_t)i : naive_place(t);
        uint32_t place = share_ring_add(&r, PLACES, owner);
        cr_assert_eq(place, want, "thing %u: %u, not %u", (unsigned)i, place, want);
        t[place] = (struct thing){owner, i};
    }
}

Test(share_ring, a_flood_leaves_the_things_of_others) {
    static struct share_ring r;
    uint32_t mine[3];
    bool same[SHARE_RING_PLACES] = {false};

    for (uint32_t i = 0; i < 3; i++)
        mine[i] = share_ring_add(&r, SHARE_RING_PLACES, SHARE_RING_OWNERS - 1);
    for (uint32_t i = 0; i < 3 * SHARE_RING_PLACES; i++)
        same[share_ring_add(&r, SHARE_RING_PLACES, 0)] = true;
    for (uint32_t i = 0; i < 3; i++)
        cr_expect(!same[mine[i]], "%u", i);
    cr_expect_eq(r.owner[0].n, SHARE_RING_PLACES - 3);
}
