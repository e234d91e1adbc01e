#pragma once

/*
 * recurrent - code that the files of recurrent layers share (cpu_delta.c, cpu_mamba.c, cpu_conv.c).
 * An op has three phases: rows are convolved one by one; each head of each sequence updates its
 * state with the sequence's rows in their order; and the last inputs of the convolution are stored
 * in the state.
 *
 * A state of a layer has the last kernel - 1 rows of in[0], the oldest first, then the data of the
 * op: a matrix for each head (cpu_rows.c), or nothing for short convolutions.
 */

#include "engine/cpu/state.h"

/* Buffers for the largest batch, allocated at open. */
struct recurrent {
    /* [max_rows][n_in[i]] the products of STATE_IN */
    float *in[OP_MATRICES];
    /* [max_rows][n_low]: those with LOW_DOWN */
    float *between[2];
    /* [max_rows][n_in[0]] the result of the convolution */
    float *c;
    /* [max_rows][n_keep] decays, and [max_rows][n_heads] sigmoid(beta) (DELTA, KDA) or the step
     * (MAMBA) */
    float *mix[2];
    /* [n_states]: [layers][n_floats], then n_more floats */
    float *state;
    /* n_keep: n_heads, or for KDA n_heads * dim */
    uint32_t n_states, n_heads, n_keep;
};

/* Context of the threads for an op. */
struct recurrent_run {
    struct step *step;
    const struct model_op *op;
};

/* Place of B of the first row; row r has them at r * stride, and C of all groups behind B. */
struct mamba_parts {
    const float *in;
    size_t stride;
};

/* Computes the step s = softplus(step + dt) and the decay e^(s decay) of a row's heads. */
void mamba_step_row(const struct recurrent_run *k, uint32_t row);
/* Advances the state of head i % n_head of sequence i / n_head by all rows of the sequence. */
void mamba_advance_head(const struct recurrent_run *k, uint32_t i, const struct mamba_parts *p);
/* Computes d = norm(y silu(z)) of a row, with the norm over the heads of a group if the op has
 * one. */
void mamba_finish_row(void *ctx, uint32_t row, uint32_t thread);
/* Norms the parts of a SCAN's row. */
void scan_norm_row(void *ctx, uint32_t row, uint32_t thread);
/* Computes a SCAN whose steps are those of heads. */
int scan_heads(struct step *s, const struct model_op *op);

/* Returns the state of sequence @i of the batch in the op's layer. */
float *recurrent_state(const struct recurrent_run *k, uint32_t i);
/* Computes c of row @row: the convolution of in[0] with the op's taps, with @bias (NULL: 0) and
 * silu. Rows of earlier steps are read from the state. */
void recurrent_convolve(const struct recurrent_run *k, uint32_t row, const float *bias, bool silu);
/* Zeroes the earlier rows in the states of new sequences. Called before rows are convolved. */
void recurrent_begin(const struct recurrent_run *k);
/* Stores the last rows of in[0] in the states for the next step. Called after all rows have been
 * convolved. */
void recurrent_end(const struct recurrent_run *k);
