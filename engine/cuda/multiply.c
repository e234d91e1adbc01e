/* multiply - grids and shared memory of the two kernels of matmul.cu. */

#include "engine/cuda/cuda.h"

#define MATVEC_STATIC 9216u /* what matvec has of its own, and the driver's part of each block */

/* The largest of all formats. */
int cuda_matmul_allow(struct be *b) {
    uint32_t narrow = 0, wide = 0;

    for (uint32_t f = 0; f < TILE_FORMATS; f++) {
        narrow = MAX(narrow, matvec_shared(tile_stage_bytes(f)));
        wide = MAX(wide, wide_shared(f));
    }
    int r = cuda_check(b, b->api->allow_shared(kernel_matvec, narrow), "cudaFuncSetAttribute");
    return r < 0 ? r
                 : cuda_check(b, b->api->allow_shared(kernel_matmul_wide, wide),
                              "cudaFuncSetAttribute");
}

/* As many blocks as run at a time: two on a multiprocessor, where its shared memory is enough. */
static uint32_t narrow_grid(const struct be *b, uint32_t tiles, uint32_t shared) {
    uint32_t two = b->device.shared_bytes >= 2 * (shared + MATVEC_STATIC) ? 2 : 1;

    return MIN(tiles, two * (uint32_t)b->device.n_multiprocessors);
}

int cuda_matmul_strict(struct be *b, const struct weights *w, const struct operand *x, bool add) {
    struct matmul_args a = {
        .x = x->packed,
        .scale = x->scale,
        .sums = x->sums,
        .count = x->count,
        .n_mats = w->n_mats,
        .n_rows = x->n_rows,
        .n_blocks = (uint32_t)round_up(w->n_in, 64) / 16,
        .add = add,
    };
    uint32_t groups = 0, shared = 0;

    for (uint32_t i = 0; i < w->n_mats; i++) {
        const struct matrix *m = &w->m[i];

        a.m[i] = *m;
        a.stage_bytes = MAX(a.stage_bytes, tile_stage_bytes(m->format));
        shared = MAX(shared, wide_shared(m->format));
        a.n_tiles += m->n_row_tiles;
        groups += (m->n_row_tiles + 7) / 8;
    }
    uint32_t columns = (x->n_rows + MATMUL_COLUMNS - 1) / MATMUL_COLUMNS;
    struct launch wide = {kernel_matmul_wide, columns, groups, CUDA_THREADS, "matmul_wide", shared};
    shared = matvec_shared(a.stage_bytes);
    struct launch narrow = {
        kernel_matvec, narrow_grid(b, a.n_tiles, shared), 1, CUDA_THREADS, "matvec", shared};
    return cuda_launch(b, x->n_rows > MATVEC_ROWS ? &wide : &narrow, &a, sizeof(a));
}
