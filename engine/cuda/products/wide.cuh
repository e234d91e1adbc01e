#pragma once

/*
 * wide - products of a block with 64 rows of activations, for the kernels of one matrix (matmul.cu)
 * and of experts (experts.cu). Each of 8 warps has its own row tile and goes over all columns.
 * cp.async copies slices of the activations, which all warps use, and each warp's weights several
 * slices ahead.
 */

#include "engine/cuda/products/matvec.cuh"
#include "engine/cuda/products/products.cuh"

#define WIDE_GROUPS (MATMUL_COLUMNS / PACK_ROWS)

/* Number of 16-byte vectors of a slice that a thread copies. */
#define SLICE_VECTORS (WIDE_SLICE_BYTES / 16u / CUDA_THREADS)

/* The rings of a block in shared memory: WIDE_SLICES slices of 64 columns of the activations,
 * shared by all warps, and for each warp a ring of its weights for as many slices. The copies for
 * one slice are one group of cp.async. */
struct Supply {
    /* sources of the thread's copies of the next slice */
    const uint8_t *x[SLICE_VECTORS];
    /* weights of the warp's row tile; NULL: it has none */
    const uint8_t *tiles;
    /* number of the segment with which the units begin */
    uint32_t segment;
    /* offset of the warp's ring of weights, which follows the slices */
    uint32_t ring;
    uint32_t n_units;
    /* at most half of the 64 rows exist, so only that half is multiplied */
    bool half;

    /* row_of() returns the row, of the block's 64, that the thread's copy x[@k] belongs to.
     * take_row() sets its source to row @row of the activations @all, in the form that @m takes
     * (halves or bytes). */
    static MEMBER uint32_t row_of(uint32_t k) {
        return (threadIdx.x + k * CUDA_THREADS) / (SLICE_PAIRS * 32) * PACK_ROWS +
               threadIdx.x % 32 / 4;
    }
    MEMBER void take_row(uint32_t k, const struct matrix &m, const uint16_t *all, uint32_t n_blocks,
                         uint32_t row) {
        x[k] = (const uint8_t *)all + row / PACK_ROWS * weights_group_bytes(n_blocks) +
               (has_bytes(m.format) ? plane_bytes(n_blocks) : 0) +
               threadIdx.x / 32 % SLICE_PAIRS * 512 + (row % PACK_ROWS * 4 + threadIdx.x % 4) * 16;
    }
    /* Sets the source of the weights: segments @first .. @last - 1 of row tile @tile of @m, whose
     * tiles are at @all. @n_rows of the 64 rows exist. Called after take_row(). */
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
    /* Starts the copies of the rows for slice @i. */
    template <int F> MEMBER void fetch_rows(uint32_t i) {
        uint8_t *to = dynamic_shared() + i % WIDE_SLICES * WIDE_SLICE_BYTES;

        if (i >= n_units * Steps<F>::slices)
            return;
#pragma unroll
        for (uint32_t k = 0; k < SLICE_VECTORS; k++) {
            copy_async(to + (threadIdx.x + k * CUDA_THREADS) * 16, x[k]);
            x[k] += SLICE_PAIRS * 512;
        }
    }
    /* Starts the copies of the weights that begin with slice @i. */
    template <int F> MEMBER void fetch_weights(uint32_t i) const {
        const uint32_t bytes = tile_stage_bytes(F), s = i / Steps<F>::of_stage;
        uint32_t lane = threadIdx.x % 32 * 16;

        if (tiles && i < n_units * Steps<F>::slices && i % Steps<F>::of_stage == 0)
            fetch_stage<F>(shared_start() + ring + s % wide_slots(F) * bytes + lane,
                           tiles + (s * bytes + lane),
                           (n_units - s * Steps<F>::units) * tile_bytes(F));
    }
    template <int F> MEMBER void fetch(uint32_t i) {
        fetch_rows<F>(i);
        fetch_weights<F>(i);
        copy_commit();
    }
    /* Starts the copies for the first slices; @waits: waits for the previous kernel, which computes
     * the rows, when those of the weights have started. */
    template <int F> MEMBER void fetch_first(bool waits) {
        for (uint32_t i = 0; i + 1 < WIDE_SLICES; i++)
            fetch_weights<F>(i);
        if (waits)
            wait_for_previous();
        for (uint32_t i = 0; i + 1 < WIDE_SLICES; i++) {
            fetch_rows<F>(i);
            copy_commit();
        }
    }
    /* Waits for slice @i and its weights and returns the slice; starts the copies for another one
     * in the room of slice @i - 1. */
    template <int F> MEMBER const uint8_t *take(uint32_t i) {
        copy_wait<WIDE_SLICES - 2>();
        sync_block();
        fetch<F>(i + WIDE_SLICES - 1);
        return dynamic_shared() + i % WIDE_SLICES * WIDE_SLICE_BYTES;
    }
};

