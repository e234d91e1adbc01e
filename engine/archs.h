#pragma once

/*
 * archs - reads a model from a GGUF file: finds the architecture by its name, reads its
 * hyperparameters, and builds the list of ops with their tensors. All conditions that op_list.h and
 * shape.h state are checked there, so backends need not check them. Implemented by engine/arch.
 */

#include "engine/bind/survey.h"
#include "engine/model.h"

/* Reads the model of o->file for contexts of at most o->max_context tokens. @drafts: reads the
 * drafting part too, from o->block, which must fit the model, or else from o->file if that has MTP
 * blocks. The file owns the tensors. Returns 0, or -errno with @err: -EINVAL for an unknown
 * architecture, a missing or unsupported hyperparameter, or a missing, unknown or misshapen tensor;
 * -ENOMEM. */
int arch_read(struct model *m, const struct engine_opts *o, bool drafts, struct err *err);
/* Reads @file as if its architecture were row @i of the table, with the keys of s->prefix, and
 * records in @s what the row asks for. Sets *name. Returns 0, -errno as arch_read() with @err, or
 * -ENOENT behind the last row. */
int arch_try(const struct gguf *file, uint32_t i, struct survey *s, const char **name,
             struct err *err);
/* Computes a digest of 128 bits of the contents of @file and @block (NULL: no drafting part) on
 * which results depend. */
void arch_fingerprint(const struct gguf *file, const struct gguf *block, uint8_t out[16]);
/* Returns true if @file is an assistant (engine/arch/assistant.h), by the name of its
 * architecture. */
bool assistant_found(const struct gguf *file);
/* Returns true if @file is a block drafter (engine/arch/dflash.h), by the name of its
 * architecture. */
bool dflash_found(const struct gguf *file);
