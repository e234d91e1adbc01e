#pragma once

/* shares - the normalisations of Sinkhorn's algorithm (engine/sinkhorn.h), which mixes residual
 * streams; for host and device. */

#include "base/mathx.h"

/* Divides @n numbers, @step apart, by their sum plus @eps. */
MX_FN void share_out(float *x, uint32_t n, uint32_t step, float eps) {
    float sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += x[i * step];
    for (uint32_t i = 0; i < n; i++)
        x[i * step] /= sum + eps;
}

/* Replaces @n numbers by their softmax, plus @eps each: the start values of the rounds. */
MX_FN void softmax_shares(float *x, uint32_t n, float eps) {
    float max = x[0];

    for (uint32_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n; i++)
        x[i] = mx_expf(x[i] - max);
    share_out(x, n, 1, 0);
    for (uint32_t i = 0; i < n; i++)
        x[i] += eps;
}
