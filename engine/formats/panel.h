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
 *   ACTS_H    values rounded to bfloat16, without blocks (BF16, FP8)
 *   ACTS_F    floats, without blocks */
enum acts_kind { ACTS_K, ACTS_KT, ACTS_B, ACTS_B16, ACTS_H, ACTS_F, ACTS_KINDS };

/* Integers of a block of 32 values: bytes; nibbles; nibbles and fifth bits; nibbles that are
 * indices of the table of IQ4 or of FP4. */
enum panel_codes { PANEL_BYTES, PANEL_NIBBLES, PANEL_FIVES, PANEL_IQ4, PANEL_FP4 };

/* Rows of the formats of panels, whose layouts and tensor types panel.c has: name of functions,
 * name, and the first members of struct panel_info. */
#define PANELS_F(X)                                                                                \
    X(f32, PANEL_F32, ACTS_F, 1, 64, 0, 1, 64)                                                     \
    X(f16, PANEL_F16, ACTS_F, 1, 32, 0, 1, 32)
/* FP8: matrices of E4M3 codes whose scales serve whole blocks of 128 columns (base/repack.h). */
#define PANELS_H(X)                                                                                \
    X(bf16, PANEL_BF16, ACTS_H, 1, 2, 0, 2, 64)                                                    \
    X(fp8, PANEL_FP8, ACTS_H, 128, 2048, 64, 1, 2112)
#define PANELS_K(X)                                                                                \
    X(q4k, PANEL_Q4K, ACTS_K, 256, 2048, 320, 1, 2368)                                             \
    X(q5k, PANEL_Q5K, ACTS_K, 256, 2560, 320, 1, 2880)                                             \
    X(q6k, PANEL_Q6K, ACTS_K, 256, 3072, 288, 1, 3392)                                             \
    X(q3k, PANEL_Q3K, ACTS_K, 256, 1536, 288, 1, 1856)                                             \
    X(q2k, PANEL_Q2K, ACTS_K, 256, 1024, 576, 1, 1600)                                             \
    X(iq4xs, PANEL_IQ4XS, ACTS_K, 256, 2048, 160, 1, 2240)                                         \
    X(iq2xxs, PANEL_IQ2XXS, ACTS_KT, 256, 1024, 160, 1, 1216)                                      \
    X(iq1s, PANEL_IQ1S, ACTS_K, 256, 1024, 288, 1, 1344)                                           \
    X(iq1m, PANEL_IQ1M, ACTS_K, 256, 1536, 288, 1, 1856)                                           \
    X(iq2s, PANEL_IQ2S, ACTS_K, 256, 1536, 288, 1, 1856)                                           \
    X(iq3xxs, PANEL_IQ3XXS, ACTS_K, 256, 2048, 160, 1, 2240)                                       \
    X(iq3s, PANEL_IQ3S, ACTS_K, 256, 2048, 160, 1, 2240)                                           \
    X(tq, PANEL_TQ, ACTS_K, 256, 1024, 32, 1, 1088)
/* After these: codes, their offset, and 1 if blocks have minimums. */
#define PANELS_B(X)                                                                                \
    X(q8, PANEL_Q8, ACTS_B, 32, 512, 32, 2, 1088, PANEL_BYTES, 128, 0)                             \
    X(q5, PANEL_Q5, ACTS_B, 32, 320, 32, 2, 704, PANEL_FIVES, 16, 0)                               \
    X(q4, PANEL_Q4, ACTS_B, 32, 256, 32, 2, 576, PANEL_NIBBLES, 8, 0)                              \
    X(iq4nl, PANEL_IQ4NL, ACTS_B, 32, 256, 32, 2, 576, PANEL_IQ4, 128, 0)                          \
    X(q4m, PANEL_Q4M, ACTS_B, 32, 256, 64, 2, 640, PANEL_NIBBLES, 0, 1)                            \
    X(q5m, PANEL_Q5M, ACTS_B, 32, 320, 64, 2, 768, PANEL_FIVES, 0, 1)                              \
    X(mxfp4, PANEL_MXFP4, ACTS_B, 32, 256, 16, 4, 1088, PANEL_FP4, 16, 0)                          \
    X(nvfp4, PANEL_NVFP4, ACTS_B16, 64, 512, 64, 1, 576, PANEL_FP4, 16, 0)
/* Q4_0 and Q5_0 made of 4-bit codes in groups of 128 (base/repack.h). */
#define PANELS_G(X) X(g4, PANEL_G4, ACTS_K, 256, 2048, 128, 1, 2176)
#define PANELS(X) PANELS_F(X) PANELS_H(X) PANELS_K(X) PANELS_B(X) PANELS_G(X)

/* Formats of panels, in the order of their rows. */
#define PANEL_NAME(function, name, ...) name,
enum panel_format { PANELS(PANEL_NAME) PANEL_FORMATS };
#undef PANEL_NAME

/* Properties that all panels of a format share. */
struct panel_info {
    enum acts_kind acts;
    /* values of a row that share a scale */
    uint16_t block;
    /* bytes for 16 rows of a block; BF16: from a value of a pair to the other */
    uint16_t quant_bytes, meta_bytes;
    /* number of blocks that are stored together, first their quants, then their scales; and the
     * bytes of them all */
    uint16_t unit, unit_bytes;
    /* of blocks of 32 values (PANELS_B); offset: added to the weights when they are stored, or in
     * the table of their indices */
    enum panel_codes codes;
    uint16_t offset;
    bool minimums;
};

/* Defined in the header so that strides are constants in the kernels. panel.c has the layouts. */
#define PANEL_INFO(function, name, ...) [name] = {__VA_ARGS__},
static const struct panel_info panel_infos[PANEL_FORMATS] = {PANELS(PANEL_INFO)};
#undef PANEL_INFO

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
