#pragma once

/*
 * recurrent - code shared by the files of recurrent layers: the convolution is computed row by row,
 * then each head updates its state with all rows of a sequence in their order.
 */

#include "engine/cpu/state.h"

/* Buffers for the largest batch, allocated at open. */
struct recurrent {
    float *in[OP_MATRICES]; /* [max_rows][n_in] as STATE_IN left them */
    float *c;               /* [max_rows][n_in[0]] after the convolution */
    /* [max_rows][heads] two numbers of a head, for ops that have them; KDA: the first one for each
     * key */
    float *mix[2];
    float *state;                       /* [n_states]: [layers][n_floats], then state.n_more */
    uint32_t n_states, n_heads, n_keep; /* n_keep: of a row's mix[0] */
};

/* Context of the threads for an op. */
struct recurrent_run {
    struct step *step;
    const struct model_op *op;
};

/* Returns the state of sequence @i of the batch in the op's layer. */
float *recurrent_state(const struct recurrent_run *k, uint32_t i);
/* Computes c of row @row. Earlier rows of in[0] that are not in the batch are in the state. */
void recurrent_convolve(const struct recurrent_run *k, uint32_t row, const float *bias, bool silu);
/* Zeroes the earlier rows of new sequences, before rows are convolved. */
void recurrent_begin(const struct recurrent_run *k);
/* Keeps the last rows of in[0] for the next step, when all rows have been convolved. */
void recurrent_end(const struct recurrent_run *k);
