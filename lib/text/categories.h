#pragma once

/* categories - returns the general categories of Unicode, for regular expressions. */

#include <stddef.h>
#include <stdint.h>

/* Returns the set of general categories, bits as in unicode_runs(), that property @name means in
 * ECMAScript's \p{...}: a category's short or long name, a group of categories, Any. Returns
 * 0 if there is no such property. */
uint32_t unicode_property(const char *name, size_t len);

/* Returns the runs of code points of one category, in order, and their number in *n. A run is its
 * first code point << 5 | category; it ends before the next run. The first call computes them. */
const uint32_t *unicode_runs(uint32_t *n);
