#include <string.h>
#include "engine/arch/assistant.h"
#include "engine/engine.h"

/* A block: no layer has a norm, and the one behind the layers is it. */
bool engine_is_block(const struct gguf *file) {
    static const char *const end = ".nextn.eh_proj.weight";
    bool found = false;

    for (uint64_t i = 0; i < gguf_n_tensors(file); i++) {
        const char *name = gguf_tensor(file, i)->name, *at = strstr(name, end);

        found |= at && at[strlen(end)] == 0;
    }
    return assistant_found(file) || (found && !gguf_find(file, "blk.0.attn_norm.weight"));
}
