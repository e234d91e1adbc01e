#pragma once

/*
 * usage_rows - the rows of usage in the database of state. Several daemons may add to them: each
 * adds its own counts since its last write, in a transaction.
 */

#include "api/limits/usage_table.h"

struct db;

/* Adds the rows of @own, which may be empty, and sets *@out, which was empty, to all rows. Sums up
 * what usage_table_fold() does. In a transaction, on any thread. Returns 0 or -errno, then the
 * transaction must be undone. */
int usage_rows_add(struct db *db, const struct usage_table *own, uint32_t today,
                   struct usage_table *out);
