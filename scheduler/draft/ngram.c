#include "scheduler/draft/ngram.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"

#define SLOTS_MIN 1024u

static const uint32_t lengths[2] = {NGRAM_SHORT, NGRAM_LONG};

int ngram_init(struct ngram *g, uint32_t n_tokens, uint32_t max) {
    uint32_t n = SLOTS_MIN;

    while (n < max && n < n_tokens)
        n *= 2;
    assert((n & (n - 1)) == 0);
    *g = (struct ngram){.mask = n - 1};
    for (int k = 0; k < 2; k++)
        g->slot[k] = calloc(n, sizeof(uint32_t));
    if (g->slot[0] && g->slot[1])
        return 0;
    ngram_deinit(g);
    return -ENOMEM;
}

void ngram_deinit(struct ngram *g) {
    free(g->slot[0]);
    free(g->slot[1]);
    *g = (struct ngram){0};
}

static uint32_t *ngram_slot(const struct ngram *g, int k, const int32_t *tokens, uint32_t end) {
    uint64_t h = 0;

    assert(g->slot[k] && end >= lengths[k]);
    for (uint32_t i = end - lengths[k]; i < end; i++)
        h = (h ^ (uint32_t)tokens[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return &g->slot[k][(h * 0xD6E8FEB86659FD93u >> 32) & g->mask];
}

void ngram_add(struct ngram *g, const int32_t *tokens, uint32_t end) {
    for (int k = 0; k < 2; k++)
        if (end >= lengths[k])
            *ngram_slot(g, k, tokens, end) = end + 1;
}

uint32_t ngram_common(const int32_t *a, uint32_t i, const int32_t *b, uint32_t j) {
    uint32_t n = 0, most = MIN(NGRAM_LOOK, MIN(i, j));

    while (n < most && a[i - 1 - n] == b[j - 1 - n])
        n++;
    return n;
}

uint32_t ngram_find(const struct ngram *g, const int32_t *tokens, uint32_t n_tokens,
                    const int32_t *text, uint32_t n, uint32_t *len) {
    for (int k = 1; k >= 0; k--) {
        if (n < lengths[k])
            continue;
        uint32_t end = *ngram_slot(g, k, text, n);
        if (end == 0 || end - 1 >= n_tokens)
            continue;
        *len = ngram_common(tokens, end - 1, text, n);
        if (*len >= lengths[k])
            return end - 1;
    }
    *len = 0;
    return 0;
}
