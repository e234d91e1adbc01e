#include "engine/cpu/kernels.h"

#define KERNEL_ROW(member, name) .member = CPU_NAME(name),

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
    .gemm_k = CPU_NAME(gemm_k),
    .gemm_b = CPU_NAME(gemm_b),
    .gemm_f = CPU_NAME(gemm_f),
    .gemm_wide_f = CPU_NAME(gemm_wide_f),
    /* clang-format off */
    EACH_KERNEL(KERNEL_ROW)
    /* clang-format on */
};
