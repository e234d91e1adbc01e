#include "api/http/unpack.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <strings.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif
#include "base/result.h"
#include "base/util.h"

#define PIECE 16384u /* bytes that are unpacked at once */

struct unpack {
    enum unpack_coding coding;
    struct unpack_room *room;
    uint64_t n_in, n_out;
    /* a frame or member has ended, and nothing has come behind it */
    bool whole;
#ifdef HAVE_ZLIB
    z_stream gzip;
#endif
#ifdef HAVE_ZSTD
    ZSTD_DCtx *zstd;
#endif
};

enum unpack_coding unpack_coding_of(const char *name) {
#ifdef HAVE_ZLIB
    if (strcasecmp(name, "gzip") == 0 || strcasecmp(name, "x-gzip") == 0)
        return UNPACK_GZIP;
#endif
#ifdef HAVE_ZSTD
    if (strcasecmp(name, "zstd") == 0)
        return UNPACK_ZSTD;
#endif
    return UNPACK_NONE;
}

static int open_decoder(struct unpack *u) {
#ifdef HAVE_ZLIB
    if (u->coding == UNPACK_GZIP)
        return enomem_unless(inflateInit2(&u->gzip, 16 + MAX_WBITS) == Z_OK); /* 16: gzip alone */
#endif
#ifdef HAVE_ZSTD
    if (u->coding == UNPACK_ZSTD) {
        if (!(u->zstd = ZSTD_createDCtx()))
            return -ENOMEM;
        ZSTD_DCtx_setParameter(u->zstd, ZSTD_d_windowLogMax, UNPACK_WINDOW_LOG);
        return 0;
    }
#endif
    return -EINVAL;
}

int unpack_new(struct unpack **out, enum unpack_coding coding, struct unpack_room *room) {
    if (room->n >= UNPACK_DECODERS)
        return -EAGAIN;
    struct unpack *u = calloc(1, sizeof(*u));
    if (!u)
        return -ENOMEM;
    u->coding = coding;
    u->room = room;
    int r = open_decoder(u);
    if (r < 0) {
        free(u);
        return r;
    }
    room->n++;
    *out = u;
    return 0;
}

struct unpack *unpack_free(struct unpack *u) {
    if (!u)
        return NULL;
    assert(u->room->n > 0);
    u->room->n--;
#ifdef HAVE_ZLIB
    if (u->coding == UNPACK_GZIP)
        inflateEnd(&u->gzip);
#endif
#ifdef HAVE_ZSTD
    ZSTD_freeDCtx(u->zstd);
#endif
    free(u);
    return NULL;
}

/* Unpacks the next piece of [*data, *data + *len) to @out, and advances *data past the bytes that
 * were read. Returns the piece's length or an error. */
static ssize_t unpack_step(struct unpack *u, const char **data, size_t *len, char out[PIECE]) {
#ifdef HAVE_ZLIB
    if (u->coding == UNPACK_GZIP) {
        z_stream *z = &u->gzip;
        size_t part = MIN(*len, (size_t)1 << 30);

        if (u->whole && inflateReset(z) != Z_OK) /* another member */
            return -EINVAL;
        z->next_in = (Bytef *)(uintptr_t)*data;
        z->avail_in = (uInt)part;
        z->next_out = (Bytef *)out;
        z->avail_out = PIECE;
        int r = inflate(z, Z_NO_FLUSH);
        if (r != Z_OK && r != Z_STREAM_END && r != Z_BUF_ERROR) {
            if (r == Z_MEM_ERROR)
                return -ENOMEM;
            return -EINVAL;
        }
        *data += part - z->avail_in;
        *len -= part - z->avail_in;
        u->whole = r == Z_STREAM_END;
        return PIECE - z->avail_out;
    }
#endif
#ifdef HAVE_ZSTD
    if (u->coding == UNPACK_ZSTD) {
        ZSTD_inBuffer in = {*data, *len, 0};
        ZSTD_outBuffer piece = {out, PIECE, 0};
        size_t r = ZSTD_decompressStream(u->zstd, &piece, &in);

        if (ZSTD_isError(r))
            return -EINVAL;
        *data += in.pos;
        *len -= in.pos;
        u->whole = r == 0;
        return (ssize_t)piece.pos;
    }
#endif
    return -EINVAL;
}

int unpack_feed(struct unpack *u, const void *data, size_t len, struct buf *out) {
    const char *at = data;
    char piece[PIECE];
    ssize_t n = 0;

    u->n_in += len;
    /* Each iteration reads or writes a byte, or is the last. After a full piece the decoder may
     * have more to write, unless the body ends with it. */
    for (size_t left = len; len > 0 || (n == PIECE && !u->whole); left = len) {
        if ((n = unpack_step(u, &at, &len, piece)) < 0)
            return (int)n;
        u->n_out += (size_t)n;
        if (u->n_out > UNPACK_FREE + u->n_in * UNPACK_RATIO || out->len + (size_t)n > out->max)
            return -EMSGSIZE;
        if (buf_add(out, piece, (size_t)n) < 0)
            return -ENOMEM;
        if (n == 0 && len == left)
            break;
    }
    return 0;
}

bool unpack_is_whole(const struct unpack *u) {
    return u->whole;
}
