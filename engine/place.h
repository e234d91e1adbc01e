#pragma once

/*
 * place - chooses which experts of a model lie in host memory beside a device and are computed
 * there (host_experts_ops). The device rounds activations to half precision and the host to eight
 * bits, so results depend on the placement: it is chosen when a model is opened and stays until it
 * is closed. If the device fetches experts (shape.fetches), it computes all of them; then results
 * do not depend on the placement, and all layers get equally many experts on the device. Private to
 * engine/.
 *
 * Experts move to the host in the order of their picks, the rarest first, until the device has room
 * for keys and values. For a model without experts, the dense FFNs of the last layers move, which
 * are three quarters of a layer's bytes; attention and all keys and values stay on the device.
 */

#include "engine/fit.h"
#include "engine/picks.h"

/* Input of place_order(). Expert e of layer l has number l * n_expert + e. */
struct place_case {
    uint32_t n_layer, n_expert, n_used;
    /* [n_layer][n_expert] */
    const uint64_t *picks;
    /* [n_layer]: the layer has experts */
    const bool *has;
};

/* Writes the numbers of all experts to @out, [n_layer * n_expert], fewest picks first (ties: the
 * lower number), and returns how many there are. The order ignores the size of an expert: the
 * host's time is that of reading the picked bytes, so each byte of device memory gains in
 * proportion to the picks of its expert. */
uint32_t place_order(const struct place_case *c, uint32_t *out);
/* Reorders the output of place_order() so that every layer keeps equally many experts on the
 * device: first the rarest expert of each layer, then the next of each. Returns 0 or -ENOMEM. */
int place_evenly(const struct place_case *c, uint32_t *order, uint32_t n);
/* Returns the expected cost of a row with placement @host: its picks that the host computes, plus
 * one for each layer that calls the host at all. 0 if @host is NULL. */
double place_cost(const struct place_case *c, const uint32_t *host);
/* Returns the part of all picks that the host computes. */
double place_share(const struct place_case *c, const uint32_t *host);

/* Summary of a placement: layers with experts, those with some in host memory, all experts, and the
 * number and bytes of those in host memory. */
struct placement {
    uint32_t n_layers, n_host_layers, n_experts, n_host;
    /* bytes in host memory, in the host's layout; includes ffn_bytes */
    uint64_t host_bytes;
    /* bytes of experts and FFNs that the device does not hold */
    uint64_t absent_bytes;
    /* layers whose dense FFN is in host memory, and the bytes of these FFNs */
    uint32_t n_host_ffn;
    uint64_t ffn_bytes;
};

/* Chooses shape.host_experts: the placement in @k with opts->keeps_place, else one by
 * opts->host_experts, which is saved in @k. NULL without a device or experts. For a model without
 * experts, chooses shape.n_host_ffn by opts->device_layers. @note: a line about changes; "": none.
 * Returns 0; -ENOMEM with @err if the host has no room for its part; or an error of ops->room(). */
int place(struct model *m, const struct be_ops *ops, const struct engine_opts *o,
          const struct fit_sizes *s, struct picks *k, char *note, size_t n_note, struct err *err);
/* Returns a summary of the placement, and appends a line about it to @note, whose size is @n. */
struct placement place_report(const struct model *m, char *note, size_t n);
/* Mixes the placement into @sources if the host holds any expert or FFN. */
void place_mark(const struct model *m, uint8_t sources[20]);
