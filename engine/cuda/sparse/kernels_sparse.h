#pragma once

/*
 * kernels_sparse - arguments, grids and buffers for attention to the keys that an indexer chooses
 * (OP_INDEX, OP_ATTEND). The indexer rotates queries by turn_heads and chooses by score_blocks and
 * choose_blocks, kernels of condensed/.
 */

#include "engine/cuda/condensed/kernels_condensed.h"
#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPARSE_PART 128u /* keys of a row in one block's part */
#define SPARSE_DIM 256u  /* most values of a head */

/* Argument of mean_keys, which stores the keys of the blocks that end at a row in their pages.
 * Tokens before the step are read from the state: for slot s at state + s stride, position p at p %
 * block. Grid: x rows. */
struct mean_args {
    const struct batch_head *batch;
    const float *k; /* [rows][end.keys.n] */
    const float *state;
    size_t stride;
    struct key_end end;
};

/* Argument of attention for rows [row0, row0 + n_rows). A row attends to the keys of its chosen
 * blocks, in ascending order, then to all keys after the last whole block. This list is divided
 * into parts of SPARSE_PART keys (split-K).
 *   attend_sparse  computes each part: o without its divisor, then m and l (attention.cu); grid x
 *                  n_parts, y rows times key heads times groups of LEAN_HEADS heads
 *   merge_sparse   merges the parts from left to right into o; grid x rows, y n_head dim / 4 /
 *                  CUDA_THREADS, rounded up */
struct sparse_args {
    const struct batch_head *batch;
    const float *q;       /* [rows][n_head][head_dim] */
    float *o, *partial;   /* [rows][n_head][head_dim]; [n_rows][n_head][n_parts][head_dim + 4] */
    const uint8_t *pages; /* pages of the layer */
    struct page_shape shape;
    const uint32_t *pick, *n_pick;                             /* as in pick_args */
    uint32_t cls, row0, n_head, group, block, n_best, n_parts; /* block: positions of one */
    float scale;
};

/* Buffers for the largest batch. */
struct sparse {
    float *k;         /* keys of the indexer */
    uint32_t n_parts; /* most parts of the keys of a row */
    uint32_t n_rows;  /* rows for whose parts be.attention.partial has room */
};

struct be;
struct model_op;
struct model_shape;

/* Returns the name of a property of such an op that is not supported, or NULL. */
const char *sparse_lacks(const struct model_shape *s, const struct model_op *op);
/* Sets be.sparse.n_rows from be.attention.partial_bytes, which it raises to the room for one row at
 * least. */
void sparse_divide(struct be *b);
/* Returns the bytes of the blocks' keys of all layers in a page. They are stored after the pages of
 * the layers' keys and values, as if they were one more layer. */
size_t sparse_page_bytes(const struct be *b);

#ifdef __cplusplus
}
#endif
