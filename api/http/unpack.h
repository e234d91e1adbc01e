#pragma once

/*
 * unpack - request bodies that came compressed, as gzip or zstd, unpacked while they arrive. What
 * comes of a body is bounded, also by what it came as: a few bytes cannot become gigabytes, nor
 * keep the loop for longer than their own length allows. Decoders hold up to 8 MiB each, so there
 * are only so many at a time.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

#define UNPACK_WINDOW_LOG 23   /* window of zstd; RFC 8878 recommends it */
#define UNPACK_FREE (1u << 20) /* bytes that any body may become */
#define UNPACK_RATIO 100u      /* bytes that one byte may become beyond these */
#define UNPACK_DECODERS 32u    /* decoders of a server at a time */

enum unpack_coding { UNPACK_NONE, UNPACK_GZIP, UNPACK_ZSTD };

/* Decoders of a server: n <= UNPACK_DECODERS. */
struct unpack_room {
    uint32_t n;
};

struct unpack;

/* Returns the coding that a Content-Encoding names, UNPACK_NONE where this build has none of that
 * name. */
enum unpack_coding unpack_coding_of(const char *name);
/* @room outlives it. Returns 0, -ENOMEM, or -EAGAIN: there are too many. */
int unpack_new(struct unpack **out, enum unpack_coding coding, struct unpack_room *room);
struct unpack *unpack_free(struct unpack *u); /* accepts NULL, returns NULL */
/* Appends to @out what @data becomes. Returns 0; -EMSGSIZE: more than out->max or than the ratio;
 * -EINVAL: it is not of this coding; or -ENOMEM. After an error it is of no more use. */
int unpack_feed(struct unpack *u, const void *data, size_t len, struct buf *out);
/* Returns true if what was fed ends where a compressed body does. */
bool unpack_is_whole(const struct unpack *u);
