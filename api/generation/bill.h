#pragma once

/* bill - counts requests and tokens by key, tenant and model. */

#include <stdint.h>

#include "base/err.h"

struct exchange;
struct model;
struct tenant;
struct usage_sum;

/* Charges the request of @x for @m, which may need @n_tokens, to its tenant's limits and counts it.
 * Returns 0, or -EINVAL with @err (429) and x->retry_ms. */
int bill_request(struct exchange *x, struct model *m, uint64_t n_tokens, struct err *err);
/* Counts @sum, the tokens of a generation of @m that has ended, for tenant @t and its key (0:
 * none). @key is NULL for clients of another daemon. */
void bill_tokens(struct model *m, const struct tenant *t, const uint32_t *key,
                 const struct usage_sum *sum);
