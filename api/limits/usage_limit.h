#pragma once

/*
 * usage_limit - how many requests and tokens a tenant may use in a day and in a month. The windows
 * are the calendar days and months of UTC. What was used in them is not a counter of its own but
 * the sum of the usage of that day or month: it outlives the process, and a clock that is set
 * forward and back finds the counts of the day that it returns to.
 */

#include <stdint.h>
#include "base/err.h"

struct tenant;
struct usage;

#define USAGE_LIMITS 4

/* A limit of a tenant, and how much of it is used. */
struct usage_limit {
    const char *name;          /* "requests_per_day" */
    const char *what, *window; /* "requests", "day" */
    uint64_t limit, used;      /* used: without what live generations have reserved */
    int64_t resets_s;          /* when the window ends: seconds since 1970 */
};

/* Fills @out with the quotas that @t has; returns their number. */
uint32_t usage_limits(const struct usage *u, const struct tenant *t,
                      struct usage_limit out[USAGE_LIMITS]);
/* Returns 0 if one more request of @t, which may need @n_tokens beside those that its live
 * generations have reserved, is within all its quotas, else -EINVAL with @err, a 429, and *retry_ms
 * until the last of the exceeded windows ends. */
int usage_limit_check(const struct usage *u, struct tenant *t, uint64_t n_tokens,
                      uint32_t *retry_ms, struct err *err);
