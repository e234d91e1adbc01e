#include "kvpager/pool.h"

#include <assert.h>
#include <errno.h>

int pool_init(struct pool *pool, uint32_t n_pages, uint32_t page_tokens) {
    *pool = (struct pool){.n_pages = n_pages, .page_tokens = page_tokens};
    list_init(&pool->free);
    pool->page = calloc(n_pages, sizeof(*pool->page));
    pool->tokens = calloc(n_pages, (size_t)page_tokens * sizeof(*pool->tokens));
    if (!pool->page || !pool->tokens)
        return -ENOMEM;
    for (uint32_t i = 0; i < n_pages; i++)
        list_push_back(&pool->free, &pool->page[i].link);
    pool->n_in[PAGE_FREE] = n_pages;
    return 0;
}

void pool_deinit(struct pool *pool) {
    free(pool->page);
    free(pool->tokens);
    *pool = (struct pool){0};
}

void pool_set_state(struct pool *pool, struct page *page, enum page_state to) {
    static const bool legal[PAGE_STATES][PAGE_STATES] = {
        [PAGE_FREE] = {[PAGE_OWNED] = true},
        [PAGE_OWNED] = {[PAGE_FREE] = true, [PAGE_SHARED] = true},
        [PAGE_SHARED] = {[PAGE_CACHED] = true},
        [PAGE_CACHED] = {[PAGE_SHARED] = true, [PAGE_FREE] = true},
    };

    assert(legal[page->state][to]);
    pool->n_in[page->state]--;
    pool->n_in[to]++;
    page->state = to;
}

struct page *pool_acquire(struct pool *pool) {
    struct list *node = list_pop_front(&pool->free);

    assert(node);
    struct page *page = LIST_ENTRY(node, struct page, link);
    pool_set_state(pool, page, PAGE_OWNED);
    page->refs = 1;
    return page;
}

/* Frees a page. It is the first to be taken again, since its bytes are the likeliest to be in a
 * hardware cache. */
void pool_release(struct pool *pool, struct page *page) {
    assert(page->refs == 0 && page->pinned == 0);
    assert(list_empty(&page->link));
    pool_set_state(pool, page, PAGE_FREE);
    list_push_front(&pool->free, &page->link);
}
