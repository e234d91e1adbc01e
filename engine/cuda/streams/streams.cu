/*
 * The kernels of kernels_streams.h. Sums go over fixed elements of each thread and then over the
 * threads in a fixed order, so the result of a row depends on the row alone.
 *
 * mix_norm      a block a stream of a row
 * mix_bend      a block a row
 * mix_mean      a thread a column of a row
 */

#include "engine/cuda/streams/kernels_streams.h"
#include "engine/cuda/rows/rows.cuh"

#define WARPS (CUDA_THREADS / 32)

/* -- mixes ------------------------------------------------------------------------------------- */

KERNEL(mix_norm, struct mix_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float shared[WARPS];
    uint32_t r = blockIdx.x, stream = blockIdx.y;
    float sum = 0;

    if (r >= a.batch->n_rows)
        return;
    size_t at = ((size_t)r * a.n_stream + stream) * a.n;
    const float *s = a.s + at, *norm = a.norm + (size_t)stream * a.n;
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        sum = fmaf(s[i], s[i], sum);
    float inverse = 1.0f / sqrtf(block_sum<WARPS>(sum, shared) / (float)a.n + a.eps);
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        a.f[at + i] = s[i] * inverse * norm[i];
}

KERNEL(mix_bend, struct mix_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x;
    float part = 1.0f / (float)a.n_stream;

    if (r >= a.batch->n_rows)
        return;
    float *low = a.low + (size_t)r * a.n_low, *weight = a.weight + (size_t)r * a.n_stream;
    for (uint32_t i = threadIdx.x; i < a.n_low; i += CUDA_THREADS)
        low[i] = mx_silu(low[i] * part);
    if (a.weight && threadIdx.x < a.n_stream)
        weight[threadIdx.x] = 2 * sigmoid(weight[threadIdx.x] * part);
}

KERNEL(mix_mean, struct mix_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x, i = blockIdx.y * CUDA_THREADS + threadIdx.x;
    float sum = 0;

    if (r >= a.batch->n_rows || i >= a.n)
        return;
    for (uint32_t j = 0; j < a.n_stream; j++) {
        size_t at = ((size_t)r * a.n_stream + j) * a.n + i;

        sum = fmaf(a.f[at], sigmoid(a.gate[at]), sum);
    }
    a.x[(size_t)r * a.n + i] = sum / (float)a.n_stream;
    a.b[(size_t)r * a.n + i] = 0;
}
