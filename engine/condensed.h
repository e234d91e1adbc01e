#pragma once

/*
 * condensed - where attention to condensed keys (struct condensed_shape) has its keys: those of
 * blocks in pages, those of windows in states.
 */

#include "engine/backend.h"

/* Values of a page in front of the key of a block of @block positions whose last is @pos; of the
 * block's keys @first values come before it, and it has @n. Keys of a layer lie one behind the
 * other, those of short blocks in front of those of long ones. */
static inline uint64_t condensed_at(const struct model_shape *s, uint32_t page_tokens,
                                    uint32_t block, uint64_t first, uint64_t n, uint32_t pos) {
    uint64_t short_end = s->condensed.n_short * (page_tokens / BLOCK_SHORT);
    uint64_t slots = (page_tokens + block - 1) / block;

    return (block == BLOCK_LONG ? short_end : 0) + first * slots + pos % page_tokens / block * n;
}

/* Rows of a window in the state, of which position p has row p % rows. A block that drafts writes
 * some ahead, behind which the keys in front of the first draft are read again. */
static inline uint32_t window_rows(const struct model_shape *s, const struct model_op *op) {
    return s->condensed.window + (op->layer >= s->n_layer ? ENGINE_DRAFT_MAX : 0);
}

/* Values of a state in front of the window of an op's layer. */
static inline uint64_t window_at(const struct model_shape *s, const struct model_op *op) {
    const struct state_shape *t = &s->state;

    return op->layer >= s->n_layer ? t->n_layer * t->n_floats + op->more : op->state * t->n_floats;
}
