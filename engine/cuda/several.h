#pragma once

/*
 * several - the devices that compute one model together: opens and closes them with one struct be
 * for each, and sets the functions of be_ops for both ways to divide a model, by layers (layers.c)
 * and by matrices (engine/cuda/ranks).
 *
 * The struct be that functions take and return is that of the first device, or of the last one if
 * devices divide the layers; be.group leads to the others. Between calls its device is the thread's
 * current device. Once one device is lost, all are.
 */

#include "engine/cuda/cuda.h"

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

/* Returns the struct step of @b for the same step. */
static inline struct step *several_step(const struct step *s, struct be *b) {
    return &b->step[s->batch->step % 2];
}

/* Returns each device for @i below k->n, the leader last, which is then current. */
static inline struct be *several_nth(const struct ranks *k, uint32_t i) {
    return k->be[(k->leader + 1 + i) % k->n];
}

/* Implements be_ops.several: other functions are those of weft_backend_cuda. */
const struct be_ops *several_ops(const struct engine_opts *o, struct err *err);
/* Marks all devices that compute a model with @b as lost, as @b is. */
void several_lose(const struct be *b);
/* Makes @b the current device; does nothing while a graph is replayed. Returns 0 or -EIO. */
int several_use(struct be *b);
/* Calls @call with @b as the current device. Returns its result, or -EIO. */
#define ON_DEVICE(b, call) (several_use(b) < 0 ? -EIO : (call))
/* Implements be_ops.open, and copies a page, or a device's part of one, on each device. */
int several_open(struct be **out, const struct be_opts *o, struct err *err);
int several_copy(struct be *b, const struct engine_copy *c);
/* Sets @rank to the devices that @o names, and returns their number. With @cut they divide the
 * layers as model_shape.cut says, else the matrices. */
uint32_t several_list(const struct engine_opts *o, const uint32_t *cut,
                      struct rank rank[ENGINE_DEVICES]);

/* -- by layers (layers.c) ---------------------------------------------------------------------- */

/* Sets the functions of be_ops for devices that divide the layers. */
void layers_ops(struct be_ops *all);
/* Loads the weights of an op on the device that computes it, and sets *out to them. Returns 0, or
 * -errno with @err. */
int layers_load(struct ranks *k, const struct model_op *op, struct weights **out, struct err *err);

/* -- by matrices (engine/cuda/ranks) ----------------------------------------------------------- */

/* Sets the functions of be_ops for devices that divide the matrices. */
void ranks_ops(struct be_ops *all);
/* Loads the weights of an op on each device, and sets *out to those of the first. Returns 0, or
 * -errno with @err. */
int ranks_load(struct ranks *k, const struct model_op *op, struct weights **out, struct err *err);
/* Loads the part of an op that rank @b computes. Returns 0, or -errno with @err. */
int ranks_load_part(struct be *b, const struct model_op *op, struct weights **out, struct err *err);
/* Implement op_division.run and part (engine/backend.h). */
step_op ranks_logits, ranks_gate, ranks_proj, ranks_gate_up;

/* Sets of ranks, as bits: work that @by enqueue from now on waits for all work that @of have
 * enqueued. */
struct meeting {
    uint32_t of, by;
};
#define FIRST_RANK 1u
#define OTHER_RANKS (~FIRST_RANK)
/* Enqueues a meeting; afterwards the device of one of @by is current. Returns 0 or an error of the
 * runtime, after which no device is marked lost yet; *failed, if not NULL: the rank that failed. */
int ranks_meet(struct ranks *k, const struct meeting *m, struct be **failed);
/* Implements step_logit_rows() without scale and cap; afterwards the first device has all logits.
 * Returns 0 or -EIO. */
int ranks_logit_rows(struct step *s, uint32_t first, uint32_t n);
