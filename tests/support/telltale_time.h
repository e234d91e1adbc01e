#pragma once

/* telltale_time - computes the time of a step in virtual time. Private to the tell-tale engine. */

#include "tests/support/telltale.h"

static inline bool is_of_state(const struct engine_copy *c) {
    return c->dir == COPY_STATE_SAVE || c->dir == COPY_STATE_LOAD;
}

/* Returns the ns of step @b on the machine @t. */
double telltale_ns(const struct telltale *t, const struct engine_batch *b, uint32_t page_tokens);
