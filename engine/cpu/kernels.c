#include "engine/cpu/kernels.h"

/* The table of one instruction set. "amx" is "avx512" with other kernels for products of many
 * rows. */
#ifdef CPU_AMX
const struct cpu_kernels cpu_kernels_amx = {
    .name = "amx",
    .gemm_wide = gemm_wide_amx,
#else
const struct cpu_kernels CPU_NAME(cpu_kernels) = {
    .name = CPU_ISA,
    .gemm_wide = CPU_NAME(gemm_wide),
#endif
    .acts_store =
        {
            [ACTS_K] = CPU_NAME(acts_store_k),
            [ACTS_KT] = CPU_NAME(acts_store_kt),
            [ACTS_B] = CPU_NAME(acts_store_b),
            [ACTS_B16] = CPU_NAME(acts_store_b16),
            [ACTS_F] = CPU_NAME(acts_store_f),
        },
    .gemm_k = CPU_NAME(gemm_k),
    .gemm_b = CPU_NAME(gemm_b),
    .gemm_f = CPU_NAME(gemm_f),
    .gemm_wide_f = CPU_NAME(gemm_wide_f),
    .norm = CPU_NAME(rows_norm),
    .layer_norm = CPU_NAME(rows_layer_norm),
    .gelu = CPU_NAME(rows_gelu),
    .rope = CPU_NAME(rows_rope),
    .hadamard = CPU_NAME(rows_hadamard),
    .glu =
        {
            [GLU_SILU] = CPU_NAME(rows_silu_mul),
            [GLU_GELU] = CPU_NAME(rows_gelu_mul),
            [GLU_CLAMPED] = CPU_NAME(rows_clamped_mul),
            [GLU_RELU] = CPU_NAME(rows_relu_mul),
        },
    .silu_limited = CPU_NAME(rows_silu_limited),
    .silu_cut = CPU_NAME(rows_silu_cut),
    .exps = CPU_NAME(rows_exps),
    .soft_cap = CPU_NAME(rows_soft_cap),
    .gate = CPU_NAME(rows_gate),
    .add_scaled = CPU_NAME(rows_add_scaled),
    .kv_write = CPU_NAME(kv_write),
    .attend = CPU_NAME(attend),
    .index_scores = CPU_NAME(index_scores),
    .halves = CPU_NAME(halves),
    .dots = CPU_NAME(dots),
    .weigh_keys = CPU_NAME(weigh_keys),
    .attend_merge = CPU_NAME(attend_merge),
    .attend_sink = CPU_NAME(attend_sink),
    .attend_finish = CPU_NAME(attend_finish),
    .convolve = CPU_NAME(convolve),
    .delta_unit = CPU_NAME(delta_unit),
    .delta_advance = CPU_NAME(delta_advance),
    .kda_advance = CPU_NAME(kda_advance),
    .kda_keep = CPU_NAME(kda_keep),
    .mamba_advance = CPU_NAME(mamba_advance),
};
