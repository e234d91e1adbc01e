#pragma once

/*
 * watch - tracks which published pages came and went since the last report. Private to kvpager/.
 *
 * A log of changes could grow without bound while no one reads it. So the last reported content is
 * kept for each page instead: memory is bounded by the number of pages however slowly changes are
 * read, and a page that was published and freed in between is not reported at all.
 *
 * Invariants. `reported` is the block that was last reported to be in the page; 0: none. A page is
 * in `gone` if reported is not 0 and the page does not hold that block any more; in `came` if it is
 * published and reported is not its content, or is still to be reported as gone. `came` is in the
 * order of publishing, so a parent is before its children there, or has been reported.
 */

#include <stdbool.h>

#include "kvpager/pool.h"

/* Tracks which changes of one page have been reported. */
struct watched {
    struct list gone, came;
    uint64_t reported;
};

/* The lists hold struct watched; only the pager's thread uses them. */
struct watch {
    /* [n_pages]; NULL: nothing is watched, and the functions do nothing */
    struct watched *at;
    struct list gone, came;
};

/* Starts with no pages and nothing reported. Returns 0 or -ENOMEM; watch_deinit() accepts a failed
 * or zeroed watch. */
int watch_init(struct watch *w, uint32_t n_pages);
void watch_deinit(struct watch *w);
/* Notes that page @page has been published, or is not published any more. */
void watch_came(struct watch *w, kv_page page);
void watch_went(struct watch *w, kv_page page);
/* Returns the next block that is no longer published, and counts it as reported; 0: there is
 * none. */
uint64_t watch_next_gone(struct watch *w);
/* Returns the next published page to be reported, after watch_next_gone() has returned 0; the
 * caller sets its `reported`. NO_PAGE: there is none. */
kv_page watch_next_came(struct watch *w);
