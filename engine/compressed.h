#pragma once

/*
 * compressed - where attention to compressed keys (struct compressed_shape) has its keys:
 * compressed keys of blocks in pages, keys of the window in states.
 */

#include "engine/backend.h"

/* Returns the offset in a page, in values, of the key of the block of @block positions that ends at
 * @pos. The key has @n values; the layers before take @first values per block. Keys of a layer are
 * contiguous, and those of short blocks precede those of long blocks. */
static inline uint64_t compressed_at(const struct model_shape *s, uint32_t page_tokens,
                                     uint32_t block, uint64_t first, uint64_t n, uint32_t pos) {
    uint64_t short_end = s->compressed.n_short * (page_tokens / BLOCK_SHORT);
    uint64_t slots = (page_tokens + block - 1) / block;

    return (block == BLOCK_LONG ? short_end : 0) + first * slots + pos % page_tokens / block * n;
}

/* Returns the number of rows of a window in the state; position p is in row p % rows. A draft block
 * needs more rows, because it overwrites rows with keys of drafts before the keys that precede the
 * first draft are read again. */
static inline uint32_t window_rows(const struct model_shape *s, const struct model_op *op) {
    return s->compressed.window + (op->layer >= s->n_layer ? ENGINE_DRAFT_MAX : 0);
}

/* Returns the offset in a state, in values, of the window of the layer of @op. */
static inline uint64_t window_at(const struct model_shape *s, const struct model_op *op) {
    const struct state_shape *t = &s->state;

    if (op->layer >= s->n_layer)
        return t->n_layer * t->n_floats + op->more;
    return op->csa.state * t->n_floats;
}