/* Adds the products of two pairs of a tile with a slice to c and @sums. */
template <int F>
DEVICE void product_add_slice(const struct Tile<F> &tile, int first_pair, const uint8_t *slice,
                              bool half, float c[WIDE_GROUPS][4], PartSums<F> sums[WIDE_GROUPS]) {
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
            w.add(load16(slice + at * 512 + lane * 16), c[n], sums[n]);
        }
    }
}

/* Goes over the segments of one row tile and adds up their sums in @total, or, if blocks share the
 * segments, stores each in @shared. Warps without a row tile also take part, because they copy
 * slices. */
struct WideWalk {
    struct Supply &supply;
    const struct matrix &m;
    /* [WIDE_GROUPS * 4] */
    float *total;
    /* first_sum() or NULL */
    float *shared;
    /* supply.fetch_first() */
    bool waits;

    MEMBER void end(uint32_t segment, const float c[WIDE_GROUPS][4]) const {
        if (!shared) {
#pragma unroll
            for (uint32_t k = 0; k < WIDE_GROUPS * 4; k++)
                total[k] = segment ? total[k] + c[k / 4][k % 4] : c[k / 4][k % 4];
            return;
        }
#pragma unroll
        for (uint32_t k = 0; k < WIDE_GROUPS * 4; k++) {
            if (k == WIDE_GROUPS * 2 && supply.half)
                break;
            shared[segment * WIDE_SUMS + sum_place(k)] = c[k / 4][k % 4];
        }
    }
    template <int F> MEMBER void of() const {
        constexpr uint32_t slices = Steps<F>::slices, units = Steps<F>::units;
        [[maybe_unused]] constexpr uint32_t unroll = Steps<F>::unroll;
        uint32_t segment = supply.segment, first = m.unit[segment];
        uint32_t last = m.unit[segment + 1] - first; /* end of the segment */
        float c[WIDE_GROUPS][4] = {};
        PartSums<F> sums[WIDE_GROUPS] = {};

        supply.template fetch_first<F>(waits);
        for (uint32_t u = 0; u < supply.n_units; u++) {
            const uint8_t *stage =
                dynamic_shared() + supply.ring + u / units % wide_slots(F) * tile_stage_bytes(F);

#pragma unroll unroll
            for (uint32_t i = 0; i < slices; i++) {
                const uint8_t *slice = supply.template take<F>(u * slices + i);
                /* only the slice's part of a tile, since registers are scarce */
                struct Tile<F> tile;

                if (!supply.tiles)
                    continue;
                int pair = load_slice<F>(tile, stage + u % units * tile_bytes(F), i, m.grid);
                product_add_slice<F>(tile, pair, slice, supply.half, c, sums);
            }
            if (u + 1 < last)
                continue;
            end(segment, c);
#pragma unroll
            for (uint32_t n = 0; n < WIDE_GROUPS; n++)
                c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
            segment++;
            last = m.unit[segment + 1 < TILE_SEGMENTS ? segment + 1 : TILE_SEGMENTS] - first;
        }
    }
};
