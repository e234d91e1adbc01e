#pragma once

/* kernels - functions that are compiled once for each instruction set. kernels.c makes a table of
 * them, struct cpu_kernels; the contract of a function is that of the member of this table named
 * above it (cpu.h). */

#include "engine/cpu/vec.h"

/* acts_store[] */
void CPU_NAME(acts_store_k)(const float *x, uint32_t n_in, uint8_t *row);
void CPU_NAME(acts_store_kt)(const float *x, uint32_t n_in, uint8_t *row);
void CPU_NAME(acts_store_b)(const float *x, uint32_t n_in, uint8_t *row);
void CPU_NAME(acts_store_b16)(const float *x, uint32_t n_in, uint8_t *row);
void CPU_NAME(acts_store_f)(const float *x, uint32_t n_in, uint8_t *row);

extern const struct gemm CPU_NAME(gemm_k)[PANEL_FORMATS], CPU_NAME(gemm_b)[PANEL_FORMATS],
    CPU_NAME(gemm_f)[PANEL_FORMATS];
extern const struct gemm_wide CPU_NAME(gemm_wide)[PANEL_FORMATS], gemm_wide_amx[PANEL_FORMATS],
    CPU_NAME(gemm_wide_f)[PANEL_FORMATS];

/* norm, layer_norm, gelu, rope, hadamard, glu[], silu_limited, silu_cut, exps, soft_cap, gate,
 * add_scaled */
void CPU_NAME(rows_norm)(const float *x, const float *w, float *y, uint32_t n, float eps);
void CPU_NAME(rows_layer_norm)(float *x, const float *w, const float *bias, uint32_t n, float eps);
void CPU_NAME(rows_gelu)(float *x, uint32_t n);
void CPU_NAME(rows_rope)(float *x, const float *cs, uint32_t n_rot, enum rope_type type);
void CPU_NAME(rows_hadamard)(float *x, uint32_t n, uint32_t run);
void CPU_NAME(rows_silu_mul)(const float *g, const float *u, float *h, uint32_t n);
void CPU_NAME(rows_silu_limited)(const float *g, const float *u, float *h, uint32_t n, float limit);
void CPU_NAME(rows_silu_cut)(const float *g, const float *u, float *h, uint32_t n, float limit);
void CPU_NAME(rows_gelu_mul)(const float *g, const float *u, float *h, uint32_t n);
void CPU_NAME(rows_clamped_mul)(const float *g, const float *u, float *h, uint32_t n);
void CPU_NAME(rows_relu_mul)(const float *g, const float *u, float *h, uint32_t n);
float CPU_NAME(rows_exps)(float *x, uint32_t n, float scale);
void CPU_NAME(rows_soft_cap)(float *x, uint32_t n, float cap);
void CPU_NAME(rows_gate)(float *o, const float *g, uint32_t n);
void CPU_NAME(rows_add_scaled)(float *acc, const float *x, float w, uint32_t n);

/* kv_write, attend, index_scores, halves, dots, weigh_keys, attend_merge, attend_sink,
 * attend_finish */
void CPU_NAME(kv_write)(const struct kv_view *v, uint8_t *k_head, uint8_t *v_head, uint32_t slot,
                        const float *k, const float *val);
void CPU_NAME(attend)(const struct kv_view *v, const struct attn_tile *t, const float *q,
                      uint32_t stride, uint32_t n, struct attn_state *const *state);
void CPU_NAME(index_scores)(const float *q, uint32_t n_head, uint32_t dim, const uint8_t *keys,
                            uint32_t n, float *score);
void CPU_NAME(halves)(const uint8_t *x, float *y, uint32_t n);
void CPU_NAME(dots)(const float *q, uint32_t n_head, uint32_t dim, const float *const *key,
                    uint32_t n, float scale, float *score, size_t stride);
void CPU_NAME(weigh_keys)(const float *weight, size_t stride, uint32_t n_head, uint32_t dim,
                          const float *const *key, uint32_t n, float *o);
void CPU_NAME(attend_merge)(struct attn_state *a, const struct attn_state *b, uint32_t head_dim);
void CPU_NAME(attend_sink)(struct attn_state *a, float sink, uint32_t head_dim);
void CPU_NAME(attend_finish)(const struct attn_state *a, float *out, uint32_t head_dim);

/* convolve, delta_unit, delta_advance, kda_advance, kda_keep, mamba_advance */
void CPU_NAME(convolve)(const float *w, const float *const *u, uint32_t kernel, const float *bias,
                        bool silu, float *c, uint32_t n);
void CPU_NAME(delta_unit)(float *x, uint32_t n, float eps, float scale);
void CPU_NAME(delta_advance)(const struct delta_head *h, float *m);
void CPU_NAME(kda_advance)(const struct delta_head *h, float *m);
void CPU_NAME(kda_keep)(const float *x, const float *dt, float by, float lower, float *keep,
                        uint32_t n);
void CPU_NAME(mamba_advance)(const struct mamba_head *h, float *m);
