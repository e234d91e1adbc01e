/* A constraint as the front sends it to the worker: the grammar's node, a newline, the triggers. */

#include "grammar/constraint.h"

#include <errno.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/masks.h"
#include "tests/grammar/grammar_support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(constraint_freep) struct constraint *c = NULL;
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    const char *text = (const char *)data, *end = len ? memchr(text, '\n', len) : NULL;
    size_t n = end ? (size_t)(end - text) : len, behind = end ? len - n - 1 : 0;
    struct rng r = {len};
    struct err err = {0};
    uint32_t bits[32];

    int e = constraint_new(&c, test_vocab(), text, n, end ? end + 1 : "", behind, masks_limits(len),
                           &err);
    FUZZ_ASSERT(e == 0 || e == -EINVAL);
    if (e < 0)
        return 0;
    FUZZ_ASSERT(constraint_n_words(c) <= ARRAY_SIZE(bits) && constraint_state_new(&s, c) == 0);
    for (int i = 0; i < 40 && !constraint_is_done(s); i++) {
        int32_t id = (int32_t)rng_below(&r, test_n_tokens());
        bool free = constraint_is_free(s);
        int64_t allowed = constraint_mask(s, bits);

        if (allowed <= 0)
            return 0;
        int took = constraint_accept(s, id);
        FUZZ_ASSERT(took == 0 || took == -EINVAL || took == -E2BIG);
        FUZZ_ASSERT(took == -E2BIG || free || (took == 0) == (bits[id / 32] >> (id % 32) & 1));
        if (took == 0 && rng_below(&r, 4) == 0)
            FUZZ_ASSERT(constraint_rollback(s, 1) == 0);
    }
    return 0;
}
