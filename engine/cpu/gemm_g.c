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
 * A dot product has up to four sums, of every second or fourth group of four values, so that an
 * instruction does not wait for the one before.
 *
 * A core loads two vectors a cycle and does two products, so words of activations that are loaded
 * one by one bound the kernel. With AVX-512, half of them are loaded four at a time and spread to
 * the lanes by shuffles, if other units do these (cpu_shuffles_beside). All of them would be slower
 * with four columns. The sums are the same.
 */

#include "engine/cpu/kernels.h"

/* Sums that are computed at a time, four for each column at most. AVX2 has 16 registers, of which a
 * sum takes two, and two more for its 16 bits. */
#if defined CPU_AVX2
enum { CHAINS = 2 };
#elif VEC_TILE == 2
enum { CHAINS = 4 };
#else
enum { CHAINS = 16 };
#endif

/* Says how codes are read: from bytes, and activations also by shuffles. */
struct g_way {
    bool unpacked, shuffled;
};

#ifdef VEC_FOUR
#define SHUFFLED cpu_shuffles_beside
#else
#define SHUFFLED false
#endif

/* Returns group @g of the codes at @q, of which two are in a byte unless they are @unpacked. */
INLINE vb gemm_g_weights(bool unpacked, const uint8_t *q, int g) {
    if (unpacked)
        return vb_load(q + 64 * g);
    vb both = vb_load(q + 64 * (g / 2));
    if (g % 2)
        both = vb_shr(both, 4);
    return vb_and(both, vb_set1(15));
}

/* Begins runs of dot products with the sums at @dot. */
INLINE void gemm_g_begin(int chains, int n, vi dot[4][TILE_MAX], vd run[4][TILE_MAX]) {
    UNROLL
    for (int k = 0; k < chains; k++) {
        UNROLL
        for (int c = 0; c < n; c++)
            run[k][c] = vd_begin(dot[k][c]);
    }
}

/* Adds the runs to the sums. */
INLINE void gemm_g_end(int chains, int n, vi dot[4][TILE_MAX], vd run[4][TILE_MAX]) {
    UNROLL
    for (int k = 0; k < chains; k++) {
        UNROLL
        for (int c = 0; c < n; c++)
            dot[k][c] = vd_end(dot[k][c], run[k][c]);
    }
}

/* Adds the products of the four groups of codes at @q and the words of activations at @x. @row:
 * bytes from a column of activations to the next one. */
INLINE void gemm_g_add_four(struct g_way way, const uint8_t *q, const uint8_t *x, size_t row, int n,
                            vd run[4][TILE_MAX]) {
    const int chains = MIN(CHAINS / n, 4);
    vi four[TILE_MAX];

    if (!way.unpacked) {
        __builtin_prefetch(q + VEC_AHEAD);
        __builtin_prefetch(q + VEC_AHEAD + 64);
    }
    UNROLL
    for (int c = 0; c < n; c++) {
        four[c] = vi_zero();
        if (way.shuffled)
            four[c] = vi_four(x + (size_t)c * row);
    }
    UNROLL
    for (int k = 0; k < 4; k++) {
        vb w = gemm_g_weights(way.unpacked, q, k);

        UNROLL
        for (int c = 0; c < n; c++) {
            const uint8_t *at = x + (size_t)c * row;
            vd *sum = &run[k % chains][c];

            if (way.shuffled)
                *sum = vd_dot_four(*sum, w, at, four[c], k);
            else
                *sum = vd_dot(*sum, w, cols_i(at, 0, 0, k));
        }
    }
}

