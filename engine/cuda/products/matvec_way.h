#pragma once

/* matvec_way - chooses how matvec is launched: the number of blocks, and of stages of their
 * rings. */

#include "base/util.h"
#include "engine/cuda/cuda_api.h"
#include "engine/cuda/kernels.h"

/* Static shared memory of a block (check_kernels.py), and what the driver reserves for each
 * block. */
#define MATVEC_STATIC (8704u + 1024u)
#define MATVEC_16_STATIC (17408u + 1024u)

struct matvec_way {
    uint32_t n_blocks, n_stages, shared;
};

/* Returns as many blocks as the multiprocessors have registers and shared memory for, and as
 * @n_tiles row tiles need. More blocks are worth more than longer rings, because a warp waits most
 * of the time. A ring has a third stage if all blocks have room for it. */
static inline struct matvec_way matvec_way(const struct cuda_device *d, uint32_t n_rows,
                                           uint32_t stage_bytes, uint32_t n_tiles) {
    uint32_t n = (uint32_t)d->n_multiprocessors, own = MATVEC_STATIC, most = 3;

    if (n_rows > PACK_ROWS || BYTES_FAMILY(d->made_for))
        most = 2; /* by their registers (check_kernels.py) */
    if (n_rows > PACK_ROWS)
        own = MATVEC_16_STATIC;
    for (most = MIN(most, (n_tiles + n - 1) / n); most > 1; most--)
        for (uint32_t stages = MATVEC_STAGES; stages >= 2; stages--) {
            uint32_t shared = matvec_shared(stage_bytes, stages);

            if (most * (shared + own) <= d->shared_bytes)
                return (struct matvec_way){MIN(n_tiles, most * n), stages, shared};
        }
    return (struct matvec_way){MIN(n_tiles, n), MATVEC_STAGES,
                               matvec_shared(stage_bytes, MATVEC_STAGES)};
}
