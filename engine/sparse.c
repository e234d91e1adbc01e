#include "engine/sparse.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mathx.h"

/* Returns a number that is larger for a larger x. */
static uint32_t bits_of(float x) {
    uint32_t u;

    x += 0.0f; /* -0 is 0 */
    memcpy(&u, &x, sizeof(u));
    if (u >> 31)
        return ~u;
    return u | 1u << 31;
}

/* Returns bits_of() the @k-th largest score, found byte by byte from the highest. *@ties: number of
 * scores equal to it that are among the largest. */
static uint32_t sparse_find_least(const float *score, uint32_t n, uint32_t k, uint32_t *ties) {
    uint32_t found = 0, mask = 0, left = k;

    assert(k > 0 && k <= n);
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t count[256] = {0}, digit = 255;

        for (uint32_t i = 0; i < n; i++)
            if ((bits_of(score[i]) & mask) == found)
                count[bits_of(score[i]) >> shift & 255]++;
        while (count[digit] < left)
            left -= count[digit--];
        found |= digit << shift;
        mask |= 255u << shift;
    }
    *ties = left;
    return found;
}

void sparse_mean(const struct sparse_tokens *t, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i++) {
        float max = -INFINITY, sum = 0, mean = 0;

        for (uint32_t j = 0; j < t->n; j++) {
            float score = t->score[j][i] + t->place[j][i];

            max = MAX(score, max);
        }
        for (uint32_t j = 0; j < t->n; j++) {
            float weight = mx_expf(t->score[j][i] + t->place[j][i] - max);

            sum += weight;
            mean += weight * t->value[j][i];
        }
        out[i] = mean / sum;
    }
}

void sparse_see(const struct sparse_shape *s, uint32_t pos, const float *score, uint32_t *seen) {
    uint32_t n = sparse_whole(s, pos), least = 0, ties = n, block = (1u << s->ratio) - 1;

    assert(s->ratio <= 16 && 32 % s->ratio == 0);
    memset(seen, 0, (pos / 32 + 1) * sizeof(*seen));
    if (n > s->n_block)
        least = sparse_find_least(score, n, s->n_block, &ties);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i * s->ratio, bits = n > s->n_block ? bits_of(score[i]) : 0;

        if (bits < least || (bits == least && ties == 0))
            continue;
        ties -= bits == least;
        seen[at / 32] |= block << at % 32;
    }
    for (uint32_t p = n * s->ratio; p <= pos; p++)
        seen[p / 32] |= 1u << p % 32;
}

uint32_t sparse_best(const float *score, uint32_t n, uint32_t k, uint32_t *out) {
    uint32_t least = 0, ties = n, n_out = 0;

    if (n > k)
        least = sparse_find_least(score, n, k, &ties);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = 0;

        if (n > k)
            bits = bits_of(score[i]);
        if (bits < least || (bits == least && ties == 0))
            continue;
        ties -= bits == least;
        out[n_out++] = i;
    }
    assert(n_out == MIN(n, k));
    return n_out;
}
