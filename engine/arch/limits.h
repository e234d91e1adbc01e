#pragma once

/*
 * limits - bounds of the activations of gated FFNs by layer, as Step 3.5 and Ling 3.0 were trained
 * with: min(silu(gate), c) * clamp(up, -c, c). Without these limits, single activations of late
 * layers grow until the logits are noise.
 */

#include "engine/meta.h"
#include "engine/model.h"

struct limits {
    float ffn[MODEL_LAYERS_MAX], experts[MODEL_LAYERS_MAX]; /* by layer; 0: no limit */
};

/* Reads the limits of @n_layer layers, blocks of multi-token prediction among them: an array, or a
 * number for all, of "swiglu_clamp_shexp" (dense FFNs and the shared expert) and
 * "swiglu_clamp_exp" (experts). A missing key means no limit. Errors are in m->r. */
void limits_read(struct meta *m, uint32_t n_layer, struct limits *out);
/* Sets the limits of the ops from @first on, which are those of layer @layer. */
void limits_set(struct model *m, uint32_t first, const struct limits *l, uint32_t layer);
