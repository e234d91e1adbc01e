#pragma once

/*
 * deepseek2 - models with multi-head latent attention: GLM-4.7-Flash, DeepSeek V2 and V3, Kimi K2.
 */

#include "engine/arch/decoder.h"

/* What decoder_bind() is for other models. */
void deepseek2_bind(struct binder *b, struct model *m, const struct decoder *d);
