#pragma once

/* vocab - vocabularies of model files, for the targets gguf and tokenizer. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/gguf.h"

/* Makes the tokenizer of @g and encodes and decodes @len bytes of @text, or checks that the refusal
 * has a reason. */
void vocab_use(const struct gguf *g, const uint8_t *text, size_t len);
/* Writes a model file of vocabulary @i with two tensors to @out. Returns false if there are no
 * more. */
bool vocab_seed(size_t i, struct buf *out);
