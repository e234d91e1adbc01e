#pragma once

/*
 * bounds - largest magnitudes that the inputs of products can have, computed from the weights of an
 * op alone. A row of n values that has passed an RMS norm has a length of at most sqrt(n), so that
 * a product W with it is bounded by the lengths of the rows of W, and what follows from there by
 * the functions in between. With such a bound a kernel can round its output to half precision
 * without the largest value of the row (docs/measurements/cuda-scales.md).
 */

#include "engine/op.h"

/* Exponent of the power of two up to which bounds are scaled; the largest half is 65,504. */
#define BOUNDS_EXPONENT 15

/* Factor for what single precision adds to the sums of norms and products, and for the rounding of
 * values to half precision in a page. */
#define BOUNDS_ROUNDING 1.01

/* Return the largest magnitude of the input of the products of @op after its norm, and of the
 * output of @op, a GATE_UP. INFINITY: none is known, or memory is short. bounds_ffn() decodes all
 * weights in the calling thread. */
double bounds_norm(const struct model_shape *m, const struct model_op *op);
double bounds_ffn(const struct model_shape *m, const struct model_op *op);
/* Returns the largest magnitude of the output of @op, an ATTEND of the model's ops m->op: a mean of
 * values, which an op before it stores in pages of f16. INFINITY: as above. Decodes the matrix of
 * the values. */
double bounds_attend(const struct model_shape *m, const struct model_op *op);
/* Sets most[o] to the bound of output @o of the product with op->w[i], whose input has the norm of
 * @op: sqrt(n) times the length of row o of W, with the weights of the norm as factors of its
 * columns, and the output of the biases. */
void bounds_product(const struct model_shape *m, const struct model_op *op, int i, double *most);
/* Returns the power of two that brings the bound @most to (2^14, 2^15], or 0 if there is none. */
float bounds_scale(double most);
