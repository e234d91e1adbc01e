#pragma once

/*
 * matvec - the products of a warp with few rows of activations: what the kernels for one matrix
 * (matmul.cu) and for those of experts (experts.cu) have in common. A is the kernel's argument,
 * with x; ROWS says where those of a lane lie, FEED brings the weights stage by stage.
 */

#include "engine/cuda/weights.cuh"

/* Adds the tile of unit @unit, at @tile in shared memory. ROWS: x[i], the offset in bytes of the
 * lane's activations of group i of 8 rows. */
template <int F, int G, class A, class ROWS>
DEVICE void add_unit(const A &a, const uint8_t *tile, uint32_t unit, const ROWS &rows,
                     float c[G][4]) {
    constexpr int pairs = F >= TILE_Q4_K ? 8 : 2;
    struct Tile<F> t;

    t.load(tile, threadIdx.x % 32);
#pragma unroll
    for (int p = 0; p < pairs; p++) {
        struct Pair<F> w;

        w.take(t, p);
#pragma unroll
        for (int i = 0; i < G; i++) {
            const uint8_t *x = (const uint8_t *)a.x + (rows.x[i] + unit * (pairs * 512));

            w.add(load16(x + p * 512), c[i]);
        }
    }
}

template <int F, int G, class A, class FEED, class ROWS>
DEVICE void add_segment(const A &a, uint32_t from, uint32_t to, FEED &feed, const ROWS &rows,
                        float c[G][4]) {
    constexpr uint32_t units = TILE_STAGE_UNITS(F);

    for (uint32_t u = from; u < to; u += units) {
        const uint8_t *stage = feed.template take<F>(a);

#pragma unroll
        for (uint32_t n = 0; n < units; n++)
            if (u + n < to)
                add_unit<F, G>(a, stage + n * tile_bytes(F), u + n, rows, c);
    }
}

/* Units [from, to) of a row of tiles. */
template <int G, class A, class FEED, class ROWS>
DEVICE void add_units(const A &a, uint32_t format, uint32_t from, uint32_t to, FEED &feed,
                      const ROWS &rows, float c[G][4]) {
    switch (format) {
    case TILE_F16:
        return add_segment<TILE_F16, G>(a, from, to, feed, rows, c);
    case TILE_Q8_0:
        return add_segment<TILE_Q8_0, G>(a, from, to, feed, rows, c);
    case TILE_Q4_0:
        return add_segment<TILE_Q4_0, G>(a, from, to, feed, rows, c);
    case TILE_IQ4_NL:
        return add_segment<TILE_IQ4_NL, G>(a, from, to, feed, rows, c);
    case TILE_MXFP4:
        return add_segment<TILE_MXFP4, G>(a, from, to, feed, rows, c);
    case TILE_NVFP4:
        return add_segment<TILE_NVFP4, G>(a, from, to, feed, rows, c);
    case TILE_Q4_K:
        return add_segment<TILE_Q4_K, G>(a, from, to, feed, rows, c);
    case TILE_Q5_K:
        return add_segment<TILE_Q5_K, G>(a, from, to, feed, rows, c);
    case TILE_Q6_K:
        return add_segment<TILE_Q6_K, G>(a, from, to, feed, rows, c);
    case TILE_IQ4_XS:
        return add_segment<TILE_IQ4_XS, G>(a, from, to, feed, rows, c);
    }
}
