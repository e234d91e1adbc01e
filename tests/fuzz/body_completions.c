/* Bodies of OpenAI's completions and the tokenizer's routes. The first byte chooses the route. */

#include "base/util.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/served.h"

static const char *const heads[] = {
    "POST /v1/completions",
    "POST /v1/completions/render",
    "POST /tokenize",
    "POST /detokenize",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    served_choice(heads, ARRAY_SIZE(heads), data, len);
    return 0;
}