/* Computes v of group @half of a block, whose codes are at @q. @zero: its negated zero points. */
INLINE void gemm_g_group(struct g_way way, const uint8_t *q, vf zero, struct cols a, int n,
                         int half, vf *v) {
    const int chains = MIN(CHAINS / n, 4);
    const uint8_t *x = a.q + 128 * half;
    vi dot[4][TILE_MAX];
    vd run[4][TILE_MAX];

    UNROLL
    for (int k = 0; k < chains; k++) {
        UNROLL
        for (int c = 0; c < n; c++)
            dot[k][c] = vi_zero();
    }
    for (int first = 0; first < 32; first += VD_WORDS) {
        gemm_g_begin(chains, n, dot, run);
        /* A loop, because a block would have 13 KiB of code, which passing weights put out of the
         * caches. */
#pragma GCC unroll 1
        for (int g = first; g < first + VD_WORDS; g += 4)
            gemm_g_add_four(way, q + (way.unpacked ? 64 : 32) * g, x + 4 * g, a.row, n, run);
        gemm_g_end(chains, n, dot, run);
    }
    UNROLL
    for (int c = 0; c < n; c++) {
        UNROLL
        for (int k = 1; k < chains; k++)
            dot[0][c] = vi_add(dot[0][c], dot[k][c]);
        vf sum = vf_set1(cols_f(a.sums, a.row, c, AK_SUM128 + half));
        v[c] = vf_fma(zero, sum, vf_of_i(dot[0][c]));
    }
}

/* Implements gemm.run, and with unpacked codes at @quants gemm_wide.run for one tile of @n
 * columns. */
INLINE void gemm_g_run(struct g_way way, const struct mat *m, const uint8_t *panel,
                       const uint8_t *quants, const uint8_t *acts, int n, uint32_t b0, uint32_t b1,
                       float *out) {
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

        UNROLL
        for (int half = 0; half < 2; half++) {
            vf d = vf_load_half(meta + 32 * half);
            vf zero = vf_load_half(meta + 64 + 32 * half);
            const uint8_t *q = way.unpacked ? quants + 2048 * half : p + 1024 * half;

            if (!way.unpacked)
                __builtin_prefetch(meta + VEC_AHEAD + 64 * half);
            gemm_g_group(way, q, zero, a, n, half, v);
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
        if (way.unpacked)
            quants += 4096;
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, acc[c]);
}

#define RUN(unpacked, shuffled, n, col)                                                            \
    gemm_g_run((struct g_way){unpacked, shuffled}, m, panel, quants,                               \
               acts + acts_bytes(ACTS_K, m->n_in, col), n, b0, b1, acc + LANES * (col))
#define CALL(n, col) RUN(false, false, n, col)
#define CALL_SHUFFLED(n, col) RUN(false, true, n, col)
#define CALL_UNPACKED(n, col) RUN(true, false, n, col)
#define CALL_BOTH(n, col) RUN(true, true, n, col)

void CPU_NAME(gemm_g4)(const struct mat *m, const uint8_t *panel, const uint8_t *acts, uint32_t n,
                       uint32_t b0, uint32_t b1, float *acc) {
    const uint8_t *quants = NULL;

    if (SHUFFLED)
        FOR_WIDTH(n, CALL_SHUFFLED);
    else
        FOR_WIDTH(n, CALL);
}

void CPU_NAME(gemm_g4_unpack)(const uint8_t *panel, ptrdiff_t next, uint32_t b0, uint32_t b1,
                              uint8_t *out) {
    const struct panel_info *info = &panel_infos[PANEL_G4];
    const uint8_t *p = panel + (size_t)b0 * info->unit_bytes;

    for (uint32_t b = b0; b < b1; b++, p += info->unit_bytes)
        for (int g = 0; g < 64; g += 2, out += 128) {
            __builtin_prefetch(p + next + 32 * g, 0, 2);
            vb_store(out, gemm_g_weights(false, p, g));
            vb_store(out + 64, gemm_g_weights(false, p, g + 1));
        }
}

void CPU_NAME(gemm_g4_unpacked)(const struct mat *m, const uint8_t *panel, const uint8_t *quants,
                                const uint8_t *acts, uint32_t n_tiles, uint32_t b0, uint32_t b1,
                                float *acc) {
    for (uint32_t t = 0; t < n_tiles; t++, acc += TILE_MAX * LANES) {
        if (SHUFFLED)
            FOR_WIDTH(8, CALL_BOTH);
        else
            FOR_WIDTH(8, CALL_UNPACKED);
        acts += acts_bytes(ACTS_K, m->n_in, TILE_MAX);
    }
}
