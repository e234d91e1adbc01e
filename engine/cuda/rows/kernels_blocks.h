#pragma once

/*
 * kernels_blocks - arguments of the kernels of block drafters (engine/blocks.h).
 */

#include "engine/cuda/kernels.h"

/* Argument of convolve: out is the convolution of `in` over the rows of a sequence
 * (block_convolve()). Grid: x rows. */
struct convolve_args {
    const struct batch_head *batch;
    /* [rows][n]; [rows][2][kernel][n / group]; [2][kernel][n] */
    const float *in, *d, *base;
    /* [rows][n] */
    float *out;
    uint32_t n, kernel, group, side;
};

#define SELECT_CANDIDATES 64u

/* Argument of the selector of a block drafter (block_select()), for wants from @first on. Grid: x
 * wants.
 *   candidates        pick = the top_k largest logits of each want, in the order of samp_rank();
 *                     all its logits are then reduced below any candidate's
 *   choose_candidate  logits of the candidates = their scores given the previous token;
 *                     best[want] = the best candidate, the previous token of the next want */
struct select_args {
    const struct batch_head *batch;
    /* [tokens][rank]: predecessors, successors */
    struct tile_source before, after;
    /* [wants][rank] */
    const float *g;
    /* [wants][n_vocab] */
    float *logits;
    /* [wants][top_k] */
    uint64_t *pick;
    /* one for each want of the step */
    int32_t *best;
    uint32_t first, n_vocab, rank, top_k;
};

#define CHAIN_RANK 4096u
#define CHAIN_TOKENS 64u

/* Argument of chain (OP_CHAIN), for wants from @first on that are row @place of their blocks. Adds
 * to the logit of each token the product of its row of @after and the row of @before of the
 * previous token, the best one of the previous want. best[want] is the samp_rank() of the want's
 * best token; it must be 0 before the launch. The launch of a place therefore sets the next place's
 * to 0; places before @first_draft do nothing else. Grid: x tokens / CHAIN_TOKENS, rounded up, y
 * wants. */
struct chain_args {
    const struct batch_head *batch;
    /* [tokens][rank] */
    struct tile_source before, after;
    /* [wants][n_vocab] */
    float *logits;
    /* one for each want of the step */
    uint64_t *best;
    uint32_t first, n_vocab, rank, first_draft, place;
};
