#pragma once

/*
 * recurrent - what the files of recurrent layers share: rows go through the convolution one by one,
 * then heads, each with all rows of a sequence in their order, through its state.
 */

#include "engine/cpu/state.h"

/* Buffers for the largest batch, allocated at open. */
struct recurrent {
    float *in[OP_MATRICES]; /* [max_rows][n_in] as STATE_IN left them */
    float *c;               /* [max_rows][n_in[0]] after the convolution */
    /* [max_rows][heads] two numbers of a head, for ops that have such; KDA: the first for each of
     * its keys */
    float *mix[2];
    float *state;                       /* [n_states]: [layers][n_floats], then state.n_more */
    uint32_t n_states, n_heads, n_keep; /* n_keep: of a row's mix[0] */
};

/* Context of the threads for an op. */
struct recurrent_run {
    struct step *step;
    const struct model_op *op;
};

/* The state of sequence @i of the batch in the op's layer. */
float *recurrent_state(const struct recurrent_run *k, uint32_t i);
/* c of row @row: of the rows of in[0] before it those that are not in the batch are in the
 * state. */
void recurrent_convolve(const struct recurrent_run *k, uint32_t row, const float *bias, bool silu);
/* Before rows are convolved: what new sequences have behind them. */
void recurrent_begin(const struct recurrent_run *k);
/* When all rows are: the last ones of in[0] are kept for the next step. */
void recurrent_end(const struct recurrent_run *k);
