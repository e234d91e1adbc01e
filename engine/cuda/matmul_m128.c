/* matmul_m128 - when 128 rows a block are better than 64 (matmul_m128.cu, matmul.cu); the bits are
 * the same. */

#include "engine/cuda/cuda.h"

#include <assert.h>
#include <stdlib.h>

/* Products of a block for each of matmul_wide's, which bound both. As many one after the other:
 * m128 reads weights half as often. */
#define M128_COST 2u

/* WEFT_CUDA_M128: 0 never, 1 wherever it can be. Devices with less shared memory do without. */
int m128_open(struct be *b) {
    const char *said = getenv("WEFT_CUDA_M128");
    uint32_t most = 0;

    for (uint32_t f = 0; f < TILE_FORMATS; f++)
        most = MAX(most, m128_shared(f));
    b->m128 = b->device.shared_bytes <= most ? M128_NEVER
              : !said                        ? M128_IF_BETTER
              : *said == '0'                 ? M128_NEVER
                                             : M128_ALWAYS;
    if (b->m128 == M128_NEVER)
        return 0;
    return cuda_check(b, b->api->allow_shared(kernel_matmul_m128, most), "cudaFuncSetAttribute");
}

/* A multiprocessor has one block of either at a time. */
bool m128_is_better(const struct be *b, const struct weights *w, uint32_t n_rows) {
    uint32_t groups = 0, n = (uint32_t)b->device.n_multiprocessors;
    uint32_t n_splits;

    if (b->m128 != M128_IF_BETTER || n_rows <= MATVEC_ROWS)
        return b->m128 == M128_ALWAYS && n_rows > MATVEC_ROWS;
    for (uint32_t i = 0; i < w->n_mats; i++)
        groups += (w->m[i].n_row_tiles + 7) / 8;
    uint32_t blocks = (n_rows + M128_ROWS - 1) / M128_ROWS * groups;
    return (blocks + n - 1) / n * M128_COST * w->n_in <=
           wide_columns(b, w, n_rows, WIDE_SPLIT_COLUMNS, &n_splits);
}

/* Grid: columns of 128 rows by groups of eight tiles; shared memory for the format that needs
 * most. */
int m128_matmul(struct be *b, const struct weights *w, const struct operand *x, bool add) {
    struct matmul_args a = cuda_matmul_args(w, x, add);
    uint32_t groups = 0, shared = 0;

    assert(b->m128 != M128_NEVER && x->n_rows > MATVEC_ROWS && !x->cores);
    for (uint32_t i = 0; i < w->n_mats; i++) {
        shared = MAX(shared, m128_shared(w->m[i].format));
        groups += (w->m[i].n_row_tiles + 7) / 8;
    }
    struct launch l = {kernel_matmul_m128,
                       (x->n_rows + M128_ROWS - 1) / M128_ROWS,
                       groups,
                       CUDA_THREADS,
                       "matmul_m128",
                       shared};
    return cuda_launch(b, &l, &a, sizeof(a));
}
