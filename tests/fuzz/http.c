/* Bytes on a connection: heads, chunks, pipelined requests. */

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/served.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    served_bytes(data, len);
    return 0;
}
