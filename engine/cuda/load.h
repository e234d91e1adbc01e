#pragma once

/*
 * load - parts of loading an op's weights (load.c), of which the loaders of the kinds consist
 * (ops.c). Functions that return int return 0 or -errno with @err.
 */

#include "engine/cuda/cuda.h"

/* The parts of a tensor that form a matrix: parts of @n rows, @stride apart, from row @first on.
 * Each part begins with a row tile of its own. @layer is 1 + the layer whose experts on the host
 * are skipped; 0: no part is skipped. */
struct parts {
    uint32_t n_parts, n, stride, first, layer;
};

/* Copies @n bytes to new memory of the weights. Returns 0 or -errno. */
int load_own(struct be *b, const void *data, size_t n, void **out, struct err *err);
/* Loads a vector unchanged; *out stays NULL if @t is NULL. Returns 0 or -errno. */
int load_vector(struct be *b, const struct tensor *t, float **out, struct err *err);
/* Returns the first @n_rows rows of @t, which are at @data on the device. */
struct tile_source load_source(const struct be *b, const struct tensor *t, const uint8_t *data,
                               uint32_t n_rows);
/* Returns all rows of a matrix, or of the matrices of experts. The latter are one part if each has
 * whole row tiles. */
struct parts load_all_rows(const struct tensor *t);
/* Loads a matrix: file -> pinned buffer -> device -> tiles, with two buffers alternately, so that
 * one piece is repacked while the next is read. */
int load_parts(struct be *b, struct weights *w, const struct tensor *t, const struct parts *p,
               const struct tensor *bias, float *y, struct err *err);
/* Loads @t as the next matrix of @w, with its bias (or NULL) and the place of its product. */
int load_matrix(struct be *b, struct weights *w, const struct tensor *t, const struct tensor *bias,
                float *y, struct err *err);
/* Returns empty weights, which cuda_unload() frees; NULL without memory. */
struct weights *load_weights_new(struct be *b);
/* Loads @n tensors of any type and equal size as floats, consecutively, transposed to
 * [columns][rows]. */
int load_decoded(struct be *b, const struct tensor *const t[], uint32_t n, float **out,
                 struct err *err);
/* Returns the first value of an F32 tensor. */
float load_first_of(const struct tensor *t);
/* Returns the place of the product with matrix @i of an op (op_code.out, op_code.place); NULL while
 * weights are counted. */
float *load_place(const struct be *b, const struct model_op *op, int i);
/* Loads all matrices of an op. A matrix that equals the one before it is that one (GLU_RELU: the
 * gate is also the up). */
int load_matrices(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
