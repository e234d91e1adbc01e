#pragma once

/*
 * usage_limit - limits the requests and tokens of a tenant per day and per month. The windows are
 * calendar days and months of UTC. Their use is not a separate counter but the sum of the usage of
 * that day or month: it outlives the process, and if the clock is set back, the counts of the
 * earlier day apply again.
 */

#include <stdint.h>

#include "base/err.h"

struct tenant;
struct usage;

#define USAGE_LIMITS 4

/* A limit of a tenant, and its used part. */
struct usage_limit {
    /* "requests_per_day" */
    const char *name;
    /* "requests", "day" */
    const char *what, *window;
    /* used: without the reservations of live generations */
    uint64_t limit, used;
    /* end of the window, in seconds since 1970 */
    int64_t resets_s;
};

/* Fills @out with the quotas that @t has; returns their number. */
uint32_t usage_limits(const struct usage *u, const struct tenant *t,
                      struct usage_limit out[USAGE_LIMITS]);
/* Returns 0 if one more request of @t, which may need @n_tokens beside those that its live
 * generations have reserved, is within all its quotas, else -EINVAL with @err, a 429, and *retry_ms
 * until the last of the exceeded windows ends. */
int usage_limit_check(const struct usage *u, struct tenant *t, uint64_t n_tokens,
                      uint32_t *retry_ms, struct err *err);
