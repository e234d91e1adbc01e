/* Compressed bodies: the first byte chooses the coding. The unpacked size is bounded, and a body
 * that is fed whole and byte by byte gives the same result. */

#include <errno.h>
#include <string.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif
#include "api/http/unpack.h"
#include "base/util.h"
#include "tests/fuzz/fuzz.h"

#define OUT_MAX (4u << 20)

static int run(const char *coding, const uint8_t *data, size_t len, size_t piece, struct buf *out) {
    struct unpack_room room = {0};
    struct unpack *u = NULL;
    int r = unpack_new(&u, unpack_coding_of(coding), &room);

    for (size_t at = 0; at < len && r == 0; at += piece)
        r = unpack_feed(u, data + at, MIN(piece, len - at), out);
    FUZZ_ASSERT(out->len <= OUT_MAX && out->len <= UNPACK_FREE + len * UNPACK_RATIO);
    FUZZ_ASSERT(r == 0 || r == -EINVAL || r == -EMSGSIZE || r == -ENOMEM);
    int whole = r == 0 && unpack_is_whole(u);
    unpack_free(u);
    FUZZ_ASSERT(room.n == 0);
    return r < 0 ? r : whole;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(buf_deinit) struct buf one = {.max = OUT_MAX}, two = {.max = OUT_MAX};

    if (len < 2 || len > 1 << 16)
        return -1;
    const char *coding = data[0] % 2 ? "zstd" : "gzip";
    int whole = run(coding, data + 1, len - 1, len, &one);
    int pieces = run(coding, data + 1, len - 1, 1, &two);
    if (whole < 0 || pieces < 0)
        return 0;
    FUZZ_ASSERT(whole == pieces && one.len == two.len);
    FUZZ_ASSERT(one.len == 0 || memcmp(one.data, two.data, one.len) == 0);
    return 0;
}

/* Writes a short body and one of many equal bytes, in both codings. */
bool fuzz_seed(size_t i, struct buf *out) {
    static const char text[] = "{\"input\":\"hi hi hi hi hi hi hi\"}";
    static char same[200000];
    const char *from = i / 2 ? same : text;
    size_t n = i / 2 ? sizeof(same) : sizeof(text) - 1;

    if (i > 3)
        return false;
    FUZZ_ASSERT(buf_add_char(out, (char)(i % 2)) == 0 && buf_reserve(out, n + 1000) == 0);
#ifdef HAVE_ZLIB
    z_stream z = {0};
    if (i % 2 == 0 && deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, 0) == Z_OK) {
        z.next_in = (Bytef *)(uintptr_t)from;
        z.avail_in = (uInt)n;
        z.next_out = (Bytef *)out->data + out->len;
        z.avail_out = (uInt)n + 1000;
        FUZZ_ASSERT(deflate(&z, Z_FINISH) == Z_STREAM_END);
        out->len += n + 1000 - z.avail_out;
        deflateEnd(&z);
    }
#endif
#ifdef HAVE_ZSTD
    if (i % 2) {
        size_t r = ZSTD_compress(out->data + out->len, n + 1000, from, n, 3);

        FUZZ_ASSERT(!ZSTD_isError(r));
        out->len += r;
    }
#endif
    return true;
}
