#pragma once

/*
 * kernels_recurrent - arguments, grids and addresses of the kernels of recurrent layers.
 * engine/op.h gives the formulas and names their symbols.
 */

#include <stddef.h>
#include <stdint.h>
#include "engine/cuda/kernels.h"

#define STATE_TAPS 8u      /* most taps of a convolution */
#define DELTA_THREADS 128u /* threads of a block of delta() */
#define DELTA_VALUES 32u   /* values of a head that a block of delta() computes */
#define DELTA_ROWS 8u      /* rows in shared memory; the next DELTA_ROWS are in flight */
#define DELTA_DIM 128u     /* most values of a head */

/* Argument of the three kernels of a gated delta net or of Kimi delta attention (engine/op.h). The
 * layer's state of slot s is at state + s stride: [n_taps - 1][channels] of u, oldest first, then a
 * matrix of each value head in the order of delta_place(). A new sequence does not read it.
 *   delta_in    grid x rows, y (2 n_key_head + n_value_head) / 8: computes c, mix and keep from in
 *   delta, kda  grid x sequences, or more, y n_value_head * (dim / DELTA_VALUES, rounded up);
 *               DELTA_THREADS threads: out = M^T q, without the norm, and the state
 *   delta_out   grid x rows; PACK_THREADS threads: out = norm(out) silu(z), packed
 * There are dim * (2 n_key_head + n_value_head) channels; dim: 16, 32, 64 or 128. */
struct delta_args {
    const struct batch_head *batch;
    const float *in[4];   /* u, z, beta, alpha; joined: u, z, both; Kimi: u's queries, z, -, beta */
    const float *more[2]; /* Kimi: u's keys, u's values; else NULL */
    const float *taps;    /* [n_taps][channels] */
    const float *dt, *decay, *norm; /* [n_value_head] (Kimi: times dim), [n_value_head], [dim] */
    float *c;                       /* [rows][channels]: q and k of unit length, v */
    float *mix;                     /* [rows][n_value_head][2]: e^g (Kimi: 0), sigmoid(beta) */
    float *keep;   /* Kimi: [rows][n_value_head][dim] raw decays, which become e^g; else NULL */
    float *out;    /* [rows][n_value_head * dim] */
    float *state;  /* state of the layer */
    size_t stride; /* values from a slot to the next */
    uint32_t n_key_head, n_value_head, dim, n_taps, tiled, joined;
    uint32_t sigmoid;      /* the gate is sigmoid(z), not silu(z) */
    float eps, lower;      /* lower: as in delta_shape */
    struct pack_args pack; /* packs out */
};

/* Argument of the three kernels of Mamba-2 (engine/op.h). A state is laid out like a delta net's,
 * with n_state keys and dim values of a head.
 *   mamba_in   grid x rows, y channels / CUDA_THREADS, rounded up: computes c and mix from in
 *   mamba      grid x sequences, or more, y n_head * (dim / DELTA_VALUES, rounded up);
 *              DELTA_THREADS threads: out = M^T C + D x, and the state
 *   mamba_out  grid x rows; PACK_THREADS threads: out = norm(out silu(z)), packed
 * There are n_head dim + 2 n_group n_state channels; n_state: 16, 32, 64 or 128. */
struct mamba_args {
    const struct batch_head *batch;
    const float *in[3];             /* u, z, dt */
    const float *taps, *bias;       /* [n_taps][channels], [channels] or NULL */
    const float *dt, *decay, *skip; /* [n_head]: bias of dt, A, D */
    const float *norm;              /* [n_head * dim] */
    float *c;                       /* [rows][channels] */
    float *mix;                     /* [rows][n_head][2]: e^(dt A), dt */
    float *out;                     /* [rows][n_head * dim] */
    float *state;                   /* state of the layer */
    size_t stride;                  /* values from a slot to the next */
    uint32_t n_head, dim, n_group, n_state, n_taps;
    float eps;
    struct pack_args pack; /* packs out */
};

/* Argument of a short convolution (engine/op.h). The state of slot s is at state + s stride:
 * [n_taps - 1][n] of the convolution's input, oldest first.
 *   conv       grid x rows, y n / CUDA_THREADS, rounded up: out
 *   conv_keep  grid x sequences, or more, y as for conv: the state */
struct conv_args {
    const struct batch_head *batch;
    const float *in[3]; /* [rows][n] b, c, u */
    const float *taps;  /* [n_taps][n] */
    float *out;         /* [rows][n] */
    float *state;       /* state of the layer */
    size_t stride;      /* values from a slot to the next */
    uint32_t n, n_taps;
};

/* Returns the place of key @i of value @j in a head's matrix. The matrix is stored in the order in
 * which a warp holds it: eight values, four lanes for each, and 16 bytes of consecutive keys of a
 * lane. */
MX_FN uint32_t delta_place(uint32_t dim, uint32_t i, uint32_t j) {
    uint32_t lane = j % 8 * 4 + i / 4 % 4;

    return j / 8 * 8 * dim + i / 16 * 128 + lane * 4 + i % 4;
}
