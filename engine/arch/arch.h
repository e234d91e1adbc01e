#pragma once

/*
 * arch - reads a model from a file: the architecture by name, its hyperparameters, the ops of its
 * layers with their tensors. All conditions of the ops are checked here, so backends need not check
 * them.
 */

#include "engine/model.h"

/* Reads the model of o->file for o->max_context. Returns 0 or -errno with @err: unknown
 * architecture, a missing or odd hyperparameter, a missing, unknown or misshapen tensor. The file
 * owns the tensors. @drafts: also reads its block of multi-token prediction, if there is one, or
 * the block in o->block, which must fit this model. */
int arch_read(struct model *m, const struct engine_opts *o, bool drafts, struct err *err);
/* Computes a digest of 128 bits of everything that the results depend on: of @file, and of @block,
 * which may be NULL. */
void arch_fingerprint(const struct gguf *file, const struct gguf *block, uint8_t out[16]);
