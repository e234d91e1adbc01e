#pragma once

/*
 * wide - the products of a block with 64 rows of activations: what the kernels for one matrix
 * (matmul.cu) and for those of experts (experts.cu) have in common. Each of 8 warps has a row tile
 * of its own and walks over all columns; slices of the activations and weights come ahead by
 * asynchronous copies.
 */

#include "engine/cuda/matvec.cuh"

#define WIDE_GROUPS (MATMUL_COLUMNS / PACK_ROWS)
#define SLICE_PAIRS 2u /* of 32 columns in a slice */

/* Rows of activations that lie together: the block's. */
struct Neighbours {
    const uint8_t *x;
    uint32_t n_pairs, n_groups; /* of a row; groups of rows that exist */

    /* Starts on slice @next, to @to. */
    __device__ __forceinline__ void fetch(uint8_t *to, uint32_t next) const {
#pragma unroll
        for (uint32_t i = threadIdx.x; i < WIDE_GROUPS * SLICE_PAIRS * 32; i += CUDA_THREADS) {
            uint32_t group = i / (SLICE_PAIRS * 32), v = i % (SLICE_PAIRS * 32);

            if (group >= n_groups)
                group = 0; /* its result is not read */
            copy_async(to + i * 16,
                       x + ((size_t)group * n_pairs + next * SLICE_PAIRS) * 512 + v * 16);
        }
    }
};

/*
 * What a block has on its way: slices of 64 columns of the activations (ROWS fetches them),
 * WIDE_SLICES of them in a ring of all warps, and in rings of their own the warps' weights for as
 * far. A group of copies is what one slice brings.
 */
template <class ROWS> struct Supply {
    ROWS rows;
    uint8_t *slices, *ring; /* [WIDE_SLICES][slice], of the warp [n_slots][stage_bytes] */
    const uint8_t *tiles;   /* of the warp's row tile, NULL: none */
    uint32_t next, n_slices;
    uint32_t per_stage, n_slots, stage_bytes,
        row_bytes; /* slices of a stage; bytes of a row of tiles */

    /* For row tile @tile of @m, whose tiles lie at @all. */
    __device__ __forceinline__ void start(const struct matrix &m, const uint8_t *all,
                                          uint32_t tile) {
        uint32_t columns = tile_k(m.format) * tile_stage_units(m.format);

        slices = dynamic_shared();
        stage_bytes = tile_stage_bytes(m.format);
        per_stage = columns / (32 * SLICE_PAIRS);
        n_slots = wide_slots(m.format);
        ring = slices + WIDE_SLICES * WIDE_SLICE_BYTES +
               (size_t)(threadIdx.x / 32) * n_slots * stage_bytes;
        row_bytes = m.n_units * tile_bytes(m.format);
        tiles = tile < m.n_row_tiles ? all + (size_t)tile * row_bytes : NULL;
        n_slices = m.n_units * (tile_k(m.format) / (32 * SLICE_PAIRS));
        next = 0;
        for (uint32_t s = 0; s < WIDE_SLICES - 1; s++)
            fetch();
    }
    __device__ __forceinline__ void fetch() {
        if (next < n_slices) {
            uint32_t stage = next / per_stage, at = stage * stage_bytes;

            rows.fetch(slices + next % WIDE_SLICES * WIDE_SLICE_BYTES, next);
            if (tiles && next % per_stage == 0)
                fetch_bytes(ring + stage % n_slots * stage_bytes, tiles + at,
                            row_bytes - at < stage_bytes ? row_bytes - at : stage_bytes);
        }
        next++;
        copy_commit();
    }
    /* Slice @i, when it is there with its weights; the next one is started in the place of the one
     * before. */
    __device__ __forceinline__ const uint8_t *take(uint32_t i) {
        copy_wait<WIDE_SLICES - 2>();
        sync_block();
        fetch();
        return slices + i % WIDE_SLICES * WIDE_SLICE_BYTES;
    }
};

/* Two pairs of a tile times a slice. */
template <int F>
DEVICE void add_slice(const struct Tile<F> &tile, int first_pair, const uint8_t *slice,
                      float c[WIDE_GROUPS][4]) {
    uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (uint32_t p = 0; p < SLICE_PAIRS; p++) {
        struct Pair<F> w;

        w.take(tile, first_pair + (int)p);
#pragma unroll
        for (uint32_t n = 0; n < WIDE_GROUPS; n++) {
            uint32_t at = n * SLICE_PAIRS + p;

            w.add(load16(slice + at * 512 + lane * 16), c[n]);
        }
    }
}

/* All columns of one row tile. All warps take part in the slices, also those that have no tile. */
template <int F, class ROWS>
DEVICE void walk(const struct matrix &m, struct Supply<ROWS> &supply, float total[WIDE_GROUPS][4]) {
    constexpr uint32_t slices = F >= TILE_Q4_K ? 4 : 1; /* of a unit */
    constexpr uint32_t units = TILE_STAGE_UNITS(F);
    uint32_t segment = 0, end = tile_segment(m.n_units, 1);
    float c[WIDE_GROUPS][4];

#pragma unroll
    for (uint32_t n = 0; n < WIDE_GROUPS; n++)
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
    for (uint32_t u = 0; u < m.n_units; u++) {
        const uint8_t *stage = supply.ring + u / units % supply.n_slots * supply.stage_bytes;

#pragma unroll
        for (uint32_t i = 0; i < slices; i++) {
            const uint8_t *slice = supply.take(u * slices + i);
            struct Tile<F> tile; /* what the slice needs of it: registers are scarce */

            if (!supply.tiles)
                continue;
            tile.load(stage + u % units * tile_bytes(F), threadIdx.x % 32);
            add_slice<F>(tile, (int)(i * SLICE_PAIRS), slice, c);
        }
        if (u + 1 < end)
            continue;
#pragma unroll
        for (uint32_t n = 0; n < WIDE_GROUPS; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                total[n][j] = segment ? total[n][j] + c[n][j] : c[n][j];
                c[n][j] = 0;
            }
        segment++;
        end = tile_segment(m.n_units, segment + 1);
    }
}

template <class ROWS>
DEVICE void walk_of(const struct matrix &m, struct Supply<ROWS> &supply,
                    float total[WIDE_GROUPS][4]) {
    switch (m.format) {
    case TILE_F16:
        return walk<TILE_F16>(m, supply, total);
    case TILE_Q8_0:
        return walk<TILE_Q8_0>(m, supply, total);
    case TILE_Q4_0:
        return walk<TILE_Q4_0>(m, supply, total);
    case TILE_IQ4_NL:
        return walk<TILE_IQ4_NL>(m, supply, total);
    case TILE_MXFP4:
        return walk<TILE_MXFP4>(m, supply, total);
    case TILE_NVFP4:
        return walk<TILE_NVFP4>(m, supply, total);
    case TILE_Q4_K:
        return walk<TILE_Q4_K>(m, supply, total);
    case TILE_Q5_K:
        return walk<TILE_Q5_K>(m, supply, total);
    case TILE_Q6_K:
        return walk<TILE_Q6_K>(m, supply, total);
    case TILE_IQ4_XS:
        return walk<TILE_IQ4_XS>(m, supply, total);
    }
}
