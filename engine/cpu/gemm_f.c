/*
 * gemm_f - multiplies panels of floating-point weights (F32, F16, BF16, FP8) by tiles of float
 * activations. gemm_f.h has the order of operations.
 *
 * A word is a float. BF16 and FP8 are computed in the order of the x86 instruction for BF16
 * (gemm_bf16.c), which multiplies the two values of a pair, the second one first, and adds to one
 * sum: pairs with even index have the even sum, those with odd index the odd one. Their groups of
 * four values, and the activations of ACTS_H, which are rounded to BF16, therefore stand as 1, 3,
 * 0, 2.
 */

#include "engine/cpu/vec.h"

enum { WORDS = 4 };
#define WORD vf
#define WORD_LOAD gemm_f_word
#define WORD_UNPACK(p, word) vf_store((float *)(p), word)
#define WORD_UNPACKED(p) vf_load((const float *)(p))
#define WORD_MULTIPLY gemm_f_multiply

/* Returns word @i of the group at @p. */
INLINE vf gemm_f_word(int format, const uint8_t *p, int i) {
    static const int order[WORDS] = {1, 3, 0, 2};

    switch (format) {
    case PANEL_F32:
        return vf_load((const float *)p + (size_t)LANES * (size_t)i);
    case PANEL_F16:
        return vf_load_half(p + (size_t)LANES * 2 * (size_t)i);
    case PANEL_BF16:
        if (i < 2)
            return vf_load_bf16_high(p + 64 * i);
        return vf_load_bf16_low(p + 64 * (i - 2));
    default: /* FP8 */
        return vf_load_e4m3(p, order[i]);
    }
}

INLINE vf gemm_f_multiply(vf sum, vf word, const uint8_t *acts, size_t row, int c, int i) {
    return vf_fma(word, vf_set1(cols_f(acts, row, c, i)), sum);
}

#include "engine/cpu/gemm_f.h"

PANELS_F(DEFINE)
PANELS_H(DEFINE)
PANELS_F(DEFINE_WIDE)
PANELS_H(DEFINE_WIDE)

const struct gemm CPU_NAME(gemm_f)[PANEL_FORMATS] = {PANELS_F(ROW)};
const struct gemm CPU_NAME(gemm_h)[PANEL_FORMATS] = {PANELS_H(ROW)};
const struct gemm_wide CPU_NAME(gemm_wide_f)[PANEL_FORMATS] = {PANELS_F(ROW_WIDE)};
const struct gemm_wide CPU_NAME(gemm_wide_h)[PANEL_FORMATS] = {PANELS_H(ROW_WIDE)};
