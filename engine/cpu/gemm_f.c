/*
 * gemm_f - multiplies panels of floating-point weights (F32, F16, BF16) by tiles of float
 * activations.
 *
 * BF16 is computed in the order of the x86 instruction for it (gemm_bf16.c), which multiplies the
 * two values of a pair, the second one first, and adds to one sum: pairs with even index have the
 * even sum, those with odd index the odd one. In groups of four values both activations and
 * unpacked weights therefore stand as 1, 3, 0, 2, and everything below is as for F32. The
 * activations are rounded to BF16.
 *
 * Every lane, which is a row of the panel, keeps two sums by fma, of the values with even and with
 * odd index; the result is even + odd. With one sum, each fma would wait for the one before, and
 * this latency, instead of memory bandwidth, would bound products with a single column.
 *
 * AVX2 and NEON (VEC_TILE 2) have a second kernel for many tiles, many_tiles(): it converts the
 * weights to floats once, and computes the even and the odd sums one after the other, so that six
 * columns fit into the registers. The operations of each sum and their order are the same.
 */

#include "engine/cpu/kernels.h"

/* Returns value @k of the 16 rows. */
INLINE vf gemm_f_weights(int format, const uint8_t *w, uint32_t k) {
    if (format == PANEL_F32)
        return vf_load((const float *)w + (size_t)LANES * k);
    return vf_load_half(w + (size_t)LANES * k * 2);
}

/* Implements gemm.run. */
INLINE void gemm_f_run(int format, const struct mat *m, const uint8_t *panel, const uint8_t *acts,
                       int n, float *out) {
    const size_t step = 2 * panel_infos[format].unit_bytes; /* bytes of two values */
    const size_t row = acts_bytes(ACTS_F, m->n_in, 1);
    vf even[TILE_MAX], odd[TILE_MAX];
    uint32_t k = 0;

    UNROLL
    for (int c = 0; c < n; c++)
        even[c] = odd[c] = vf_zero();
    for (; k + 2 <= m->n_in; k += 2, acts += 8) {
        UNROLL
        for (size_t i = 0; i < (step + 63) / 64; i++)
            __builtin_prefetch(panel + VEC_AHEAD + k / 2 * step + 64 * i);
        vf w0 = gemm_f_weights(format, panel, k), w1 = gemm_f_weights(format, panel, k + 1);

        UNROLL
        for (int c = 0; c < n; c++) {
            even[c] = vf_fma(w0, vf_set1(cols_f(acts, row, c, 0)), even[c]);
            odd[c] = vf_fma(w1, vf_set1(cols_f(acts, row, c, 1)), odd[c]);
        }
    }
    if (k < m->n_in) {
        vf w = gemm_f_weights(format, panel, k);

        UNROLL
        for (int c = 0; c < n; c++)
            even[c] = vf_fma(w, vf_set1(cols_f(acts, row, c, 0)), even[c]);
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, vf_add(even[c], odd[c]));
}

/* Bytes of four values of the 16 rows, in BF16. */
enum { GROUP_BYTES = 4 * LANES * 2 };

/* Implements gemm.run for BF16. */
INLINE void gemm_h_run(const struct mat *m, const uint8_t *panel, const uint8_t *acts, int n,
                       float *out) {
    const size_t row = acts_bytes(ACTS_H, m->n_in, 1);
    vf even[TILE_MAX], odd[TILE_MAX];

    UNROLL
    for (int c = 0; c < n; c++)
        even[c] = odd[c] = vf_zero();
    for (uint32_t k = 0; k < m->n_in; k += 4, acts += 16, panel += GROUP_BYTES) {
        __builtin_prefetch(panel + VEC_AHEAD);
        __builtin_prefetch(panel + VEC_AHEAD + 64);
        vf second[2] = {vf_load_bf16_high(panel), vf_load_bf16_high(panel + 64)};
        vf first[2] = {vf_load_bf16_low(panel), vf_load_bf16_low(panel + 64)};

        UNROLL
        for (int c = 0; c < n; c++) {
            even[c] = vf_fma(second[0], vf_set1(cols_f(acts, row, c, 0)), even[c]);
            odd[c] = vf_fma(second[1], vf_set1(cols_f(acts, row, c, 1)), odd[c]);
            even[c] = vf_fma(first[0], vf_set1(cols_f(acts, row, c, 2)), even[c]);
            odd[c] = vf_fma(first[1], vf_set1(cols_f(acts, row, c, 3)), odd[c]);
        }
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, vf_add(even[c], odd[c]));
}

#define CALL_H(n, col)                                                                             \
    gemm_h_run(m, panel, acts + acts_bytes(ACTS_H, m->n_in, col), n, acc + LANES * (col))

static void gemm_h_run_tile(const struct mat *m, const uint8_t *panel, const uint8_t *acts,
                            uint32_t n, uint32_t b0, uint32_t b1, float *acc) {
    FOR_WIDTH(n, CALL_H);
}

const struct gemm CPU_NAME(gemm_h) = {gemm_h_run_tile};

#define CALL(n, col)                                                                               \
    gemm_f_run(FORMAT, m, panel, acts + acts_bytes(ACTS_F, m->n_in, col), n, acc + LANES * (col))
