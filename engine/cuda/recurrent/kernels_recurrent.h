#pragma once

/*
 * Recurrent layers: the arguments of the kernels, their grids and addresses. Formulas and letters:
 * engine/op.h.
 */

#include <stddef.h>
#include <stdint.h>
#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STATE_TAPS 8u      /* most taps of a convolution */
#define DELTA_THREADS 128u /* threads of a block of delta() */
#define DELTA_VALUES 32u   /* values of a head that a block of delta() has */
#define DELTA_ROWS 8u      /* rows in shared memory at a time; as many are in flight */
#define DELTA_DIM 128u     /* most values of a head */

/* A gated delta net, or Kimi delta attention (engine/op.h), in three kernels that share their
 * argument. A layer's state of slot s is at state + s stride: [n_taps - 1][channels] of u, the
 * oldest first, then a matrix of each value head in the order of delta_place(). Sequences that
 * begin do not read it.
 *   delta_in    grid x rows, y (2 n_key_head + n_value_head) / 8: c, mix and keep of in
 *   delta, kda  grid x sequences, or more, y n_value_head * (dim / DELTA_VALUES, rounded up);
 *               DELTA_THREADS threads: out = M^T q, without the norm, and the state
 *   delta_out   grid x rows; PACK_THREADS threads: out = norm(out) silu(z), packed
 * Channels are dim * (2 n_key_head + n_value_head); dim: 16, 32, 64 or 128. */
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
    uint32_t sigmoid;      /* of z in the place of silu */
    float eps, lower;      /* lower: delta_shape */
    struct pack_args pack; /* packs out */
};

/* Mamba-2 (engine/op.h) in three kernels likewise; a state is laid out as a delta net's, with
 * n_state keys and dim values a head.
 *   mamba_in   grid x rows, y channels / CUDA_THREADS, rounded up: c and mix of in
 *   mamba      grid x sequences, or more, y n_head * (dim / DELTA_VALUES, rounded up);
 *              DELTA_THREADS threads: out = M^T C + D x, and the state
 *   mamba_out  grid x rows; PACK_THREADS threads: out = norm(out silu(z)), packed
 * Channels are n_head dim + 2 n_group n_state; n_state: 16, 32, 64 or 128. */
struct mamba_args {
    const struct batch_head *batch;
    const float *in[3];             /* u, z, dt */
    const float *taps, *bias;       /* [n_taps][channels], [channels] or NULL */
    const float *dt, *decay, *skip; /* [n_head]: of dt, A, D */
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

/* A short convolution (engine/op.h). State of slot s at state + s stride: [n_taps - 1][n] of
 * what goes into it, the oldest first.
 *   conv       grid x rows, y n / CUDA_THREADS, rounded up: out
 *   conv_keep  grid x sequences, or more, y as above: the state */
struct conv_args {
    const struct batch_head *batch;
    const float *in[3]; /* [rows][n] b, c, u */
    const float *taps;  /* [n_taps][n] */
    float *out;         /* [rows][n] */
    float *state;       /* state of the layer */
    size_t stride;      /* values from a slot to the next */
    uint32_t n, n_taps;
};

/* Returns the place of key @i of value @j in a head's matrix: eight values of a warp lie together,
 * of four lanes each, and a lane's keys in 16 bytes. */
MX_FN uint32_t delta_place(uint32_t dim, uint32_t i, uint32_t j) {
    uint32_t lane = j % 8 * 4 + i / 4 % 4;

    return j / 8 * 8 * dim + i / 16 * 128 + lane * 4 + i % 4;
}

#ifdef __cplusplus
}
#endif
