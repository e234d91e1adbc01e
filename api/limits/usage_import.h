#pragma once

/*
 * usage_import - takes over the file in which earlier versions kept the usage. Its counts are added
 * to the database once: the database knows the file by its inode and time.
 */

#include "api/limits/usage_table.h"

struct db;

/* Adds the rows of the file @path, if it was not added before. In a transaction. Returns 0, or
 * -errno of the database. *@of_file is 0, -ENOENT, -EINVAL: the file is damaged, or another -errno
 * of the file. */
int usage_import(struct db *db, const char *path, uint32_t today, int *of_file);
/* Renames the file after the transaction, to PATH.imported or PATH.damaged. */
void usage_import_over(const char *path, bool damaged);
