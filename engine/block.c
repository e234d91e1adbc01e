#include <string.h>

#include "engine/archs.h"
#include "engine/engine.h"

/* A file with a block's eh_proj is only an MTP block if its layer 0 has no attention norm. */
bool engine_is_block(const struct gguf *file) {
    static const char *const end = ".nextn.eh_proj.weight";
    bool found = false;

    for (uint64_t i = 0; i < gguf_n_tensors(file); i++) {
        const char *name = gguf_tensor(file, i)->name, *at = strstr(name, end);

        found |= at && at[strlen(end)] == 0;
    }
    return assistant_found(file) || dflash_found(file) ||
           (found && !gguf_find(file, "blk.0.attn_norm.weight"));
}

void arch_fingerprint(const struct gguf *file, const struct gguf *block, uint8_t out[16]) {
    uint8_t more[16] = {0};

    gguf_fingerprint(file, out);
    if (block)
        gguf_fingerprint(block, more);
    for (int i = 0; i < 16; i++)
        out[i] ^= more[i];
}
