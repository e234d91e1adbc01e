#pragma once

/*
 * Attention to the keys that an indexer chooses (OP_INDEX, OP_ATTEND): the arguments of the kernels
 * and the buffers. The indexer's queries are turn_heads', its choice is score_blocks' and
 * choose_blocks' (condensed/).
 */

#include "engine/cuda/condensed/kernels_condensed.h"
#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPARSE_PART 128u /* keys of a row that a block of the grid weighs */
#define SPARSE_DIM 256u  /* values of a head, at most */

/* The keys of the blocks that end at a row, to their pages. Tokens before the step are in the
 * state: of slot s at state + s stride, position p at p % block. Grid: rows. */
struct mean_args {
    const struct batch_head *batch;
    const float *k; /* [rows][end.keys.n] */
    const float *state;
    size_t stride;
    struct key_end end;
};

/* Attention of rows [row0, row0 + n_rows) to the keys of their blocks, in ascending order, and to
 * all behind the last whole block. These keys, in this order, are divided into parts of
 * SPARSE_PART.
 *   attend_sparse  the result of each part: o without its divisor, then m and l (attention.cu);
 *                  grid x n_parts, y rows times key heads times groups of LEAN_HEADS heads
 *   merge_sparse   o, the parts from left to right; grid x rows, y n_head dim / 4 / CUDA_THREADS,
 *                  rounded up */
struct sparse_args {
    const struct batch_head *batch;
    const float *q;       /* [rows][n_head][head_dim] */
    float *o, *partial;   /* likewise; [n_rows][n_head][n_parts][head_dim + 4] */
    const uint8_t *pages; /* pages of the layer */
    struct page_shape shape;
    const uint32_t *pick, *n_pick;                             /* pick_args */
    uint32_t cls, row0, n_head, group, block, n_best, n_parts; /* block: its positions */
    float scale;
};

/* Buffers for the largest batch. */
struct sparse {
    float *q, *k, *score;    /* the indexer's queries and keys of tokens; [PICK_ROWS][max_blocks] */
    uint32_t *pick, *n_pick; /* [max_rows][n_best], [max_rows] */
    uint32_t max_blocks;     /* of a context */
    uint32_t n_best;         /* that a row sees at most; fewer during the proof */
    uint32_t n_parts;        /* of the keys of a row, at most */
    uint32_t n_rows;         /* whose parts be.attention.partial has room for */
};

struct be;
struct model_op;
struct model_shape;

/* Returns the property of such an op that is not computed, in words, or NULL. */
const char *sparse_lacks(const struct model_shape *s, const struct model_op *op);
/* Set the sizes of the buffers of be.sparse; the rows whose parts be.attention.partial_bytes have
 * room for, at least one's. */
void sparse_size(struct be *b);
void sparse_divide(struct be *b);
/* Sets the blocks that a row sees at most, @most or as many as the model has. */
void sparse_see_most(struct be *b, uint32_t most);
/* Returns the bytes that the keys of blocks of all layers take in a page. They are stored after the
 * pages of the layers' keys and values, like those of one more layer. */
size_t sparse_page_bytes(const struct be *b);

#ifdef __cplusplus
}
#endif
