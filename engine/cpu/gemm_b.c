#include "engine/cpu/kernels.h"

/*
 * Panels x tiles for the formats with blocks of 32: int8 activations, weights with a scale (and a
 * minimum) each. In every lane, for a block:
 *
 *   dot = sum of weight x activation                                         exact, int32
 *   acc = fma(activation scale, fma(m, (float)sum, d * (float)dot), acc)
 *
 * (without the inner fma where there are no minimums).
 */

static const uint8_t iq4_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};

/* Group @g (0..7) of a block. */
INLINE vb weights(int format, const uint8_t *q, int g, vb table) {
    if (format == PANEL_Q8 || format == PANEL_Q8M)
        return vb_load(q + 64 * g);
    vb v = vb_load(q + 64 * (g / 2));
    v = vb_and(g % 2 ? vb_shr(v, 4) : v, vb_set1(15));
    return format == PANEL_IQ4NL ? vb_lookup(table, v) : v;
}

/* acc[c] += one block. */
INLINE void add_block(int format, const uint8_t *q, const uint8_t *meta, const int32_t *a, int n,
                      int width, vb table, vf *acc) {
    const bool minimums = format == PANEL_Q4M || format == PANEL_Q8M;
    const bool offset128 = format == PANEL_Q8 || format == PANEL_IQ4NL;
    vi dot[TILE_MAX];

    UNROLL
    for (int c = 0; c < n; c++)
        dot[c] = offset128            ? vi_dot8_init(a[AB_NEG128_SUM * width + c])
                 : format == PANEL_Q4 ? vi_set1(a[AB_NEG8_SUM * width + c])
                                      : vi_zero();
    UNROLL
    for (int g = 0; g < 8; g++) {
        vb w = weights(format, q, g, table);

        UNROLL
        for (int c = 0; c < n; c++)
            dot[c] = offset128 ? vi_dot8(dot[c], w, a[g * width + c])
                               : vi_dot6(dot[c], w, a[g * width + c]);
    }
    vf d = vf_load_half(meta), min = minimums ? vf_load_half(meta + 32) : vf_zero();
    UNROLL
    for (int c = 0; c < n; c++) {
        vf p = vf_mul(d, vf_of_i(dot[c]));
        float scale, sum;

        memcpy(&scale, &a[AB_SCALE * width + c], 4);
        memcpy(&sum, &a[AB_SUM * width + c], 4);
        if (minimums)
            p = vf_fma(min, vf_set1(sum), p);
        acc[c] = vf_fma(vf_set1(scale), p, acc[c]);
    }
}

INLINE void run(int format, const struct mat *m, const uint8_t *panel, const uint8_t *acts, int n,
                int width, uint32_t b0, uint32_t b1, float *out) {
    const struct panel_info *info = &panel_infos[format];
    const uint8_t *p = panel + (size_t)(b0 / 2) * info->unit_bytes;
    const int32_t *a = (const int32_t *)acts + (size_t)b0 * AB_UNITS * (size_t)width;
    vb table = vb_table(iq4_table);
    vf acc[TILE_MAX];

    UNROLL
    for (int c = 0; c < n; c++)
        acc[c] = vf_load(out + LANES * c);
    for (uint32_t b = b0; b < b1; b += 2, p += info->unit_bytes, a += 2 * AB_UNITS * width) {
        const uint8_t *meta = p + 2 * info->quant_bytes;

        UNROLL
        for (size_t i = 0; i < info->unit_bytes / 64u; i++)
            __builtin_prefetch(p + VEC_AHEAD + 64 * i);
        add_block(format, p, meta, a, n, width, table, acc);
        if (b + 1 < b1)
            add_block(format, p + info->quant_bytes, meta + info->meta_bytes, a + AB_UNITS * width,
                      n, width, table, acc);
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, acc[c]);
}

#define CALL(n, width, col)                                                                        \
    run(FORMAT, m, panel, acts + 4 * (col), n, width, b0, b1, acc + LANES * (col))
#define DEFINE(name)                                                                               \
    static void gemm_##name(const struct mat *m, const uint8_t *panel, const uint8_t *acts,        \
                            uint32_t n, uint32_t b0, uint32_t b1, float *acc) {                    \
        FOR_WIDTH(n, CALL);                                                                        \
    }

#define FORMAT PANEL_Q8
DEFINE(q8)
#undef FORMAT
#define FORMAT PANEL_Q4
DEFINE(q4)
#undef FORMAT
#define FORMAT PANEL_IQ4NL
DEFINE(iq4nl)
#undef FORMAT
#define FORMAT PANEL_Q4M
DEFINE(q4m)
#undef FORMAT
#define FORMAT PANEL_Q8M
DEFINE(q8m)
#undef FORMAT

/* The quants of these are bytes, or so near to it that unpacking them first gains nothing. */
const struct gemm CPU_NAME(gemm_b)[PANEL_FORMATS] = {
    [PANEL_Q8] = {.run = gemm_q8},       [PANEL_Q4] = {.run = gemm_q4},
    [PANEL_IQ4NL] = {.run = gemm_iq4nl}, [PANEL_Q4M] = {.run = gemm_q4m},
    [PANEL_Q8M] = {.run = gemm_q8m},
};
