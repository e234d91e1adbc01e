#pragma once

/*
 * prefix - finds the published page that continues a published page with given tokens. Private to
 * kvpager/.
 *
 * A hash table of all published pages under a key that is a chain: XXH3-128 over (key of the page
 * before, the page's tokens), starting from a root key over the data that must be equal for sharing
 * (struct prefix_root). The hash only selects candidates. A hit also has the same parent page, the
 * same isolation key and the same tokens. As the parent was found in the same way, and cannot be
 * evicted or renumbered while it has children, equality of the whole prefix follows by induction,
 * and no collision, constructed or not, ever gives another prefix's keys and values.
 */

#include "kvpager/pool.h"
#include "kvpager/watch.h"

#define PREFIX_MAX_TOKENS 256 /* most tokens of a page */

/* Holds everything that two sequences must have in common besides tokens. It is hashed as bytes, so
 * it has no padding. */
struct prefix_root {
    uint8_t fingerprint[16];
    struct kv_isolation isolation;
};

/* Invariant: each published page of the pool is in exactly one bucket, that of its key. */
struct prefix {
    struct pool *pool;
    /* [n_buckets], a power of two; chained by page.next */
    kv_page *bucket;
    uint32_t n_buckets;
    uint64_t seed;
    /* bits of the hash that count: all except in tests */
    XXH128_hash_t mask;
    struct watch watch;
};

/* Initialises a table for the pages of @pool, which outlives it. @hash_bits as in struct kv_opts.
 * Returns 0 or -ENOMEM. */
int prefix_init(struct prefix *x, struct pool *pool, uint64_t seed, uint32_t hash_bits);
void prefix_deinit(struct prefix *x); /* may follow a failure of prefix_init() */

/* Returns the key of the root, which is the parent key of first pages. */
XXH128_hash_t prefix_root_key(const struct prefix *x, const struct prefix_root *root);
/* Returns the key of a page with @tokens behind the page (or root) with key @parent. */
XXH128_hash_t prefix_key(const struct prefix *x, XXH128_hash_t parent, const int32_t *tokens);

/* Returns the published page with exactly this parent, isolation key and tokens; NULL: there is
 * none. */
struct page *prefix_find(const struct prefix *x, XXH128_hash_t key, kv_page parent,
                         const struct kv_isolation *isolation, const int32_t *tokens);
/* Enters @page, which is in no table, and stores its identity in it. The table must have no equal
 * page, and @parent must be published. */
void prefix_add(struct prefix *x, struct page *page, XXH128_hash_t key, kv_page parent,
                const struct kv_isolation *isolation, const int32_t *tokens);
/* Removes @page, which must be in the table and have no children, and clears its identity. */
void prefix_remove(struct prefix *x, struct page *page);
