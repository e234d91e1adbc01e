#pragma once

/*
 * place - where the experts of a model's layers lie beside a device: in its memory, or in the
 * host's, where they are computed too (host_experts_ops). Whole layers, the first ones. The device
 * rounds activations to half precision and the host to eight bits, so what is computed depends on
 * where experts lie: that is chosen once, when the model is opened. Private to engine/.
 */

#include "engine/fit.h"

/* Of the layers that have experts, how many have them in host memory, of how many bytes. */
struct placement {
    uint32_t n_layers, n_host;
    uint64_t host_bytes;
};

/* Chooses shape.host_layers, as opts->host_experts says: 0 without a device or experts. 0; -ENOMEM
 * with @err when the host has no room for its part; or -errno of ops->room(). */
int place(struct model *m, const struct be_ops *ops, const struct engine_opts *o,
          const struct fit_sizes *s, struct err *err);
/* What was chosen, and a line on it behind @note, whose size is @n. */
struct placement place_tell(const struct model *m, char *note, size_t n);
