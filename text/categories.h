#pragma once

/* categories - the general categories of Unicode, for regular expressions. */

#include <stddef.h>
#include <stdint.h>

/* Returns the set of general categories, bits as in unicode_runs(), that property @name means in
 * ECMAScript's \p{...}: a category's short or long name, a group of categories, Any. 0: no such. */
uint32_t unicode_property(const char *name, size_t len);

/* Returns the runs of equal category that all code points consist of, in order and *n in number;
 * one is its first code point << 5 | category. */
const uint32_t *unicode_runs(uint32_t *n);
