/* Files of a Hugging Face folder, each after a line "@@" and its name; what follows "@@text" is
 * encoded and decoded by the tokenizer that they make. The first byte is a part of the size of the
 * vocabulary, unless it is printable. */

#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/text/hf_folder.h"
#include "text/tokenizer_private.h"

/* Returns the member of @in for the file with the name @s, or NULL. */
static struct gguf_str *member(struct hf_tokenizer_files *in, const char *s, size_t len) {
    const struct {
        const char *name;
        struct gguf_str *text;
    } members[] = {
        {"tokenizer", &in->tokenizer},    {"tokenizer_config", &in->tokenizer_config},
        {"map", &in->special_tokens_map}, {"generation", &in->generation_config},
        {"config", &in->config},          {"template", &in->chat_template},
        {"model", &in->sentencepiece},    {"added", &in->added_tokens},
    };

    for (size_t i = 0; i < ARRAY_SIZE(members); i++)
        if (strlen(members[i].name) == len && memcmp(members[i].name, s, len) == 0)
            return members[i].text;
    return NULL;
}

/* Reads the parts of the input. Returns the text. */
static struct gguf_str split(struct hf_tokenizer_files *in, const char *s, const char *end) {
    struct gguf_str text = {"", 0}, *part = &in->tokenizer;

    while (s < end) {
        const char *next = memmem(s, (size_t)(end - s), "\n@@", 3);
        const char *stop = next ? next : end, *line;

        if (part)
            *part = (struct gguf_str){s, (size_t)(stop - s)};
        if (!next)
            break;
        line = memchr(next + 3, '\n', (size_t)(end - next - 3));
        if (!line)
            break;
        part = member(in, next + 3, (size_t)(line - next - 3));
        if (line - next == 7 && memcmp(next + 3, "text", 4) == 0)
            part = &text;
        s = line + 1;
    }
    /* an input may begin with another file */
    if (in->tokenizer.len == 0)
        in->tokenizer.data = NULL;
    return text;
}

static void use(const struct tokenizer *t, struct gguf_str text) {
    CLEANUP(tokens_deinit) struct tokens ids = {0};
    CLEANUP(buf_deinit) struct buf out = {.max = 1 << 24};
    struct text_range user = {0, text.len};

    FUZZ_ASSERT(tokenizer_encode(t, text.data, text.len, TOKENIZE_SPECIAL | TOKENIZE_BOS, NULL, 0,
                                 &ids) == 0);
    for (size_t i = 0; i < ids.n; i++)
        FUZZ_ASSERT(ids.id[i] >= 0 && (uint32_t)ids.id[i] < tokenizer_n_vocab(t));
    FUZZ_ASSERT(tokenizer_decode(t, ids.id, ids.n, true, &out) == 0);
    ids.n = 0;
    /* A user writes no special token but the one for unknown text. */
    FUZZ_ASSERT(
        tokenizer_encode(t, text.data, text.len, TOKENIZE_SPECIAL, &user, text.len > 0, &ids) == 0);
    for (size_t i = 0; i < ids.n; i++)
        FUZZ_ASSERT(ids.id[i] == t->special.unk || !tokenizer_is_special(t, ids.id[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    struct hf_tokenizer_files in = {0};
    struct err err = {0};

    if (len == 0)
        return -1;
    in.n_vocab = data[0] < 32 ? data[0] * 8u : 0;
    struct gguf_str text = split(&in, (const char *)data + 1, (const char *)data + len);

    if (hf_folder_load(&t, &in, &err) == 0)
        use(t, text);
    else
        FUZZ_ASSERT(*err.message && !strchr(err.message, '\n'));
    return 0;
}
