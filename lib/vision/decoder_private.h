#pragma once

/* decoder_private - the protocol between decoder.c and the process of decoder_main.c: decoder.c
 * sends a request and the file, the process returns an answer and the pixels. */

#include "vision/decoder.h"

#define DECODER_FD 3 /* descriptor of the socket in the process */

struct decoder_request {
    /* size of the file in bytes */
    uint64_t len;
    /* the pixels are for a model and have to fit it */
    bool fits;
    struct picture_fit fit;
    /* the picture is one of several, which share free_bytes */
    bool counts;
    uint64_t free_bytes;
};

struct decoder_answer {
    /* 0: pixels follow; -errno: the message follows */
    int32_t result;
    /* sides of the turned picture, before it is fitted */
    uint32_t width, height;
    /* free bytes of the request that are left */
    uint64_t free_bytes;
    char message[400];
};

/* Reads the answer to a request with this @fit, until @deadline, in milliseconds of the monotonic
 * clock. Checks it, because a harmful picture may control the child. Returns 0, or -errno; -EPIPE:
 * the child ended before. The caller frees @p in any case. */
int decoder_read_answer(int socket, const struct picture_fit *fit, struct picture *p,
                        struct picture_layout *layout, int64_t deadline, struct err *err);
