#include "tests/fuzz/masks.h"

#include <errno.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/grammar/grammar_support.h"

/* Corpora are full of inputs that reach the limits, so that these decide how many inputs run: a
 * hundredth of the usual work, and a tenth for one length in eight. */
const struct grammar_limits *masks_limits(size_t len) {
    static const struct grammar_limits low = {.max_work = 360000, .max_states = 5000};
    static const struct grammar_limits high = {.max_work = 3600000, .max_states = 20000};

    return len % 8 ? &low : &high;
}

/* Returns a token of the mask @bits; -1: it is empty. */
static int32_t draw(struct rng *r, const uint32_t *bits, int64_t n) {
    uint32_t pick = n > 0 ? rng_below(r, (uint32_t)n) : 0;

    for (uint32_t id = 0; n > 0 && id < test_n_tokens(); id++)
        if ((bits[id / 32] >> (id % 32) & 1) && pick-- == 0)
            return (int32_t)id;
    return -1;
}

/* Compares with the naive matcher of one token: it is allowed if its bytes are, one after the
 * other. */
static void check_one(const struct grammar_state *s, struct grammar_state *probe,
                      const uint32_t *bits, uint32_t id) {
    bool masked = bits[id / 32] >> (id % 32) & 1;
    size_t len;
    const char *text = test_token(id, &len);
    int r = 0;

    FUZZ_ASSERT(grammar_state_copy(probe, s) == 0);
    if (id < TEST_END || id > TEST_CONTROL) {
        for (size_t i = 0; i < len && r == 0; i++)
            r = grammar_accept(probe, (uint8_t)text[i]);
        FUZZ_ASSERT(r == -E2BIG || (r == 0) == masked);
        FUZZ_ASSERT(grammar_state_copy(probe, s) == 0);
    }
    r = grammar_accept(probe, (int32_t)id);
    FUZZ_ASSERT(r == -E2BIG || (r == 0) == masked);
}

static void walk(const struct grammar *g, uint32_t steps, struct rng *r) {
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL, *probe = NULL;
    uint32_t bits[32], again[32];

    FUZZ_ASSERT(grammar_vocab_n_words(test_vocab()) <= ARRAY_SIZE(bits));
    FUZZ_ASSERT(grammar_state_new(&s, g) == 0 && grammar_state_new(&probe, g) == 0);
    for (uint32_t i = 0; i < steps; i++) {
        int64_t n = grammar_mask(s, bits);
        int32_t id = draw(r, bits, n);

        if (id < 0)
            return;
        check_one(s, probe, bits, rng_below(r, test_n_tokens()));
        int e = grammar_accept(s, id);
        if (e == -E2BIG)
            return;
        FUZZ_ASSERT(e == 0);
        if (rng_below(r, 4) == 0) {
            FUZZ_ASSERT(grammar_rollback(s, 1) == 0 && grammar_mask(s, again) == n);
            FUZZ_ASSERT(memcmp(bits, again, 4 * grammar_vocab_n_words(test_vocab())) == 0);
            FUZZ_ASSERT(grammar_accept(s, id) == 0);
        }
    }
}

void masks_check(enum grammar_kind kind, unsigned flags, const void *text, size_t len,
                 uint32_t steps, uint64_t seed) {
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    struct grammar_source src = {.kind = kind, .flags = flags, .text = text, .len = len};
    struct err err = {0};
    struct rng r = {seed};
    int e = grammar_compile(&g, test_vocab(), &src, masks_limits(len), &err);

    FUZZ_ASSERT(e == 0 || (e == -EINVAL && err.status == 400 && err.message[0]));
    if (e == 0)
        walk(g, steps, &r);
}
