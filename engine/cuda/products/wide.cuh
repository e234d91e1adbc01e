#pragma once

/*
 * wide - the products of a block with 64 rows of activations: what the kernels for one matrix
 * (matmul.cu) and for those of experts (experts.cu) have in common. Each of 8 warps has a row tile
 * of its own and walks over all columns; slices of the activations and weights come ahead by
 * asynchronous copies.
 */

#include "engine/cuda/products/matvec.cuh"
#include "engine/cuda/products/products.cuh"

#define WIDE_GROUPS (MATMUL_COLUMNS / PACK_ROWS)

/* Vectors of 16 bytes of a slice that a thread copies. */
#define SLICE_VECTORS (WIDE_SLICE_BYTES / 16u / CUDA_THREADS)

/* cp.async ring of a block: WIDE_SLICES slices of 64 columns of the activations, shared by all
 * warps, and in rings of their own the warps' weights for as far ahead. A group of copies is what
 * one slice brings. */
struct Supply {
    const uint8_t *x[SLICE_VECTORS]; /* sources of the thread's copies of the next slice */
    const uint8_t *tiles;            /* row tile of the warp, NULL: none */
    uint32_t segment;                /* number in the matrix of the first of @n_units tiles */
    uint32_t ring;                   /* offset of the warp's; the slices come first */
    uint32_t n_units;
    bool half; /* no more than half of the 64 rows are there: the others are not multiplied */

    /* Row @row of x, of the block's 64, is what x[@k] brings, as @m takes it; @n_blocks of 16
     * columns. */
    static MEMBER uint32_t row_of(uint32_t k) {
        return (threadIdx.x + k * CUDA_THREADS) / (SLICE_PAIRS * 32) * PACK_ROWS +
               threadIdx.x % 32 / 4;
    }
    MEMBER void take_row(uint32_t k, const struct matrix &m, const uint16_t *all, uint32_t n_blocks,
                         uint32_t row) {
        x[k] = (const uint8_t *)all + row / PACK_ROWS * group_bytes(n_blocks) +
               (has_bytes(m.format) ? plane_bytes(n_blocks) : 0) +
               threadIdx.x / 32 % SLICE_PAIRS * 512 + (row % PACK_ROWS * 4 + threadIdx.x % 4) * 16;
    }
    /* Weights: segments @first .. @last - 1 of row tile @tile of @m, whose tiles lie at @all,
     * for the first @n_rows of the 64 rows; behind take_row(). */
    MEMBER void start(const struct matrix &m, const uint8_t *all, uint32_t tile, uint32_t n_rows,
                      uint32_t first, uint32_t last) {
        half = n_rows <= MATMUL_COLUMNS / 2;
        segment = first;
        n_units = m.unit[last] - m.unit[first];
        tiles = tile < m.n_row_tiles
                    ? all + ((size_t)tile * m.bytes[TILE_SEGMENTS] + m.bytes[first])
                    : NULL;
        for (uint32_t k = 0; k < SLICE_VECTORS; k++)
            x[k] += (size_t)m.unit[first] * tile_k(m.format) * (2 * PACK_ROWS);
        ring = WIDE_SLICES * WIDE_SLICE_BYTES +
               threadIdx.x / 32 * (wide_slots(m.format) * tile_stage_bytes(m.format));
    }
    /* Starts on slice @i. */
    template <int F> MEMBER void fetch(uint32_t i) {
        const uint32_t bytes = tile_stage_bytes(F), s = i / Steps<F>::of_stage;
        uint32_t lane = threadIdx.x % 32 * 16;

        if (i < n_units * Steps<F>::slices) {
            uint8_t *to = dynamic_shared() + i % WIDE_SLICES * WIDE_SLICE_BYTES;

#pragma unroll
            for (uint32_t k = 0; k < SLICE_VECTORS; k++) {
                copy_async(to + (threadIdx.x + k * CUDA_THREADS) * 16, x[k]);
                x[k] += SLICE_PAIRS * 512;
            }
            if (tiles && i % Steps<F>::of_stage == 0)
                fetch_stage<F>(shared_start() + ring + s % wide_slots(F) * bytes + lane,
                               tiles + (s * bytes + lane),
                               (n_units - s * Steps<F>::units) * tile_bytes(F));
        }
        copy_commit();
    }
    /* Slice @i, when it is there with its weights; another one is started in the place of the one
     * before. */
    template <int F> MEMBER const uint8_t *take(uint32_t i) {
        copy_wait<WIDE_SLICES - 2>();
        sync_block();
        fetch<F>(i + WIDE_SLICES - 1);
        return dynamic_shared() + i % WIDE_SLICES * WIDE_SLICE_BYTES;
    }
};

