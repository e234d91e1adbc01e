#pragma once

/*
 * watch - which published pages came and went since they were told last. Private to kvpager/.
 *
 * Not a log of what happened, which could grow, but per page what was told of it: so it is bounded
 * by the number of pages however slowly it is read, and what came and went in between is not told
 * at all.
 *
 * Invariants. `told` is the block that was told to be in the page, 0: none. A page is in `gone` if
 * told is not 0 and it does not hold that any more; in `came` if it is published and told is not
 * what it holds, or is to be told as gone first. `came` is in the order of publishing, so a parent
 * is before its children there, or has been told.
 */

#include <stdbool.h>
#include "kvpager/pool.h"

/* Tracks what has been reported of one page. */
struct watched {
    struct list gone, came;
    uint64_t told;
};

/* The lists are of struct watched; all of it is the pager's thread's. */
struct watch {
    struct watched *at; /* [n_pages]; NULL: nothing is watched, and the rest does nothing */
    struct list gone, came;
};

/* Starts with no pages and nothing reported. 0 or -ENOMEM; watch_deinit() accepts a failed or
 * zeroed watch. */
int watch_init(struct watch *w, uint32_t n_pages);
void watch_deinit(struct watch *w);
/* Page @page has been published, or is not any more. */
void watch_came(struct watch *w, kv_page page);
void watch_went(struct watch *w, kv_page page);
/* The next block that is gone, which is told now; 0: there is none. */
uint64_t watch_next_gone(struct watch *w);
/* The next page that came, when no block is gone: the caller sets its `told`. NO_PAGE: none. */
kv_page watch_next_came(struct watch *w);
