#pragma once

/*
 * window - models some of whose layers see the last keys only, by a pattern: gpt-oss, Gemma 2 and
 * Gemma 3. Layers are those of decoder.h.
 */

#include "engine/arch/decoder.h"
#include "engine/meta.h"

/* Which of @n_layer layers have a window: named one by one by the file, or all but the last of
 * every @period, a number that the file may have too. The window's size goes to *window, which
 * stays as it is where the file has none; 0: no layer has one. */
void window_read(struct meta *m, uint32_t n_layer, uint32_t period, bool *in_window,
                 uint32_t *window);
/* What the model does with embeddings and logits: soft cap of the file, scale sqrt(n_embd). */
void window_ends(struct meta *m, struct model *model, bool scaled, struct model_op *logits);
/* What decoder_bind() is for other models. */
void window_bind(struct binder *b, struct model *m, const struct decoder *d);
