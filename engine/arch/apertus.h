#pragma once

/*
 * apertus - Apertus: a plain decoder whose FFNs have no gate and the activation xIELU, with
 * parameters for each layer.
 */

#include "engine/arch/decoder.h"

/* Binds the whole model, in place of decoder_bind(). */
void apertus_bind(struct binder *b, struct model *m, const struct decoder *d);
