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

/* Argument of the three kernels of a gated delta net, of Kimi delta attention or of Mamba-2
 * (engine/op.h). Groups of Mamba-2 count as key heads, its C as queries, B as keys and x as values.
 * The layer's state of slot s is at state + s stride: [n_taps - 1][channels] of u, oldest first,
 * then a matrix of each value head in the order of delta_place(). A new sequence does not read it.
 *   delta_in           grid x rows, y (2 n_key_head + n_value_head) / 8: computes c, mix and keep
 *   mamba_in           grid x rows, y channels / CUDA_THREADS, rounded up: computes c and mix
 *   delta, kda, mamba  grid x sequences, or more, y n_value_head * (dim / DELTA_VALUES, rounded
 *                      up); DELTA_THREADS threads: out = M^T q (plus D x), and the state
 *   delta_out          grid x rows; PACK_THREADS threads: out = norm(out) silu(z), packed
 *   mamba_out          likewise: out = norm(out silu(z)), packed
 * There are n = 2 n_key_head n_key + n_value_head dim channels; n_key: 16, 32, 64 or 128, equal to
 * dim for a delta net. */
struct state_args {
    const struct batch_head *batch;
    /* u, z, beta, alpha; joined: u, z, both; Kimi: u's queries, z, -, beta; Mamba-2: u, z, dt */
    const float *in[4];
    /* Kimi: u's keys, u's values; else NULL */
    const float *more[2];
    /* [n_taps][channels], [channels] or NULL */
    const float *taps, *bias;
    /* [n_value_head] (Kimi: dt times dim); Mamba-2: bias of dt, A */
    const float *dt, *decay;
    /* Mamba-2: D [n_value_head]; [dim], Mamba-2: [n_value_head * dim] */
    const float *skip, *norm;
    /* [rows][channels]: q and k of unit length (Mamba-2: C, B), v */
    float *c;
    /* [rows][n_value_head][2]: e^g (Kimi: 0), sigmoid(beta); Mamba-2: e^(dt A), dt */
    float *mix;
    /* Kimi: [rows][n_value_head][dim] raw decays, which become e^g; else NULL */
    float *keep;
    /* [rows][n_value_head * dim] */
    float *out;
    /* state of the layer */
    float *state;
    /* values from a slot to the next */
    size_t stride;
    uint32_t n, n_key_head, n_value_head, n_key, dim, n_taps, tiled, joined;
    /* values of a row of c behind the channels, which are not convolved: B and C of Mamba-1 by
     * head */
    uint32_t n_behind;
    /* channels with which queries, keys and values begin */
    uint32_t q_at, k_at, v_at;
    /* the gate is sigmoid(z), not silu(z) */
    uint32_t sigmoid;
    /* lower, unit_eps: as lower and eps in delta_shape */
    float eps, unit_eps, lower;
    /* packs out */
    struct pack_args pack;
};

/* Argument of a short convolution (engine/op.h). The state of slot s is at state + s stride:
 * [n_taps - 1][n] of the convolution's input, oldest first.
 *   conv       grid x rows, y n / CUDA_THREADS, rounded up: out
 *   conv_keep  grid x sequences, or more, y as for conv: the state */
struct conv_args {
    const struct batch_head *batch;
    /* [rows][n] b, c, u */
    const float *in[3];
    /* [n_taps][n] */
    const float *taps;
    /* [rows][n] */
    float *out;
    /* state of the layer */
    float *state;
    /* values from a slot to the next */
    size_t stride;
    uint32_t n, n_taps;
};

/* Argument of the kernels of Mamba-1 (engine/op.h). The layer's state of slot s is at state + s
 * stride: [n_taps - 1][n] of u, oldest first, then [n][n_state]. n_state is a power of two from 4
 * to 128.
 *   scan_in     grid x rows, y n / CUDA_THREADS, rounded up: computes c
 *   scan        grid x sequences, or more, y n n_state / 4 / CUDA_THREADS, rounded up: computes
 *               out, and the state
 *   scan_heads  grid x rows: steps of heads; computes B and C in c, and mix, for kernel mamba */
struct scan_args {
    const struct batch_head *batch;
    /* [rows][n]: z: before its function; step: w[1] t, by head [rows][n_head] */
    const float *u, *z, *step;
    /* [rows][n_rank + 2 n_state]: w[0] c: t, B, C; by head: B, C, t */
    const float *low;
    /* [n_taps][n], [n] or NULL */
    const float *taps, *bias;
    /* [n], [n][n_state], [n]; by head [n_head] each */
    const float *dt, *decay, *skip;
    /* [n_state] of B and C */
    const float *in_norm, *out_norm;
    /* [rows][n + n_behind], [rows][n] */
    float *c, *out;
    /* by head: [rows][n_head][2]: e^(s decay), s */
    float *mix;
    /* state of the layer */
    float *state;
    /* values from a slot to the next */
    size_t stride;
    uint32_t n, n_taps, n_state, n_rank;
    /* by head: 2 n_state; else 0 */
    uint32_t n_behind, n_head;
    float eps;
};

/* Returns the place of key @i of value @j in a head's matrix. The matrix is stored in the order in
 * which a warp holds it: eight values, four lanes for each, and 16 bytes of consecutive keys of a
 * lane. */
MX_FN uint32_t delta_place(uint32_t dim, uint32_t i, uint32_t j) {
    uint32_t lane = j % 8 * 4 + i / 4 % 4;

    return j / 8 * 8 * dim + i / 16 * 128 + lane * 4 + i % 4;
}
