/* Texts for eight small vocabularies. The first byte chooses the vocabulary; the rest is encoded,
 * whole and with a user's range, and decoded. */

#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/gguf.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/vocab.h"

#define VOCABS 8

static const struct tokenizer *vocab(size_t i) {
    static struct tokenizer *made[VOCABS];
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct err err = {0};

    if (!made[i]) {
        FUZZ_ASSERT(vocab_seed(i, &b));
        FUZZ_ASSERT(gguf_open(&g, fuzz_file(b.data, b.len), &err) == 0);
        FUZZ_ASSERT(tokenizer_new(&made[i], g, &err) == 0);
    }
    return made[i];
}

static bool is_text(const struct tokenizer *t, const struct tokens *ids) {
    for (size_t i = 0; i < ids->n; i++)
        if (tokenizer_is_special(t, ids->id[i]))
            return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(tokens_deinit) struct tokens ids = {0};
    CLEANUP(buf_deinit) struct buf out = {.max = 1 << 24};
    struct text_range user;

    if (len == 0)
        return -1;
    const struct tokenizer *t = vocab(data[0] % VOCABS);
    user = (struct text_range){0, --len};
    FUZZ_ASSERT(tokenizer_encode(t, (const char *)++data, len, TOKENIZE_SPECIAL, &user, len > 0,
                                 &ids) == 0);
    FUZZ_ASSERT(data[-1] % VOCABS > 4 || is_text(t, &ids)); /* a user's text has no special token */
    FUZZ_ASSERT(tokenizer_decode(t, ids.id, ids.n, false, &out) == 0);
    if (data[-1] % VOCABS < 2) /* byte-level vocabularies without normalisation */
        FUZZ_ASSERT(out.len == len && (len == 0 || memcmp(out.data, data, len) == 0));
    ids.n = 0;
    FUZZ_ASSERT(tokenizer_encode(t, (const char *)data, len, TOKENIZE_SPECIAL | TOKENIZE_BOS, NULL,
                                 0, &ids) == 0);
    return 0;
}
