/* The HTTP parser alone: an input that arrives in one piece and byte by byte gives the same
 * message. */

#include <string.h>

#include "api/http/http.h"
#include "tests/fuzz/fuzz.h"

static const struct http_limits limits = {
    .target = 300, .head = 4096, .body = 65536, .n_headers = 50};

static void look(const struct http *h) {
    char value[40];
    uint32_t n;

    FUZZ_ASSERT(http_target(h));
    http_header(h, "host", &n);
    http_header(h, "traceparent", NULL);
    if (http_query(h, "a", value, sizeof(value)))
        FUZZ_ASSERT(strlen(value) < sizeof(value));
}

/* Feeds @len bytes in pieces of @piece until a message is complete (1) or refused (-1); 0: neither.
 */
static int feed(struct http *h, const uint8_t *data, size_t len, size_t piece) {
    struct err err = {0};

    http_init(h, &limits);
    for (size_t at = 0, used; at < len; at += used) {
        size_t n = MIN(piece, len - at);
        CLEANUP(freep) char *own = malloc(n);

        FUZZ_ASSERT(own);
        memcpy(own, data + at, n);
        int r = http_feed(h, own, n, &used, &err);
        FUZZ_ASSERT(used <= n);
        if (r == HTTP_HEAD_DONE)
            look(h);
        if (r == HTTP_HEAD_DONE) /* a message without a body ends without a further byte */
            r = http_feed(h, own + used, 0, &(size_t){0}, &err);
        if (r < 0 || r == HTTP_MESSAGE_DONE)
            return r < 0 ? -1 : 1;
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    struct http a, b;
    int r = feed(&a, data, len, len), s = feed(&b, data, len, 1);

    FUZZ_ASSERT(r == s);
    if (r >= 0) {
        FUZZ_ASSERT(a.n_headers == b.n_headers && a.head.len == b.head.len);
        FUZZ_ASSERT(a.body.len == b.body.len);
        FUZZ_ASSERT(a.body.len == 0 || memcmp(a.body.data, b.body.data, a.body.len) == 0);
    }
    http_deinit(&a);
    http_deinit(&b);
    return 0;
}
