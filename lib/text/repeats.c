/*
 * One pass predicts each token: it is expected to be the one that followed the same context the
 * last time. A loop is a text in which this succeeds nearly always, with a short way back: so loops
 * are found whose blocks come in several forms, or in which the sampler inserts a word. The ways
 * back are counted. Where every block has something new, such as its number, too many contexts are
 * new; then the most frequent way back tells the length of the block, and a second pass compares
 * the text with itself at this distance.
 */

#include "text/repeats.h"

#include <assert.h>
#include <string.h>

#define SLOTS (2 * REPEATS_MAX)
#define PROBES 16u

struct last {
    /* position behind a context; 0: none */
    uint16_t at[SLOTS];
};

static uint32_t repeats_hash(const int32_t *context) {
    uint64_t h = 0;

    for (uint32_t i = 0; i < REPEATS_CONTEXT; i++)
        h = (h ^ (uint32_t)context[i]) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 40);
}

static bool repeats_is_same(const int32_t *tokens, uint32_t i, uint32_t k) {
    return memcmp(tokens + i - REPEATS_CONTEXT, tokens + k - REPEATS_CONTEXT,
                  REPEATS_CONTEXT * sizeof(*tokens)) == 0;
}

/* Returns where the context before @i occurred last, 0 if nowhere, and puts @i in its place. A step
 * looks at PROBES slots at most; a context that finds no place takes that of another one. */
static uint32_t last_place(struct last *last, const int32_t *tokens, uint32_t i) {
    uint32_t first = repeats_hash(tokens + i - REPEATS_CONTEXT), was = 0;
    uint16_t *slot = NULL;

    for (uint32_t k = 0; k < PROBES; k++) {
        slot = &last->at[(first + k) % SLOTS];
        was = *slot;
        if (was == 0 || repeats_is_same(tokens, i, was))
            break;
        was = 0;
    }
    *slot = (uint16_t)i;
    return was;
}

/* Returns true if all but a sixteenth of the tokens equal the one @lag places before. */
static bool has_period(const int32_t *tokens, uint32_t n, uint32_t lag) {
    uint32_t n_equal = 0;

    for (uint32_t i = lag; i < n; i++)
        n_equal += tokens[i] == tokens[i - lag];
    return 16 * n_equal >= 15 * (n - lag);
}

bool repeats_loop(const int32_t *tokens, uint32_t n) {
    uint32_t most_lag = n / REPEATS_COPIES, n_hits = 0, best = 0;
    uint16_t n_of[REPEATS_MAX / REPEATS_VARIED + 1] = {0};
    struct last last = {0};

    assert(n <= REPEATS_MAX);
    if (n < REPEATS_VARIED)
        return false;
    for (uint32_t i = REPEATS_CONTEXT; i < n; i++) {
        uint32_t was = last_place(&last, tokens, i), lag = i - was;

        if (was == 0 || lag > most_lag || tokens[was] != tokens[i])
            continue;
        n_hits += i >= most_lag;
        if (lag > n / REPEATS_VARIED)
            continue;
        n_of[lag]++;
        best = n_of[lag] > n_of[best] ? lag : best;
    }
    return 10 * n_hits >= 9 * (n - most_lag) || (best > 0 && has_period(tokens, n, best));
}
