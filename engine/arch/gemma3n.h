#pragma once

/*
 * gemma3n - Gemma 3n: E2B, E4B. A layer predicts all residual streams from themselves, computes
 * attention and the FFN on the first one, and corrects the others by what these changed (AltUp):
 *
 *   ALT_PREDICT QKV ATTEND PROJ LAUREL JOIN GATE_UP PROJ ALT_CORRECT GATE_IN PROJ HC_OUT
 *
 * Layers have per-layer inputs (LAYER_INPUT), as in Gemma 4, and the last ones read the keys of
 * earlier layers. In the first layers most gates of the FFN are zero.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void gemma3n_bind(struct binder *b, struct model *m, const struct decoder *d);
