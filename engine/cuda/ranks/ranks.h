#pragma once

/*
 * ranks - devices that divide the matrices of a model. ranks.c: the ops of a step, and the exchange
 * of columns; ranks_load.c: weights.
 */

#include "engine/cuda/load.h"
#include "engine/cuda/ranks/kernels_ranks.h"
#include "engine/cuda/several.h"

/* Returns the part of an op that rank @b computes. */
struct model_op ranks_part_of(const struct be *b, const struct model_op *op);

/* -- what parts of ops consist of; each returns 0 or -EIO -------------------------------------- */

/* Packs the columns of all ranks, a->n of them; @own: BE_AT() of the buffer of a rank's. */
int ranks_pack(struct be *b, uint32_t n_rows, size_t own, const struct pack_args *a);
/* Applies @kind to @n gates and ups of a row of the batch, or of each of @each rows, in place of
 * the gates; PACK_PLAIN: the product has. */
int ranks_glu(struct step *s, enum pack_kind kind, float *gate, const float *up, uint32_t n,
              uint32_t each);
/* Computes the rank's columns of h = act(gate) up from the products of @op. */
int ranks_own_glu(struct step *s, const struct model_op *op);
/* Multiplies the columns of all ranks, @own as above, by the rank's rows of the matrix. With @add,
 * adds to the result instead of replacing it. */
int ranks_multiply(struct step *s, const struct weights *w, size_t own, bool add);
