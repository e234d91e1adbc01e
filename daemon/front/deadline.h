#pragma once

/*
 * deadline - ends the process if its orderly end takes too long, for example because a thread
 * computes without a pause or a loop waits. A timer and a signal do this, so it needs no thread of
 * the process.
 */

#include <stdint.h>

/* Makes the process exit with @code after @ms, unless it has ended before. The last call counts. */
void deadline_set(uint32_t ms, int code);
