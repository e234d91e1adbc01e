/*
 * gemm_k - multiplies panels by tiles of activations, for the formats with blocks of 256 values
 * (super-blocks): K-quants, IQ formats, TQ.
 *
 * Activations are int8 with one scale for each block (ACTS_K). Weights are integers of at most 8
 * bits; each sub-block of 32 or 16 weights has an integer scale, and each block a scale d and
 * perhaps dmin. A lane is a row of the panel, and every column of the tile has an accumulator of 16
 * lanes. For a block, in every lane:
 *
 *   isum = sum over sub-blocks of scale * (sum of weight * activation)       int32, exact
 *   msum = sum over sub-blocks of minimum * (sum of activations)             int32, exact
 *   acc  = fma(activation scale, fma(-dmin, (float)msum, d * (float)isum), acc)
 *
 * Formats without minimums leave out the inner fma. The integer sums cannot overflow: the largest
 * isum is below 16 * 128 * 16 * 63 * 127 < 2^31.
 *
 * Weights are stored with an offset that makes them unsigned, as the byte multiply-add wants them
 * (vi_dot6(), vi_dot8()). The offset is not subtracted from each weight: sum of (w + offset) x =
 * sum of w x + offset * (sum of x), so a dot product begins at -offset times the sum of the
 * activations, which acts.c has computed (dot_init()).
 *
 * There are two variants of each kernel. gemm_x() unpacks the weights of a panel on the way, for
 * up to 8 columns: each vector of weights is unpacked once and multiplied by all columns in
 * registers. With few columns, reading the weights from memory bounds this kernel. For many tiles
 * that would unpack a panel many times, so unpack_x() unpacks it to bytes once, and unpacked_x()
 * multiplies these by any number of tiles; the multiply-adds of bytes bound this kernel. The sums
 * are the same, and so are the bits.
 */

#include "engine/cpu/gemm_k.h"

/* Moves the bits of each byte that begin at bit @at to bit @to, and applies @mask. */
INLINE vb high_bits(vb v, int at, int to, uint8_t mask) {
    vb m = vb_set1(mask);

    if (at < to)
        return vb_and(vb_shl(v, to - at), m);
    return vb_and(vb_shr(v, at - to), m);
}

/* Returns group @g of quants of two bits. */
INLINE vb two_bits(const uint8_t *q, int g) {
    return vb_and(vb_shr(vb_load(q + 64 * (g / 4)), 2 * (g % 4)), vb_set1(3));
}

/* Returns group @g of quants of four bits. */
INLINE vb low_bits(const uint8_t *q, int g) {
    vb v = vb_load(q + 64 * (g / 2));

    if (g % 2)
        v = vb_shr(v, 4);
    return vb_and(v, vb_set1(15));
}

/* Returns group @g (0 to 7) of the 32 values whose lower bits are at @q and whose higher bits, if
 * the format has any, are at @h. */
INLINE vb gemm_k_weights(int format, const uint8_t *q, const uint8_t *h, int g, vb table) {
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
    default: /* UNPACKED, and IQ2XXS, which vb_iq2() has unpacked */
        return vb_load(q + 64 * g);
    }
}

/* Returns the address of the higher bits of the @s-th 32 values of the block at @q; not used if the
 * format has none. */
INLINE const uint8_t *high_part(int format, const uint8_t *q, int s) {
    if (format == PANEL_Q5K)
        return q + 2048 + 64 * s;
    if (format == PANEL_Q6K)
        return q + 2048 + 128 * s;
    return q + 1024 + 64 * s; /* Q3K, IQ1M, IQ2S */
}

/* Values of IQ4_XS (kvalues_iq4nl of llama.cpp's ggml-common.h), plus 128. */
static const uint8_t iq4_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};

/* Values of the grids plus their offset, by code; the upper half of a table is for the codes with
 * the sign bit (IQ1: negative delta) set.
 *   IQ2      64 +- 8, 25, 43
 *   IQ3_XXS  64 +- 4, 12, 20, ..., 52, 62
 *   IQ3_S    64 +- 1, 3, 5, ..., 15
 *   IQ1      32 + 8 q + 1, or 32 + 8 q - 1, with q = -1, 0, 1: eighths, as delta is 1/8 */
static const uint8_t iq2_table[16] = {72, 89, 107, 64, 56, 39, 21, 64};
static const uint8_t iq3_xxs_table[16] = {68, 76, 84, 92, 100, 108, 116, 126,
                                          60, 52, 44, 36, 28,  20,  12,  2};
static const uint8_t iq3_s_table[16] = {65, 67, 69, 71, 73, 75, 77, 79,
                                        63, 61, 59, 57, 55, 53, 51, 49};
static const uint8_t iq1_table[16] = {25, 33, 41, 32, 23, 31, 39, 32};

/* Returns the table of a format whose values are looked up; for the other formats it is not
 * used. */
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

/* Returns the number at which the dot product of sub-block @sub with column @c begins: -offset
 * times the sum of its activations, derived from one of the products in the activations. */
INLINE vi dot_init(struct shape f, struct cols a, int c, int sub) {
    switch (f.offset) {
    case 1:
        return vi_set1(cols_i(a.sums, a.row, c, AK_NEG128_SUM32 + sub) / 128);
    case 4:
        return vi_set1(cols_i(a.sums, a.row, c, AK_NEG32_SUM16 + sub) / 8);
    case 32:
        return vi_set1(cols_i(a.sums, a.row, c, AK_NEG32_SUM16 + sub));
    case 64:
        if (f.groups == 4)
            return vi_set1(twice(cols_i(a.sums, a.row, c, AK_NEG32_SUM16 + sub)));
        return vi_set1(cols_i(a.sums, a.row, c, AK_NEG128_SUM32 + sub) >> 1);
    case 128:
        return vi_dot8_init(cols_i(a.sums, a.row, c, AK_NEG128_SUM32 + sub));
    default:
        return vi_zero();
    }
}

