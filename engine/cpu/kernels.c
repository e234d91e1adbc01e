#include "engine/cpu/kernels.h"

const struct cpu_kernels CPU_NAME(cpu_kernels) = {
    .name = CPU_ISA,
    .acts_store =
        {
            [ACTS_K] = CPU_NAME(acts_store_k),
            [ACTS_KT] = CPU_NAME(acts_store_kt),
            [ACTS_B] = CPU_NAME(acts_store_b),
            [ACTS_F] = CPU_NAME(acts_store_f),
        },
    .gemm_k = CPU_NAME(gemm_k),
    .gemm_b = CPU_NAME(gemm_b),
    .gemm_f = CPU_NAME(gemm_f),
    .norm = CPU_NAME(rows_norm),
    .rope = CPU_NAME(rows_rope),
    .silu_mul = CPU_NAME(rows_silu_mul),
    .gate = CPU_NAME(rows_gate),
    .add_scaled = CPU_NAME(rows_add_scaled),
    .kv_write = CPU_NAME(kv_write),
    .attend = CPU_NAME(attend),
    .attend_merge = CPU_NAME(attend_merge),
    .attend_finish = CPU_NAME(attend_finish),
    .delta_convolve = CPU_NAME(delta_convolve),
    .delta_unit = CPU_NAME(delta_unit),
    .delta_advance = CPU_NAME(delta_advance),
};
