#pragma once

/* kernels_cluster - the product of few rows whose blocks form clusters, as kernels.h. */

#include "engine/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* matvec_cluster (up to 8 rows) and matvec_cluster_16 compute the products of matvec with the same
 * bits, by clusters of MATVEC_CLUSTER blocks. Block i of a cluster has segment i of the columns:
 * its warps sum this segment of one row tile each, from activations in shared memory. Block i then
 * adds the sums of row tile i, which all blocks of the cluster have stored there. Grid x: a
 * multiple of MATVEC_CLUSTER; consecutive row tiles of a cluster have one format. Dynamic shared
 * memory: cluster_shared(). */
#define MATVEC_CLUSTER TILE_SEGMENTS
#define MATVEC_CLUSTER_LEAST 3u /* fewest rows that gain */

/* Returns the floats of the sums of a block's row tile, twice, and of its gates, for @groups groups
 * of 8 rows. */
MX_FN uint32_t cluster_floats(uint32_t groups) {
    return groups * (2 * 4 * CUDA_THREADS + 4 * TILE_LANES);
}

/* Returns the bytes of 8 rows of the widest segment of matrix @m. */
MX_FN uint32_t cluster_rows(const struct matrix *m) {
    uint32_t most = 0;

    for (uint32_t s = 0; s < TILE_SEGMENTS; s++) {
        uint32_t n = m->unit[s + 1] - m->unit[s];

        most = n > most ? n : most;
    }
    return most * tile_k(m->format) * PACK_ROWS * 2;
}

/* Returns the bytes of dynamic shared memory for @n_rows rows, of which 8 have @rows bytes in the
 * widest segment. */
MX_FN uint32_t cluster_shared(uint32_t n_rows, uint32_t stage_bytes, uint32_t n_stages,
                              uint32_t rows) {
    uint32_t groups = (n_rows + PACK_ROWS - 1) / PACK_ROWS;

    return matvec_shared(stage_bytes, n_stages) + cluster_floats(groups) * 4 + groups * rows;
}

extern kernel_address kernel_matvec_cluster, kernel_matvec_cluster_16;

#ifdef __cplusplus
}
#endif
