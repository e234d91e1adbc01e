/* Frames of a WebSocket: the first byte is the size of the pieces in which the others arrive.
 * Frames in pieces give the same messages and the same replies as in one. */

#include "api/http/websocket.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "tests/fuzz/fuzz.h"

#define BODY_MAX 1000u

/* Reads @len bytes in pieces of @piece; all messages go to @texts, with a byte behind each. Returns
 * the last result. */
static int run(struct websocket *w, const uint8_t *data, size_t len, size_t piece,
               struct buf *texts) {
    CLEANUP(buf_deinit) struct buf body = {.max = BODY_MAX};
    int r = WEBSOCKET_MORE;

    for (size_t at = 0, used; at < len || r == WEBSOCKET_BEGUN; at += used) {
        size_t n = MIN(piece, len - at);
        CLEANUP(freep) char *own = malloc(n + 1);

        FUZZ_ASSERT(own);
        memcpy(own, data + at, n);
        r = websocket_feed(w, own, n, false, &body, &used);
        FUZZ_ASSERT(used <= n && body.len <= BODY_MAX && w->reply.len <= w->reply.max);
        FUZZ_ASSERT(used > 0 || n == 0 || r != WEBSOCKET_MORE);
        if (r < 0 || r == WEBSOCKET_CLOSED) {
            FUZZ_ASSERT(w->code >= 1000 && (r == WEBSOCKET_CLOSED || r == -EPROTO));
            return r;
        }
        if (r != WEBSOCKET_MESSAGE)
            continue;
        FUZZ_ASSERT(buf_add(texts, body.data, body.len) == 0 && buf_add_char(texts, '\n') == 0);
        buf_clear(&body);
    }
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(buf_deinit) struct buf one = {.max = UINT32_MAX}, two = {.max = UINT32_MAX};
    struct websocket *a = websocket_new(), *b = websocket_new();

    FUZZ_ASSERT(a && b);
    if (len < 2)
        goto end;
    int r = run(a, data + 1, len - 1, len - 1, &one),
        s = run(b, data + 1, len - 1, 1 + data[0], &two);
    FUZZ_ASSERT((r < 0) == (s < 0) && (r == WEBSOCKET_CLOSED) == (s == WEBSOCKET_CLOSED));
    FUZZ_ASSERT(a->code == b->code && a->reply.len == b->reply.len && one.len == two.len);
    FUZZ_ASSERT(one.len == 0 || memcmp(one.data, two.data, one.len) == 0);
    FUZZ_ASSERT(a->reply.len == 0 || memcmp(a->reply.data, b->reply.data, a->reply.len) == 0);
end:
    websocket_free(a);
    websocket_free(b);
    return 0;
}

/* Writes a message, fragments with a ping between them, and a close. */
bool fuzz_seed(size_t i, struct buf *out) {
    static const uint8_t seeds[][32] = {
        {0, 0x81, 0x85, 1, 2, 3, 4, 'a' ^ 1, 'b' ^ 2, 'c' ^ 3, 'd' ^ 4, 'e' ^ 1},
        {2, 0x01, 0x81, 0, 0, 0, 0, 'a', 0x89, 0x81, 0, 0, 0, 0, 'p', 0x80, 0x81, 0, 0, 0, 0, 'b'},
        {5, 0x88, 0x84, 0, 0, 0, 0, 3, 232, 'o', 'k'},
        {0, 0x81, 0xFE, 0, 130, 0, 0, 0, 0},
    };
    static const size_t n[] = {12, 22, 11, 9};

    if (i >= ARRAY_SIZE(seeds))
        return false;
    FUZZ_ASSERT(buf_add(out, seeds[i], n[i]) == 0);
    return true;
}
