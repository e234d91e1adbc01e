/*
 * gemm_b - multiplies panels by tiles of activations, for the formats with blocks of 32 values.
 *
 * Activations are int8 with a scale and a sum for each block (ACTS_B). A block of weights has a
 * scale d and perhaps a minimum m. A lane is a row of the panel. For a block, in every lane:
 *
 *   dot = sum of weight * activation                                         int32, exact
 *   acc = fma(activation scale, fma(m, (float)sum, d * (float)dot), acc)
 *
 * Formats without minimums leave out the inner fma. NVFP4 has a scale for each half of the 32
 * values:
 *
 *   acc = fma(activation scale, fma(d1, (float)dot1, d0 * (float)dot0), acc)
 *
 * Weights are stored with an offset, which the initial value of a dot product removes (gemm_k.c).
 */

#include "engine/cpu/kernels.h"

/* Values of IQ4_NL (kvalues_iq4nl of llama.cpp's ggml-common.h), plus 128. */
static const uint8_t iq4_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};

/* Doubled values of MXFP4 and NVFP4 (FP4 E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6), plus 16. The loads of
 * their scales halve them. */
static const uint8_t fp4_table[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

/* Returns group @g (0 to 7) of a block of 32 values. */
INLINE vb gemm_b_weights(int format, const uint8_t *q, int g, vb table) {
    const enum panel_codes codes = panel_infos[format].codes;

    if (codes == PANEL_BYTES)
        return vb_load(q + 64 * g);
    vb v = vb_load(q + 64 * (g / 2));
    if (g % 2)
        v = vb_shr(v, 4);
    v = vb_and(v, vb_set1(15));
    if (codes == PANEL_FIVES) {
        vb high = vb_load(q + 256);

        if (g < 4)
            high = vb_shl(high, (unsigned)(4 - g));
        else
            high = vb_shr(high, (unsigned)(g - 4));
        return vb_or(v, vb_and(high, vb_set1(16)));
    }
    if (codes == PANEL_NIBBLES)
        return v;
    return vb_lookup(table, v);
}

/* Adds the words [first, first + n_words) of a block to dot[c]: a run of dot products (vec.h). */
INLINE void gemm_b_add_run(int format, const uint8_t *q, struct cols a, int n, int first,
                           int n_words, vb table, vi *dot) {
    const bool bytes = panel_infos[format].offset == 128;
    vd run[TILE_MAX];

    UNROLL
    for (int c = 0; c < n; c++)
        run[c] = vd_begin(dot[c]);
    UNROLL
    for (int g = first; g < first + n_words; g++) {
        vb w = gemm_b_weights(format, q, g, table);

        UNROLL
        for (int c = 0; c < n; c++) {
            int32_t x = cols_i(a.q, a.row, c, g);

            if (bytes)
                dot[c] = vi_dot8(dot[c], w, x);
            else
                run[c] = vd_dot(run[c], w, x);
        }
    }
    if (bytes)
        return;
    UNROLL
    for (int c = 0; c < n; c++)
        dot[c] = vd_end(dot[c], run[c]);
}

/* Adds 32 values of NVFP4 to acc[c]. @meta: scales of the first 16 values, then of the last 16. */
INLINE void add_nvfp4(const uint8_t *q, const uint8_t *meta, struct cols a, int n, vb table,
                      vf *acc) {
    vf sum[TILE_MAX];

    UNROLL
    for (int half = 0; half < 2; half++) {
        vi dot[TILE_MAX];
        vf d = vf_load_ue4m3_half(meta + LANES * half);

        UNROLL
        for (int c = 0; c < n; c++)
            dot[c] = vi_set1(cols_i(a.sums, a.row, c, AB_NEG16_SUM16 + half));
        gemm_b_add_run(PANEL_NVFP4, q, a, n, 4 * half, 4, table, dot);
        UNROLL
        for (int c = 0; c < n; c++) {
            if (half)
                sum[c] = vf_fma(d, vf_of_i(dot[c]), sum[c]);
            else
                sum[c] = vf_mul(d, vf_of_i(dot[c]));
        }
    }
    UNROLL
    for (int c = 0; c < n; c++)
        acc[c] = vf_fma(vf_set1(cols_f(a.sums, a.row, c, AB_SCALE)), sum[c], acc[c]);
}

/* Adds one block of another format to acc[c]. */
INLINE void gemm_b_add_block(int format, const uint8_t *q, const uint8_t *meta, struct cols a,
                             int n, vb table, vf *acc) {
    const bool minimums = panel_infos[format].minimums;
    const uint32_t offset = panel_infos[format].offset;
    vi dot[TILE_MAX];

    UNROLL
    for (int c = 0; c < n; c++) {
        if (offset == 128)
            dot[c] = vi_dot8_init(cols_i(a.sums, a.row, c, AB_NEG128_SUM));
        else if (offset == 8)
            dot[c] = vi_set1(cols_i(a.sums, a.row, c, AB_NEG8_SUM));
        else if (offset == 16)
            dot[c] = vi_set1(twice(cols_i(a.sums, a.row, c, AB_NEG8_SUM)));
        else
            dot[c] = vi_zero();
    }
    const int run = panel_infos[format].codes == PANEL_NIBBLES ? 8 : 4;
    UNROLL
    for (int g = 0; g < 8; g += run)
        gemm_b_add_run(format, q, a, n, g, run, table, dot);
    vf d, min = vf_zero();
    if (format == PANEL_MXFP4)
        d = vf_load_e8m0_half(meta);
    else
        d = vf_load_half(meta);
    if (minimums)
        min = vf_load_half(meta + 32);
    UNROLL
    for (int c = 0; c < n; c++) {
        vf p = vf_mul(d, vf_of_i(dot[c]));
        if (minimums)
            p = vf_fma(min, vf_set1(cols_f(a.sums, a.row, c, AB_SUM)), p);
        acc[c] = vf_fma(vf_set1(cols_f(a.sums, a.row, c, AB_SCALE)), p, acc[c]);
    }
}

/* Implements gemm.run. A block of NVFP4 has 64 values, two parts of 32; other blocks are one
 * part. */
INLINE void gemm_b_run(int format, const struct mat *m, const uint8_t *panel, const uint8_t *acts,
                       int n, uint32_t b0, uint32_t b1, float *out) {
    const struct panel_info *info = &panel_infos[format];
    const uint32_t parts = info->block / 32u, unit = info->unit * parts; /* parts of 32 values */
    const size_t quant_bytes = info->quant_bytes / parts, meta_bytes = info->meta_bytes / parts;
    const int units = info->acts == ACTS_B16 ? AB16_UNITS : AB_UNITS;
    const uint8_t *p = panel + (size_t)(b0 / info->unit) * info->unit_bytes;
    struct cols a = {acts + (size_t)b0 * info->block,
                     acts + m->n_in + (size_t)b0 * parts * (size_t)units * 4,
                     acts_bytes(info->acts, m->n_in, 1)};
    vb table = vb_table(iq4_table);
    vf acc[TILE_MAX];

    if (info->codes == PANEL_FP4)
        table = vb_table(fp4_table);
    UNROLL
    for (int c = 0; c < n; c++)
        acc[c] = vf_load(out + LANES * c);
    for (uint32_t b = b0 * parts; b < b1 * parts; b += unit, p += info->unit_bytes) {
        const uint8_t *meta = p + unit * quant_bytes;

        UNROLL
        for (size_t i = 0; i < info->unit_bytes / 64u; i++)
            __builtin_prefetch(p + VEC_AHEAD + 64 * i);
        UNROLL
        for (uint32_t i = 0; i < unit; i++) {
            if (b + i >= b1 * parts)
                break;
            if (format == PANEL_NVFP4)
                add_nvfp4(p + i * quant_bytes, meta + i * meta_bytes, a, n, table, acc);
            else
                gemm_b_add_block(format, p + i * quant_bytes, meta + i * meta_bytes, a, n, table,
                                 acc);
            a.q += 32;
            a.sums += units * 4;
        }
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, acc[c]);
}

#define CALL(n, col)                                                                               \
    gemm_b_run(FORMAT, m, panel, acts + acts_bytes(panel_infos[FORMAT].acts, m->n_in, col), n, b0, \
               b1, acc + LANES * (col))
#define DEFINE(name, format, ...)                                                                  \
    static void gemm_##name(const struct mat *m, const uint8_t *panel, const uint8_t *acts,        \
                            uint32_t n, uint32_t b0, uint32_t b1, float *acc) {                    \
        enum { FORMAT = format };                                                                  \
        FOR_WIDTH(n, CALL);                                                                        \
    }

PANELS_B(DEFINE)

#define ROW(name, format, ...) [format] = {gemm_##name},

/* Kernels of one tile only. Unpacking these formats takes so few operations that a separate pass,
 * gemm_wide, would gain nothing. */
const struct gemm CPU_NAME(gemm_b)[PANEL_FORMATS] = {PANELS_B(ROW)};
