#pragma once

#include <stdint.h>
#include "base/clock.h"

static inline int64_t bench_now_ns(void) {
    return clock_now(clock_monotonic());
}
