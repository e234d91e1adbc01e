/* bandwidth - a kernel that reads memory once, like the matrix kernels their weights. Their times
 * are compared with the time that it takes. */

#include "engine/cuda/device.cuh"
#include "tests/gpu/bandwidth.h"

/* Loads 16 bytes that are read once, without keeping them in the first-level cache. */
DEVICE struct vec4 load_stream(const void *p) {
#ifdef WEFT_SIMT
    return load16(p);
#else
    struct vec4 v;

    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
#endif
}

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
    if (sum == 0x12345678u) /* keeps the compiler from removing the loads */
        *a.out = sum;
}
