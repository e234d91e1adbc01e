#pragma once

/* bucket - a token bucket: it refills steadily and holds a bounded amount. */

#include <stdint.h>

#include "base/util.h"

struct bucket {
    /* negative if more was used than was reserved */
    double level;
    /* 0: it has never been used */
    int64_t at_ns;
};

/* Adds the tokens that have accumulated since the last call. @per_second 0: there is no limit. A
 * bucket that is new, or whose limit is new, begins full, with @most. */
static inline void bucket_refill(struct bucket *b, double most, double per_second, int64_t now) {
    if (per_second <= 0)
        b->level = 0;
    else if (b->at_ns == 0)
        b->level = most;
    else
        b->level += per_second * (double)MAX(now - b->at_ns, 0) / 1e9;
    b->level = MIN(b->level, most);
    b->at_ns = per_second > 0 ? now : 0;
}
