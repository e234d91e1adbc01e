#include "engine/cpu/gemm_k.h"

/*
 * Panels x tiles for the formats with blocks of 256: int8 activations with one scale a block,
 * weights with an integer scale a sub-block of 32 or 16. In every lane, for a block:
 *
 *   isum = sum over sub-blocks of scale x (sum of weight x activation)       exact, int32
 *   msum = sum over sub-blocks of minimum x (sum of activations)             exact, int32
 *   acc  = fma(activation scale, fma(-dmin, (float)msum, d * (float)isum), acc)
 *
 * (without the inner fma where there are no minimums). The largest isum is 16 x 128 x 16 x 63 x 127
 * < 2^31. The float side is 4 or 5 operations per 256 values; what bounds the kernel is reading the
 * weights with few columns, the byte multiply-adds with many.
 */

/* The bits @at .. of @v, moved to bit @to. */
INLINE vb high_bits(vb v, int at, int to, uint8_t mask) {
    vb m = vb_set1(mask);

    return at < to ? vb_and(vb_shl(v, to - at), m) : vb_and(vb_shr(v, at - to), m);
}

INLINE vb two_bits(const uint8_t *q, int g) {
    return vb_and(vb_shr(vb_load(q + 64 * (g / 4)), 2 * (g % 4)), vb_set1(3));
}

INLINE vb low_bits(const uint8_t *q, int g) {
    vb v = vb_load(q + 64 * (g / 2));

    return vb_and(g % 2 ? vb_shr(v, 4) : v, vb_set1(15));
}

/* Returns group @g (0..7) of the 32 values whose quants start at @q; @h: their high bits. */
INLINE vb weights(int format, const uint8_t *q, const uint8_t *h, int g, vb table) {
    switch (format) {
    case PANEL_Q4K:
        return low_bits(q, g);
    case PANEL_Q5K:
        return vb_or(low_bits(q, g), high_bits(vb_load(h), g, 4, 16));
    case PANEL_Q6K:
        return vb_or(low_bits(q, g), high_bits(vb_load(h + 64 * (g / 4)), 2 * (g % 4), 4, 48));
    case PANEL_Q3K:
        return vb_or(two_bits(q, g), high_bits(vb_load(h), g, 2, 4));
    case PANEL_Q2K:
    case PANEL_IQ1S:
    case PANEL_TQ:
        return two_bits(q, g);
    case PANEL_IQ1M:
    case PANEL_IQ2S:
        return vb_lookup(table, vb_or(two_bits(q, g), high_bits(vb_load(h), g, 2, 4)));
    case PANEL_IQ4XS:
    case PANEL_IQ3XXS:
    case PANEL_IQ3S:
        return vb_lookup(table, low_bits(q, g));
    default: /* bytes */
        return vb_load(q + 64 * g);
    }
}

INLINE const uint8_t *high_part(int format, const uint8_t *q, int s) {
    return format == PANEL_Q5K   ? q + 2048 + 64 * s
           : format == PANEL_Q6K ? q + 2048 + 128 * s
                                 : q + 1024 + 64 * s; /* Q3K, IQ1M, IQ2S */
}

/* Values of IQ4, plus 128. */
static const uint8_t iq4_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};

/* By code, what the values and their offset add up to: 64 +- 8, 25, 43; 64 +- 4, 12, ..., 52, 62;
 * 64 +- 1, 3, ..., 15; 32 and eight times -1, 0, 1, +1 or (from code 4) -1. */
static const uint8_t iq2_table[16] = {72, 89, 107, 64, 56, 39, 21, 64};
static const uint8_t iq3_xxs_table[16] = {68, 76, 84, 92, 100, 108, 116, 126,
                                          60, 52, 44, 36, 28,  20,  12,  2};
static const uint8_t iq3_s_table[16] = {65, 67, 69, 71, 73, 75, 77, 79,
                                        63, 61, 59, 57, 55, 53, 51, 49};
static const uint8_t iq1_table[16] = {25, 33, 41, 32, 23, 31, 39, 32};

