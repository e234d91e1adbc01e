#pragma once

/*
 * arch - from a file to a model: the architecture by name, its hyperparameters, the ops of its
 * layers with their tensors. Everything that the ops rely on is checked here, so that backends need
 * not.
 */

#include "engine/model.h"

/* 0 or -errno with @err: unknown architecture, a missing or odd hyperparameter, a missing, unknown
 * or misshapen tensor. The tensors stay those of @file. */
int arch_read(struct model *m, const struct gguf *file, uint32_t max_context, struct err *err);
