#pragma once

/* ctl_usage - renders the answer to GET /usage of the admin socket as a table or as CSV. */

#include <stdbool.h>

#include "base/buf.h"
#include "base/lib_types.h"

/* Returns true if @s is a month or a day of the calendar, YYYY-MM or YYYY-MM-DD. */
bool ctl_usage_is_date(const char *s);
/* Appends a line with the sums since @since, a month or a day, for each tenant, key and model to
 * @out, as ctl_show_usage() does. */
void ctl_usage_table(struct buf *out, yyjson_val *usage, const char *since, size_t columns);
/* Adds to @out the rows since @since as CSV (RFC 4180), below a line of names. */
void ctl_usage_csv(struct buf *out, yyjson_val *usage, const char *since);
