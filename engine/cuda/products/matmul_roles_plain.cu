/* matmul_roles_plain - products of more than 64 rows with halves and Q8_0 (roles_wide.cuh). */

#include "engine/cuda/products/roles_wide.cuh"

KERNEL_CLUSTER(matmul_roles_96_plain, struct matmul_args, ROLES_WIDE_THREADS, 1, ROLES_CLUSTER) {
    ROLES_WIDE_BODY(96, TILE_F16, TILE_Q8_0);
}

KERNEL_CLUSTER(matmul_roles_128_plain, struct matmul_args, ROLES_WIDE_THREADS, 1, ROLES_CLUSTER) {
    ROLES_WIDE_BODY(128, TILE_F16, TILE_Q8_0);
}
