#pragma once

/*
 * warm - steps that a device computes after its proof and before it serves: it times its ways and
 * records graphs in them (be_ops.warm), which would otherwise delay the first requests.
 */

#include "engine/model.h"

/* Runs these steps on @be, which is idle; their keys and states remain in its pages and slots, as
 * those of sequences that have ended. @n_windows: window pages; @n_states: states of sequences in
 * the device's memory. Returns 0, -ENOMEM or -EIO. */
int warm_device(const struct model *m, const struct be_ops *ops, struct be *be,
                const struct engine_opts *opts, uint32_t n_windows, uint32_t n_states);
