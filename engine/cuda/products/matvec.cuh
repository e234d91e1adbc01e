#pragma once

/*
 * matvec - the products of a warp with few rows of activations: what the kernels for one matrix
 * (matmul.cu) and for those of experts (experts.cu) have in common. A is the kernel's argument,
 * with x; ROWS says where those of a lane lie, FEED brings the weights stage by stage.
 */

#include "engine/cuda/products/weights.cuh"

/* Adds @N pairs of @t, the first of which are columns 32 @first of x. ROWS: x[i], the offset in
 * bytes of the lane's activations of group i of 8 rows. */
template <int F, int G, int N, class A, class ROWS>
DEVICE void add_pairs(const A &a, const struct Tile<F> &t, uint32_t first, const ROWS &rows,
                      float c[G][4]) {
#pragma unroll
    for (int p = 0; p < N; p++) {
        Pair<F> w;

        w.take(t, p, false);
#pragma unroll
        for (int i = 0; i < G; i++) {
            const uint8_t *x = (const uint8_t *)a.x + (rows.x[i] + first * 512);

            if constexpr (has_bytes(F))
                x += plane_bytes(a.n_blocks);

            w.add(load16(x + p * 512), c[i]);
        }
    }
}

/* Adds the tile of unit @unit of @m, at @tile in shared memory. */
template <int F, int G, class A, class ROWS>
DEVICE void add_unit(const A &a, const struct matrix &m, const uint8_t *tile, uint32_t unit,
                     const ROWS &rows, float c[G][4]) {
    struct Tile<F> t;

    if constexpr (F >= TILE_LOW) {
#pragma unroll 1
        for (uint32_t slice = 0; slice < TILE_SLICES; slice++) {
            load_slice<F>(t, tile, slice, m.grid);
            add_pairs<F, G, 2>(a, t, unit * 8 + slice * 2, rows, c);
        }
    } else {
        constexpr int pairs = F >= TILE_Q4_K ? 8 : 2;

        t.load(tile, threadIdx.x % 32);
        add_pairs<F, G, pairs>(a, t, unit * pairs, rows, c);
    }
}

/* See add_units(): stage by stage of TILE_STAGE_UNITS(F) units, the last one perhaps shorter. */
template <int G, class A, class FEED, class ROWS> struct UnitsWalk {
    const A &a;
    const struct matrix &m;
    uint32_t from, to;
    FEED &feed;
    const ROWS &rows;
    float (*c)[4];

    template <int F> __device__ __forceinline__ void of() const {
        constexpr uint32_t units = TILE_STAGE_UNITS(F);

        for (uint32_t u = from; u < to; u += units) {
            const uint8_t *stage = feed.template take<F>(a);

#pragma unroll
            for (uint32_t n = 0; n < units; n++)
                if (u + n < to)
                    add_unit<F, G>(a, m, stage + n * tile_bytes(F), u + n, rows, c);
        }
    }
};

/* Adds units [from, to) of a row of tiles of @m, which @feed brings, times G groups of 8 rows, at
 * most a segment: all mma of it add up in c[i], of group i, the lane's as mma's c (device.cuh). */
template <int G, class A, class FEED, class ROWS>
DEVICE void add_units(const A &a, const struct matrix &m, uint32_t from, uint32_t to, FEED &feed,
                      const ROWS &rows, float c[G][4]) {
    walk_of(m.format, UnitsWalk<G, A, FEED, ROWS>{a, m, from, to, feed, rows, c});
}
