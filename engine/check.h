#pragma once

/*
 * check - the asserts of engine_launch() about a batch: an invalid batch is a bug of the caller.
 */

#include "engine/backend.h"

/* Parameters of the check of a batch. Windows as in engine_info. */
struct check {
    /* with all defaults filled in */
    const struct engine_opts *opts;
    const struct model_shape *shape;
    const struct be_ops *ops;
    uint32_t n_slots, n_windows, window, window_seqs;
    /* number of the previous step */
    uint64_t launched;
    /* wants of the previous step */
    uint32_t n_wants_launched;
};

/* Asserts that @b obeys engine/types.h and follows the previous step: rows, positions, page tables,
 * wants and copies. */
void check_batch(const struct check *c, const struct engine_batch *b);
