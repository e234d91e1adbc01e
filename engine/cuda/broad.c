/* broad - when 128 rows a block are better than 64 (broad.cu, matmul.cu); the bits are the same. */

#include "engine/cuda/cuda.h"

#include <stdlib.h>

/* Instructions of a block for as many columns: 9 for each of 256 products, 14.5 for each of 128. */
#define BROAD_COST 23u
#define WIDE_COST 18u

/* WEFT_CUDA_BROAD: 0 never, 1 wherever it can be. Devices with less shared memory do without. */
int broad_open(struct be *b) {
    const char *said = getenv("WEFT_CUDA_BROAD");
    uint32_t most = 0;

    for (uint32_t f = 0; f < TILE_FORMATS; f++)
        most = MAX(most, broad_shared(f));
    b->broad = b->device.shared_bytes <= most ? BROAD_NEVER
               : !said                        ? BROAD_IF_BETTER
               : *said == '0'                 ? BROAD_NEVER
                                              : BROAD_ALWAYS;
    if (b->broad == BROAD_NEVER)
        return 0;
    return cuda_check(b, b->api->allow_shared(kernel_matmul_broad, most), "cudaFuncSetAttribute");
}

/* A multiprocessor has one block of either at a time. */
bool broad_is_better(const struct be *b, const struct weights *w, uint32_t n_rows) {
    uint32_t groups = 0, n = (uint32_t)b->device.n_multiprocessors;

    if (b->broad != BROAD_IF_BETTER || n_rows <= MATVEC_ROWS)
        return b->broad == BROAD_ALWAYS && n_rows > MATVEC_ROWS;
    for (uint32_t i = 0; i < w->n_mats; i++)
        groups += (w->m[i].n_row_tiles + 7) / 8;
    uint32_t broad = (n_rows + BROAD_ROWS - 1) / BROAD_ROWS * groups;
    uint32_t wide = (n_rows + MATMUL_COLUMNS - 1) / MATMUL_COLUMNS * groups;
    return (broad + n - 1) / n * BROAD_COST <= (wide + n - 1) / n * WIDE_COST;
}

int broad_matmul(struct be *b, const struct weights *w, const struct operand *x, bool add) {
    struct matmul_args a = cuda_matmul_args(w, x, add);
    uint32_t groups = 0, shared = 0;

    for (uint32_t i = 0; i < w->n_mats; i++) {
        shared = MAX(shared, broad_shared(w->m[i].format));
        groups += (w->m[i].n_row_tiles + 7) / 8;
    }
    struct launch l = {kernel_matmul_broad,
                       (x->n_rows + BROAD_ROWS - 1) / BROAD_ROWS,
                       groups,
                       CUDA_THREADS,
                       "matmul_broad",
                       shared};
    return cuda_launch(b, &l, &a, sizeof(a));
}
