/*
 * restore - enters pages that an earlier process has left on a disk as cached pages, and removes
 * pages that turn out to be damaged.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "kvpager/private.h"

int kv_pager_restore(struct kv_pager *p, kv_page number, kv_page parent,
                     const struct kv_isolation *isolation, const int32_t *tokens) {
    struct pool *pool = &p->pool;

    if (number >= pool->n_pages || pool->page[number].state != PAGE_FREE)
        return -EINVAL;
    if (parent != NO_PAGE &&
        (parent >= pool->n_pages || !pool_is_published(&pool->page[parent]) ||
         memcmp(&pool->page[parent].isolation, isolation, sizeof(*isolation)) != 0))
        return -EINVAL;
    struct page *page = &pool->page[number];
    XXH128_hash_t above = parent == NO_PAGE ? pager_root_key(p, isolation) : pool->page[parent].key;
    XXH128_hash_t key = prefix_key(&p->prefix, above, tokens);

    if (prefix_find(&p->prefix, key, parent, isolation, tokens))
        return -EEXIST;
    list_remove(&page->link);
    pool_set_state(pool, page, PAGE_OWNED);
    prefix_add(&p->prefix, page, key, parent, isolation, tokens);
    pool_set_state(pool, page, PAGE_SHARED);
    pool_set_state(pool, page, PAGE_CACHED);
    evict_add_oldest(&p->evict, page); /* evicted before its parent: see evict.h */
    return 0;
}

enum { UNKNOWN, STAYS, GOES };

/* Returns GOES if page @i is @bad or one of its descendants. Marks the pages on the way up, so that
 * each page is visited once and a pass over all pages takes linear time. */
static uint32_t fate_of(struct kv_pager *p, kv_page i, kv_page bad) {
    kv_page at = i;

    while (at != NO_PAGE && at != bad && p->tally[at].seen == UNKNOWN)
        at = p->pool.page[at].parent;
    uint32_t fate = STAYS;
    if (at == bad)
        fate = GOES;
    else if (at != NO_PAGE)
        fate = p->tally[at].seen;
    for (; i != at; i = p->pool.page[i].parent)
        p->tally[i].seen = fate;
    return fate;
}

int kv_pager_forget(struct kv_pager *p, kv_page number) {
    struct pool *pool = &p->pool;

    assert(number < pool->n_pages);
    memset(p->tally, 0, pool->n_pages * sizeof(*p->tally));
    for (kv_page i = 0; i < pool->n_pages; i++)
        if (pool_is_published(&pool->page[i]) && fate_of(p, i, number) == GOES &&
            pool->page[i].state == PAGE_SHARED)
            return -EBUSY;
    /* The list has children before their parents, so each has lost its children when it is
     * removed. */
    LIST_FOREACH(node, &p->evict.idle) {
        struct page *page = LIST_ENTRY(node, struct page, link);

        if (fate_of(p, pool_number(pool, page), number) != GOES)
            continue;
        evict_remove(&p->evict, page);
        prefix_remove(&p->prefix, page);
        snapshot_drop(p, page);
        windows_drop(p, page);
        pool_release(pool, page);
    }
    return 0;
}
