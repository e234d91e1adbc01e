/* Requests for a stored response: reading it, resuming its stream, its items, cancelling and
 * deleting it. The input is the rest of the target behind the response's id, up to a newline, then
 * the method's number and the body of a request that continues it. */

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/served.h"

#define TARGET_MAX 512

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static const char *const methods[] = {"GET", "POST", "DELETE"};
    static const char stores[] = "{\"input\":\"hi\",\"store\":true,\"stream\":true}";
    const uint8_t *end = len ? memchr(data, '\n', len) : NULL;
    char head[TARGET_MAX + 64];
    size_t n = end ? (size_t)(end - data) : len;

    if (n == 0 || n > TARGET_MAX)
        return -1;
    for (size_t i = 1; i < n; i++) /* other bytes are tested by the target http */
        if (!isgraph(data[i]))
            return -1;
    served_body("POST /v1/responses", (const uint8_t *)stores, sizeof(stores) - 1);
    snprintf(head, sizeof(head), "%s /v1/responses/resp_%.*s", methods[data[0] % 3], (int)n - 1,
             (const char *)data + 1);
    served_body(head, data + n, len - n);
    return 0;
}
