#pragma once

/*
 * decoder - decodes pictures in a process of its own.
 *
 * The process is this program with the argument DECODER_FLAG, which must call decoder_main() before
 * it does anything else. It keeps no file and no socket but the one it is called over, and forks a
 * child for each picture: no two pictures meet in one process, and an error in a decoder ends one
 * child. A child may read, write, allocate and exit (seccomp), with limits of memory and time.
 *
 *     caller --(a socket for one picture)--> decoder process --fork--> child
 *     caller <------------- bytes in, pixels or an error out -------> child
 *
 * The child resizes while it decodes, so that the caller gets only the pixels that the model needs.
 */

#include "vision/fit.h"

#define DECODER_FLAG "--decode-pictures"
#define DECODER_SECONDS 5u            /* CPU time per picture; twice as much wall time */
#define DECODER_MEMORY (640ull << 20) /* address space of a child */

/* Runs the decoder process; called by main() for DECODER_FLAG. Returns an exit status when the
 * caller has closed the socket. */
int decoder_main(void);

struct decoder;
/* Starts the decoder process with the program at path @program. Returns 0 or -errno. */
int decoder_new(struct decoder **out, const char *program);
struct decoder *decoder_free(struct decoder *d);
DEFINE_FREEP(struct decoder, decoder)

/* Decodes a picture as picture_decode_fit() does or, without a @fit, as picture_decode(). Waits for
 * the result; may be called from any thread. Returns the same errors, -EINVAL if the child died or
 * exceeded its time, and -errno if the decoder process is gone and cannot be started again. */
int decoder_run(struct decoder *d, const void *data, size_t len, const struct picture_fit *fit,
                struct picture *out, struct picture_layout *layout, struct err *err);
