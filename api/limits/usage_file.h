#pragma once

/*
 * usage_file - the file of usage, to which several daemons may add at the same time, for example
 * during an upgrade: each adds its own counts since its last write. A lock beside the file,
 * PATH.lock, makes reading, adding and replacing one action, and the file is replaced as a whole.
 */

#include "api/limits/usage_table.h"

/* Adds the rows of @own, which may be empty, to the file @path, and sets *@out, which was empty, to
 * all rows of the file. The file is not written if @own is empty. A damaged file is renamed to
 * PATH.damaged, and *@damaged is set. Runs on any thread; may wait for another process. Returns 0
 * or -errno, then nothing was added. */
int usage_file_add(const char *path, const struct usage_table *own, uint32_t today,
                   struct usage_table *out, bool *damaged);
