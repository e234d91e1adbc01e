#pragma once

/*
 * loop_bytes - checks in tests that one call on the event loop's thread moves few bytes and visits
 * few items. The functions that copy, parse, check or write bytes call loop_bytes(), and loops over
 * lists (LIST_FOREACH), tenants and stored items call loop_items(). Both do nothing on a thread
 * without a watcher, as those of the pool; the loop's thread has one in tests only.
 */

#include <stdbool.h>
#include <stddef.h>

#define LOOP_BYTES_MAX (256u << 10)    /* of one call; more belong on the pool or into turns */
#define LOOP_BYTES_TURN_MAX (4u << 20) /* of all calls of one callback of the loop */
#define LOOP_ITEMS_MAX 65536u          /* of all loops of one callback */

/* Is told what is about to be moved or visited; one of the numbers is 0. */
typedef void loop_watcher(size_t bytes, size_t items);

extern _Thread_local loop_watcher *loop_watch; /* NULL: this thread is not watched */

/* Tells that this thread is about to move @n bytes. */
static inline void loop_bytes(size_t n) {
    if (loop_watch)
        loop_watch(n, 0);
}

/* Tells that this thread visits @n items more. */
static inline void loop_items(size_t n) {
    if (loop_watch)
        loop_watch(0, n);
}

/* The watcher of tests: aborts above one of the limits. */
void loop_watch_limits(size_t bytes, size_t items);
/* Notes that another callback of the loop begins. */
void loop_watch_turn(void);
/* Watches this thread, the loop's, by loop_watch_limits() if the environment has WEFT_WATCH_LOOP
 * and it has no watcher; @on false: ends that. */
void loop_watch_set(bool on);
