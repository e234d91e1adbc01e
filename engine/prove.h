#pragma once

/*
 * prove - checks, before a device serves, that it computes a model as the reference backend does.
 * Both compute a few rows through the first layer of each kind, the embedding and the logits; then
 * the device's own sampling must equal the host's.
 */

#include "engine/model.h"

/* Blocks that a row of the proof sees of those that an indexer chooses from, on both: fewer than
 * the rows have, so that the choice is tried. be_ops.proving sets and ends it for the device. */
#define PROOF_BLOCKS 2u

/*
 * @m is loaded on @be, which is idle. A variant of the backend (be_ops.variant) without which the
 * results are right is left out, and @note says which and why, in one line; "" if nothing is. 0,
 * -EINVAL with @err: the device is wrong without all of them, too; -ENOMEM, -EIO.
 */
int prove_device(const struct model *m, const struct be_ops *ops, struct be *be,
                 const struct engine_opts *opts, char *note, size_t size, struct err *err);
