/* JSON Schemas. The first byte chooses flags. */

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/masks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    if (len == 0)
        return -1;
    masks_check(GRAMMAR_JSON_SCHEMA,
                data[0] & (GRAMMAR_COMPACT | GRAMMAR_ANY_FORMAT | GRAMMAR_ANY_ORDER |
                           GRAMMAR_DECLARED_ONLY | GRAMMAR_PYTHON),
                data + 1, len - 1, 24, len);
    return 0;
}
