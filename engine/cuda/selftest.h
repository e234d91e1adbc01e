#pragma once

/* selftest - what the parts of the self-test share (selftest.c, selftest_attention.c,
 * selftest_ops.c). */

#include "engine/cuda/cuda.h"

/* |got - right| / |right|, of products and of attention; of products of bytes, whose activations
 * have eight bits. */
#define SELFTEST_LIMIT 4e-3
#define SELFTEST_LIMIT_BYTES 1.5e-2

#define SELFTEST_OFF "%s is off by %.3g, at most %.3g is expected"

/* Numbers around 0, nearly normal with variance 1/4, from @seed. */
void selftest_fill(float *x, size_t n, uint64_t seed);
/* Copies @n floats of the host's, which may be anywhere, to the device. 0 or -EIO. */
int selftest_send(struct be *b, const float *from, float *to, size_t n);
/* @bytes of the device to @to; waits for all that was enqueued. 0 or -EIO. */
int selftest_fetch(struct be *b, void *to, const void *from, size_t bytes);
/* Says in be.note that a plainer kernel does what @what did, and why. What the wrong one has
 * counted is zero again. 0 or -EIO. */
int selftest_leave_out(struct be *b, const char *what, const char *why);
/* -EINVAL with @err, which says what of the device is wrong: there is nothing plainer to do it. */
__attribute__((format(printf, 3, 4))) int selftest_refuse(const struct be *b, struct err *err,
                                                          const char *format, ...);
/* Attention in each way that steps may take. What is wrong is left out, or refused where there is
 * nothing plainer. 0, -EINVAL with @err, -ENOMEM or -EIO. */
int selftest_attention(struct be *b, struct err *err);
/* The model's ROUTE and KDA ops. What is wrong is refused. Returns as selftest_attention(). */
int selftest_ops(struct be *b, struct err *err);
