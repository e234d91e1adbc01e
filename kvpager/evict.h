#pragma once

/*
 * evict - the cached pages, in the order of eviction. Private to kvpager/.
 *
 * Leaves must go before parents: without its parent a page could never be found again, and its
 * comparison by parent page would point to something else. The order in which pages become idle
 * makes a plain list enough; a priority queue is not needed. A sequence that holds a page holds its
 * parent too, and releases its pages from the last to the first. A parent therefore becomes idle
 * after its children and is behind them in the list; if it is taken and released alone, it moves
 * further back. The front of the list is therefore always a leaf and the least recently used page:
 * O(1), no search.
 */

#include "kvpager/pool.h"

/* Invariant: the list holds exactly the cached pages of the pool. */
struct evict {
    /* page.link, least recently given back first */
    struct list idle;
};

/* Initialises an empty list. */
void evict_init(struct evict *e);
/* Adds @page, which its last holder has given back; it is evicted after all pages in the list. */
void evict_add(struct evict *e, struct page *page);
/* Adds @page, which is older than the pager; it is evicted before all pages in the list. */
void evict_add_oldest(struct evict *e, struct page *page);
/* Removes @page from the list: a sequence takes it, or it is freed. */
void evict_remove(struct evict *e, struct page *page);
/* Removes and returns the page to evict next, which has no children; NULL: there is none. */
struct page *evict_pop(struct evict *e);
