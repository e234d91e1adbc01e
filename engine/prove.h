#pragma once

/*
 * prove - checks, before a device serves, that it computes a model as the reference backend does.
 * Both compute a few rows through the first layer of each kind, the embedding and the logits; then
 * the device's own sampling must equal the host's.
 */

#include "engine/model.h"

/* Number of blocks that a row of the proof sees in sparse attention, on both backends. Rows of the
 * proof have more blocks than that if a block has up to 4 positions, so that the choice is tested.
 * be_ops.proving sets this limit on the device. */
#define PROOF_BLOCKS 2u

/*
 * Proves that @be, on which @m is loaded and which is idle, computes right. A variant
 * (be_ops.variant) that makes results wrong is turned off, and @note names it with the reason in
 * one line; "": none. Returns 0; -EINVAL with @err: the device is wrong even without all variants;
 * -ENOMEM, -EIO. @n_states: states of sequences that are in the device's memory.
 */
int prove_device(const struct model *m, const struct be_ops *ops, struct be *be,
                 const struct engine_opts *opts, uint32_t n_states, char *note, size_t size,
                 struct err *err);
