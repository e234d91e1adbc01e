/* Bodies of OpenAI's responses. The first byte chooses the route. */

#include "base/util.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/served.h"

static const char *const heads[] = {
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "POST /v1/responses/compact",
    "POST /v1/conversations",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    served_choice(heads, ARRAY_SIZE(heads), data, len);
    return 0;
}
