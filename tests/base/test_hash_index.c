#include <criterion/criterion.h>
#include <stdio.h>

#include "base/gguf_private.h"
#include "base/hash_index.h"

/* Returns how often @item is under this hash. */
static int times(const struct hash_index *x, uint32_t hash, uint32_t item) {
    int n = 0;

    HASH_INDEX_EACH(*x, hash, i) {
        n += i == item;
    }
    return n;
}

Test(hash_index, an_empty_one_has_nothing) {
    struct hash_index x = {0};
    uint32_t at = 7;

    cr_expect_eq(hash_index_next(&x, 7, &at), HASH_INDEX_NONE);
    cr_assert_eq(hash_index_reserve(&x, 5), 0);
    cr_expect_eq(hash_index_next(&x, 7, &at), HASH_INDEX_NONE);
    hash_index_deinit(&x);
}

Test(hash_index, finds_every_item_under_its_hash_alone) {
    /* hashes that are equal, equal in the low bits, at the end of the table, and spread */
    static const uint32_t factors[] = {0, 1u << 20, UINT32_MAX, 0x9E3779B1u};

    for (size_t f = 0; f < sizeof(factors) / sizeof(factors[0]); f++) {
        struct hash_index x = {0};

        for (uint32_t i = 0; i < 300; i++) {
            cr_assert_eq(hash_index_add(&x, (i / 2) * factors[f], i), 0);
            cr_assert_eq(x.n, i + 1);
            cr_assert_leq(2 * x.n, x.mask + 1);
        }
        for (uint32_t i = 0; i < 300; i++) {
            cr_expect_eq(times(&x, (i / 2) * factors[f], i), 1);
            cr_expect_eq(times(&x, (i / 2) * factors[f] + 1, i), 0);
        }
        hash_index_deinit(&x);
        cr_expect_null(x.slot);
    }
}

Test(hash_index, room_is_made_once) {
    struct hash_index x = {0};

    cr_assert_eq(hash_index_reserve(&x, 1000), 0);
    const struct hash_slot *slot = x.slot;

    for (uint32_t i = 0; i < 1000; i++)
        cr_assert_eq(hash_index_add(&x, i, i), 0);
    cr_expect_eq(x.slot, slot);
    hash_index_deinit(&x);
}

static struct gguf_str no_name(const void *owner, uint32_t item) {
    return (struct gguf_str){owner, item};
}

/* Names of a file that a stranger has made: a search looks at few slots, whatever the names are.
 * Counted are the slots from that of a hash to the item. */
Test(hash_index, the_most_names_of_a_file_lie_near_their_slots) {
    enum { N = 65536 };
    struct gguf_index x = {.name = no_name};
    uint64_t n_slots = 0;

    cr_assert_eq(gguf_index_reserve(&x, N), 0);
    for (uint32_t i = 0; i < N; i++) {
        char name[32];
        int len = snprintf(name, sizeof(name), "blk.%u.attn_q.weight", i);

        cr_assert_eq(gguf_index_add(&x, (struct gguf_str){name, (size_t)len}, i), 0);
    }
    for (uint32_t at = 0; at <= x.items.mask; at++) {
        const struct hash_slot *s = &x.items.slot[at];

        n_slots += s->item ? 1 + ((at - s->hash) & x.items.mask) : 0;
    }
    cr_expect_lt(n_slots, 2 * N, "%llu slots", (unsigned long long)n_slots);
    hash_index_deinit(&x.items);
}
