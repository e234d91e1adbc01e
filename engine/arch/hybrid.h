#pragma once

/*
 * hybrid - models most of whose layers are gated delta nets and the others gated attention: Qwen
 * 3.5 and 3.6 (qwen35, qwen35moe), Qwen3-Next and Qwen3-Coder-Next (qwen3next).
 */

#include "engine/arch/decoder.h"
#include "engine/meta.h"

/* Reads the sizes of the delta nets. */
void hybrid_read_delta(struct meta *m, bool tiled, struct model_shape *s);
/* Finds the layers that are delta nets: named one by one, or all but every n-th. */
void hybrid_read_kinds(struct meta *m, const struct model_shape *s, bool *is_delta);
/* x += W (delta net of norm x), or the branch that is added to streams. */
void hybrid_delta(struct binder *b, struct model *m, const struct decoder *d, uint32_t layer);
/* Binds the whole model, in place of decoder_bind(), and reads the hyperparameters that only these
 * models have. */
void hybrid_bind(struct binder *b, struct model *m, const struct decoder *d);
