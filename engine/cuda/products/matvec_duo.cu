/*
 * matvec_duo - products of 3 to 16 rows, as those of matvec (matmul.cu), by two row tiles at a
 * time: an experiment. The activations of a warp's columns are loaded once for 32 outputs, not once
 * for 16, so a product reads half as many bytes of them from the caches. With gates the two are a
 * row tile of the gate and the same one of the up matrix, whose values then meet in a thread.
 *
 * A stage of a ring has the weights of both. The sums of a row tile over its segments are those of
 * matvec, in the same order, so the bits are the same. Before sm_90, and on families that multiply
 * bytes, a multiprocessor has no room for two such rings (matvec_duo_way()): the kernels are empty.
 */

#include "engine/cuda/products/matvec_walk.cuh"

#if defined(WEFT_BYTES) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900)
KERNEL(matvec_duo, struct matmul_args, CUDA_THREADS, 2) {
    wait_for_previous();
}

KERNEL(matvec_duo_16, struct matmul_args, CUDA_THREADS, 2) {
    wait_for_previous();
}
#else
KERNEL(matvec_duo, struct matmul_args, CUDA_THREADS, 2) {
    SHARED float sums[8][CUDA_THREADS];

    matvec_groups<1, 2>(a, Rows<1>{}, sums, NULL);
}

KERNEL(matvec_duo_16, struct matmul_args, CUDA_THREADS, 2) {
    SHARED float sums[16][CUDA_THREADS];

    matvec_groups<2, 2>(a, Rows<2>{}, sums, NULL);
}
#endif
