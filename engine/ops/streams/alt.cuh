#pragma once

/*
 * alt - alternating updates of residual streams, and the low-rank branch beside attention
 * (kernels_streams.h). The streams are few, so each thread has a column of all of them.
 *
 * alt_begin                 one block for each stream of a row
 * alt_predict, alt_correct  one thread for each column of a row; the block's first threads compute
 *                           its coefficients
 * alt_end, laurel           one block for each row
 */

#include "engine/cuda/rows/rows.cuh"
#include "engine/ops/streams/kernels_streams.h"

#define ALT_WARPS (CUDA_THREADS / 32)
#define LEAST 1e-5f /* equals ALT_LEAST */

/* Returns the mean of x^2, by a block. */
DEVICE float alt_square_mean(const float *x, uint32_t n, float *shared) {
    float sum = 0;

    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
        sum = fmaf(x[i], x[i], sum);
    return block_sum<ALT_WARPS>(sum, shared) / (float)n;
}

/* Returns the factor that scales @y to the length of a vector with the mean square @want, by a
 * block. */
DEVICE float alt_factor(float want, const float *y, uint32_t n, float *shared) {
    return sqrtf(want / fmaxf(alt_square_mean(y, n, shared), LEAST));
}

/* Returns row @r of the product of stream @i > 0. */
DEVICE const float *alt_product(const struct alt_args &a, uint32_t r, uint32_t i) {
    return a.f + (i - 1) * a.apart + (size_t)r * a.n;
}

ROW_KERNEL(alt_begin, struct alt_args, CUDA_THREADS, 2) {
    SHARED float shared[ALT_WARPS];
    uint32_t stream = blockIdx.y;
    const float *x = a.x + (size_t)r * a.n, *y = stream ? alt_product(a, r, stream) : x;
    float *s = a.s + ((size_t)r * a.n_stream + stream) * a.n, by = 1;

    if (stream)
        by = alt_factor(alt_square_mean(x, a.n, shared), y, a.n, shared);
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        s[i] = y[i] * by;
}

/* Returns row @i of the coefficients times tanh(low / n) of row @r. */
DEVICE float alt_scaled(const struct alt_args &a, uint32_t r, uint32_t i) {
    const float *low = a.low + (size_t)r * a.n_stream, *weigh = a.weigh + (size_t)i * a.n_stream;
    float sum = 0;

    for (uint32_t j = 0; j < a.n_stream; j++)
        sum = fmaf(weigh[j], mx_soft_cap(low[j] / (float)a.n, 1), sum);
    return sum;
}

ROW_KERNEL(alt_predict, struct alt_args, CUDA_THREADS, 2) {
    SHARED float by[ALT_STREAMS * ALT_STREAMS];
    uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x, n = a.n_stream;
    float was[ALT_STREAMS], *s = a.s + (size_t)r * n * a.n + i;

    if (threadIdx.x < n * n)
        by[threadIdx.x] = alt_scaled(a, r, threadIdx.x);
    sync_block();
    if (i >= a.n)
        return;
#pragma unroll
    for (uint32_t j = 0; j < ALT_STREAMS; j++)
        was[j] = j < n ? s[(size_t)j * a.n] : 0;
    for (uint32_t d = 0; d < n; d++) {
        float v = s[(size_t)d * a.n];

#pragma unroll
        for (uint32_t j = 0; j < ALT_STREAMS; j++)
            if (j < n)
                v = fmaf(by[d * n + j], was[j], v);
        s[(size_t)d * a.n] = v;
    }
    a.x[(size_t)r * a.n + i] = s[0];
}

ROW_KERNEL(alt_correct, struct alt_args, CUDA_THREADS, 2) {
    SHARED float by[ALT_STREAMS];
    uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x, n = a.n_stream;
    float *s = a.s + (size_t)r * n * a.n + i, *x = a.x + (size_t)r * a.n + i;

    if (threadIdx.x < n) {
        by[threadIdx.x] = 1 + alt_scaled(a, r, threadIdx.x);
        if (blockIdx.y == 0)
            a.weight[(size_t)r * n + threadIdx.x] = threadIdx.x > 0;
    }
    sync_block();
    if (i >= a.n)
        return;
    float change = *x - s[0];
    for (uint32_t d = 0; d < n; d++)
        s[(size_t)d * a.n] = fmaf(by[d], change, s[(size_t)d * a.n]);
    *x = s[0] * a.scale[i];
}

ROW_KERNEL(alt_end, struct alt_args, CUDA_THREADS, 2) {
    SHARED float shared[ALT_WARPS];
    const float *s = a.s + (size_t)r * a.n_stream * a.n;
    float *x = a.x + (size_t)r * a.n, want = alt_square_mean(s, a.n, shared);

    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        x[i] = s[i];
    for (uint32_t stream = 1; stream < a.n_stream; stream++) {
        const float *y = alt_product(a, r, stream);
        float by = alt_factor(want, y, a.n, shared);

        for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
            x[i] = fmaf(y[i], by, x[i]);
    }
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        x[i] /= (float)a.n_stream;
}

ROW_KERNEL(laurel, struct laurel_args, CUDA_THREADS, 2) {
    SHARED float shared[ALT_WARPS];
    const float *x = a.x + (size_t)r * a.n, *t = a.t + (size_t)r * a.n;
    float of_x = 1.0f / sqrtf(alt_square_mean(x, a.n, shared) + a.eps);
    float of_t = 1.0f / sqrtf(alt_square_mean(t, a.n, shared) + a.eps);

    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        a.b[(size_t)r * a.n + i] += x[i] * of_x * a.norm[i] + t[i] * of_t * a.post_norm[i];
}
