/* Bodies of LM Studio's routes. The first byte chooses the route. */

#include "base/util.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/served.h"

static const char *const heads[] = {
    "POST /api/v0/chat/completions", "POST /api/v0/completions",   "POST /api/v0/embeddings",
    "POST /api/v1/models/load",      "POST /api/v1/models/unload",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    served_choice(heads, ARRAY_SIZE(heads), data, len);
    return 0;
}
