#pragma once

/*
 * kernels_roles - clusters of matmul_roles_96_* and matmul_roles_128_*: ROLES_CLUSTER blocks with
 * neighbouring panels of a matrix and the same rows of activations, which each of them copies a
 * share of for all. Here matmul_args.n_panels counts what a cluster computes at a time:
 * roles_wide_clusters().
 */

#include "engine/cuda/kernels.h"

#define ROLES_CLUSTER 2u

/* Returns the number of clusters' panels of a product with @n rows of each, from its matrices, its
 * rows, and a.gated. A matrix with an odd number of panels fills its last one up. */
MX_FN uint32_t roles_wide_clusters(const struct matmul_args *a, uint32_t n) {
    uint32_t each = ROLES_WIDE_TILES * ROLES_CLUSTER, across = 0;

    if (a->gated)
        return (2 * a->gated + each - 1) / each * roles_columns(a->n_rows, n);
    for (uint32_t i = 0; i < a->n_mats; i++)
        across += (a->m[i].n_row_tiles + each - 1) / each;
    return across * roles_columns(a->n_rows, n);
}