INLINE vb table_of(int format) {
    switch (format & ~UNPACKED) {
    case PANEL_IQ1M:
        return vb_table(iq1_table);
    case PANEL_IQ2S:
        return vb_table(iq2_table);
    case PANEL_IQ3XXS:
        return vb_table(iq3_xxs_table);
    case PANEL_IQ3S:
        return vb_table(iq3_s_table);
    default:
        return vb_table(iq4_table);
    }
}

/* Returns the initial sum of column @c that removes the offset of sub-block @sub (of 16 or 32
 * values). */
INLINE vi dot_init(struct shape f, struct cols a, int c, int sub) {
    switch (f.offset) {
    case 1:
        return vi_set1(cols_i(a.sums, a.row, c, AK_NEG128_SUM32 + sub) / 128);
    case 4:
        return vi_set1(cols_i(a.sums, a.row, c, AK_NEG32_SUM16 + sub) / 8);
    case 32:
        return vi_set1(cols_i(a.sums, a.row, c, AK_NEG32_SUM16 + sub));
    case 64:
        return vi_set1(f.sub16 ? twice(cols_i(a.sums, a.row, c, AK_NEG32_SUM16 + sub))
                               : cols_i(a.sums, a.row, c, AK_NEG128_SUM32 + sub) >> 1);
    case 128:
        return vi_dot8_init(cols_i(a.sums, a.row, c, AK_NEG128_SUM32 + sub));
    default:
        return vi_zero();
    }
}

/* Adds sub-block @s of 32 values to isum[c]. */
INLINE void add_sub_blocks(int format, struct shape f, const uint8_t *q, const uint8_t *h,
                           const uint8_t *meta, struct cols a, int n, int s, vb table, vi *isum) {
    const int per_scale = f.sub16 ? 4 : 8;

    UNROLL
    for (int first = 0; first < 8; first += per_scale) {
        vi dot[TILE_MAX];
        int sub = f.sub16 ? 2 * s + first / 4 : s;

        UNROLL
        for (int c = 0; c < n; c++)
            dot[c] = dot_init(f, a, c, sub);
        UNROLL
        for (int g = first; g < first + per_scale; g++) {
            vb w = weights(format, q, h, g, table);

            UNROLL
            for (int c = 0; c < n; c++) {
                int32_t x = cols_i(a.q, a.row, c, 8 * s + g);

                dot[c] = f.offset == 128 ? vi_dot8(dot[c], w, x) : vi_dot6(dot[c], w, x);
            }
        }
        vi scale = f.no_scale ? vi_zero() : vi_load_i8(meta + 16 * sub);
        UNROLL
        for (int c = 0; c < n; c++)
            isum[c] = vi_add(isum[c], f.no_scale ? dot[c] : vi_mul(dot[c], scale));
    }
}

INLINE void run(int format, const struct mat *m, const uint8_t *panel, const uint8_t *quants,
                const uint8_t *acts, int n, uint32_t b0, uint32_t b1, float *out) {
    const struct shape f = shape_of(format);
    const struct panel_info *info = &panel_infos[format & ~UNPACKED];
    const size_t step = info->unit_bytes, lines = (step / 64 + 7) / 8;
    const bool iq2 = format == PANEL_IQ2XXS;
    const uint8_t *p = panel + b0 * step;
    struct cols a = {acts + (size_t)b0 * 256, acts + m->n_in + (size_t)b0 * AK_UNITS * 4,
                     acts_bytes(ACTS_K, m->n_in, 1)};
    vb table = table_of(format);
    vf acc[TILE_MAX];

    UNROLL
    for (int c = 0; c < n; c++)
        acc[c] = vf_load(out + LANES * c);
    for (uint32_t b = b0; b < b1; b++, p += step) {
        const uint8_t *meta = p + info->quant_bytes;
        vi isum[TILE_MAX];

        UNROLL
        for (int c = 0; c < n; c++)
            isum[c] = vi_zero();
        for (int s = 0; s < 8; s++) {
            uint8_t bytes[512] __attribute__((aligned(64)));

            if (format & UNPACKED) {
                add_sub_blocks(format, f, quants, NULL, meta, a, n, s, table, isum);
                quants += 512;
                continue;
            }
            UNROLL
            for (size_t i = 0; i < lines; i++)
                __builtin_prefetch(p + VEC_AHEAD + 64 * ((size_t)s * lines + i));
            if (iq2) {
                vb_iq2(p + 128 * s, p + 128 * s + 64, bytes);
                add_sub_blocks(format, f, bytes, NULL, meta, a, n, s, table, isum);
            } else {
                add_sub_blocks(format, f, p + f.quants * (size_t)s, high_part(format, p, s), meta,
                               a, n, s, table, isum);
            }
        }
        add_block(f, meta, a, n, isum, acc);
        a.q += 256;
        a.sums += AK_UNITS * 4;
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, acc[c]);
}

