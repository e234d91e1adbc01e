#pragma once

/*
 * kernels_blocks - arguments of the kernels of block drafters (engine/blocks.h).
 */

#include "engine/cuda/kernels.h"

/* out = convolution of the rows of in, over the rows of their sequence (block_convolve()). Grid:
 * rows. */
struct convolve_args {
    const struct batch_head *batch;
    const float *in, *d, *base; /* [rows][n]; [rows][2][kernel][n / group]; [2][kernel][n] */
    float *out;                 /* [rows][n] */
    uint32_t n, kernel, group, side;
};

#define SELECT_CANDIDATES 64u

/* The selector of a block drafter (block_select()), for wants from @first on. candidates: the
 * largest top_k of each want's logits to pick, as samp_rank() orders them; all its logits
 * become less than any candidate's. choose_candidate: the scores of the candidates, behind the
 * choice of the want before, which is best[want]. Grid: wants. */
struct select_args {
    const struct batch_head *batch;
    struct tile_source before, after; /* [tokens][rank]: predecessors, successors */
    const float *g;                   /* [wants][rank] */
    float *logits;                    /* [wants][n_vocab] */
    uint64_t *pick;                   /* [wants][top_k] */
    int32_t *best;                    /* of all wants of the step */
    uint32_t first, n_vocab, rank, top_k;
};

#define CHAIN_RANK 4096u
#define CHAIN_TOKENS 64u

/* The chain of a block drafter (OP_CHAIN), for wants from @first on in row @place of their blocks:
 * adds to a token's logit the product of its row of @after and the row of @before of the token
 * before, which is the best of the want before. best[want]: samp_rank() of its best token, 0
 * before its launch; the launch of a place makes that of the place behind 0, and does nothing else
 * in front of @first_draft. Grid: x tokens / CHAIN_TOKENS, rounded up, y wants. */
struct chain_args {
    const struct batch_head *batch;
    struct tile_source before, after; /* [tokens][rank] */
    float *logits;                    /* [wants][n_vocab] */
    uint64_t *best;                   /* of all wants of the step */
    uint32_t first, n_vocab, rank, first_draft, place;
};
