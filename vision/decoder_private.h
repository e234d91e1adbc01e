#pragma once

/* decoder_private - the bytes between decoder.c and the process of decoder_main.c: the length of
 * the file (uint64_t) and the file go down, an answer and the pixels come up. */

#include "vision/decoder.h"

#define DECODER_FD 3 /* descriptor of the socket in the process */

struct decoder_answer {
    int32_t result; /* 0: pixels follow; else -errno and the message */
    uint32_t width, height;
    char message[400];
};
