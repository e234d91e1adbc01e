#pragma once

/*
 * deadline - the end of the process when its orderly end does not come: a thread that computes for
 * long without a pause, a loop that waits for something. Set by signal and timer, so that nothing
 * of the process needs to be able to run.
 */

#include <stdint.h>

/* Makes the process exit with @code after @ms, unless it has ended before. The last call counts. */
void deadline_set(uint32_t ms, int code);
