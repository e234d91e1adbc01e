#pragma once

/* keyfile - reads files of [section] and key = value lines. Errors name file and line. */

#include "base/err.h"

/* Takes a pair of line @line of the file. Returns 0, or -errno with the reason in @err, to which
 * the caller adds file and line. */
typedef int (*keyfile_pair)(void *ctx, uint32_t line, const char *section, const char *name,
                            const char *value, struct err *err);

/* Gives each pair of @path to @pair, until @pair returns an error. Returns 0, or -errno with @err,
 * which may be NULL. @param: the name in errors that do not concern a pair. */
int keyfile_read(const char *path, const char *param, keyfile_pair pair, void *ctx,
                 struct err *err);
