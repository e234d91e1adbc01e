/*
 * matmul_wgmma - decides when products are wgmma's (matmul_wgmma.cu), and by how many rows a block.
 * Their rows are packed in another order, so the decision holds for all matrices of a step, without
 * those of experts and of heads of latent attention, and without the router, whose rows the experts
 * take too.
 */

#include "engine/cuda/cuda.h"

#include <assert.h>
#include <stdlib.h>

/* Products of a block of 128 rows for each of one of 64, which bound both. */
#define WGMMA_COST 2u

/* WEFT_CUDA_WGMMA=0: never. */
int wgmma_open(struct be *b) {
    const char *said = getenv("WEFT_CUDA_WGMMA");
    uint32_t most = 0, most_64 = 0;

    for (uint32_t f = 0; f < TILE_FORMATS; f++) {
        most = MAX(most, wgmma_shared(WGMMA_ROWS, f));
        most_64 = MAX(most_64, wgmma_shared(MATMUL_COLUMNS, f));
    }
    b->products.wgmma = matmul_wgmma_built && b->device.major == 9 && b->device.minor == 0 &&
                        b->device.shared_bytes > most && !(said && *said == '0');
    if (!b->products.wgmma)
        return 0;
    int r = cuda_check(b, b->api->allow_shared(kernel_matmul_wgmma, most), "cudaFuncSetAttribute");
    return r < 0 ? r
                 : cuda_check(b, b->api->allow_shared(kernel_matmul_wgmma_64, most_64),
                              "cudaFuncSetAttribute");
}

bool wgmma_takes(const struct be *b, uint32_t n_rows) {
    return b->products.wgmma && n_rows > cuda_few_rows(b);
}

int wgmma_launch(struct be *b, const struct weights *w, const struct operand *x, bool add,
                 uint32_t block_rows, uint32_t n_splits) {
    struct matmul_args a = cuda_wide_args(b, w, x, add, block_rows, n_splits);
    uint32_t shared = 0;

    assert(b->products.wgmma && x->cores &&
           (block_rows == WGMMA_ROWS || block_rows == MATMUL_COLUMNS));
    for (uint32_t i = 0; i < w->n_mats; i++)
        shared = MAX(shared, wgmma_shared(block_rows, w->m[i].format));
    struct launch l = {block_rows == WGMMA_ROWS ? kernel_matmul_wgmma : kernel_matmul_wgmma_64,
                       matmul_wide_blocks(&a),
                       1,
                       CUDA_THREADS,
                       "matmul_wgmma",
                       shared};
    return cuda_launch(b, &l, &a, sizeof(a));
}

/* A multiprocessor has one block of either at a time. */
int wgmma_matmul(struct be *b, const struct weights *w, const struct operand *x, bool add) {
    uint32_t groups = 0, n = (uint32_t)b->device.n_multiprocessors;
    uint32_t adding = x->left ? LEFT_COLUMNS : WGMMA_SPLIT_COLUMNS;
    uint32_t n_splits, columns = wide_columns(b, w, x->n_rows, adding, &n_splits);

    for (uint32_t i = 0; i < w->n_mats; i++)
        groups += (w->m[i].n_row_tiles + 7) / 8;
    uint32_t rounds = ((x->n_rows + WGMMA_ROWS - 1) / WGMMA_ROWS * groups + n - 1) / n;

    if (rounds * WGMMA_COST * w->n_in <= columns)
        return wgmma_launch(b, w, x, add, WGMMA_ROWS, 1);
    return wgmma_launch(b, w, x, add, MATMUL_COLUMNS, n_splits);
}