/* Adds the words [first, first + f.run) of the @s-th 32 values of a block to dot[c]. */
INLINE void gemm_k_add_run(int format, struct shape f, const uint8_t *q, const uint8_t *h,
                           struct cols a, int n, int s, int first, vb table, vi *dot) {
    vd run[TILE_MAX];

    UNROLL
    for (int c = 0; c < n; c++)
        run[c] = vd_begin(dot[c]);
    UNROLL
    for (int g = first; g < first + f.run; g++) {
        vb w = gemm_k_weights(format, q, h, g, table);

        UNROLL
        for (int c = 0; c < n; c++) {
            int32_t x = cols_i(a.q, a.row, c, 8 * s + g);

            if (f.offset == 128)
                dot[c] = vi_dot8(dot[c], w, x);
            else
                run[c] = vd_dot(run[c], w, x);
        }
    }
    if (f.offset == 128)
        return;
    UNROLL
    for (int c = 0; c < n; c++)
        dot[c] = vd_end(dot[c], run[c]);
}

/* Adds the @s-th 32 values of a block, one sub-block or two, to isum[c]. */
INLINE void add_sub_blocks(int format, struct shape f, const uint8_t *q, const uint8_t *h,
                           const uint8_t *meta, struct cols a, int n, int s, vb table, vi *isum) {
    UNROLL
    for (int first = 0; first < 8; first += f.groups) {
        vi dot[TILE_MAX];
        int sub = (8 * s + first) / f.groups;

        UNROLL
        for (int c = 0; c < n; c++)
            dot[c] = dot_init(f, a, c, sub);
        UNROLL
        for (int g = first; g < first + f.groups; g += f.run)
            gemm_k_add_run(format, f, q, h, a, n, s, g, table, dot);
        vi scale = vi_zero();
        if (!f.no_scale)
            scale = vi_load_i8(meta + 16 * sub);
        UNROLL
        for (int c = 0; c < n; c++) {
            if (!f.no_scale)
                dot[c] = vi_mul(dot[c], scale);
            isum[c] = vi_add(isum[c], dot[c]);
        }
    }
}

/* Implements gemm.run, and with the flag UNPACKED gemm_wide.run for one tile of @n columns. */
INLINE void gemm_k_run(int format, const struct mat *m, const uint8_t *panel, const uint8_t *quants,
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
        gemm_k_add_block(f, meta, a, n, isum, acc);
        a.q += 256;
        a.sums += AK_UNITS * 4;
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, acc[c]);
}

/* Implements gemm_wide.unpack: 64 groups of 64 bytes for each block. */
INLINE void gemm_k_unpack(int format, const uint8_t *panel, ptrdiff_t next, uint32_t b0,
                          uint32_t b1, uint8_t *out) {
    const struct shape f = shape_of(format);
    const size_t step = panel_infos[format].unit_bytes;
    vb table = table_of(format);

    for (uint32_t b = b0; b < b1; b++)
        for (int s = 0; s < 8; s++, out += 512) {
            const uint8_t *q = panel + b * step;

            /* Prefetch into the second-level cache. */
            UNROLL
            for (size_t i = 0; i < (step / 64 + 7) / 8; i++)
                __builtin_prefetch(q + next + 64 * ((size_t)s * ((step / 64 + 7) / 8) + i), 0, 2);

            if (format == PANEL_IQ2XXS) {
                vb_iq2(q + 128 * s, q + 128 * s + 64, out);
                continue;
            }
            UNROLL
            for (int g = 0; g < 8; g++)
                vb_store(out + 64 * g, gemm_k_weights(format, q + f.quants * (size_t)s,
                                                      high_part(format, q, s), g, table));
        }
}

#define CALL(n, col)                                                                               \
    gemm_k_run(FORMAT, m, panel, NULL, acts + acts_bytes(ACTS_K, m->n_in, col), n, b0, b1,         \
               acc + LANES * (col))
#define CALL_UNPACKED(n, col)                                                                      \
    gemm_k_run(FORMAT | UNPACKED, m, panel, quants, acts + acts_bytes(ACTS_K, m->n_in, col), n,    \
               b0, b1, acc + LANES * (col))
#define DEFINE(name, format, ...)                                                                  \
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
    static void unpack_##name(const uint8_t *panel, ptrdiff_t next, uint32_t b0, uint32_t b1,      \
                              uint8_t *out) {                                                      \
        gemm_k_unpack(format, panel, next, b0, b1, out);                                           \
    }

PANELS_K(DEFINE)

#define ROW(name, format, ...) [format] = {gemm_##name},
#define ROW_WIDE(name, format, ...) [format] = {unpack_##name, unpacked_##name, 1, 1},

const struct gemm CPU_NAME(gemm_k)[PANEL_FORMATS] = {PANELS_K(ROW)[PANEL_G4] = {CPU_NAME(gemm_g4)}};
const struct gemm_wide CPU_NAME(gemm_wide)[PANEL_FORMATS] = {
    PANELS_K(ROW_WIDE)[PANEL_G4] = {CPU_NAME(gemm_g4_unpack), CPU_NAME(gemm_g4_unpacked), 1, 1}};
