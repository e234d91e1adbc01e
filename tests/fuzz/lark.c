/* Grammars in Lark. The first byte chooses flags. */

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/masks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    if (len == 0)
        return -1;
    masks_check(GRAMMAR_LARK, data[0] & GRAMMAR_QUOTED, data + 1, len - 1, 24, len);
    return 0;
}
