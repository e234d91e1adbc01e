#pragma once

/* models_find - finds the models besides that of the option model: presets, and the files of a
 * folder. */

#include <dirent.h>

#include "daemon/config/config.h"

/* Takes a model: its options, which are taken over (zeroed), its name, and the size of its files.
 * Returns 0 or -errno, which ends the search. */
typedef int (*models_find_cb)(void *ctx, struct config *c, const char *name, uint64_t file_bytes);

/* Takes a preset that cannot be read, and the reason. Returns 0 or -ENOMEM. */
typedef int (*models_bad_cb)(void *ctx, const char *name, const struct err *why);

/* Makes @c the options with which a preset or a file begins: those of the daemon, @from, without
 * the ones that belong to its own model. Returns 0 or -errno; config_deinit() must follow in either
 * case. */
int models_clone(struct config *c, const struct config *from);
/* Calls @cb for each preset of the option models, by name, and then for each file of models-dir
 * whose name no preset has. Returns 0, or -errno with @err. A preset that cannot be read is given
 * to @bad and left out; if @bad is NULL, it is an error. */
int models_find_all(const struct config *c, models_find_cb cb, models_bad_cb bad, void *ctx,
                    struct err *err);
/* Checks by their files that the models in the options can be served: reads the file of the option
 * model, resolves presets, looks for files in the folders, and checks that this machine has the
 * instruction sets and the memory for the model. Appends the sum of memory to @memory. Returns 0,
 * or -errno with @err. */
int models_check(const struct config *c, struct buf *memory, struct err *err);
/* Returns the error of options that lead to no model, in @err. */
int models_refuse_none(const struct config *c, struct err *err);
/* Returns whether the name of @e is that of a preset file, for scandir(). */
int models_is_preset(const struct dirent *e);
