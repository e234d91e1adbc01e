#include "engine/cpu/kernels.h"

#include "engine/quant.h"

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

enum { UNPACKED = 1 << 8 }; /* flag beside the format: the quants are bytes */

struct shape { /* compile-time facts of a format */
    bool sub16, minimums;
    int offset;     /* of the stored weights: 0, 32 or 128 */
    size_t quants;  /* bytes of 16 x 32 values */
    uint32_t scale; /* offset of d in the scales of a block */
};

INLINE struct shape shape_of(int format) {
    struct shape s = {.quants = 256, .scale = 256};

    switch (format & ~UNPACKED) {
    case PANEL_Q4K:
    case PANEL_Q5K:
        s.minimums = true;
        break;
    case PANEL_Q6K:
        s.sub16 = true;
        s.offset = 32;
        break;
    case PANEL_Q2K:
        s.sub16 = s.minimums = true;
        s.quants = 128;
        s.scale = 512;
        break;
    case PANEL_IQ4XS:
        s.offset = 128;
        s.scale = 128;
        break;
    default:
        s.offset = 128;
        s.quants = 128;
        s.scale = 128;
        break;
    }
    if (format & UNPACKED)
        s.quants = 512;
    return s;
}

/* The bits @at .. of @v that belong to group @g, moved to bit 4. */
INLINE vb high_bits(vb v, int at, uint8_t mask) {
    vb m = vb_set1(mask);

    return at < 4 ? vb_and(vb_shl(v, 4 - at), m) : vb_and(vb_shr(v, at - 4), m);
}

INLINE vb low_bits(const uint8_t *q, int g) {
    vb v = vb_load(q + 64 * (g / 2));

    return vb_and(g % 2 ? vb_shr(v, 4) : v, vb_set1(15));
}

/* Group @g (0..7) of the 32 values whose quants start at @q; @h: where the high bits are. */
INLINE vb weights(int format, const uint8_t *q, const uint8_t *h, int g, vb table) {
    switch (format) {
    case PANEL_Q4K:
        return low_bits(q, g);
    case PANEL_Q5K:
        return vb_or(low_bits(q, g), high_bits(vb_load(h), g, 16));
    case PANEL_Q6K:
        return vb_or(low_bits(q, g), high_bits(vb_load(h + 64 * (g / 4)), 2 * (g % 4), 48));
    case PANEL_Q2K:
        return vb_and(vb_shr(vb_load(q + 64 * (g / 4)), 2 * (g % 4)), vb_set1(3));
    case PANEL_IQ4XS:
        return vb_lookup(table, low_bits(q, g));
    default: /* bytes */
        return vb_load(q + 64 * g);
    }
}

INLINE const uint8_t *high_part(int format, const uint8_t *q, int s) {
    return format == PANEL_Q5K ? q + 2048 + 64 * s : q + 2048 + 128 * s;
}

/* What 128 and the values of IQ4 add up to. */
static const uint8_t iq4_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};

/* grid[j][i]: 128 + value j of entry i of the IQ2_XXS grid. */
static uint8_t iq2_grid[8][256] __attribute__((aligned(64)));

__attribute__((constructor)) static void fill_iq2_grid(void) {
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 256; i++)
            iq2_grid[j][i] = (uint8_t)(128 + (quant_iq2_xxs_grid[i] >> (8 * j)));
}

