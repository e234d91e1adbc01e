/* Streams of other servers, as weft-bench and weftctl read them: events, and the JSON in them. A
 * stream cut anywhere has the same events. */

#include <string.h>

#include "cmd/bench_sse.h"
#include "tests/fuzz/fuzz.h"

static int on_event(void *ctx, const char *data, size_t len) {
    CLEANUP(buf_deinit) struct buf text = {.max = 1 << 20};
    struct openai_part part;
    char line[40];

    openai_parse(data, len, &text, &part);
    FUZZ_ASSERT(memchr(part.error, 0, sizeof(part.error)));
    openai_copy_text(line, sizeof(line), part.error);
    FUZZ_ASSERT(strlen(line) < sizeof(line));
    return buf_add(ctx, data, len) || buf_add_char(ctx, '\n');
}

static void read_stream(const uint8_t *data, size_t len, size_t piece, struct buf *out) {
    struct sse s;
    int r = 0;

    sse_init(&s);
    for (size_t at = 0; at < len && r == 0; at += piece)
        r = sse_feed(&s, (const char *)data + at, MIN(piece, len - at), on_event, out);
    FUZZ_ASSERT(r == 0);
    sse_deinit(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(buf_deinit) struct buf one = {.max = 1 << 22}, two = {.max = 1 << 22};

    if (len > 1 << 16)
        return -1;
    read_stream(data, len, len + 1, &one);
    read_stream(data, len, 3, &two);
    FUZZ_ASSERT(one.len == two.len && (one.len == 0 || memcmp(one.data, two.data, one.len) == 0));
    return 0;
}
