#pragma once

/*
 * sinkhorn - the weights by which residual streams are blended (OP_HC_IN): those of a branch's
 * input, those of its output, and the shares that the streams have in each other, a matrix whose
 * rows and columns add up to about 1 (Sinkhorn and Knopp 1967).
 */

#include "engine/backend.h"

enum { MAX_STREAMS = 16 };

/* Computes the weights of n = @s->n streams from @m and @base, each of which consists of n, n and n
 * x n numbers with one @scale per part:
 *   in[i] = sigmoid(scale[0] m[i] + base[i]) + eps
 *   out[i] = 2 sigmoid(scale[1] m[n + i] + base[n + i])
 *   share[j][i]: the softmax over i of scale[2] m[2n + jn + i] + base[2n + jn + i], plus eps; then,
 *     rounds times, divided by (its sum over i) + eps, except in the first round, and by
 *     (its sum over j) + eps
 * @out has n values of out, then n x n of share; NULL: only @in is computed. */
void sinkhorn_weights(const struct stream_shape *s, const float *m, const float *scale,
                      const float *base, float *in, float *out);
