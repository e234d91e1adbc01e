#pragma once

/*
 * Residual streams that are blended (OP_SPREAD, OP_BLEND) and attention to condensed keys
 * (OP_LEAN_IN to OP_LEAN_OUT): the arguments of the kernels and the buffers. Formulas and
 * letters: engine/op.h.
 */

#include <stddef.h>
#include <stdint.h>
#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BLEND_STREAMS 8u /* residual streams, at most */
#define PICK_ROWS 64u    /* rows whose blocks are scored at a time */
#define PICK_HEADS 256u  /* queries of an indexer, at most */
#define PICK_DIM 128u    /* values of a query, at most */
#define PICK_QUERY 8192u /* values of a row's queries, at most, by 16 queries of 32 values */
#define LEAN_TILE 32u    /* keys in shared memory at a time */
#define LEAN_HEADS 16u   /* heads of a block */
#define LEAN_DIM 512u    /* values of a head, at most */

/* x = the sum of a row's streams times their weights, b = 0; the weights of SPREAD to @weight. They
 * are made of low, the product with the streams, which is divided here by the rms of all streams
 * together, by Sinkhorn's rounds (engine/sinkhorn.h). Grid: rows. */
struct blend_args {
    const struct batch_head *batch;
    const float *s;            /* [rows][n_stream][n] */
    const float *low;          /* [rows][n_low] */
    const float *scale, *base; /* each part of low; [n_low] */
    float *x, *b;              /* [rows][n] */
    float *weight;             /* [rows][n_stream + n_stream^2] */
    uint32_t n, n_stream, rounds;
    uint32_t
        n_low; /* n_stream: there are no weights but those of x; else n_stream (n_stream + 2) */
    float eps, rms_eps;
};

/* s[i] = weight[i] x + the sum over j of weight[n_stream + j n_stream + i] s[j]; without @shares
 * s[i] += weight[i] x, of weights [rows][n_stream]; without weights s[i] = x. Grid: x rows, y n /
 * CUDA_THREADS, rounded up. */
struct spread_args {
    const struct batch_head *batch;
    const float *x, *weight; /* [rows][n]; blend_args.weight or NULL */
    float *s;
    uint32_t n, n_stream, shares;
};

/* Rotation of @n_rot of @dim values, from @first on, by pairs. */
struct lean_rope {
    uint32_t dim, first, n_rot, neox;
};

/* Heads of x, in place: divided by their rms with @normed, then times norm, if there is one, then
 * turned. Grid: x rows, y n_head / 8, rounded up. */
struct turn_args {
    const struct batch_head *batch;
    float *x;                 /* [rows][n_head][dim] */
    const float *norm, *rope; /* [dim] or NULL; [rows][n_rot / 2][2] */
    struct lean_rope turn;
    uint32_t n_head, normed;
    float eps;
};

/* Keys of blocks lie at condensed_at() in the pages, in units of halves. */
struct block_keys {
    uint8_t *pages;
    size_t page_bytes, at;          /* at: of the layer's keys in a page */
    uint32_t page_tokens, block, n; /* n: values of a key */
};

/* Operands that make a block's key of the mean of its tokens: norm, rotation by the block's first
 * position, and the place in the page. */
struct key_end {
    const float *norm;  /* [keys.n] */
    const double *freq; /* [turn.n_rot / 2] */
    struct block_keys keys;
    struct lean_rope turn;
    float eps, mscale;
};

/* The keys of the blocks that end at a row, to their pages. Tokens before the step are in the
 * state: of slot s at state + s stride, position p at 2 (p % n_kept) width, u and then g. Grid:
 * rows. */
struct condense_args {
    const struct batch_head *batch;
    const float *u, *g; /* [rows][width] */
    const float *place; /* [width][block] */
    const float *state;
    size_t stride;
    struct key_end end;
    uint32_t width, n_kept, overlaps; /* overlaps: the block before counts, too */
};

/* Keeps the last @n_kept rows of each sequence in its state, where position p has place p % n_kept:
 * of each of @n_from arrays @width values. Grid: x sequences, or more, y n_kept. */
struct keep_rows_args {
    const struct batch_head *batch;
    const float *from[2]; /* [rows][width] */
    float *state;
    size_t stride; /* values from a slot to the next */
    uint32_t n_from, width, n_kept;
};

/* The choice of blocks for rows [row0, row0 + PICK_ROWS).
 *   score_blocks   score[row - row0][block] = the sum over heads of weight max(0, q . key), where a
 *                  row has more than n_best whole blocks; grid x PICK_ROWS, or fewer, y any
 *   choose_blocks  pick[row]: the n_best of the largest scores (ties: the first), in their order;
 *                  n_pick; grid: as x above */
struct pick_args {
    const struct batch_head *batch;
    const float *q, *weight; /* [rows][n_head][keys.n]; [rows][n_head] or NULL: all are 1 */
    float *score;            /* [PICK_ROWS][stride] */
    uint32_t *pick, *n_pick; /* [rows][n_best], [rows] */
    struct block_keys keys;
    uint32_t row0, n_head, n_best, stride;
    float by; /* factor of the weights */
};

/* o = attention of q to the last @window keys, of the state and of the step, and to the row's
 * blocks: those that are picked, or (pick NULL) all; turned back. A key is its value, too. Grid: x
 * rows, y n_head / LEAN_HEADS, rounded up. */
struct lean_args {
    const struct batch_head *batch;
    const float *q, *key, *sinks; /* [rows][n_head][dim], [rows][dim], [n_head] */
    const float *state, *rope;    /* keep_rows_args.state; [rows][n_rot / 2][2] */
    float *o;                     /* [rows][n_head][dim] */
    const uint32_t *pick, *n_pick;
    size_t stride;
    struct block_keys keys; /* block 0: none */
    struct lean_rope turn;
    uint32_t n_head, window, n_best, n_kept; /* n_kept: keys of the window in the state */
    float scale;
};

/* Buffers for the largest batch, and the weights of the LEAN_IN before. */
struct condensed {
    float *s, *low, *weight; /* the streams' */
    float *r, *key, *t;      /* of LEAN_IN; r and t without norm and factor */
    float *u, *g;            /* [max_rows][2 widest key] */
    float *q, *score;        /* the indexer's queries; [PICK_ROWS][max_blocks] */
    uint32_t *pick, *n_pick; /* [max_rows][n_block], [max_rows] */
    uint32_t max_blocks;     /* short blocks of a context */
    uint32_t n_best;         /* that a row sees at most; fewer during the proof */
    const struct weights *in;
};

struct be;
struct model_op;
struct model_shape;

/* Returns the property of an op of this family that is not computed, in words, or NULL. */
const char *condensed_lacks(const struct model_shape *s, const struct model_op *op);
/* Returns likewise what is not computed of an indexer of @n_head queries. */
const char *indexer_lacks(uint32_t n_head, uint32_t dim);
/* Returns where product @i of such an op goes; NULL: it is of another family. */
float *condensed_target(const struct be *b, const struct model_op *op, int i);

#ifdef __cplusplus
}
#endif
