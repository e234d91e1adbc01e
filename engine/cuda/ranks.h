#pragma once

/*
 * ranks - a model on several devices of one machine: be_ops over one struct be for each (ranks.c).
 * What a function is given and returns is the first one's, be.ranks leads to the others. Between
 * calls the first one's device is the one that the thread uses, and all are lost once one is.
 */

#include "engine/cuda/cuda.h"

/* The table, of which what is not here is that of @one device. */
const struct be_ops *ranks_ops(const struct be_ops *one);
/* Ranks, as bits: what @by enqueue from now on waits for all that @of have enqueued so far. */
struct meeting {
    uint32_t of, by;
};
#define FIRST_RANK 1u
#define OTHER_RANKS (~FIRST_RANK)
/* Enqueues that; the device of one of @by is used then. 0 or the runtime's error, nothing is lost
 * yet; *failed: the rank that it is of, if not NULL. */
int ranks_meet(struct ranks *k, const struct meeting *m, struct be **failed);
/* Launches pack for rows of a rank's x, or of what its o and gates are parts of. 0 or -EIO. */
int ranks_pack(struct be *b, uint32_t n_rows, const struct pack_args *a);
/* All columns of x on the first device, behind the last layer. 0 or -EIO. */
int ranks_whole_x(struct step *s);
/* step_logit_rows() up to the factors: the first device has all logits then. 0 or -EIO. */
int ranks_logit_rows(struct step *s, uint32_t first, uint32_t n);
