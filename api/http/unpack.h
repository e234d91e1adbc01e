#pragma once

/*
 * unpack - unpacks compressed request bodies (gzip or zstd) while they arrive. The unpacked size is
 * bounded, also in proportion to the compressed size, so that a few bytes cannot become gigabytes
 * or keep the loop busy. Decoders hold up to 8 MiB each, so their number is limited.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define UNPACK_WINDOW_LOG 23   /* window of zstd; RFC 8878 recommends it */
#define UNPACK_FREE (1u << 20) /* unpacked bytes that any body may have */
#define UNPACK_RATIO 100u      /* beyond these, unpacked bytes per compressed byte */
#define UNPACK_DECODERS 32u    /* decoders of a server at a time */

enum unpack_coding { UNPACK_NONE, UNPACK_GZIP, UNPACK_ZSTD };

/* Decoders of a server: n <= UNPACK_DECODERS. */
struct unpack_room {
    uint32_t n;
};

struct unpack;

/* Returns the coding that a Content-Encoding names; UNPACK_NONE if this build does not support
 * it. */
enum unpack_coding unpack_coding_of(const char *name);
/* Makes a decoder; @room outlives it. Returns 0, -ENOMEM, or -EAGAIN: there are too many
 * decoders. */
int unpack_new(struct unpack **out, enum unpack_coding coding, struct unpack_room *room);
struct unpack *unpack_free(struct unpack *u); /* accepts NULL, returns NULL */
/* Unpacks @data and appends it to @out. Returns 0; -EMSGSIZE: more bytes than out->max or the ratio
 * allow; -EINVAL: the data is not of this coding; or -ENOMEM. After an error the decoder must not
 * be used. */
int unpack_feed(struct unpack *u, const void *data, size_t len, struct buf *out);
/* Returns true if the data so far is a complete compressed body. */
bool unpack_is_whole(const struct unpack *u);
