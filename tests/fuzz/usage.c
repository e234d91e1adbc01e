/* The file of usage: its content is the same after it was written and read again, and folding keeps
 * its sums. */

#include <string.h>
#include "api/limits/usage_table.h"
#include "base/err.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    struct usage_table t = {0}, again = {0};
    struct buf text = {.max = 64 << 20};
    struct err err = {0};

    if (usage_table_read(&t, (const char *)data, len, &err) < 0) {
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
    } else {
        FUZZ_ASSERT(usage_table_write(&t, &text) == 0);
        FUZZ_ASSERT(usage_table_read(&again, text.data, text.len, &err) == 0 && again.n == t.n);
        FUZZ_ASSERT(t.n == 0 || memcmp(again.rows, t.rows, t.n * sizeof(*t.rows)) == 0);
        const char *tenant = t.n ? again.rows[t.n - 1].tenant : "";
        uint64_t was = usage_table_sum(&t, tenant, 20261100, 20261131).requests;
        FUZZ_ASSERT(usage_table_fold(&t, 20261115) == 0 && t.n <= again.n);
        FUZZ_ASSERT(usage_table_sum(&t, tenant, 20261100, 20261131).requests == was);
    }
    usage_table_deinit(&t);
    usage_table_deinit(&again);
    buf_deinit(&text);
    return 0;
}
