#pragma once

/*
 * several - what one device of a model has to do with the others that share the model: how an op is
 * divided, where devices wait for each other, and how all are lost. Implemented by
 * engine/cuda/ranks.
 */

#include "engine/cuda/cuda.h"

/* Implement op_division.run and part (engine/backend.h). */
step_op ranks_embed, ranks_logits, ranks_gate, ranks_proj, ranks_gate_up;
/* Implements be_ops.several: other functions are those of weft_backend_cuda. */
const struct be_ops *ranks_several(const struct engine_opts *o, struct err *err);
/* Marks all devices that compute a model with @b as lost, as @b is. */
void ranks_lose(const struct be *b);
/* Loads the part of an op that rank @b computes. Returns 0, or -errno with @err. */
int ranks_load_part(struct be *b, const struct model_op *op, struct weights **out, struct err *err);

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
