#pragma once

/*
 * arch - from a file to a model: the architecture by name, its hyperparameters, the ops of its
 * layers with their tensors. Everything that the ops rely on is checked here, so that backends need
 * not.
 */

#include "engine/model.h"

/* 0 or -errno with @err: unknown architecture, a missing or odd hyperparameter, a missing, unknown
 * or misshapen tensor. The tensors stay those of @file. @drafts: with the block of multi-token
 * prediction, if there is one; else nothing is read of it. */
int arch_read(struct model *m, const struct gguf *file, uint32_t max_context, bool drafts,
              struct err *err);
