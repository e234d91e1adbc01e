#pragma once

/* check - what --check-config checks besides the options' own rules: what a start would meet. */

#include "daemon/config/config.h"

/* Checks that a start with the options @c can use its files, folders and memory, as far as a quick
 * check can tell. Prints the sum of memory, and on stderr what does not prevent a start here and
 * now but may later: a used port, a disk that is smaller than its limit. Returns 0, or -errno with
 * @err. */
int check_start(const struct config *c, struct err *err);
