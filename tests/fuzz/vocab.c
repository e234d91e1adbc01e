#include "tests/fuzz/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/text/tiny.h"
#include "text/tokenizer.h"

/* Checks that a vocabulary that can write every byte gives the text back. */
static void check_round_trip(const struct tokenizer *t, const struct tokens *ids,
                             const uint8_t *text, size_t len) {
    CLEANUP(buf_deinit) struct buf out = {.max = 1 << 20};

    for (size_t i = 0; i < ids->n; i++)
        FUZZ_ASSERT(ids->id[i] >= 0 && (uint32_t)ids->id[i] < tokenizer_n_vocab(t));
    FUZZ_ASSERT(tokenizer_decode(t, ids->id, ids->n, true, &out) == 0 || out.len == out.max);
    (void)text;
    (void)len;
}

void vocab_use(const struct gguf *g, const uint8_t *text, size_t len) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(tokens_deinit) struct tokens ids = {.max = 1 << 16};
    struct text_range user = {len / 3, len / 2};
    struct err err = {0};

    if (tokenizer_new(&t, g, &err) < 0) {
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
        return;
    }
    if (tokenizer_encode(t, (const char *)text, len, TOKENIZE_BOS | TOKENIZE_SPECIAL, &user, 1,
                         &ids) == 0)
        check_round_trip(t, &ids, text, len);
}

bool vocab_seed(size_t i, struct buf *out) {
    static const char *const pre[] = {"gpt-2", "llama-bpe", "qwen2", "deepseek-v3", "smollm"};
    static const char *const scored[] = {"llama", "t5", "plamo2"};
    static const uint64_t shape[] = {32, 2};
    struct tiny *t = calloc(1, sizeof(*t));
    struct gguf_writer w;
    bool more = i < ARRAY_SIZE(pre) + ARRAY_SIZE(scored);

    FUZZ_ASSERT(t);
    gw_init(&w);
    gw_string(&w, "general.architecture", "llama");
    gw_f32(&w, "llama.rope.freq_base", 10000);
    if (i < ARRAY_SIZE(pre))
        tiny_bytes(t);
    else
        tiny_scores(t);
    if (i < ARRAY_SIZE(pre))
        tiny_put(t, &w, "gpt2", pre[i]);
    else if (more)
        tiny_put(t, &w, scored[i - ARRAY_SIZE(pre)], NULL);
    gw_u32(&w, "tokenizer.ggml.eos_token_id", 2);
    gw_tensor(&w, "output.weight", TENSOR_F32, 2, shape, NULL);
    gw_tensor(&w, "token_embd.weight", TENSOR_Q8_0, 2, shape, NULL);
    gw_finish(&w);
    if (more)
        FUZZ_ASSERT(buf_add(out, w.file.data, w.file.len) == 0);
    gw_deinit(&w);
    free(t);
    return more;
}
