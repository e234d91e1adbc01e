/* The preset of a model, and the packed options for a worker; the first byte chooses. */

#include <errno.h>
#include <string.h>

#include "daemon/config/config.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    struct config c;
    struct err err = {0};

    if (len == 0)
        return -1;
    FUZZ_ASSERT(config_init(&c) == 0);
    if (data[0] == '#') {
        int r = config_unpack(&c, (const char *)data + 1, len - 1);

        FUZZ_ASSERT(r == 0 || r == -EPROTO);
    } else if (config_read_preset(&c, fuzz_file(data, len), &err) < 0) {
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
    }
    config_deinit(&c);
    return 0;
}
