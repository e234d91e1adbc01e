/* Grammars in EBNF, as GBNF writes it. */

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/masks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    masks_check(GRAMMAR_EBNF, 0, data, len, 24, len);
    return 0;
}
