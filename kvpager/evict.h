#pragma once

/*
 * evict - the cached pages that nobody holds, in the order in which they go. Private to kvpager/.
 *
 * Leaves must go before parents: without its parent a page could never be found again, and its
 * comparison by parent page would point to something else. A priority queue of leaves would do; a
 * plain list is enough, because of how it is filled. Whoever holds a page holds its parent too, and
 * gives its pages back from the last to the first. So a parent becomes idle after its children, and
 * stands behind them; when it is taken and given back alone it moves further back. The front of the
 * list is therefore always a leaf, and it is the least recently used page of all: O(1), no search.
 */

#include "kvpager/pool.h"

struct evict {
    struct list idle; /* page.link, least recently given back first */
};

void evict_init(struct evict *e);
void evict_add(struct evict *e, struct page *page);    /* given back by its last holder */
void evict_remove(struct evict *e, struct page *page); /* taken by somebody */
struct page *evict_pop(struct evict *e);               /* the next to go; NULL: none */