/* isum[c] += the sub-blocks of 32 values @s of a block. */
INLINE void add_sub_blocks(int format, struct shape f, const uint8_t *q, const uint8_t *h,
                           const uint8_t *meta, const int32_t *a, int n, int width, int s, vb table,
                           vi *isum) {
    const int per_scale = f.sub16 ? 4 : 8;

    UNROLL
    for (int first = 0; first < 8; first += per_scale) {
        vi dot[TILE_MAX];
        int sub = f.sub16 ? 2 * s + first / 4 : s;

        UNROLL
        for (int c = 0; c < n; c++)
            dot[c] = f.offset == 32    ? vi_set1(a[(AK_NEG32_SUM16 + sub) * width + c])
                     : f.offset == 128 ? vi_dot8_init(a[(AK_NEG128_SUM32 + sub) * width + c])
                                       : vi_zero();
        UNROLL
        for (int g = first; g < first + per_scale; g++) {
            vb w = weights(format, q, h, g, table);

            UNROLL
            for (int c = 0; c < n; c++) {
                int32_t x = a[(8 * s + g) * width + c];

                dot[c] = f.offset == 128 ? vi_dot8(dot[c], w, x) : vi_dot6(dot[c], w, x);
            }
        }
        vi scale = vi_load_i8(meta + 16 * sub);
        UNROLL
        for (int c = 0; c < n; c++)
            isum[c] = vi_add(isum[c], vi_mul(dot[c], scale));
    }
}

INLINE void add_block(struct shape f, const uint8_t *meta, const int32_t *a, int n, int width,
                      bool iq2, const vi *isum, vf *acc) {
    const int mins = f.sub16 ? 256 : 128, pairs = f.sub16 ? 8 : 4;
    vf d = vf_load_half(meta + f.scale), dmin = vf_zero();
    vi msum[TILE_MAX];

    if (iq2)
        d = vf_mul(d, vf_set1(0.125f));
    if (f.minimums) {
        dmin = vf_neg(vf_load_half(meta + f.scale + 32));
        UNROLL
        for (int c = 0; c < n; c++)
            msum[c] = vi_zero();
        UNROLL
        for (int p = 0; p < pairs; p++) {
            vi m = vi_load_pairs(meta + mins + 32 * p);

            UNROLL
            for (int c = 0; c < n; c++)
                msum[c] = vi_dot_pairs(msum[c], m,
                                       a[((f.sub16 ? AK_PAIRS16 : AK_PAIRS32) + p) * width + c]);
        }
    }
    UNROLL
    for (int c = 0; c < n; c++) {
        vf p = vf_mul(d, vf_of_i(isum[c]));
        float scale;

        if (f.minimums)
            p = vf_fma(dmin, vf_of_i(msum[c]), p);
        memcpy(&scale, &a[AK_SCALE * width + c], 4);
        acc[c] = vf_fma(vf_set1(scale), p, acc[c]);
    }
}

INLINE void run(int format, const struct mat *m, const uint8_t *panel, const uint8_t *quants,
                const uint8_t *acts, int n, int width, uint32_t b0, uint32_t b1, float *out) {
    const struct shape f = shape_of(format);
    const struct panel_info *info = &panel_infos[format & ~UNPACKED];
    const size_t step = info->unit_bytes, lines = (step / 64 + 7) / 8;
    const bool iq2 = (format & ~UNPACKED) == PANEL_IQ2XXS;
    const uint8_t *p = panel + b0 * step;
    const int32_t *a = (const int32_t *)acts + (size_t)b0 * AK_UNITS * (size_t)width;
    vb table = vb_table(iq4_table);
    vf acc[TILE_MAX];

    UNROLL
    for (int c = 0; c < n; c++)
        acc[c] = vf_load(out + LANES * c);
    for (uint32_t b = b0; b < b1; b++, p += step, a += AK_UNITS * width) {
        const uint8_t *meta = p + info->quant_bytes;
        vi isum[TILE_MAX];

        UNROLL
        for (int c = 0; c < n; c++)
            isum[c] = vi_zero();
        for (int s = 0; s < 8; s++) {
            uint8_t bytes[512];

            if (format & UNPACKED) {
                add_sub_blocks(format, f, quants, NULL, meta, a, n, width, s, table, isum);
                quants += 512;
                continue;
            }
            UNROLL
            for (size_t i = 0; i < lines; i++)
                __builtin_prefetch(p + VEC_AHEAD + 64 * ((size_t)s * lines + i));
            if (iq2) {
                vb_iq2(iq2_grid, p + 128 * s, p + 128 * s + 64, bytes);
                add_sub_blocks(format, f, bytes, NULL, meta, a, n, width, s, table, isum);
            } else {
                add_sub_blocks(format, f, p + f.quants * (size_t)s, high_part(format, p, s), meta,
                               a, n, width, s, table, isum);
            }
        }
        add_block(f, meta, a, n, width, iq2, isum, acc);
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, acc[c]);
}

