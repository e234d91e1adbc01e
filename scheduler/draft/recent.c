/*
 * recent - recent outputs, since agents ask for nearly the same again and again. A ring for each
 * isolation key keeps them; the least recently used key makes room. A ring is only read by
 * sequences of its own key, so the time of an answer reveals nothing about other tenants' answers.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "scheduler/draft/draft.h"
#include "scheduler/draft/ngram.h"

#define KEYS 16
#define RING 16384u   /* tokens of a key, a power of two */
#define OUTPUT_MIN 8u /* least length of an output that is kept */
#define LEAD                                                                                       \
    NGRAM_LONG /* last tokens of the prompt, kept so that the beginning of an output is found too */
#define LEAST                                                                                      \
    4u /* least length of a match: other outputs mislead more often than the sequence's own text */

struct ring {
    uint8_t key[16];
    uint64_t used;
    /* [RING] linear; the newer half moves to the front when full */
    int32_t *tokens;
    uint32_t n_tokens, epoch;
    struct ngram grams;
};

struct recent {
    struct ring ring[KEYS];
    uint64_t turn;
};

struct reader {
    struct recent *all;
    uint32_t n_seen;
    /* output that the draft follows; len 0: none */
    uint32_t ring, epoch, at, len;
};

static int share(void **common) {
    *common = calloc(1, sizeof(struct recent));
    return *common ? 0 : -ENOMEM;
}

static void unshare(void *common) {
    struct recent *all = common;

    for (int i = 0; i < KEYS; i++) {
        free(all->ring[i].tokens);
        ngram_deinit(&all->ring[i].grams);
    }
    free(all);
}

static int recent_begin(void **state, void *common, const struct draft_text *t) {
    struct reader *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    r->all = common;
    r->n_seen = t->n_tokens;
    *state = r;
    return 0;
}

static struct ring *recent_find_ring(struct recent *all, const uint8_t *key) {
    for (int i = 0; i < KEYS; i++)
        if (all->ring[i].tokens && memcmp(all->ring[i].key, key, 16) == 0)
            return &all->ring[i];
    return NULL;
}

static uint32_t recent_propose(void *state, const struct draft_text *t, int32_t *out,
                               uint32_t max) {
    struct reader *r = state;
    struct ring *g = recent_find_ring(r->all, t->isolation_key);
    uint32_t n = 0;

    assert(r->n_seen <= t->n_tokens);
    if (!g) {
        r->len = 0;
        return 0;
    }
    if (r->ring != (uint32_t)(g - r->all->ring) || r->epoch != g->epoch)
        r->len = 0;
    r->ring = (uint32_t)(g - r->all->ring);
    r->epoch = g->epoch;
    for (; r->len > 0 && r->n_seen < t->n_tokens; r->n_seen++)
        if (r->at < g->n_tokens && g->tokens[r->at] == t->tokens[r->n_seen])
            r->at++, r->len++;
        else
            r->len = 0;
    r->n_seen = t->n_tokens;
    if (r->len < NGRAM_LONG) {
        uint32_t len,
            at = ngram_find(&g->grams, g->tokens, g->n_tokens, t->tokens, t->n_tokens, &len);

        if (len > r->len && len >= LEAST)
            r->at = at, r->len = len;
    }
    while (r->len > 0 && n < max && r->at + n < g->n_tokens && g->tokens[r->at + n] >= 0)
        out[n] = g->tokens[r->at + n], n++;
    return n;
}

/* Returns the ring of @key, emptied if another key had it; NULL: no memory. */
static struct ring *claim(struct recent *all, const uint8_t *key) {
    struct ring *g = recent_find_ring(all, key);

    if (!g) {
        g = &all->ring[0];
        for (int i = 1; i < KEYS; i++)
            if (all->ring[i].used < g->used)
                g = &all->ring[i];
        if (!g->tokens) {
            if (ngram_init(&g->grams, RING, RING) < 0)
                return NULL;
            g->tokens = malloc(RING * sizeof(*g->tokens));
            if (!g->tokens) {
                ngram_deinit(&g->grams);
                return NULL;
            }
        }
        memcpy(g->key, key, 16);
        g->n_tokens = 0;
        g->epoch++;
    }
    g->used = ++all->turn;
    return g;
}

/* Keeps the newer half of the ring. */
static void recent_make_room(struct ring *g) {
    uint32_t drop = g->n_tokens - RING / 2;

    assert(g->n_tokens > RING / 2 && g->n_tokens <= RING);
    memmove(g->tokens, g->tokens + drop, RING / 2 * sizeof(*g->tokens));
    g->n_tokens = RING / 2;
    for (uint32_t i = 0; i < g->n_tokens; i++)
        ngram_add(&g->grams, g->tokens, i);
    g->epoch++;
}

static void recent_finish(void *common, const struct draft_text *t) {
    uint32_t n_out = t->n_tokens - t->n_prompt;
    uint32_t n = MIN(n_out + MIN(LEAD, t->n_prompt), RING / 2 - 1);
    const int32_t *from = t->tokens + t->n_tokens - n;
    struct ring *g;

    if (n_out < OUTPUT_MIN || !(g = claim(common, t->isolation_key)))
        return;
    if (g->n_tokens + n + 1 > RING)
        recent_make_room(g);
    for (uint32_t i = 0; i < n; i++) {
        g->tokens[g->n_tokens] = from[i];
        ngram_add(&g->grams, g->tokens, g->n_tokens++);
    }
    g->tokens[g->n_tokens++] = -1; /* separator: no token follows an output */
    assert(g->n_tokens <= RING);
}

static void recent_end(void *state) {
    free(state);
}

const struct draft_source draft_recent = {
    .name = "recent",
    .prior = 0.4F,
    .share = share,
    .unshare = unshare,
    .begin = recent_begin,
    .end = recent_end,
    .propose = recent_propose,
    .finish = recent_finish,
};
