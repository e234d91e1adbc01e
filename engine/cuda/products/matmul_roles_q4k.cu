/* matmul_roles_q4k - products of more than 64 rows with Q4_K and Q6_K, which files mix
 * (roles_wide.cuh). */

#include "engine/cuda/products/roles_wide.cuh"

KERNEL_CLUSTER(matmul_roles_96_q4k, struct matmul_args, ROLES_WIDE_THREADS, 1, ROLES_CLUSTER) {
    ROLES_WIDE_BODY(96, TILE_Q4_K, TILE_Q6_K);
}

KERNEL_CLUSTER(matmul_roles_128_q4k, struct matmul_args, ROLES_WIDE_THREADS, 1, ROLES_CLUSTER) {
    ROLES_WIDE_BODY(128, TILE_Q4_K, TILE_Q6_K);
}
