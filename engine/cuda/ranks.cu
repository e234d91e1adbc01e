/* ranks - what several devices compute and one does not (ranks.c). */

#include "engine/cuda/rows.cuh"

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
