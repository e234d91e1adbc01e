#pragma once

/*
 * ranks - a model on several devices of one machine: implements be_ops with one struct be for each
 * device. ranks.c: how matrices are divided, and opening devices; ranks_load.c: weights;
 * ranks_exchange.c: exchange of columns; ranks_step.c: the ops of a step; layers.c: division by
 * layers.
 *
 * The struct be that functions take and return is that of the first device, or of the last one if
 * devices divide the layers; be.group leads to the others. Between calls its device is the thread's
 * current device. Once one device is lost, all are.
 */

#include "engine/cuda/ranks/kernels_ranks.h"
#include "engine/cuda/several.h"

struct ranks {
    /* open devices; the one that functions of be_ops take */
    uint32_t n, leader;
    struct be *be[RANKS];
    /* devices divide the layers: the leader is the last one; else it is the first */
    bool by_layers;
    /* Devices that divide the layers: the current batch, or part of one, with its first row; the
     * device that computes it; a postponed OP_HOLES. Ops before @done were computed part by
     * part. */
    const struct engine_batch *batch;
    uint32_t row0, at;
    const struct model_op *holes, *done;
    /* [max_seqs] */
    struct engine_seq *part;
    /* The embedding on the last device, for the draft block; NULL: only the first device has it. */
    struct weights *draft_embed;
};

static const struct meeting all_meet = {UINT32_MAX, UINT32_MAX};
static const struct meeting to_first = {OTHER_RANKS, FIRST_RANK};
static const struct meeting from_first = {FIRST_RANK, OTHER_RANKS};

/* Columns that ranks exchange; GATHER_E: those of GATHER_H for pairs of a row and an expert. */
enum gathered { GATHER_O, GATHER_D, GATHER_H, GATHER_T, GATHER_E, GATHER_LOGITS };

/* Returns the struct step of @b for the same step. */
static inline struct step *ranks_step_of(const struct step *s, struct be *b) {
    return &b->step[s->batch->step % 2];
}

/* Returns each device for @i below k->n, the leader last, which is then current. */
static inline struct be *ranks_nth(const struct ranks *k, uint32_t i) {
    return k->be[(k->leader + 1 + i) % k->n];
}

/* Makes @b the current device; does nothing while a graph is replayed. Returns 0 or -EIO. */
int ranks_use(struct be *b);
/* Calls @call with @b as the current device. Returns its result, or -EIO. */
#define ON_DEVICE(b, call) (ranks_use(b) < 0 ? -EIO : (call))
/* Returns the part of an op that rank @b computes. */
struct model_op ranks_part_of(const struct be *b, const struct model_op *op);
/* Loads the weights of an op on each device, and sets *out to those of the leader. Returns 0, or
 * -errno with @err. */
int ranks_load(struct ranks *k, const struct model_op *op, struct weights **out, struct err *err);
/* Does so for devices that divide the layers: on the device that computes the op. */
int layers_load(struct ranks *k, const struct model_op *op, struct weights **out, struct err *err);
/* Sets the functions of be_ops that a step consists of. */
void ranks_step_ops(struct be_ops *all);
/* Returns the name of a property of an op that several devices do not support, or NULL; the op's
 * kind is supported. */
const char *ranks_lack(const struct model_shape *s, const struct model_op *op);
/* Sets the functions of be_ops for devices that divide the layers. */
void layers_ops(struct be_ops *all);

/* Calls ranks_meet(). Returns 0 or -EIO. */
int ranks_meet_now(struct ranks *k, const struct meeting *m);
/* Enqueues a meeting as a part of the step, so that it is recorded in graphs. Returns 0 or -EIO. */
int ranks_meet_in_step(struct ranks *k, const struct meeting *m);
/* Returns the addresses of the columns of all ranks, @n in all. */
struct shares ranks_shares(const struct ranks *k, enum gathered what, uint32_t n);
/* Copies rows of @from to @to in the memory of rank @b, in the order of its stream. @count: as in
 * struct gather_args, of at most @n_rows. Returns 0 or -EIO. */
int ranks_gather(struct be *b, float *to, const struct shares *from, const uint32_t *count,
                 uint32_t n_rows);
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

/* Gates of a rank, which it multiplies by its ups: @n columns for each of @each parts of the step's
 * rows. */
struct ranks_glu {
    float *gate;
    const float *up;
    uint32_t n, each;
};
/* Multiplies gates by ups in place of the gates, unless @kind says that the product has. */
int ranks_glu(struct step *s, enum pack_kind kind, const struct ranks_glu *of);
/* Computes the rank's columns of h = act(gate) up from the products of @op. */
int ranks_own_glu(struct step *s, const struct model_op *op);
/* Multiplies all columns of @in, those of every rank, by the rank's rows of the matrix. With @add,
 * adds to the result instead of replacing it. */
int ranks_multiply(struct step *s, const struct weights *w, enum gathered in, bool add);
