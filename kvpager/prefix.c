/* inlined because keys are hashed one by one: the call would cost as much as the hash */
#define XXH_INLINE_ALL
#include "kvpager/prefix.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

int prefix_init(struct prefix *x, struct pool *pool, uint64_t seed, uint32_t hash_bits) {
    uint32_t n = 1;

    while (n < pool->n_pages && n < 1u << 31)
        n *= 2;
    *x = (struct prefix){.pool = pool, .n_buckets = n, .seed = seed};
    x->mask = (XXH128_hash_t){.low64 = UINT64_MAX, .high64 = UINT64_MAX};
    if (hash_bits > 0 && hash_bits < 64)
        x->mask = (XXH128_hash_t){.low64 = (1ull << hash_bits) - 1};
    x->bucket = malloc(n * sizeof(*x->bucket));
    if (!x->bucket)
        return -ENOMEM;
    memset(x->bucket, 0xFF, n * sizeof(*x->bucket)); /* fills with NO_PAGE */
    return 0;
}

void prefix_deinit(struct prefix *x) {
    free(x->bucket);
    watch_deinit(&x->watch);
    *x = (struct prefix){0};
}

static XXH128_hash_t prefix_hash(const struct prefix *x, const void *data, size_t size) {
    XXH128_hash_t h = XXH3_128bits_withSeed(data, size, x->seed);

    h.low64 &= x->mask.low64;
    h.high64 &= x->mask.high64;
    return h;
}

XXH128_hash_t prefix_root_key(const struct prefix *x, const struct prefix_root *root) {
    return prefix_hash(x, root, sizeof(*root));
}

XXH128_hash_t prefix_key(const struct prefix *x, XXH128_hash_t parent, const int32_t *tokens) {
    struct {
        uint64_t parent[2];
        int32_t tokens[PREFIX_MAX_TOKENS];
    } in;
    size_t size = x->pool->page_tokens * sizeof(*tokens);

    in.parent[0] = parent.low64;
    in.parent[1] = parent.high64;
    memcpy(in.tokens, tokens, size);
    return prefix_hash(x, &in, sizeof(in.parent) + size);
}

static kv_page *prefix_bucket(const struct prefix *x, XXH128_hash_t key) {
    return &x->bucket[key.low64 & (x->n_buckets - 1)];
}

static bool same(const struct prefix *x, const struct page *page, kv_page parent,
                 const struct kv_isolation *isolation, const int32_t *tokens) {
    if (page->parent != parent)
        return false;
    if (memcmp(&page->isolation, isolation, sizeof(*isolation)) != 0)
        return false;
    size_t size = x->pool->page_tokens * sizeof(*tokens);
    return memcmp(pool_tokens(x->pool, page), tokens, size) == 0;
}

struct page *prefix_find(const struct prefix *x, XXH128_hash_t key, kv_page parent,
                         const struct kv_isolation *isolation, const int32_t *tokens) {
    for (kv_page i = *prefix_bucket(x, key); i != NO_PAGE; i = x->pool->page[i].next) {
        struct page *page = &x->pool->page[i];

        if (page->key.low64 == key.low64 && page->key.high64 == key.high64 &&
            same(x, page, parent, isolation, tokens))
            return page;
    }
    return NULL;
}

void prefix_add(struct prefix *x, struct page *page, XXH128_hash_t key, kv_page parent,
                const struct kv_isolation *isolation, const int32_t *tokens) {
    kv_page *head = prefix_bucket(x, key);

    assert(parent == NO_PAGE || parent != pool_number(x->pool, page));
    page->key = key;
    page->parent = parent;
    page->isolation = *isolation;
    page->n_children = 0;
    memcpy(pool_tokens(x->pool, page), tokens, x->pool->page_tokens * sizeof(*tokens));
    page->next = *head;
    *head = pool_number(x->pool, page);
    if (parent != NO_PAGE)
        x->pool->page[parent].n_children++;
    watch_came(&x->watch, pool_number(x->pool, page));
}

void prefix_remove(struct prefix *x, struct page *page) {
    kv_page *at = prefix_bucket(x, page->key), number = pool_number(x->pool, page);

    assert(page->n_children == 0);
    watch_went(&x->watch, number);
    while (*at != number) {
        assert(*at != NO_PAGE);
        at = &x->pool->page[*at].next;
    }
    *at = page->next;
    if (page->parent != NO_PAGE) {
        assert(x->pool->page[page->parent].n_children > 0);
        x->pool->page[page->parent].n_children--;
    }
}
