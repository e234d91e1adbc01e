#pragma once

/* panel - weights of the CPU backend, repacked so that a kernel reads them from front to back:
 * panels of 16 output rows. */

#include "base/err.h"
#include "base/gguf.h"

/* Lanes of a vector, and rows of a panel. */
enum { LANES = 16 };

/* Formats of activations (acts.c). The format of weights determines which one they are multiplied
 * with (panel_infos). Except for ACTS_F, a row consists of blocks with a scale each.
 *   ACTS_K    blocks of 256: int8 values, and their sums by 16 and by 32
 *   ACTS_KT   ACTS_K with each run of 32 values transposed: value 8 i + j is at 4 j + i (IQ2_XXS)
 *   ACTS_B    blocks of 32: int8 values, and their sum
 *   ACTS_B16  ACTS_B with the sums of both halves of a block (NVFP4)
 *   ACTS_F    floats, without blocks */
enum acts_kind { ACTS_K, ACTS_KT, ACTS_B, ACTS_B16, ACTS_F, ACTS_KINDS };

/* Formats of panels; panel.c has the layouts. */
enum panel_format {
    PANEL_F32,
    PANEL_F16,
    PANEL_BF16,
    PANEL_Q4K,
    PANEL_Q5K,
    PANEL_Q6K,
    PANEL_Q3K,
    PANEL_Q2K,
    PANEL_IQ4XS,
    PANEL_IQ2XXS,
    PANEL_IQ1S,
    PANEL_IQ1M,
    /* and IQ2_XS */
    PANEL_IQ2S,
    PANEL_IQ3XXS,
    PANEL_IQ3S,
    /* TQ1_0, TQ2_0 */
    PANEL_TQ,
    /* Q8_0 */
    PANEL_Q8,
    /* Q5_0 */
    PANEL_Q5,
    /* Q4_0 */
    PANEL_Q4,
    PANEL_IQ4NL,
    /* Q4_1, which has minimums */
    PANEL_Q4M,
    /* Q5_1 */
    PANEL_Q5M,
    PANEL_MXFP4,
    PANEL_NVFP4,
    PANEL_FORMATS
};

/* Properties that all panels of a format share. */
struct panel_info {
    enum acts_kind acts;
    /* values of a row that share a scale */
    uint16_t block;
    /* bytes for 16 rows of a block */
    uint16_t quant_bytes, meta_bytes;
    /* number of blocks that are stored together, first their quants, then their scales; and the
     * bytes of them all */
    uint16_t unit, unit_bytes;
};

/* Defined in the header so that strides are constants in the kernels. panel.c has the layouts. */
static const struct panel_info panel_infos[PANEL_FORMATS] = {
    [PANEL_F32] = {ACTS_F, 1, 64, 0, 1, 64},
    [PANEL_F16] = {ACTS_F, 1, 32, 0, 1, 32},
    [PANEL_BF16] = {ACTS_F, 1, 32, 0, 1, 32},
    [PANEL_Q4K] = {ACTS_K, 256, 2048, 320, 1, 2368},
    [PANEL_Q5K] = {ACTS_K, 256, 2560, 320, 1, 2880},
    [PANEL_Q6K] = {ACTS_K, 256, 3072, 288, 1, 3392},
    [PANEL_Q3K] = {ACTS_K, 256, 1536, 288, 1, 1856},
    [PANEL_Q2K] = {ACTS_K, 256, 1024, 576, 1, 1600},
    [PANEL_IQ4XS] = {ACTS_K, 256, 2048, 160, 1, 2240},
    [PANEL_IQ2XXS] = {ACTS_KT, 256, 1024, 160, 1, 1216},
    [PANEL_IQ1S] = {ACTS_K, 256, 1024, 288, 1, 1344},
    [PANEL_IQ1M] = {ACTS_K, 256, 1536, 288, 1, 1856},
    [PANEL_IQ2S] = {ACTS_K, 256, 1536, 288, 1, 1856},
    [PANEL_IQ3XXS] = {ACTS_K, 256, 2048, 160, 1, 2240},
    [PANEL_IQ3S] = {ACTS_K, 256, 2048, 160, 1, 2240},
    [PANEL_TQ] = {ACTS_K, 256, 1024, 32, 1, 1088},
    [PANEL_Q8] = {ACTS_B, 32, 512, 32, 2, 1088},
    [PANEL_Q4] = {ACTS_B, 32, 256, 32, 2, 576},
    [PANEL_IQ4NL] = {ACTS_B, 32, 256, 32, 2, 576},
    [PANEL_Q4M] = {ACTS_B, 32, 256, 64, 2, 640},
    [PANEL_Q5] = {ACTS_B, 32, 320, 32, 2, 704},
    [PANEL_Q5M] = {ACTS_B, 32, 320, 64, 2, 768},
    [PANEL_MXFP4] = {ACTS_B, 32, 256, 16, 4, 1088},
    [PANEL_NVFP4] = {ACTS_B16, 64, 512, 64, 1, 576},
};

/* A weight matrix, [n_out][n_in], as panels of 16 rows; the last panel is filled up with rows of
 * zeros. A kernel reads a panel once, from front to back. */
struct mat {
    enum panel_format format;
    uint32_t n_out, n_in, n_blocks, n_panels;
    size_t panel_bytes;
    /* aligned to 64 */
    uint8_t *data;
    /* factor of the whole matrix, bias of each row; NULL: 1, 0 */
    const float *scale, *bias;
};

/* Returns panel @i: rows [16 i, 16 i + 16). */
static inline const uint8_t *mat_panel(const struct mat *m, uint32_t i) {
    return m->data + i * m->panel_bytes;
}

/* Chooses the layout of @t's panels: sets all members of @m, data, scale and bias to NULL. Returns
 * 0, or -EINVAL with @err if the format of @t has no panels. */
int panel_plan(struct mat *m, const struct tensor *t, struct err *err);
/* Writes panel @panel, rows [16 panel, 16 panel + 16) of @t, to @out, m->panel_bytes bytes. No
 * number is rounded. */
void panel_pack(const struct mat *m, const struct tensor *t, uint32_t panel, uint8_t *out);
