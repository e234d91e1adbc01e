/*
 * matmul_roles - products of 17 to 64 rows, by warps with roles: three warpgroups of 64 outputs
 * multiply and one warp copies (roles.cuh).
 */

#include "engine/cuda/products/roles.cuh"

KERNEL(matmul_roles_24, struct matmul_args, ROLES_THREADS(24), 1) {
    ROLES_BODY(24);
}

KERNEL(matmul_roles_32, struct matmul_args, ROLES_THREADS(32), 1) {
    ROLES_BODY(32);
}

KERNEL(matmul_roles_48, struct matmul_args, ROLES_THREADS(48), 1) {
    ROLES_BODY(48);
}

KERNEL(matmul_roles_64, struct matmul_args, ROLES_THREADS(64), 1) {
    ROLES_BODY(64);
}
