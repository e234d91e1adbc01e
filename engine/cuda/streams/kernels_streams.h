#pragma once

/*
 * Residual streams that are mixed (OP_MIX): the arguments of the kernels and the buffers. Formulas
 * and letters: engine/op.h.
 */

#include <stddef.h>
#include <stdint.h>
#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A mix in three kernels that share their argument; products come between them.
 *   mix_norm  f, the streams' norms, by their part of the weights; grid x rows, y n_stream
 *   mix_bend  low = silu(low / n_stream), weight = 2 sigmoid(weight / n_stream); grid x rows
 *   mix_mean  x = the mean over the streams of f sigmoid(gate), b = 0; grid x rows, y n /
 *             CUDA_THREADS, rounded up */
struct mix_args {
    const struct batch_head *batch;
    const float *s, *norm, *gate; /* [rows][n_stream][n], [n_stream][n], [rows][n_stream][n] */
    float *f, *low, *weight;      /* as s, [rows][n_low], [rows][n_stream] or NULL */
    float *x, *b;                 /* [rows][n] */
    uint32_t n, n_stream, n_low;
    float eps;
};

/* Buffers for the largest batch. */
struct streams {
    float *f, *gate; /* of a MIX: [max_rows][streams][n_embd] each */
};

struct be;
struct model_op;

/* Returns where product @i of such an op goes; NULL: it is of another family. */
float *streams_target(const struct be *b, const struct model_op *op, int i);

#ifdef __cplusplus
}
#endif
