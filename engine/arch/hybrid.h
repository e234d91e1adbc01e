#pragma once

/*
 * hybrid - models in which most layers are gated delta nets and the other layers gated attention:
 * Qwen 3.5, 3.6 and 3.8 (qwen35, qwen35moe), Qwen3-Next and Qwen3-Coder-Next (qwen3next).
 */

#include "engine/arch/decoder.h"
#include "engine/bind/meta.h"

/* Reads the sizes of the delta nets. */
void hybrid_read_delta(struct binder *b, bool tiled, struct model_shape *s);
/* Sets is_delta[l] for each layer: from an array with a value for each layer, or else true for all
 * layers but every n-th. */
void hybrid_read_kinds(struct binder *b, const struct model_shape *s, bool *is_delta);
/* Adds x += W (delta net of norm x); with d->streams b = W (delta net of x). */
void hybrid_delta(struct binder *b, struct model *m, const struct decoder *d, uint32_t layer);
/* Binds the whole model, in place of decoder_bind(), and reads the hyperparameters that only these
 * models have. */
void hybrid_bind(struct binder *b, struct model *m, const struct decoder *d);
