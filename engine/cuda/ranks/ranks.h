#pragma once

/*
 * ranks - devices that divide the matrices of a model. ranks.c: the ops of a step; ranks_load.c:
 * weights; ranks_exchange.c: exchange of columns.
 */

#include "engine/cuda/ranks/kernels_ranks.h"
#include "engine/cuda/several.h"

static const struct meeting all_meet = {UINT32_MAX, UINT32_MAX};
static const struct meeting to_first = {OTHER_RANKS, FIRST_RANK};
static const struct meeting from_first = {FIRST_RANK, OTHER_RANKS};

/* Columns that ranks exchange; GATHER_E: those of GATHER_H for pairs of a row and an expert. */
enum gathered { GATHER_O, GATHER_D, GATHER_H, GATHER_T, GATHER_E, GATHER_LOGITS };

/* Returns the part of an op that rank @b computes. */
struct model_op ranks_part_of(const struct be *b, const struct model_op *op);

/* Calls ranks_meet(). Returns 0 or -EIO. */
int ranks_meet_now(struct ranks *k, const struct meeting *m);
/* Enqueues a meeting as a part of the step, so that it is recorded in graphs. Returns 0 or -EIO. */
int ranks_meet_in_step(struct ranks *k, const struct meeting *m);
/* Returns the addresses of the columns of all ranks, @n in all. */
struct shares ranks_shares(const struct ranks *k, enum gathered what, uint32_t n);
/* Buffers of a rank for its own columns and for all columns; whole NULL: there is none. */
struct columns {
    float *own, *whole;
};
struct columns ranks_columns(const struct be *b, enum gathered what);
/* Packs all columns of @what, a->n of them; a->x: columns.whole. Returns 0 or -EIO. */
int ranks_pack(struct be *b, uint32_t n_rows, enum gathered what, const struct pack_args *a);
/* Waits, on all streams, until the columns of each rank can be read by all ranks. Returns 0 or
 * -EIO. */
int ranks_exchange(struct step *s);

/* -- what parts of ops consist of; each returns 0 or -EIO -------------------------------------- */

/* Multiplies gates by ups in place of the gates; kind PACK_PLAIN: the product has. */
int ranks_glu(struct step *s, const struct glu_args *a);
/* Computes the rank's columns of h = act(gate) up from the products of @op. */
int ranks_own_glu(struct step *s, const struct model_op *op);
/* Multiplies all columns of @in, those of every rank, by the rank's rows of the matrix. With @add,
 * adds to the result instead of replacing it. */
int ranks_multiply(struct step *s, const struct weights *w, enum gathered in, bool add);
