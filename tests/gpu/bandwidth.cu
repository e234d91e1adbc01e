/* bandwidth - reads memory once, as the matrix kernels read weights: what their times are compared
 * with. */

#include "engine/cuda/device.cuh"
#include "tests/gpu/bandwidth.h"

KERNEL(read_all, struct read_args, CUDA_THREADS, 2) {
    size_t step = (size_t)gridDim.x * CUDA_THREADS * 64;
    uint32_t sum = 0;

    for (size_t at = ((size_t)blockIdx.x * CUDA_THREADS + threadIdx.x) * 16; at < a.bytes;
         at += step) {
        struct vec4 v[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            size_t p = at + (size_t)i * gridDim.x * CUDA_THREADS * 16;

            v[i] = load_stream(a.data + (p < a.bytes ? p : 0));
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x12345678u) /* keeps the loads */
        *a.out = sum;
}
