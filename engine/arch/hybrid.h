#pragma once

/*
 * hybrid - models most of whose layers are gated delta nets and the others gated attention: Qwen
 * 3.5 and 3.6 (qwen35, qwen35moe), Qwen3-Next and Qwen3-Coder-Next (qwen3next).
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(), and reads the hyperparameters that only these
 * models have. */
void hybrid_bind(struct binder *b, struct model *m, const struct decoder *d);
