#pragma once

/*
 * assistant - gemma4-assistant, a small model in a separate file that drafts for a Gemma 4 model.
 * It has its own width and queries, and attends to the keys of the Gemma 4 model.
 */

#include "engine/arch/decoder.h"

#define ASSISTANT_ARCH "gemma4-assistant" /* general.architecture */

/* Adds pass 1 from @b, the assistant's file, after the ops of @m, which end with LOGITS and whose
 * RoPE has been read. @d: options of the model's layers. Sets -EINVAL in the binder if the
 * assistant belongs to another model. */
void assistant_bind(struct binder *b, struct model *m, const struct decoder *d);
