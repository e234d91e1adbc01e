#pragma once

/*
 * ranks - devices that divide the matrices of a model. ranks.c: the ops of a step, and the exchange
 * of columns; ranks_load.c: weights.
 */

#include "engine/cuda/ranks/kernels_ranks.h"
#include "engine/cuda/several.h"

/* Columns that ranks exchange; GATHER_E: those of GATHER_H for pairs of a row and an expert. */
enum gathered { GATHER_O, GATHER_D, GATHER_H, GATHER_T, GATHER_E, GATHER_LOGITS };

/* Returns the part of an op that rank @b computes. */
struct model_op ranks_part_of(const struct be *b, const struct model_op *op);

/* Buffers of a rank for its own columns and for all columns; whole NULL: there is none. */
struct columns {
    float *own, *whole;
};
struct columns ranks_columns(const struct be *b, enum gathered what);
/* Packs all columns of @what, a->n of them; a->x: columns.whole. Returns 0 or -EIO. */
int ranks_pack(struct be *b, uint32_t n_rows, enum gathered what, const struct pack_args *a);

/* -- what parts of ops consist of; each returns 0 or -EIO -------------------------------------- */

/* Multiplies gates by ups in place of the gates; kind PACK_PLAIN: the product has. */
int ranks_glu(struct step *s, const struct glu_args *a);
/* Computes the rank's columns of h = act(gate) up from the products of @op. */
int ranks_own_glu(struct step *s, const struct model_op *op);
/* Multiplies all columns of @in, those of every rank, by the rank's rows of the matrix. With @add,
 * adds to the result instead of replacing it. */
int ranks_multiply(struct step *s, const struct weights *w, enum gathered in, bool add);
