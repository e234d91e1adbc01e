/* Values that replace those of a model file: the list is applied to a file in memory, and each key
 * is then read with every reader. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/gguf_override.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/gguf_writer.h"

static struct gguf *open_file(void) {
    static const char *const tokens[] = {"a", "b"};
    struct gguf_writer w;
    struct gguf *g = NULL;
    struct err err;

    gw_init(&w);
    gw_string(&w, "general.architecture", "mamba");
    gw_u32(&w, "mamba.block_count", 2);
    gw_u32(&w, "llama.context_length", 2);
    gw_strings(&w, "tokenizer.ggml.tokens", 2, tokens);
    gw_finish(&w);
    FUZZ_ASSERT(gguf_open(&g, fuzz_file(w.file.data, w.file.len), &err) == 0);
    gw_deinit(&w);
    return g;
}

/* Reads key @i with every reader: exactly those of its type may succeed. */
static void read_key(const struct gguf *g, uint64_t i) {
    enum gguf_type type;
    struct gguf_str key = gguf_key(g, i, &type), s;
    char name[1100];
    bool b;
    float f;
    uint32_t u;

    FUZZ_ASSERT(key.len > 0 && key.len < sizeof(name));
    snprintf(name, sizeof(name), "%.*s", (int)key.len, key.data);
    FUZZ_ASSERT(strlen(name) == key.len && gguf_has(g, name));
    FUZZ_ASSERT((gguf_string(g, name, &s) == 0) == (type == GGUF_STRING));
    FUZZ_ASSERT((gguf_bool(g, name, &b) == 0) == (type == GGUF_BOOL));
    FUZZ_ASSERT(!gguf_array(g, name) == (type != GGUF_ARRAY));
    gguf_f32(g, name, &f);
    gguf_u32(g, name, &u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(freep) char *text = fuzz_text(data, len);
    CLEANUP(gguf_freep) struct gguf *g = open_file();
    struct err err = {0};
    int r = gguf_override(g, text, &err);

    FUZZ_ASSERT((r < 0) == (*err.message != 0) && !strchr(err.message, '\n'));
    for (uint64_t i = 0; i < gguf_n_kv(g); i++)
        read_key(g, i);
    return 0;
}
