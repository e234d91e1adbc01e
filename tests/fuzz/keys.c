/* The file of API keys, and a request's key against it. Warnings of short keys are not logged: they
 * would be all that the processor does. */

#include <string.h>

#include "api/http/http.h"
#include "api/limits/auth.h"
#include "base/log.h"
#include "tests/fuzz/fuzz.h"

static const struct http_limits limits = {.target = 100, .head = 4096, .n_headers = 5};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static const char head[] = "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk-1\r\n\r\n";
    struct auth a;
    struct http h;
    struct err err = {0};
    const struct auth_key *key;
    size_t used;

    log_set_level(WLOG_ERROR);
    auth_init(&a, fuzz_file(data, len));
    http_init(&h, &limits);
    FUZZ_ASSERT(http_feed(&h, head, sizeof(head) - 1, &used, &err) == HTTP_HEAD_DONE);
    if (auth_reload(&a, &err) < 0) {
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
    } else {
        FUZZ_ASSERT(a.n_keys > 0 && a.n_tenants > 0);
        if (auth_check(&a, &h, &key, &err) == 0)
            FUZZ_ASSERT(key->tenant < a.n_tenants);
        FUZZ_ASSERT(auth_reload(&a, &err) == 0);
    }
    http_deinit(&h);
    auth_deinit(&a);
    return 0;
}
