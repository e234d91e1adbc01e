/* ranks - kernels that only several devices need (ranks.c). */

#include "engine/cuda/ranks/kernels_ranks.h"
#include "engine/cuda/rows/rows.cuh"

/* Returns the address of column @i of row @r; *left: columns that are contiguous from there on. */
DEVICE const float *column_at(const struct shares &a, size_t r, uint32_t i, uint32_t *left) {
    uint32_t p = 0, nth = 0;

    if (a.period < a.n) {
        nth = i / a.period;
        i -= nth * a.period;
    }
    while (p + 1 < a.n_shares && i >= a.share[p + 1].first)
        p++;
    const auto &s = a.share[p];
    uint32_t end = p + 1 < a.n_shares ? a.share[p + 1].first : a.period;

    *left = end - i;
    return s.at + r * s.n_row + nth * (end - s.first) + (i - s.first);
}

/* Loads columns i .. i + 3 of row @r; zero beyond the row. */
DEVICE void load_columns(const struct shares &a, size_t r, uint32_t i, float v[4]) {
    uint32_t left = 0;

    v[0] = v[1] = v[2] = v[3] = 0;
    if (i >= a.n)
        return;
    const float *from = column_at(a, r, i, &left);
    if (left >= 4 && (uintptr_t)from % 16 == 0) {
        load_four(from, v);
        return;
    }
    for (uint32_t j = 0; j < 4 && i + j < a.n; j++)
        v[j] = *column_at(a, r, i + j, &left);
}

/* Reads the other devices' columns directly; a thread has four of a row. For few rows bound by the
 * latency between devices, for many by bandwidth. */
KERNEL(gather, struct gather_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x, n = a.from.n, i = (blockIdx.y * CUDA_THREADS + threadIdx.x) * 4;
    float v[4], *to = a.to + (size_t)r * n + i;

    if ((a.count && r >= *a.count) || i >= n)
        return;
    load_columns(a.from, r, i, v);
    for (uint32_t j = 0; i + j < n && j < 4; j++)
        to[j] = v[j];
}

/* Columns of a row as load_quads() has them, or zeros. */
template <uint32_t STEP, int QUADS>
DEVICE void load_shares(const struct shares &a, size_t r, uint32_t i, float (&v)[QUADS][4]) {
#pragma unroll
    for (uint32_t k = 0; k < QUADS; k++)
        load_columns(a, r, i + k * STEP, v[k]);
}

/* Packs rows whose columns lie on several devices, with the bits of pack(). Those of more than
 * 12288 columns are read twice. */
KERNEL_ALLOTTED(pack_shares, struct pack_shares_args, PACK_THREADS, PACK_ALLOTTED, 1) {
    wait_for_previous();
    SHARED float shared[PACK_SHARED];
    const struct pack_args &p = a.pack;
    uint32_t r = blockIdx.x;

    if (r < p.batch->n_rows * (p.each ? p.each : 1))
        pack_row_to(p, PackedPlace{p, r}, shared,
                    [&](uint32_t i, auto &v) { load_shares<4 * PACK_THREADS>(a.from, r, i, v); });
}

/* Adds t, whose columns lie on several devices, to x, with the bits of residual(). */
KERNEL(residual_shares, struct residual_shares_args, CUDA_THREADS, 2) {
    wait_for_previous();
    SHARED float shared[PACK_SHARED];
    uint32_t r = blockIdx.x;

    if (r < a.residual.batch->n_rows)
        residual_row(a.residual, r, true, shared,
                     [&](uint32_t i, auto &v) { load_shares<4 * CUDA_THREADS>(a.from, r, i, v); });
}

/* A device combines its own columns of gates and ups, as pack() would do with whole rows, so that
 * half as much is exchanged. One block for each row; bound by memory bandwidth. */
KERNEL(glu, struct glu_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t r = blockIdx.x;
    size_t at = (size_t)r * a.n;

    if (r >= a.batch->n_rows * a.each)
        return;
    for (uint32_t i = threadIdx.x; i < a.n; i += CUDA_THREADS)
        a.gate[at + i] = gated(a.kind, a.gate[at + i], a.up[at + i]);
}
