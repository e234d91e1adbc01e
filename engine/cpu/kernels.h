#pragma once

/* kernels - functions that are compiled once for each instruction set. kernels.c makes a table of
 * them, struct cpu_kernels; the contract of a function is that of its member of this table
 * (cpu.h). */

#include "engine/cpu/vec.h"

extern const struct gemm CPU_NAME(gemm_k)[PANEL_FORMATS], CPU_NAME(gemm_b)[PANEL_FORMATS],
    CPU_NAME(gemm_f)[PANEL_FORMATS],
    CPU_NAME(gemm_h)[PANEL_FORMATS], gemm_h_avx512bf16[PANEL_FORMATS];
extern const struct gemm_wide CPU_NAME(gemm_wide)[PANEL_FORMATS], gemm_wide_amx[PANEL_FORMATS],
    CPU_NAME(gemm_wide_f)[PANEL_FORMATS],
    CPU_NAME(gemm_wide_h)[PANEL_FORMATS], gemm_wide_h_avx512bf16[PANEL_FORMATS];

/* Members of struct cpu_kernels, and the functions that the table has there. */
#define EACH_KERNEL(X)                                                                             \
    X(acts_store[ACTS_K], acts_store_k)                                                            \
    X(acts_store[ACTS_KT], acts_store_kt)                                                          \
    X(acts_store[ACTS_B], acts_store_b)                                                            \
    X(acts_store[ACTS_B16], acts_store_b16)                                                        \
    X(acts_store[ACTS_F], acts_store_f)                                                            \
    X(glu[GLU_SILU], rows_silu_mul)                                                                \
    X(glu[GLU_GELU], rows_gelu_mul)                                                                \
    X(glu[GLU_CLAMPED], rows_clamped_mul)                                                          \
    X(glu[GLU_RELU], rows_relu_mul)                                                                \
    X(norm, rows_norm)                                                                             \
    X(layer_norm, rows_layer_norm)                                                                 \
    X(gelu, rows_gelu)                                                                             \
    X(rope, rows_rope)                                                                             \
    X(hadamard, rows_hadamard)                                                                     \
    X(silu_limited, rows_silu_limited)                                                             \
    X(silu_cut, rows_silu_cut)                                                                     \
    X(exps, rows_exps)                                                                             \
    X(soft_cap, rows_soft_cap)                                                                     \
    X(gate, rows_gate)                                                                             \
    X(add_scaled, rows_add_scaled)                                                                 \
    X(kv_write, kv_write)                                                                          \
    X(attend, attend)                                                                              \
    X(index_scores, index_scores)                                                                  \
    X(halves, halves)                                                                              \
    X(dots, dots)                                                                                  \
    X(weigh_keys, weigh_keys)                                                                      \
    X(attend_merge, attend_merge)                                                                  \
    X(attend_sink, attend_sink)                                                                    \
    X(attend_finish, attend_finish)                                                                \
    X(convolve, convolve)                                                                          \
    X(delta_unit, delta_unit)                                                                      \
    X(delta_advance, delta_advance)                                                                \
    X(kda_advance, kda_advance)                                                                    \
    X(kda_keep, kda_keep)                                                                          \
    X(mamba_advance, mamba_advance)                                                                \
    X(scan_advance, scan_advance)

#define DECLARE_KERNEL(member, name)                                                               \
    extern __typeof__(*((struct cpu_kernels *)NULL)->member) CPU_NAME(name);
EACH_KERNEL(DECLARE_KERNEL)
/* Beside those of EACH_KERNEL. */
extern __typeof__(*((struct gemm *)NULL)->run) CPU_NAME(gemm_g4);
extern __typeof__(*((struct gemm_wide *)NULL)->unpack) CPU_NAME(gemm_g4_unpack);
extern __typeof__(*((struct gemm_wide *)NULL)->run) CPU_NAME(gemm_g4_unpacked);
extern __typeof__(*((struct cpu_kernels *)NULL)->acts_store[0]) CPU_NAME(acts_store_h),
    acts_store_h_avx512bf16;
