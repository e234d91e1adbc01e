#pragma once

/*
 * window - models in which some layers have a window, so that a row sees only the last keys:
 * gpt-oss, Gemma 2 and 3, Olmo 3, Muse Glimmer. Layers are those of decoder.h.
 */

#include "engine/arch/decoder.h"
#include "engine/bind/meta.h"

/* Sets in_window[l] for each of @n_layer layers: from an array in the file, or else true for all
 * layers but the last of every @period layers (0: for all), where the file may give another period.
 * Sets *window to the size of the window, which remains unchanged if the file does not give it; 0:
 * no layer has a window. */
void window_read(struct binder *b, uint32_t n_layer, uint32_t period, bool *in_window,
                 uint32_t *window);
/* Refuses a model whose last @n_shared layers read the keys of the two layers before them, unless
 * the first of these two has a window and the second has none. @n_own: layers with keys of their
 * own. */
void window_check_shared(struct binder *b, const bool *in_window, uint32_t n_own,
                         uint32_t n_shared);
/* Reads RoPE of layers with a window, set 1, whose defaults are @dim and @base. */
void window_rope(struct binder *b, struct model_shape *s, uint32_t dim, double base);
/* Sets the factors of embeddings and logits: the file's soft cap, and the scale sqrt(n_embd) if
 * @scaled. */
void window_ends(struct binder *b, struct model *model, bool scaled, struct model_op *logits);
/* Binds the whole model, in place of decoder_bind(). */
void window_bind(struct binder *b, struct model *m, const struct decoder *d);
