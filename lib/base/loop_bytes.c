#include "base/loop_bytes.h"

#include <assert.h>
#include <stdlib.h>

_Thread_local loop_watcher *loop_watch;

static _Thread_local size_t n_turn, n_items; /* of the present callback */

void loop_watch_turn(void) {
    n_turn = n_items = 0;
}

void loop_watch_limits(size_t bytes, size_t items) {
    n_turn += bytes;
    n_items += items;
    assert(bytes <= LOOP_BYTES_MAX && "too many bytes in one call on the event loop");
    assert(n_turn <= LOOP_BYTES_TURN_MAX && "too many bytes in one callback of the event loop");
    assert(n_items <= LOOP_ITEMS_MAX && "too many items in one callback of the event loop");
}

void loop_watch_set(bool on) {
    if (on && !loop_watch && getenv("WEFT_WATCH_LOOP"))
        loop_watch = loop_watch_limits;
    else if (!on && loop_watch == loop_watch_limits)
        loop_watch = NULL;
}