INLINE void unpack(int format, const struct mat *m, const uint8_t *panel, uint32_t b0, uint32_t b1,
                   uint8_t *out) {
    const struct shape f = shape_of(format);
    const size_t step = panel_infos[format].unit_bytes;
    vb table = table_of(format);

    for (uint32_t b = b0; b < b1; b++)
        for (int s = 0; s < 8; s++, out += 512) {
            const uint8_t *q = panel + b * step;

            /* Prefetches the same blocks of the next panel into the L2 cache: they are needed once
             * all tiles were multiplied with this panel. */
            UNROLL
            for (size_t i = 0; i < (step / 64 + 7) / 8; i++)
                __builtin_prefetch(
                    q + m->panel_bytes + 64 * ((size_t)s * ((step / 64 + 7) / 8) + i), 0, 2);

            if (format == PANEL_IQ2XXS) {
                vb_iq2(q + 128 * s, q + 128 * s + 64, out);
                continue;
            }
            UNROLL
            for (int g = 0; g < 8; g++)
                vb_store(out + 64 * g, weights(format, q + f.quants * (size_t)s,
                                               high_part(format, q, s), g, table));
        }
}

#define CALL(n, col)                                                                               \
    run(FORMAT, m, panel, NULL, acts + acts_bytes(ACTS_K, m->n_in, col), n, b0, b1,                \
        acc + LANES * (col))
#define CALL_UNPACKED(n, col)                                                                      \
    run(FORMAT | UNPACKED, m, panel, quants, acts + acts_bytes(ACTS_K, m->n_in, col), n, b0, b1,   \
        acc + LANES * (col))
#define DEFINE(name, format)                                                                       \
    static void gemm_##name(const struct mat *m, const uint8_t *panel, const uint8_t *acts,        \
                            uint32_t n, uint32_t b0, uint32_t b1, float *acc) {                    \
        enum { FORMAT = format };                                                                  \
        FOR_WIDTH(n, CALL);                                                                        \
    }                                                                                              \
    static void unpacked_##name(const struct mat *m, const uint8_t *panel, const uint8_t *quants,  \
                                const uint8_t *acts, uint32_t n_tiles, uint32_t b0, uint32_t b1,   \
                                float *acc) {                                                      \
        enum { FORMAT = format };                                                                  \
        for (uint32_t t = 0; t < n_tiles; t++, acc += TILE_MAX * LANES) {                          \
            FOR_WIDTH(8, CALL_UNPACKED);                                                           \
            acts += acts_bytes(ACTS_K, m->n_in, TILE_MAX);                                         \
        }                                                                                          \
    }                                                                                              \
    static void unpack_##name(const struct mat *m, const uint8_t *panel, uint32_t b0, uint32_t b1, \
                              uint8_t *out) {                                                      \
        unpack(format, m, panel, b0, b1, out);                                                     \
    }

EACH_K_FORMAT(DEFINE)

#define ROW(name, format) [format] = {gemm_##name},
#define ROW_WIDE(name, format) [format] = {unpack_##name, unpacked_##name, 1, 1},

const struct gemm CPU_NAME(gemm_k)[PANEL_FORMATS] = {EACH_K_FORMAT(ROW)};
const struct gemm_wide CPU_NAME(gemm_wide)[PANEL_FORMATS] = {EACH_K_FORMAT(ROW_WIDE)};
