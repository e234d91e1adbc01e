#pragma once

/* matvec_way - chooses how matvec is launched: the number of blocks, and of stages of their
 * rings. */

#include "base/util.h"
#include "engine/cuda/cuda_api.h"
#include "engine/cuda/products/kernels_cluster.h"
#include "engine/cuda/products/kernels_norm.h"

/* Static shared memory of a block (check_kernels.py), and what the driver reserves for each
 * block. */
#define MATVEC_STATIC (8704u + 1024u)
#define MATVEC_16_STATIC (17408u + 1024u)

struct matvec_way {
    uint32_t n_blocks, n_stages, shared;
};

/* Returns as many blocks as the multiprocessors have registers and shared memory for, and as
 * @n_tiles row tiles need. More blocks are worth more than longer rings, because a warp waits most
 * of the time. A ring has a third stage if all blocks have room for it. @packed: bytes of the rows
 * that each block of matvec_norm packs, which `shared` includes; 0: matvec. */
static inline struct matvec_way matvec_way(const struct cuda_device *d, uint32_t n_rows,
                                           uint32_t stage_bytes, uint32_t n_tiles,
                                           uint32_t packed) {
    uint32_t n = (uint32_t)d->n_multiprocessors, own = MATVEC_STATIC, most = 3;

    if (n_rows > PACK_ROWS || BYTES_FAMILY(d->made_for))
        most = 2; /* by their registers (check_kernels.py) */
    if (n_rows > PACK_ROWS)
        own = MATVEC_16_STATIC;
    for (most = MIN(most, (n_tiles + n - 1) / n); most > 0; most--)
        for (uint32_t stages = MATVEC_STAGES; stages >= 2; stages--) {
            uint32_t shared = matvec_shared(stage_bytes, stages) + packed;

            if (most * (shared + own) <= d->shared_bytes)
                return (struct matvec_way){MIN(n_tiles, most * n), stages, shared};
        }
    return (struct matvec_way){MIN(n_tiles, n), 2, matvec_shared(stage_bytes, 2) + packed};
}

/* Returns the most shared memory that launches of matvec_norm ask for. */
static inline uint32_t matvec_norm_most(const struct cuda_device *d, uint32_t stage_bytes,
                                        uint32_t n_planes) {
    uint32_t most = 0;

    for (uint32_t n = 1; n <= MATVEC_NORM_ROWS; n++) {
        uint32_t packed = matvec_norm_bytes(n, MATVEC_NORM_COLUMNS, n_planes);

        most = MAX(most, matvec_way(d, n, stage_bytes, 1, packed).shared);
    }
    return most;
}

/* Bytes that the driver reserves for a block, which has no static shared memory; the most dynamic
 * shared memory of a block of matvec_cluster. */
#define CLUSTER_STATIC 1024u
#define CLUSTER_SHARED (128u << 10)

/* Returns true if a cluster can have the row tiles of @a: each eight are of one format. */
static inline bool cluster_fits(const struct matmul_args *a) {
    bool uniform = true, whole = true;

    for (uint32_t i = 0; i < a->n_mats; i++) {
        uniform = uniform && a->m[i].format == a->m[0].format;
        whole = whole && a->m[i].n_row_tiles % MATVEC_CLUSTER == 0;
    }
    return uniform || whole;
}

/* Returns how matvec_cluster is launched for @a, as matvec_way(); with matrices of several formats,
 * a cluster has eight row tiles. No blocks: it cannot be. */
static inline struct matvec_way cluster_way(const struct cuda_device *d,
                                            const struct matmul_args *a) {
    uint32_t n = (uint32_t)d->n_multiprocessors, tiles = a->n_tiles - a->gated, most = 3, rows = 0;
    uint32_t limit = MIN(CLUSTER_SHARED, (uint32_t)d->block_bytes), same = 1;

    tiles = (tiles + MATVEC_CLUSTER - 1) / MATVEC_CLUSTER * MATVEC_CLUSTER;
    if (a->n_rows > PACK_ROWS || BYTES_FAMILY(d->made_for))
        most = 2;
    for (uint32_t i = 0; i < a->n_mats; i++) {
        rows = MAX(rows, cluster_rows(&a->m[i]));
        same = same && a->m[i].format == a->m[0].format;
    }
    for (most = MIN(most, (tiles + n - 1) / n); most > 0; most--)
        for (uint32_t stages = MATVEC_STAGES; stages >= 2; stages--) {
            uint32_t shared = cluster_shared(a->n_rows, a->stage_bytes, stages, rows);
            uint32_t fit = MAX(most * n / MATVEC_CLUSTER, 1u) * MATVEC_CLUSTER;

            if (most * (shared + CLUSTER_STATIC) <= d->shared_bytes && shared <= limit)
                return (struct matvec_way){same ? MIN(tiles, fit) : tiles, stages, shared};
        }
    return (struct matvec_way){0};
}

/* Returns the kernel of matvec_cluster for @n_rows rows. */
static inline const void *cluster_for(uint32_t n_rows) {
    return n_rows > PACK_ROWS ? kernel_matvec_cluster_16 : kernel_matvec_cluster;
}
