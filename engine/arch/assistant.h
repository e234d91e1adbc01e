#pragma once

/*
 * assistant - the small model that comes beside a Gemma 4 model in a file of its own and drafts for
 * it: gemma4-assistant. It has a width of its own and queries, but no keys.
 */

#include "engine/arch/decoder.h"

#define ASSISTANT_ARCH "gemma4-assistant" /* general.architecture */

/* Returns true if @file is an assistant, by the name of its architecture. */
bool assistant_found(const struct gguf *file);
/* Adds pass 1 from @b, the assistant's file, behind the ops of @m, whose last is LOGITS, and whose
 * rotary positions are known; @d: its layers'. -EINVAL in the binder: it is of another model. */
void assistant_bind(struct binder *b, struct model *m, const struct decoder *d);