/* Two pairs of a tile times a slice. */
template <int F>
DEVICE void add_slice(const struct Tile<F> &tile, int first_pair, const uint8_t *slice, bool half,
                      float c[WIDE_GROUPS][4]) {
    uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (uint32_t p = 0; p < SLICE_PAIRS; p++) {
        Pair<F> w;

        w.take(tile, first_pair + (int)p, true);
#pragma unroll
        for (uint32_t n = 0; n < WIDE_GROUPS; n++) {
            uint32_t at = n * SLICE_PAIRS + p;

            if (n == WIDE_GROUPS / 2 && half)
                break;
            w.add(load16(slice + at * 512 + lane * 16), c[n]);
        }
    }
}

/* The sum over the segments. */
struct AddUp {
    float (*total)[4]; /* [WIDE_GROUPS] */

    MEMBER void end(uint32_t segment, const float c[WIDE_GROUPS][4]) const {
#pragma unroll
        for (uint32_t n = 0; n < WIDE_GROUPS; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                total[n][j] = segment ? total[n][j] + c[n][j] : c[n][j];
    }
};

/* The segments of one row tile, each of whose sums ENDS takes. All warps take part in the slices,
 * also those that have no tile. */
template <class ENDS> struct WideWalk {
    struct Supply &supply;
    const struct matrix &m;
    const ENDS &ends;

    template <int F> MEMBER void of() const {
        constexpr uint32_t slices = Steps<F>::slices, units = Steps<F>::units;
        [[maybe_unused]] constexpr uint32_t unroll = Steps<F>::unroll;
        uint32_t segment = supply.segment, first = m.unit[segment],
                 end = m.unit[segment + 1] - first;
        float c[WIDE_GROUPS][4] = {};

        for (uint32_t i = 0; i + 1 < WIDE_SLICES; i++)
            supply.template fetch<F>(i);
        for (uint32_t u = 0; u < supply.n_units; u++) {
            const uint8_t *stage =
                dynamic_shared() + supply.ring + u / units % wide_slots(F) * tile_stage_bytes(F);

#pragma unroll unroll
            for (uint32_t i = 0; i < slices; i++) {
                const uint8_t *slice = supply.template take<F>(u * slices + i);
                struct Tile<F> tile; /* the slice's part of a tile: registers are scarce */

                if (!supply.tiles)
                    continue;
                int pair = load_slice<F>(tile, stage + u % units * tile_bytes(F), i, m.grid);
                add_slice<F>(tile, pair, slice, supply.half, c);
            }
            if (u + 1 < end)
                continue;
            ends.end(segment, c);
#pragma unroll
            for (uint32_t n = 0; n < WIDE_GROUPS; n++)
                c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
            segment++;
            end = m.unit[segment + 1 < TILE_SEGMENTS ? segment + 1 : TILE_SEGMENTS] - first;
        }
    }
};

/* Walks over the tiles of @m, in whichever format it is. */
template <class ENDS>
DEVICE void walk_of(const struct matrix &m, struct Supply &supply, const ENDS &ends) {
    walk_of(m.format, WideWalk<ENDS>{supply, m, ends});
}
