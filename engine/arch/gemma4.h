#pragma once

/* gemma4 - Gemma 4: dense models; models with experts beside the dense FFN (26B-A4B); and models
 * with per-layer inputs whose last layers share the keys of earlier ones (E2B, E4B). */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(), and reads the hyperparameters that only these
 * models have. */
void gemma4_bind(struct binder *b, struct model *m, const struct decoder *d);
/* Adds the per-layer inputs, which shape.n_layer_input values of each layer are. */
void gemma4_input(struct binder *b, struct model *m);
/* Adds x += norm(proj (gelu(gate x) * the layer's part of the per-layer inputs)), or with @branch b
 * = that. */
void gemma4_layer_input(struct binder *b, struct model *m, const struct decoder *d, uint32_t l,
                        bool branch);
/* Sets the factor of x of the last op of @m to the scale of layer @l, which that op ends, if the
 * file has one. */
void gemma4_scale_layer(struct binder *b, struct model *m, uint32_t l);
