/* Bodies of embeddings, rerank, score and decisions. The first byte chooses the route. */

#include "base/util.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/served.h"

static const char *const heads[] = {
    "POST /v1/embeddings", "POST /embedding",    "POST /v1/rerank",
    "POST /v1/score",      "POST /v1/decisions", "POST /v1/systemone",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    served_choice(heads, ARRAY_SIZE(heads), data, len);
    return 0;
}
