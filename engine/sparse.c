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

/* The scores that are among the largest: those whose bits_of() is above @least, and the first @ties
 * that equal it. all: every score, which is then not read. */
struct sparse_cut {
    bool all;
    uint32_t least, ties;
};

/* Returns the cut of the @k largest of @n scores. */
static struct sparse_cut sparse_cut(const float *score, uint32_t n, uint32_t k) {
    struct sparse_cut c = {.all = n <= k};

    if (!c.all)
        c.least = sparse_find_least(score, n, k, &c.ties);
    return c;
}

/* Returns true if @score, the next one in the order of the scores, is among the largest. */
static bool sparse_is_among(struct sparse_cut *c, const float *score) {
    if (c->all)
        return true;
    uint32_t bits = bits_of(*score);
    if (bits != c->least)
        return bits > c->least;
    if (c->ties == 0)
        return false;
    c->ties--;
    return true;
}

void sparse_see(const struct sparse_shape *s, uint32_t pos, const float *score, uint32_t *seen) {
    uint32_t n = sparse_whole(s, pos), block = (1u << s->ratio) - 1;
    struct sparse_cut cut = sparse_cut(score, n, s->n_block);

    assert(s->ratio <= 16 && 32 % s->ratio == 0);
    memset(seen, 0, (pos / 32 + 1) * sizeof(*seen));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i * s->ratio;

        if (sparse_is_among(&cut, &score[i]))
            seen[at / 32] |= block << at % 32;
    }
    for (uint32_t p = n * s->ratio; p <= pos; p++)
        seen[p / 32] |= 1u << p % 32;
}

void sparse_see_blocks(const struct sparse_shape *s, uint32_t pos, float *score, uint32_t *seen) {
    uint32_t n = pos / s->block + 1, n_words = s->block / 32, last = pos / 32;

    assert(s->block % 32 == 0);
    for (uint32_t i = n - MIN(n, s->n_local); i < n; i++)
        score[i] = INFINITY;
    struct sparse_cut cut = sparse_cut(score, n, s->n_block);
    memset(seen, 0, (last + 1) * sizeof(*seen));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = MIN((i + 1) * n_words, last + 1);

        if (!sparse_is_among(&cut, &score[i]))
            continue;
        for (uint32_t w = i * n_words; w < end; w++)
            seen[w] = UINT32_MAX;
    }
    seen[last] &= UINT32_MAX >> (31 - pos % 32);
}

uint32_t sparse_best(const float *score, uint32_t n, uint32_t k, uint32_t *out) {
    struct sparse_cut cut = sparse_cut(score, n, k);
    uint32_t n_out = 0;

    for (uint32_t i = 0; i < n; i++)
        if (sparse_is_among(&cut, &score[i]))
            out[n_out++] = i;
    assert(n_out == MIN(n, k));
    return n_out;
}
