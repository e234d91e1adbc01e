#include "tests/text/tiny.h"

#include <stdio.h>
#include <string.h>

#include "tests/text/expect.h"

int32_t tiny_add(struct tiny *t, const char *text, enum token_type type, float score) {
    uint32_t id = t->n++;

    if (id >= TINY_MAX || strlen(text) >= sizeof(t->store[0]))
        abort();
    strcpy(t->store[id], text);
    t->token[id] = t->store[id];
    t->type[id] = type;
    t->score[id] = score;
    return (int32_t)id;
}

int32_t tiny_merge(struct tiny *t, const char *a, const char *b) {
    char made[48];

    snprintf(t->merge_store[t->n_merges], sizeof(t->merge_store[0]), "%s %s", a, b);
    t->merge[t->n_merges] = t->merge_store[t->n_merges];
    t->n_merges++;
    snprintf(made, sizeof(made), "%s%s", a, b);
    for (uint32_t i = 0; i < t->n; i++) {
        if (strcmp(t->token[i], made) == 0)
            return (int32_t)i;
    }
    return tiny_add(t, made, TOKEN_NORMAL, 0);
}

void tiny_bytes(struct tiny *t) {
    static const char *const merge[][2] = {
        {"h", "e"},
        {"l", "l"},
        {"he", "ll"},
        {"hell", "o"},

        {"o", "r"},
        {"\xC4\xA0", "w"},
        {"\xC4\xA0w", "or"},
        {"i", "m"},
        {"\xC4\x8A", "\xC4\x8A"},
        {"\xC4\xA0", "\xC4\xA0"},
        {"1", "2"},
    };

    *t = (struct tiny){0};
    for (unsigned b = 0; b < 256; b++) {
        char c[4] = "";

        expect_byte_char((uint8_t)b, c);
        tiny_add(t, c, TOKEN_NORMAL, 0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(merge); i++)
        tiny_merge(t, merge[i][0], merge[i][1]);
    tiny_add(t, "<|endoftext|>", TOKEN_CONTROL, 0);
    tiny_add(t, "<|im_start|>", TOKEN_CONTROL, 0);
    tiny_add(t, "<|im_end|>", TOKEN_CONTROL, 0);
    tiny_add(t, "<think>", TOKEN_USER, 0);
    tiny_add(t, "</think>", TOKEN_USER, 0);
    tiny_add(t, "\n\n\n", TOKEN_USER, 0);
}

void tiny_scores(struct tiny *t) {
    static const char *const words[] = {"he",
                                        "ll",
                                        "hell",
                                        "hello",
                                        SPACE_MARK "w",
                                        "or",
                                        "wor",
                                        "ld",
                                        SPACE_MARK "hello",
                                        SPACE_MARK SPACE_MARK,
                                        "\xC3\xA9",
                                        "\xE4\xB8\xAD\xE6\x96\x87"};

    *t = (struct tiny){0};
    tiny_add(t, "<unk>", TOKEN_UNKNOWN, 0);
    tiny_add(t, "<s>", TOKEN_CONTROL, 0);
    tiny_add(t, "</s>", TOKEN_CONTROL, 0);
    for (unsigned b = 0; b < 256; b++) {
        char text[8];

        snprintf(text, sizeof(text), "<0x%02X>", b);
        tiny_add(t, text, TOKEN_BYTE, 0);
    }
    tiny_add(t, SPACE_MARK, TOKEN_NORMAL, -100);
    for (char c = 'a'; c <= 'z'; c++)
        tiny_add(t, (char[]){c, 0}, TOKEN_NORMAL, -100);
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        tiny_add(t, words[i], TOKEN_NORMAL, -(float)i);
}

void tiny_put(const struct tiny *t, struct gguf_writer *w, const char *model, const char *pre) {
    gw_string(w, "tokenizer.ggml.model", model);
    if (pre)
        gw_string(w, "tokenizer.ggml.pre", pre);
    gw_strings(w, "tokenizer.ggml.tokens", t->n, t->token);
    gw_array(w, "tokenizer.ggml.token_type", GGUF_I32, t->n, t->type, t->n * sizeof(*t->type));
    if (t->n_merges)
        gw_strings(w, "tokenizer.ggml.merges", t->n_merges, t->merge);
    else
        gw_array(w, "tokenizer.ggml.scores", GGUF_F32, t->n, t->score, t->n * sizeof(*t->score));
}
