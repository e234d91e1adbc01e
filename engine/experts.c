#include "engine/experts.h"

#include <assert.h>
#include <math.h>
#include "base/mathx.h"

void experts_pick(float *logits, uint32_t n, uint32_t n_used, float scale,
                  struct expert_pick *out) {
    float max = 0, sum = 0;

    assert(n_used > 0 && n_used <= n);
    for (uint32_t i = 0; i < n; i++)
        if (!(logits[i] > -INFINITY)) /* NaN too; below all others, above those that are taken */
            logits[i] = -3e38f;
    for (uint32_t k = 0; k < n_used; k++) {
        uint32_t best = 0;

        for (uint32_t i = 1; i < n; i++)
            if (logits[i] > logits[best])
                best = i;
        max = k == 0 ? logits[best] : max;
        out[k] = (struct expert_pick){best, mx_expf(logits[best] - max)};
        sum += out[k].weight;
        logits[best] = -INFINITY;
    }
    for (uint32_t k = 0; k < n_used; k++)
        out[k].weight = out[k].weight / sum * scale;
}
