/* ranks - what several devices compute and one does not (ranks.c). */

#include "engine/cuda/kernels_ranks.h"
#include "engine/cuda/rows.cuh"

/* The other devices' columns, read where they lie: a thread has four of a row. For few rows bound
 * by the way there and back, for many by its bytes. */
KERNEL(gather, struct gather_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.y, i = (blockIdx.x * CUDA_THREADS + threadIdx.x) * 4, p = 0;
    float *to = a.to + (size_t)r * a.n;

    if ((a.count && r >= *a.count) || i >= a.n)
        return;
    while (p + 1 < a.n_parts && i >= a.part[p + 1].first)
        p++;
    const float *from = a.part[p].at + (size_t)r * a.part[p].n_row + (i - a.part[p].first);
    uint32_t end = p + 1 < a.n_parts ? a.part[p + 1].first : a.n;

    if (i + 4 <= end && (((uintptr_t)from | (uintptr_t)(to + i)) & 15) == 0) {
        store16(to + i, load16(from));
        return;
    }
    for (uint32_t last = i + 4 < a.n ? i + 4 : a.n; i < last; i++) {
        while (p + 1 < a.n_parts && i >= a.part[p + 1].first)
            p++;
        to[i] = a.part[p].at[(size_t)r * a.part[p].n_row + (i - a.part[p].first)];
    }
}

/* A device has some columns of gates and ups: it multiplies them itself, as pack() would with all
 * of a row, so that half as much is exchanged. A block a row, bound by its bytes. */
KERNEL(glu, struct glu_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x;
    size_t at = (size_t)r * a.n;

    if (r >= a.batch->n_rows)
        return;
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        a.gate[at + i] = gated(a.kind, a.gate[at + i], a.up[at + i]);
}
