#pragma once

/*
 * arch - from a file to a model: the architecture by name, its hyperparameters, the ops of its
 * layers with their tensors. Everything that the ops rely on is checked here, so that backends need
 * not.
 */

#include "engine/model.h"

/* The model of o->file, for o->max_context. Returns 0 or -errno with @err: unknown architecture, a
 * missing or odd hyperparameter, a missing, unknown or misshapen tensor. The tensors stay those of
 * the file. @drafts: with its block of multi-token prediction, if there is one, or that of
 * o->block, which must be of a model like this; else nothing is read of it. */
int arch_read(struct model *m, const struct engine_opts *o, bool drafts, struct err *err);
/* Computes a digest of 128 bits of everything that the results depend on: of @file, and of @block,
 * which may be NULL. */
void arch_fingerprint(const struct gguf *file, const struct gguf *block, uint8_t out[16]);
