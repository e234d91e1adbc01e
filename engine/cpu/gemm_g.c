/*
 * gemm_g - multiplies panels of 4-bit codes in groups of 128 (G4), as AWQ and GPTQ have them, by
 * tiles of activations.
 *
 * Activations are int8 with a scale for 256 values (ACTS_K). A group of weights has a scale d and a
 * zero point. For a block of two groups, in every lane:
 *
 *   v0, v1 = sum of code * activation - zero * sum of activations      exact, below 2^24
 *   acc = fma(activation scale, fma(d1, v1, d0 * v0), acc)
 *
 * With few columns a dot product has two sums, of even and of odd groups of four values, so that an
 * instruction does not wait for the one before.
 */

#include "engine/cpu/kernels.h"

/* Computes v of group @half of the block at @q. @zero: its zero points. */
INLINE void gemm_g_group(const uint8_t *q, vi zero, struct cols a, int n, int half, vf *v) {
    const int second = n <= 2;
    vi dot[2][TILE_MAX];

    UNROLL
    for (int c = 0; c < n; c++)
        dot[0][c] = dot[second][c] = vi_zero();
    UNROLL
    for (int g = 0; g < 16; g++) {
        vb both = vb_load(q + 64 * (16 * half + g));
        vb w[2] = {vb_and(both, vb_set1(15)), vb_and(vb_shr(both, 4), vb_set1(15))};

        UNROLL
        for (int c = 0; c < n; c++) {
            dot[0][c] = vi_dot6(dot[0][c], w[0], cols_i(a.q, a.row, c, 32 * half + 2 * g));
            dot[second][c] =
                vi_dot6(dot[second][c], w[1], cols_i(a.q, a.row, c, 32 * half + 2 * g + 1));
        }
    }
    UNROLL
    for (int c = 0; c < n; c++) {
        const int at = AK_PAIRS32 + 2 * half;
        vi sum = vi_dot_pairs(vi_zero(), zero, cols_i(a.sums, a.row, c, at));

        sum = vi_dot_pairs(sum, zero, cols_i(a.sums, a.row, c, at + 1));
        if (second)
            dot[0][c] = vi_add(dot[0][c], dot[1][c]);
        v[c] = vf_sub(vf_of_i(dot[0][c]), vf_of_i(sum));
    }
}

/* Implements gemm.run. */
INLINE void gemm_g_run(const struct mat *m, const uint8_t *panel, const uint8_t *acts, int n,
                       uint32_t b0, uint32_t b1, float *out) {
    const struct panel_info *info = &panel_infos[PANEL_G4];
    struct cols a = {acts + (size_t)b0 * 256, acts + m->n_in + (size_t)b0 * AK_UNITS * 4,
                     acts_bytes(ACTS_K, m->n_in, 1)};
    const uint8_t *p = panel + (size_t)b0 * info->unit_bytes;
    vf acc[TILE_MAX], v[TILE_MAX], sum[TILE_MAX];

    UNROLL
    for (int c = 0; c < n; c++)
        acc[c] = vf_load(out + LANES * c);
    for (uint32_t b = b0; b < b1; b++, p += info->unit_bytes) {
        const uint8_t *meta = p + info->quant_bytes;

        for (size_t i = 0; i < info->unit_bytes; i += 64)
            __builtin_prefetch(p + VEC_AHEAD + i);
        UNROLL
        for (int half = 0; half < 2; half++) {
            vf d = vf_load_half(meta + 32 * half);

            gemm_g_group(p, vi_load_pairs(meta + 64 + 32 * half), a, n, half, v);
            UNROLL
            for (int c = 0; c < n; c++) {
                if (half)
                    sum[c] = vf_fma(d, v[c], sum[c]);
                else
                    sum[c] = vf_mul(d, v[c]);
            }
        }
        UNROLL
        for (int c = 0; c < n; c++)
            acc[c] = vf_fma(vf_set1(cols_f(a.sums, a.row, c, AK_SCALE)), sum[c], acc[c]);
        a.q += 256;
        a.sums += AK_UNITS * 4;
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, acc[c]);
}

#define CALL(n, col)                                                                               \
    gemm_g_run(m, panel, acts + acts_bytes(ACTS_K, m->n_in, col), n, b0, b1, acc + LANES * (col))

void CPU_NAME(gemm_g4)(const struct mat *m, const uint8_t *panel, const uint8_t *acts, uint32_t n,
                       uint32_t b0, uint32_t b1, float *acc) {
    FOR_WIDTH(n, CALL);
}
