/* The file of usage of an earlier version: what is read has valid rows, and folding keeps their
 * sums. */

#include <string.h>

#include "api/limits/usage_table.h"
#include "base/err.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    struct usage_table t = {0};
    struct err err = {0};

    if (usage_table_read(&t, (const char *)data, len, &err) < 0) {
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
    } else {
        char tenant[USAGE_NAME] = "";
        uint32_t n = t.n;

        for (uint32_t i = 0; i < n; i++)
            FUZZ_ASSERT(usage_is_date(t.rows[i].date));
        if (n > 0)
            memcpy(tenant, t.rows[n - 1].tenant, sizeof(tenant));
        uint64_t was = usage_table_sum(&t, tenant, 20261100, 20261131).requests;
        FUZZ_ASSERT(usage_table_fold(&t, 20261115) == 0 && t.n <= n);
        FUZZ_ASSERT(usage_table_sum(&t, tenant, 20261100, 20261131).requests == was);
    }
    usage_table_deinit(&t);
    return 0;
}
