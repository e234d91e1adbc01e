#pragma once

/* kernels_norm - the argument of the product that computes the norm of its rows, as kernels.h. */

#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes the product of matvec from rows that each block packs for itself, to the shared memory
 * behind its rings: those of @norm, as pack() would (PLAIN or NORM, one row of x for each row),
 * with the same bits. product.x and scale, norm.packed, scale and batch are not used. Up to
 * MATVEC_NORM_ROWS rows of MATVEC_NORM_COLUMNS columns; grid as of matvec. Dynamic shared memory:
 * matvec_shared() and matvec_norm_bytes(). */
struct matvec_norm_args {
    struct matmul_args product;
    struct pack_args norm;
};

#define MATVEC_NORM_ROWS 2u
#define MATVEC_NORM_COLUMNS 4096u /* a thread keeps 16 of them in registers */

/* Returns the bytes from a block's packed row to the next: the two rows are read together, from
 * different banks. */
MX_FN uint32_t matvec_norm_row(uint32_t n_padded, uint32_t n_planes) {
    return n_padded * n_planes * 2 + 64;
}

/* Returns the bytes of a block's packed rows. */
MX_FN uint32_t matvec_norm_bytes(uint32_t n_rows, uint32_t n_padded, uint32_t n_planes) {
    return n_rows * matvec_norm_row(n_padded, n_planes);
}

extern kernel_address kernel_matvec_norm;

#ifdef __cplusplus
}
#endif
