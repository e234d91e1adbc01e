/* Bodies of Ollama's routes. The first byte chooses the route. */

#include "base/util.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/served.h"

static const char *const heads[] = {
    "POST /api/chat",       "POST /api/generate", "POST /api/embed",
    "POST /api/embeddings", "POST /api/show",     "POST /api/pull",
    "POST /api/create",     "POST /api/copy",     "DELETE /api/delete",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    served_choice(heads, ARRAY_SIZE(heads), data, len);
    return 0;
}