INLINE void unpack(int format, const struct mat *m, const uint8_t *panel, uint32_t b0, uint32_t b1,
                   uint8_t *out) {
    const struct shape f = shape_of(format);
    const size_t step = panel_infos[format].unit_bytes;
    vb table = vb_table(iq4_table);

    for (uint32_t b = b0; b < b1; b++)
        for (int s = 0; s < 8; s++, out += 512) {
            const uint8_t *q = panel + b * step;

            /* The same blocks of the next panel, for the second-level cache: they are wanted when
             * all tiles have met this one. */
            UNROLL
            for (size_t i = 0; i < (step / 64 + 7) / 8; i++)
                __builtin_prefetch(
                    q + m->panel_bytes + 64 * ((size_t)s * ((step / 64 + 7) / 8) + i), 0, 2);

            if (format == PANEL_IQ2XXS) {
                vb_iq2(iq2_grid, q + 128 * s, q + 128 * s + 64, out);
                continue;
            }
            UNROLL
            for (int g = 0; g < 8; g++)
                vb_store(out + 64 * g, weights(format, q + f.quants * (size_t)s,
                                               high_part(format, q, s), g, table));
        }
}

#define CALL(n, width, col)                                                                        \
    run(FORMAT, m, panel, NULL, acts + 4 * (col), n, width, b0, b1, acc + LANES * (col))
#define CALL_UNPACKED(n, width, col)                                                               \
    run(FORMAT | UNPACKED, m, panel, quants, acts + 4 * (col), n, width, b0, b1,                   \
        acc + LANES * (col))
#define DEFINE(name)                                                                               \
    static void gemm_##name(const struct mat *m, const uint8_t *panel, const uint8_t *acts,        \
                            uint32_t n, uint32_t b0, uint32_t b1, float *acc) {                    \
        FOR_WIDTH(n, CALL);                                                                        \
    }                                                                                              \
    static void unpacked_##name(const struct mat *m, const uint8_t *panel, const uint8_t *quants,  \
                                const uint8_t *acts, uint32_t b0, uint32_t b1, float *acc) {       \
        FOR_WIDTH(8, CALL_UNPACKED);                                                               \
    }                                                                                              \
    static void unpack_##name(const struct mat *m, const uint8_t *panel, uint32_t b0, uint32_t b1, \
                              uint8_t *out) {                                                      \
        unpack(FORMAT, m, panel, b0, b1, out);                                                     \
    }

#define FORMAT PANEL_Q4K
DEFINE(q4k)
#undef FORMAT
#define FORMAT PANEL_Q5K
DEFINE(q5k)
#undef FORMAT
#define FORMAT PANEL_Q6K
DEFINE(q6k)
#undef FORMAT
#define FORMAT PANEL_Q2K
DEFINE(q2k)
#undef FORMAT
#define FORMAT PANEL_IQ4XS
DEFINE(iq4xs)
#undef FORMAT
#define FORMAT PANEL_IQ2XXS
DEFINE(iq2xxs)
#undef FORMAT

const struct gemm CPU_NAME(gemm_k)[PANEL_FORMATS] = {
    [PANEL_Q4K] = {gemm_q4k, unpack_q4k, unpacked_q4k},
    [PANEL_Q5K] = {gemm_q5k, unpack_q5k, unpacked_q5k},
    [PANEL_Q6K] = {gemm_q6k, unpack_q6k, unpacked_q6k},
    [PANEL_Q2K] = {gemm_q2k, unpack_q2k, unpacked_q2k},
    [PANEL_IQ4XS] = {gemm_iq4xs, unpack_iq4xs, unpacked_iq4xs},
    [PANEL_IQ2XXS] = {gemm_iq2xxs, unpack_iq2xxs, unpacked_iq2xxs},
};
