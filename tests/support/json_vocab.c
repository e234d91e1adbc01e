#include "tests/support/json_vocab.h"

#include <stdio.h>
#include <unistd.h>

#include "tests/support/gguf_writer.h"

#define SPACE "\xe2\x96\x81"

static const char *const pieces[] = {
    "{",     "}",     "[",      "]",        ":",    ",",         R"(")",       R"({")",   R"("})",
    R"(":)", R"(",)", R"(":")", R"(",")",   "[]",   "{}",        "true",       "false",   "null",
    "name",  "city",  "items",  "kind",     "id",   "12",        "0",          "1",       "7",
    "ab",    "cd",    "e",      "temp",     SPACE,  SPACE SPACE, SPACE R"(")", SPACE "{", "a",
    "b",     "x",     "get",    "_weather", "unit", "count",     "value",      "}}",      "]}",
    "-",     ".",     "5",      "line",
};

static const char *const markers[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};

static void put(struct gguf_writer *w) {
    static char byte[256][8], word[JSON_VOCAB][16];
    const char *text[JSON_VOCAB] = {"<unk>", "<s>", "</s>"};
    float score[JSON_VOCAB] = {0};
    int32_t type[JSON_VOCAB] = {2, 3, 3};
    int n = 3;

    for (int i = 0; i < 256; i++, n++) {
        snprintf(byte[i], sizeof(byte[i]), "<0x%02X>", i);
        text[n] = byte[i];
        type[n] = 6;
    }
    for (size_t i = 0; i < ARRAY_SIZE(markers); i++, n++) {
        text[n] = markers[i];
        type[n] = 4;
    }
    for (size_t i = 0; i < ARRAY_SIZE(pieces) && n < JSON_VOCAB; i++, n++) {
        text[n] = pieces[i];
        type[n] = 1;
        score[n] = -(float)i;
    }
    for (; n < JSON_VOCAB; n++) {
        snprintf(word[n], sizeof(word[n]), "w%d", n);
        text[n] = word[n];
        type[n] = 1;
        score[n] = -100 - (float)n;
    }
    gw_init(w);
    gw_string(w, "general.architecture", "llama");
    gw_string(w, "tokenizer.ggml.model", "llama");
    gw_strings(w, "tokenizer.ggml.tokens", JSON_VOCAB, text);
    gw_array(w, "tokenizer.ggml.scores", GGUF_F32, JSON_VOCAB, score, sizeof(score));
    gw_array(w, "tokenizer.ggml.token_type", GGUF_I32, JSON_VOCAB, type, sizeof(type));
    gw_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gw_u32(w, "tokenizer.ggml.eos_token_id", JSON_VOCAB_END);
}

struct tokenizer *json_vocab_new(void) {
    char path[] = "/tmp/json_vocab_XXXXXX";
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct gguf_writer w;
    struct err err = {0};
    int fd = mkstemp(path);

    put(&w);
    gw_save(&w, path);
    gw_deinit(&w);
    if (fd < 0 || gguf_open(&g, path, &err) < 0 || tokenizer_new(&t, g, &err) < 0) {
        fprintf(stderr, "json_vocab: %s\n", err.message);
        abort();
    }
    close(fd);
    unlink(path);
    return t;
}
