#pragma once

/*
 * condensed - the places of keys of attention to condensed keys (struct condensed_shape): keys of
 * blocks are in pages, keys of windows in states.
 */

#include "engine/backend.h"

/* Returns the number of values of a page before the key of the block of @block positions that ends
 * at @pos; @first values of the block's keys precede it, and it has @n values. Keys of a layer lie
 * one behind the other, those of short blocks in front of those of long ones. */
static inline uint64_t condensed_at(const struct model_shape *s, uint32_t page_tokens,
                                    uint32_t block, uint64_t first, uint64_t n, uint32_t pos) {
    uint64_t short_end = s->condensed.n_short * (page_tokens / BLOCK_SHORT);
    uint64_t slots = (page_tokens + block - 1) / block;

    return (block == BLOCK_LONG ? short_end : 0) + first * slots + pos % page_tokens / block * n;
}

/* Returns the number of rows of a window in the state; position p has row p % rows. A block that
 * drafts needs more rows, because it writes keys of drafts before the keys in front of the first
 * draft are read again. */
static inline uint32_t window_rows(const struct model_shape *s, const struct model_op *op) {
    return s->condensed.window + (op->layer >= s->n_layer ? ENGINE_DRAFT_MAX : 0);
}

/* Returns the number of values of a state before the window of an op's layer. */
static inline uint64_t window_at(const struct model_shape *s, const struct model_op *op) {
    const struct state_shape *t = &s->state;

    return op->layer >= s->n_layer ? t->n_layer * t->n_floats + op->more : op->state * t->n_floats;
}
