#pragma once

/*
 * gemm_k - code that gemm_k.c and gemm_amx.c share, the kernels of the formats with blocks of 256:
 * the constants of a format, and the floating-point part of a block, whose order of operations
 * defines the bits of the result (gemm_k.c has the formula).
 */

#include "engine/cpu/kernels.h"

/* Flag combined with a format: the quants were unpacked to bytes. */
enum { UNPACKED = 1 << 8 };

/* Properties of a format; they are constants once the kernels are inlined. A sub-block is a run of
 * values that share an integer scale. */
struct shape {
    /* groups of four values of a sub-block: 4 or 8 */
    int groups;
    /* sub-blocks have a minimum */
    bool minimums;
    /* sub-blocks have no scale */
    bool no_scale;
    /* added to the weights when they are stored: 0, 1, 4, 32, 64 or 128 */
    int offset;
    /* words of a run of dot products (vec.h), for the largest weight */
    int run;
    /* constant factor of d, the scale of a block */
    float factor;
    /* dmin, the scale of the minimums, is d times this; 0: dmin is stored */
    float min_factor;
    /* bytes of the lower bits of 16 x 32 values */
    size_t quants;
    /* offset of d in the scales of a block (panel.c) */
    uint32_t scale;
};

/* Returns the properties of @format, which may have the flag UNPACKED. */
INLINE struct shape shape_of(int format) {
    struct shape s = {.groups = 8, .quants = 256, .scale = 256, .factor = 1};
    int bits = 4;

    switch (format & ~UNPACKED) {
    case PANEL_Q5K:
        bits = 5;
        s.minimums = true;
        break;
    case PANEL_Q4K:
        s.minimums = true;
        break;
    case PANEL_Q6K:
        bits = 6;
        s.groups = 4;
        s.offset = 32;
        break;
    case PANEL_Q3K:
        s.groups = 4;
        s.offset = 4;
        s.quants = 128;
        break;
    case PANEL_Q2K:
        s.groups = 4;
        s.minimums = true;
        s.quants = 128;
        s.scale = 512;
        break;
    case PANEL_IQ4XS:
        s.offset = 128;
        s.scale = 128;
        break;
    case PANEL_IQ1S: /* the minimums are 7 or 9 times the scale, in eighths of d */
        s.minimums = true;
        s.quants = 128;
        s.min_factor = 0.125f;
        break;
    case PANEL_IQ1M:
    case PANEL_IQ2S:
        bits = 7;
        s.groups = 4;
        s.offset = 64;
        if ((format & ~UNPACKED) == PANEL_IQ1M)
            s.offset = 32;
        s.quants = 128;
        s.factor = 0.125f;
        break;
    case PANEL_IQ3XXS:
    case PANEL_IQ3S:
        bits = 7;
        s.offset = 64;
        s.scale = 128;
        if ((format & ~UNPACKED) == PANEL_IQ3XXS)
            s.factor = 0.25f;
        break;
    case PANEL_TQ:
        s.no_scale = true;
        s.offset = 1;
        s.quants = 128;
        s.scale = 0;
        break;
    default: /* IQ2XXS */
        bits = 7;
        s.offset = 64;
        s.quants = 128;
        s.scale = 128;
        s.factor = 0.125f;
        break;
    }
    if (format & UNPACKED)
        s.quants = 512;
    s.run = MIN(s.groups, VD_WORDS >> (bits - 4));
    return s;
}

/* Computes the floating-point part of a block of @n columns: adds integer sums isum[c], and the
 * minimums, to acc[c]. @meta: the scales of the block. */
INLINE void gemm_k_add_block(struct shape f, const uint8_t *meta, struct cols a, int n,
                             const vi *isum, vf *acc) {
    const int n_subs = 64 / f.groups;
    vf d = vf_load_half(meta + f.scale), dmin = vf_zero();
    vi msum[TILE_MAX];

    if (f.minimums) {
        if (f.min_factor != 0)
            dmin = vf_mul(d, vf_set1(-f.min_factor));
        else
            dmin = vf_neg(vf_load_half(meta + f.scale + 32));
        UNROLL
        for (int c = 0; c < n; c++)
            msum[c] = vi_zero();
        UNROLL
        for (int p = 0; p < n_subs / 2; p++) {
            vi m = vi_load_pairs(meta + LANES * n_subs + 32 * p);
            int at = AK_PAIRS32 + p;

            if (f.groups == 4)
                at = AK_PAIRS16 + p;
            UNROLL
            for (int c = 0; c < n; c++)
                msum[c] = vi_dot_pairs(msum[c], m, cols_i(a.sums, a.row, c, at));
        }
    }
    if (f.factor != 1)
        d = vf_mul(d, vf_set1(f.factor));
    UNROLL
    for (int c = 0; c < n; c++) {
        vf p = vf_mul(d, vf_of_i(isum[c]));
        float scale = cols_f(a.sums, a.row, c, AK_SCALE);

        if (f.minimums)
            p = vf_fma(dmin, vf_of_i(msum[c]), p);
        acc[c] = vf_fma(vf_set1(scale), p, acc[c]);
    }
}
