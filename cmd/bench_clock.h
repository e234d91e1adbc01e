#pragma once

#include <stdint.h>

#include "base/clock.h"

/* Returns the time of all measurements: CLOCK_MONOTONIC, in ns. */
static inline int64_t bench_now_ns(void) {
    return clock_now(clock_monotonic());
}
