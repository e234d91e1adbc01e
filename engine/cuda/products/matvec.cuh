#pragma once

/*
 * matvec - products of a warp's tiles with few rows of activations, for the kernels of one matrix
 * (matmul.cu) and of experts (experts.cu). A is the kernel's argument type, whose member x has the
 * activations; ROWS has the offsets of a lane's rows.
 *
 * A unit is processed in parts, by a loop with short code, because the instruction cache of a
 * multiprocessor is small and a miss is slow. The activations of a pair of blocks are loaded right
 * after those AHEAD pairs before them were used, so that few registers hold them.
 */

#include "engine/cuda/products/weights.cuh"

/* True if rows.load<F>(a, i, part, p, v) loads a lane's activations of pair @p of part @part, of
 * group @i, to v. */
template <class ROWS> constexpr bool matvec_rows_load = false;

/* Returns the address of a lane's activations of pair @p of part @part, of group @i of 8 rows, in
 * device memory; rows.x[i]: their offset in bytes. */
template <int F, class A, class ROWS>
DEVICE const uint8_t *matvec_activations(const A &a, const ROWS &rows, int i, uint32_t part,
                                         uint32_t p) {
    const uint8_t *x = (const uint8_t *)a.x + (rows.x[i] + part * (Parts<F>::pairs * 512u));

    if constexpr (has_bytes(F))
        x += plane_bytes(a.n_blocks);
    return x + p * 512;
}

/* Pairs of which a kernel has the activations in registers, at most those of a part: with all of a
 * part, loads have the longest time. */
#define MATVEC_AHEAD 4

/* A lane's activations of AHEAD pairs, or of a part's if it has fewer, for G groups of 8 rows. */
template <int F, int G, int AHEAD = MATVEC_AHEAD> struct Activations {
    static constexpr uint32_t n = AHEAD < Parts<F>::pairs ? AHEAD : Parts<F>::pairs;
    static_assert(Parts<F>::pairs % n == 0, "a pair has the same place in each part");

    struct vec4 v[n][G];

    /* Returns the index in v of pair @p. With all pairs of a part it is p, without arithmetic,
     * which would change how nvcc assigns the registers of matvec_norm. */
    static MEMBER uint32_t place(uint32_t p) {
        if constexpr (n == Parts<F>::pairs)
            return p;
        else
            return p % n;
    }

    /* Loads pair @p of part @part, where parts are counted from the first unit on. */
    template <class A, class ROWS>
    MEMBER void take(const A &a, const ROWS &rows, uint32_t part, uint32_t p) {
#pragma unroll
        for (int i = 0; i < G; i++)
            if constexpr (matvec_rows_load<ROWS>)
                rows.template load<F>(a, i, part, p, v[place(p)][i]);
            else
                v[place(p)][i] = load16_device(matvec_activations<F>(a, rows, i, part, p));
    }
    /* Sets all to 0. */
    MEMBER void clear() {
#pragma unroll
        for (uint32_t p = 0; p < n; p++)
            for (int i = 0; i < G; i++)
                v[p][i] = {};
    }
    /* Loads the first pairs of part @part. */
    template <class A, class ROWS>
    MEMBER void take_all(const A &a, const ROWS &rows, uint32_t part) {
#pragma unroll
        for (uint32_t p = 0; p < n; p++)
            take(a, rows, part, p);
    }
    /* Loads the pair that follows pair @p of part @part by n; @behind: the part after @part. */
    template <class A, class ROWS>
    MEMBER void take_next(const A &a, const ROWS &rows, uint32_t part, uint32_t behind,
                          uint32_t p) {
        if constexpr (n == Parts<F>::pairs)
            take(a, rows, behind, p);
        else if (p + n < Parts<F>::pairs)
            take(a, rows, part, p + n);
        else
            take(a, rows, behind, p + n - Parts<F>::pairs);
    }
};

/* Adds the products of unit @unit of @m, whose tile is at @tile in shared memory, to c. @x: on
 * entry the activations of the unit's first pairs, on return those of unit @next. */
template <int F, int G, int AHEAD, class A, class ROWS>
DEVICE void matvec_add_unit(const A &a, const struct matrix &m, const uint8_t *tile, uint32_t unit,
                            uint32_t next, const ROWS &rows, struct Activations<F, G, AHEAD> &x,
                            float c[G][4]) {
    constexpr uint32_t n = Parts<F>::n;

#pragma unroll 1
    for (uint32_t part = 0; part < n; part++) {
        uint32_t behind = part + 1 < n ? unit * n + part + 1 : next * n;
        PartSums<F> sums[G] = {};
        struct Tile<F> t;

        t.load(tile, threadIdx.x % 32, part, m.grid);
#pragma unroll
        for (uint32_t p = 0; p < Parts<F>::pairs; p++) {
            Pair<F> w;

            w.take(t, (int)p, false);
#pragma unroll
            for (int i = 0; i < G; i++)
                w.add(x.v[x.place(p)][i], c[i], sums[i]);
            x.take_next(a, rows, unit * n + part, behind, p);
        }
    }
}
