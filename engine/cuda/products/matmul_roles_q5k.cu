/* matmul_roles_q5k - products of more than 64 rows with Q5_K and Q6_K, which files mix
 * (roles_wide.cuh). */

#include "engine/cuda/products/roles_wide.cuh"

KERNEL_CLUSTER(matmul_roles_96_q5k, struct matmul_args, ROLES_WIDE_THREADS, 1, ROLES_CLUSTER) {
    ROLES_WIDE_BODY(96, TILE_Q5_K, TILE_Q6_K);
}

KERNEL_CLUSTER(matmul_roles_128_q5k, struct matmul_args, ROLES_WIDE_THREADS, 1, ROLES_CLUSTER) {
    ROLES_WIDE_BODY(128, TILE_Q5_K, TILE_Q6_K);
}
