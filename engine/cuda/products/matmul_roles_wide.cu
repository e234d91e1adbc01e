/*
 * matmul_roles_wide - products of more than 64 rows, prompts among them, by warps with roles: two
 * warpgroups of 64 outputs by 96 or 128 rows multiply and one warp copies (roles.cuh). A block
 * computes one panel after the other, and the copies of the next one begin before the results of
 * the last one are stored.
 */

#include "engine/cuda/products/roles.cuh"

KERNEL(matmul_roles_96, struct matmul_args, ROLES_THREADS(96), 1) {
    ROLES_BODY(96);
}

KERNEL(matmul_roles_128, struct matmul_args, ROLES_THREADS(128), 1) {
    ROLES_BODY(128);
}
