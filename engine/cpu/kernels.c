#include "engine/cpu/kernels.h"

#define KERNEL_ROW(member, name) .member = CPU_NAME(name),

/* The table of one instruction set. "avx512bf16" is "avx512" with other kernels for BF16; "amx" is
 * "avx512bf16" with others for products of many rows. */
#if defined CPU_AMX
const struct cpu_kernels cpu_kernels_amx = {
    .name = "amx",
    .gemm_wide = gemm_wide_amx,
#elif defined CPU_BF16
const struct cpu_kernels cpu_kernels_avx512bf16 = {
    .name = "avx512bf16",
    .gemm_wide = CPU_NAME(gemm_wide),
#else
const struct cpu_kernels CPU_NAME(cpu_kernels) = {
    .name = CPU_ISA,
    .gemm_wide = CPU_NAME(gemm_wide),
#endif
#if defined CPU_BF16
    .is_exact = bf16_is_exact,
    .acts_store[ACTS_H] = acts_store_h_avx512bf16,
    .gemm_h = gemm_h_avx512bf16,
    .gemm_wide_h = gemm_wide_h_avx512bf16,
#else
    .acts_store[ACTS_H] = CPU_NAME(acts_store_h),
    .gemm_h = CPU_NAME(gemm_h),
    .gemm_wide_h = CPU_NAME(gemm_wide_h),
#endif
    .gemm_k = CPU_NAME(gemm_k),
    .gemm_b = CPU_NAME(gemm_b),
    .gemm_f = CPU_NAME(gemm_f),
    .gemm_wide_f = CPU_NAME(gemm_wide_f),
    /* clang-format off */
    EACH_KERNEL(KERNEL_ROW)
    /* clang-format on */
};
