#pragma once

/*
 * limits - limits c of the activations of gated FFNs by layer, with which Step 3.5 and Ling 3.0
 * were trained: min(silu(gate), c) * clamp(up, -c, c). Without them, single activations of late
 * layers grow until the logits are useless.
 */

#include "engine/bind/meta.h"
#include "engine/model.h"

struct limits {
    /* by layer; 0: no limit */
    float ffn[MODEL_LAYERS_MAX], experts[MODEL_LAYERS_MAX];
};

/* Reads the limits of @n_layer layers, including MTP blocks, from the keys "swiglu_clamp_shexp"
 * (dense FFNs and the shared expert) and "swiglu_clamp_exp" (experts), each an array or one number
 * for all layers. A missing key means no limit. Errors are in b->r. */
void limits_read(struct binder *b, uint32_t n_layer, struct limits *out);
/* Sets the limits of the ops from index @first on, which all belong to layer @layer. */
void limits_set(struct model *m, uint32_t first, const struct limits *l, uint32_t layer);
