#pragma once

/*
 * ranks - a model on several devices of one machine: be_ops over one struct be for each. How a
 * model is divided, and how devices are opened: ranks.c; weights: ranks_load.c; what comes together
 * of all devices: ranks_exchange.c; the ops of a step: ranks_step.c; division by layers: layers.c.
 *
 * What a function is given and returns is the first one's, of devices that divide the layers the
 * last one's; be.ranks leads to the others. Between calls its device is the one that the thread
 * uses, and all are lost once one is.
 */

#include "engine/cuda/cuda.h"

/* Implements be_ops.several: what is not here is weft_backend_cuda's. */
const struct be_ops *ranks_several(const struct engine_opts *o, struct err *err);
/* Ranks, as bits: what @by enqueue from now on waits for all that @of have enqueued so far. */
struct meeting {
    uint32_t of, by;
};
#define FIRST_RANK 1u
#define OTHER_RANKS (~FIRST_RANK)
/* Enqueues that; the device of one of @by is used then. 0 or the runtime's error, nothing is lost
 * yet; *failed: the rank that it is of, if not NULL. */
int ranks_meet(struct ranks *k, const struct meeting *m, struct be **failed);
/* Launches residual: of what own_t is a part of, or of what the rank has whole. 0 or -EIO. */
int ranks_residual(struct be *b, uint32_t n_rows, const struct residual_args *a);
/* step_logit_rows() up to the factors: the first device has all logits then. 0 or -EIO. */
int ranks_logit_rows(struct step *s, uint32_t first, uint32_t n);

/* -- what the files of ranks share ------------------------------------------------------------- */

struct ranks {
    uint32_t n; /* open */
    struct be *be[RANKS];
    /* Devices that divide the layers: the batch, or part of one, that is launched, with its first
     * row; the device that computes it; OP_HOLES of it that are due. Ops before @done have been
     * computed part by part. */
    const struct engine_batch *batch;
    uint32_t row0, at;
    const struct model_op *holes, *done;
    struct engine_seq *part; /* [max_seqs] */
    /* The embedding on the last device, for the block that drafts; NULL: the first alone has it. */
    struct weights *draft_embed;
};

static const struct meeting all_meet = {UINT32_MAX, UINT32_MAX};
static const struct meeting to_first = {OTHER_RANKS, FIRST_RANK};
static const struct meeting from_first = {FIRST_RANK, OTHER_RANKS};

/* Columns that ranks exchange; GATHER_E: GATHER_H's for pairs of a row and an expert. */
enum gathered { GATHER_O, GATHER_D, GATHER_H, GATHER_T, GATHER_E, GATHER_LOGITS };

/* rank_cut() of the ranks that are open. */
static inline uint32_t ranks_cut(const struct ranks *k, uint64_t n, uint32_t r) {
    return rank_cut(n, r, k->n);
}

/* Rank @r's of the same step. */
static inline struct step *ranks_step_of(const struct step *s, uint32_t r) {
    return &s->be->ranks->be[r]->step[s->batch->step % 2];
}

/* Marks all ranks lost, as @b is. Returns -EIO. */
int ranks_lose(struct ranks *k, const struct be *b);
/* The thread enqueues for rank @r from now on; nothing, where all of the step is a graph. 0 or
 * -EIO. */
int ranks_use(struct ranks *k, uint32_t r);
/* Has rank @r do @call, which returns 0, or an error with which that one, and so all, are lost. 0
 * or -EIO. */
#define ON_RANK(k, r, call)                                                                        \
    (ranks_use(k, r) < 0 ? -EIO : (call) < 0 ? ranks_lose(k, (k)->be[r]) : 0)
/* Copies state @src to @dst on each device. Returns 0 or -EIO. */
int ranks_copy_state(struct be *b, uint32_t src, uint32_t dst);
/* Rank @r's part of an op. */
struct model_op ranks_part_of(const struct ranks *k, const struct model_op *op, uint32_t r);
/* be_ops.load */
int ranks_load(struct be *b, const struct model_op *op, struct weights **out, struct err *err);
/* Sets the functions of be_ops that a step is made of. */
void ranks_step_ops(struct be_ops *all);
/* Sets the functions of be_ops that devices have which divide the layers. */
void layers_ops(struct be_ops *all);

/* ranks_meet(). 0 or -EIO. */
int ranks_meet_now(struct ranks *k, const struct meeting *m);
/* Enqueues a meeting as a part of the step, which is noted. Returns 0 or -EIO. */
int ranks_meet_in_step(struct ranks *k, const struct meeting *m);
/* Returns the columns of all ranks, @n in all, where they lie. */
struct shares ranks_shares(const struct ranks *k, enum gathered what, uint32_t n);
/* Copies rows of @from to @to in the memory of rank @rank, in the order of its stream. @count: as
 * in struct gather_args, of at most @n_rows. Returns 0 or -EIO. */
int ranks_take(struct ranks *k, uint32_t rank, float *to, const struct shares *from,
               const uint32_t *count, uint32_t n_rows);
/* Returns where all columns go, but for logits. */
float *ranks_whole_of(const struct be *b, enum gathered what);
/* Launches pack for all columns of @what, a->n of them; a->x: ranks_whole_of(). 0 or -EIO. */
int ranks_pack(struct be *b, uint32_t n_rows, enum gathered what, const struct pack_args *a);
/* Makes the columns of each rank ready to be packed by all ranks. Returns 0 or -EIO. */
int ranks_exchange(struct step *s);
