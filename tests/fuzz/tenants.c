/* The tenants file. */

#include "daemon/config/tenants.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    struct api_tenant *row = NULL;
    struct err err = {0};
    uint32_t n = 0;

    if (tenants_read(fuzz_file(data, len), &row, &n, &err) < 0) {
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
        return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        FUZZ_ASSERT(memchr(row[i].name, 0, sizeof(row[i].name)) && row[i].name[0]);
    free(row);
    return 0;
}
