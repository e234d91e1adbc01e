#pragma once

/*
 * pool - the pages, their states and how many page tables hold each. Private to kvpager/.
 */

#include <stdbool.h>
#include <xxhash.h>

#include "base/list.h"
#include "kvpager/kvpager.h"

#define NO_PAGE KV_NO_PAGE

/* The states of a page; pager.c explains each of them and the transitions. */
enum page_state { PAGE_FREE, PAGE_OWNED, PAGE_SHARED, PAGE_CACHED, PAGE_STATES };

/* A page; the legal changes of its state are in pool.c, the functions that make them in pager.c. */
struct page {
    /* in pool.free or evict.idle, else in no list */
    struct list link;
    /* number of page tables that hold the page */
    uint32_t refs;
    /* number of these page tables that belong to pinned sequences */
    uint32_t pinned;
    enum page_state state;
    /* Members of a published (shared or cached) page, up to isolation. */
    /* number of published pages whose parent this page is */
    uint32_t n_children;
    /* the page before it, NO_PAGE at position 0 */
    kv_page parent;
    /* next page in its bucket */
    kv_page next;
    struct kv_isolation isolation;
    XXH128_hash_t key;
    /* snapshot of the state behind the page; KV_NO_SNAPSHOT: none */
    uint32_t snapshot;
    /* window page, also of an owned page; NO_PAGE: none */
    kv_page window;
};

/* Invariants: n_in[] counts the pages of each state, n_pages in all; `free` holds exactly the free
 * pages. */
struct pool {
    /* [n_pages] pages */
    struct page *page;
    /* [n_pages][page_tokens] tokens of published pages */
    int32_t *tokens;
    uint32_t n_pages, page_tokens;
    /* page.link */
    struct list free;
    uint32_t n_in[PAGE_STATES];
};

/* Makes a pool of free pages. Returns 0 or -ENOMEM; pool_deinit() is allowed after a failure. */
int pool_init(struct pool *pool, uint32_t n_pages, uint32_t page_tokens);
void pool_deinit(struct pool *pool);

/* Changes the state of @page; no other function does. Asserts that the change is legal. */
void pool_set_state(struct pool *pool, struct page *page, enum page_state to);

/* Changes a free page to owned with one holder, the caller. There must be a free page. */
struct page *pool_acquire(struct pool *pool);
/* Changes an owned or cached page, which has no holders and is in no list, to free. */
void pool_release(struct pool *pool, struct page *page);

/* Returns true if @page is in the prefix table, where sequences can find it. */
static inline bool pool_is_published(const struct page *page) {
    return page->state == PAGE_SHARED || page->state == PAGE_CACHED;
}

/* Returns the number of @page in page tables and for callers. */
static inline kv_page pool_number(const struct pool *pool, const struct page *page) {
    return (kv_page)(page - pool->page);
}

/* Returns the tokens of @page, [page_tokens], valid for a published page. */
static inline int32_t *pool_tokens(const struct pool *pool, const struct page *page) {
    return pool->tokens + (size_t)pool_number(pool, page) * pool->page_tokens;
}
