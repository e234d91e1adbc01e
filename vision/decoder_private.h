#pragma once

/* decoder_private - the protocol between decoder.c and the process of decoder_main.c: decoder.c
 * sends a request and the file, the process returns an answer and the pixels. */

#include "vision/decoder.h"

#define DECODER_FD 3 /* descriptor of the socket in the process */

struct decoder_request {
    uint64_t len; /* bytes of the file */
    bool fits;    /* pixels are wanted for a model */
    struct picture_fit fit;
    bool counts; /* the picture is one of several, which have free_bytes left */
    uint64_t free_bytes;
};

struct decoder_answer {
    int32_t result;         /* 0: pixels follow; else -errno and the message */
    uint32_t width, height; /* sides of the turned picture, before it is fitted */
    uint64_t free_bytes;    /* what is left of the request's */
    char message[400];
};

/* Reads the answer to a request with this @fit, until the milliseconds @deadline of the monotonic
 * clock, and checks it: the child may be in the hands of the picture. 0, or -errno; -EPIPE: the
 * child ended before. @p is the caller's also then. */
int decoder_read_answer(int socket, const struct picture_fit *fit, struct picture *p,
                        struct picture_layout *layout, int64_t deadline, struct err *err);
