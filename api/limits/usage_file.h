#pragma once

/*
 * usage_file - the file of usage, which several daemons may add to at once, as before and after an
 * upgrade: each adds what it counted itself since it last did so. A lock beside the file,
 * PATH.lock, makes reading, adding and replacing one action, and the file is replaced as a whole.
 */

#include "api/limits/usage_table.h"

/* Adds the rows of @own, which may be none, to the file @path and to what is in *@out, which was
 * empty, all rows of the file. The file is not written where @own is empty. A file that is damaged
 * is renamed to PATH.damaged, and *@damaged is set. Runs on any thread; may wait for another
 * process. Returns 0 or -errno, then nothing was added. */
int usage_file_add(const char *path, const struct usage_table *own, uint32_t today,
                   struct usage_table *out, bool *damaged);
