#include "engine/sinkhorn.h"

#include "base/mathx.h"
#include "engine/shared/shares.h"

void sinkhorn_weights(const struct stream_shape *s, const float *m, const float *scale,
                      const float *base, float *in, float *out) {
    uint32_t n = s->n;

    for (uint32_t i = 0; i < n; i++)
        in[i] = mx_sigmoid(m[i] * scale[0] + base[i]) + s->eps;
    if (!out)
        return;
    float *share = out + n;
    for (uint32_t i = n; i < 2 * n; i++)
        out[i - n] = 2 * mx_sigmoid(m[i] * scale[1] + base[i]);
    for (uint32_t i = 0; i < n * n; i++)
        share[i] = m[2 * n + i] * scale[2] + base[2 * n + i];
    for (uint32_t j = 0; j < n; j++)
        softmax_shares(share + (size_t)j * n, n, s->eps);
    for (uint32_t round = 0; round < s->rounds; round++) {
        for (uint32_t j = 0; j < n && round > 0; j++)
            share_out(share + (size_t)j * n, n, 1, s->eps);
        for (uint32_t i = 0; i < n; i++)
            share_out(share + i, n, n, s->eps);
    }
}
