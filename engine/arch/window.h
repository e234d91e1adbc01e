#pragma once

/*
 * window - models in which some layers, by a pattern, see the last keys only: gpt-oss, Gemma 2 and
 * Gemma 3. Layers are those of decoder.h.
 */

#include "engine/arch/decoder.h"
#include "engine/meta.h"

/* Finds the layers of @n_layer that have a window: named one by one by the file, or all but the
 * last of every @period, which the file may override. Writes the window's size to *window, which is
 * unchanged if the file has none; 0: no layer has a window. */
void window_read(struct meta *m, uint32_t n_layer, uint32_t period, bool *in_window,
                 uint32_t *window);
/* Sets the factors of embeddings and logits: the file's soft cap, and the scale sqrt(n_embd) if
 * @scaled. */
void window_ends(struct meta *m, struct model *model, bool scaled, struct model_op *logits);
/* Binds the whole model, in place of decoder_bind(). */
void window_bind(struct binder *b, struct model *m, const struct decoder *d);
