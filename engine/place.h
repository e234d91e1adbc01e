#pragma once

/*
 * place - chooses the experts of a model that are in host memory beside a device, where they are
 * computed, too (host_experts_ops). The device rounds activations to half precision and the host to
 * eight bits, so what is computed depends on where experts lie: that is chosen when a model is
 * opened, and never while it is served. Where the device fetches experts (shape.fetches) it
 * computes them all, nothing depends on the choice, and each layer has as many slots as the others.
 * Private to engine/.
 *
 * Of the experts in the order of their picks, the rarest first, the host gets as few as leave the
 * device room for keys and values. Of a model without experts it gets the dense FFNs of the last
 * layers, three quarters of their bytes; attention stays, and so do all keys and values, so that
 * nothing else changes.
 */

#include "engine/fit.h"
#include "engine/picks.h"

/* Inputs of the order in which experts move to the host: expert e of layer l is number l * n_expert
 * + e. */
struct place_case {
    uint32_t n_layer, n_expert, n_used;
    const uint64_t *picks; /* [n_layer][n_expert] */
    const bool *has;       /* [n_layer]: the layer has experts */
};

/* The numbers of all experts, the one with the fewest picks first, of equal ones the lowest number:
 * the host's time is that of reading picked bytes, so a byte of the device's memory is worth the
 * picks of its expert, however large that is. @out: [n_layer * n_expert]. How many there are. */
uint32_t place_order(const struct place_case *c, uint32_t *out);
/* Puts what place_order() has made in the order in which layers keep equally many experts: the
 * rarest of each layer, then the next one of each. -ENOMEM or 0. */
int place_evenly(const struct place_case *c, uint32_t *order, uint32_t n);
/* Returns the expected host picks of a row with this placement, plus one pick for each layer that
 * calls the host at all. 0 where @host is NULL. */
double place_cost(const struct place_case *c, const uint32_t *host);
/* Returns the part of all picks that the host computes. */
double place_share(const struct place_case *c, const uint32_t *host);

/* Summary of a placement: layers with experts, those with some in host memory, all experts, and the
 * number and bytes of those in host memory. */
struct placement {
    uint32_t n_layers, n_host_layers, n_experts, n_host;
    uint64_t host_bytes;   /* as the host keeps them, also ffn_bytes */
    uint64_t absent_bytes; /* bytes of experts and FFNs for which the device has no place */
    uint32_t n_host_ffn;   /* layers whose dense FFN lies there, and their bytes */
    uint64_t ffn_bytes;
};

/* Chooses shape.host_experts: where opts->keeps_place what @k has, else as opts->host_experts says,
 * and @k gets it. NULL without a device or experts. Of a model without experts shape.n_host_ffn, as
 * opts->device_layers says. @note: what changed, "" if nothing. Returns 0; -ENOMEM with @err when
 * the host has no room for its part; or -errno of ops->room(). */
int place(struct model *m, const struct be_ops *ops, const struct engine_opts *o,
          const struct fit_sizes *s, struct picks *k, char *note, size_t n_note, struct err *err);
/* Summarises the placement, and appends a line about it to @note, whose size is @n. */
struct placement place_tell(const struct model *m, char *note, size_t n);
/* Mixes the placement into @sources if the host holds any expert or FFN. */
void place_mark(const struct model *m, uint8_t sources[20]);
