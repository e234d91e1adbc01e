#include "engine/cpu/kernels.h"

/*
 * Panels x tiles with float activations and 16- or 32-bit weights. Every lane keeps two sums, of
 * the values with even and with odd index, each by fma in order; the result is even + odd. Two,
 * because with one the latency of an fma would bound a single column, not the memory.
 */

INLINE vf weights(int format, const uint8_t *w, uint32_t k) {
    return format == PANEL_F32   ? vf_load((const float *)w + (size_t)LANES * k)
           : format == PANEL_F16 ? vf_load_half(w + (size_t)LANES * k * 2)
                                 : vf_load_bf16(w + (size_t)LANES * k * 2);
}

INLINE void run(int format, const struct mat *m, const uint8_t *panel, const uint8_t *acts, int n,
                float *out) {
    const size_t step = 2 * panel_infos[format].unit_bytes; /* of two values */
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
        vf w0 = weights(format, panel, k), w1 = weights(format, panel, k + 1);

        UNROLL
        for (int c = 0; c < n; c++) {
            even[c] = vf_fma(w0, vf_set1(cols_f(acts, row, c, 0)), even[c]);
            odd[c] = vf_fma(w1, vf_set1(cols_f(acts, row, c, 1)), odd[c]);
        }
    }
    if (k < m->n_in) {
        vf w = weights(format, panel, k);

        UNROLL
        for (int c = 0; c < n; c++)
            even[c] = vf_fma(w, vf_set1(cols_f(acts, row, c, 0)), even[c]);
    }
    UNROLL
    for (int c = 0; c < n; c++)
        vf_store(out + LANES * c, vf_add(even[c], odd[c]));
}

#define CALL(n, col)                                                                               \
    run(FORMAT, m, panel, acts + acts_bytes(ACTS_F, m->n_in, col), n, acc + LANES * (col))
#define DEFINE(name)                                                                               \
    static void gemm_##name(const struct mat *m, const uint8_t *panel, const uint8_t *acts,        \
                            uint32_t n, uint32_t b0, uint32_t b1, float *acc) {                    \
        FOR_WIDTH(n, CALL);                                                                        \
    }

#define FORMAT PANEL_F32
DEFINE(f32)
#undef FORMAT
#define FORMAT PANEL_F16
DEFINE(f16)
#undef FORMAT
#define FORMAT PANEL_BF16
DEFINE(bf16)
#undef FORMAT

const struct gemm CPU_NAME(gemm_f)[PANEL_FORMATS] = {
    [PANEL_F32] = {.run = gemm_f32},
    [PANEL_F16] = {.run = gemm_f16},
    [PANEL_BF16] = {.run = gemm_bf16},
};
