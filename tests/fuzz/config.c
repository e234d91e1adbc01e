/* The configuration file. An accepted configuration is the same after it was packed for the worker
 * and read again. */

#include "daemon/config/config.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

static void check_packed(const struct config *c) {
    CLEANUP(buf_deinit) struct buf packed = {.max = 1 << 20}, again = {.max = 1 << 20};
    struct config copy;

    FUZZ_ASSERT(config_pack(c, "engine", &packed) == 0 && config_init(&copy) == 0);
    FUZZ_ASSERT(config_unpack(&copy, packed.data, packed.len) == 0);
    FUZZ_ASSERT(config_pack(&copy, "engine", &again) == 0);
    FUZZ_ASSERT(packed.len == again.len && memcmp(packed.data, again.data, again.len) == 0);
    config_deinit(&copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    struct config c;
    struct err err = {0};
    char value[64];

    FUZZ_ASSERT(config_init(&c) == 0);
    if (config_read_file(&c, fuzz_file(data, len), &err) == 0) {
        for (uint32_t i = 0; i < config_table_n; i++)
            config_value(&c, &config_table[i], value, sizeof(value));
        if (config_check(&c, &err) == 0)
            check_packed(&c);
    } else {
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
    }
    config_deinit(&c);
    return 0;
}