#define DEFINE(name, format, ...)                                                                  \
    static void gemm_##name(const struct mat *m, const uint8_t *panel, const uint8_t *acts,        \
                            uint32_t n, uint32_t b0, uint32_t b1, float *acc) {                    \
        enum { FORMAT = format };                                                                  \
        FOR_WIDTH(n, CALL);                                                                        \
    }

PANELS_F(DEFINE)

#define ROW(name, format, ...) [format] = {gemm_##name},

const struct gemm CPU_NAME(gemm_f)[PANEL_FORMATS] = {PANELS_F(ROW)};

#if VEC_TILE == 2
/* Multiplies @n_k values of 16 rows of weights, [n_k][16] at @w, by @n columns of activations at
 * @acts, which are @row bytes apart: adds to acc[column][even, odd][lane]. */
INLINE void many(const float *w, const uint8_t *acts, size_t row, uint32_t n_k, int n, float *acc) {
    for (uint32_t odd = 0; odd < 2; odd++, acc += LANES) {
        vf sum[6];

        UNROLL
        for (int c = 0; c < n; c++)
            sum[c] = vf_load(acc + 2 * LANES * c);
        const float *x = w + (size_t)LANES * odd, *end = w + (size_t)LANES * n_k;
        for (const uint8_t *a = acts + 4 * odd; x < end; x += 2 * LANES, a += 8) {
            vf v = vf_load(x);

            UNROLL
            for (int c = 0; c < n; c++)
                sum[c] = vf_fma(v, vf_set1(cols_f(a, row, c, 0)), sum[c]);
        }
        UNROLL
        for (int c = 0; c < n; c++)
            vf_store(acc + 2 * LANES * c, sum[c]);
    }
}

/* Implements gemm_wide.run. Divides the rows into columns of six, and of four at the end; the last
 * stretch of values adds the two sums. */
static void many_tiles(const struct mat *m, const uint8_t *panel, const uint8_t *quants,
                       const uint8_t *acts, uint32_t n_tiles, uint32_t b0, uint32_t b1,
                       float *acc) {
    const enum acts_kind kind = panel_infos[m->format].acts;
    const size_t row = acts_bytes(kind, m->n_in, 1);
    const uint32_t n_rows = n_tiles * TILE_MAX;
    uint32_t n_k = kind == ACTS_H ? (uint32_t)round_up(b1 - b0, 4) : b1 - b0;

    (void)panel;
    acts += 4 * (size_t)b0;
    if (b0 == 0)
        memset(acc, 0, (size_t)n_rows * 2 * LANES * sizeof(*acc));
    for (uint32_t r = 0, n; r < n_rows; r += n) {
        n = n_rows - r == 8 || n_rows - r == 4 ? 4 : 6;
        if (n == 6)
            many((const float *)quants, acts + r * row, row, n_k, 6, acc + r * 2 * LANES);
        else
            many((const float *)quants, acts + r * row, row, n_k, 4, acc + r * 2 * LANES);
    }
    for (uint32_t r = 0; r < n_rows && b1 == m->n_in; r++)
        vf_store(acc + r * LANES,
                 vf_add(vf_load(acc + r * 2 * LANES), vf_load(acc + (r * 2 + 1) * LANES)));
}

/* Defines gemm_wide.unpack: converts the weights of a panel to floats, and prefetches the next
 * panel into the second-level cache. */
#define DEFINE_WIDEN(name, format, ...)                                                            \
    static void widen_##name(const struct mat *m, const uint8_t *panel, uint32_t b0, uint32_t b1,  \
                             uint8_t *out) {                                                       \
        const size_t step = panel_infos[format].unit_bytes;                                        \
                                                                                                   \
        for (uint32_t k = b0; k < b1; k++, out += LANES * sizeof(float)) {                         \
            __builtin_prefetch(panel + k * step + m->panel_bytes, 0, 2);                           \
            vf_store((float *)out, gemm_f_weights(format, panel, k));                              \
        }                                                                                          \
    }

PANELS_F(DEFINE_WIDEN)

#define ROW_WIDE(name, format, ...) [format] = {widen_##name, many_tiles, sizeof(float), 1},

const struct gemm_wide CPU_NAME(gemm_wide_f)[PANEL_FORMATS] = {PANELS_F(ROW_WIDE)};

static void widen_bf16(const struct mat *m, const uint8_t *panel, uint32_t b0, uint32_t b1,
                       uint8_t *out) {
    float *w = (float *)out;

    panel += (size_t)b0 / 4 * GROUP_BYTES;
    for (uint32_t k = b0; k < b1; k += 4, panel += GROUP_BYTES, w += 4 * LANES) {
        __builtin_prefetch(panel + m->panel_bytes, 0, 2);
        __builtin_prefetch(panel + m->panel_bytes + 64, 0, 2);
        vf_store(w, vf_load_bf16_high(panel));
        vf_store(w + LANES, vf_load_bf16_high(panel + 64));
        vf_store(w + 2 * LANES, vf_load_bf16_low(panel));
        vf_store(w + 3 * LANES, vf_load_bf16_low(panel + 64));
    }
}

const struct gemm_wide CPU_NAME(gemm_wide_h) = {widen_bf16, many_tiles, sizeof(float), 1};
#else
const struct gemm_wide CPU_NAME(gemm_wide_f)[PANEL_FORMATS] = {0};
const struct gemm_wide CPU_NAME(gemm_wide_h) = {0};
#endif
