#pragma once

/*
 * rope - the frequencies of the rotary position embedding, with whatever scaling the file asks for
 * folded in. Everything is computed in double by mathx: the same bits on every machine.
 */

#include "engine/backend.h"
#include "engine/meta.h"

/* Fills s->n_rot, s->rope_freq (malloc'd, also on failure the caller frees it) and s->rope_mscale
 * from the file; s->head_dim and s->max_context are set. @divisors: the tensor rope_freqs.weight,
 * or NULL; n_rot / 2 values, checked here. Errors go to @m. */
void rope_read(struct meta *m, const struct tensor *divisors, struct model_shape *s);
