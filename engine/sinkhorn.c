#include "engine/sinkhorn.h"

#include "base/mathx.h"

static float sigmoid(float x) {
    return 1.0f / (1.0f + mx_expf(-x));
}

/* Divides @n numbers that lie @step apart by their sum, to which @eps is added. */
static void share_out(float *x, uint32_t n, uint32_t step, float eps) {
    float sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += x[(size_t)i * step];
    for (uint32_t i = 0; i < n; i++)
        x[(size_t)i * step] /= sum + eps;
}

/* The shares of a stream before the rounds. */
static void softmax_row(float *x, uint32_t n, float eps) {
    float max = x[0];

    for (uint32_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n; i++)
        x[i] = mx_expf(x[i] - max);
    share_out(x, n, 1, 0);
    for (uint32_t i = 0; i < n; i++)
        x[i] += eps;
}

void sinkhorn_weights(const struct stream_shape *s, const float *m, const float *scale,
                      const float *base, float *in, float *out) {
    uint32_t n = s->n;

    for (uint32_t i = 0; i < n; i++)
        in[i] = sigmoid(m[i] * scale[0] + base[i]) + s->eps;
    if (!out)
        return;
    float *share = out + n;
    for (uint32_t i = n; i < 2 * n; i++)
        out[i - n] = 2 * sigmoid(m[i] * scale[1] + base[i]);
    for (uint32_t i = 0; i < n * n; i++)
        share[i] = m[2 * n + i] * scale[2] + base[2 * n + i];
    for (uint32_t j = 0; j < n; j++)
        softmax_row(share + (size_t)j * n, n, s->eps);
    for (uint32_t round = 0; round < s->rounds; round++) {
        for (uint32_t j = 0; j < n && round > 0; j++)
            share_out(share + (size_t)j * n, n, 1, s->eps);
        for (uint32_t i = 0; i < n; i++)
            share_out(share + i, n, n, s->eps);
    }
}
