#pragma once

/* bill - counts requests and tokens for who pays: the key and the tenant of a client, beside the
 * model. */

#include <stdint.h>
#include "base/err.h"

struct exchange;
struct gen;
struct model;

/* Takes the request of @x for @m, which may need @n_tokens, from its tenant's limits and counts it.
 * 0, or -EINVAL with @err (429) and x->retry_ms. */
int bill_request(struct exchange *x, struct model *m, uint64_t n_tokens, struct err *err);
/* Counts the tokens of @g, which has ended. */
void bill_tokens(struct gen *g, uint32_t n_prompt, uint32_t n_cached);
