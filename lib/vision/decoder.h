#pragma once

/*
 * decoder - decodes pictures in a separate process.
 *
 * The process is this program with the argument DECODER_FLAG, for which main() must call
 * decoder_main() first. It keeps no file and no socket except the one over which it is called, and
 * forks a child for each picture: two pictures never meet in one process, and an error in a decoder
 * ends only one child. A child may read, write, allocate and exit (seccomp), within limits of
 * memory and time.
 */

#include "vision/fit.h"

#define DECODER_FLAG "--decode-pictures"
/* CPU time per picture; twice this is the limit of wall time */
#define DECODER_SECONDS 5u
#define DECODER_MEMORY (640ull << 20) /* limit of the address space of a child */

/* Runs the decoder process; main() calls it for DECODER_FLAG. Returns an exit status when the
 * caller has closed the socket. */
int decoder_main(void);

struct decoder;
/* Starts the decoder process with the program at path @program. Returns 0 or -errno. */
int decoder_new(struct decoder **out, const char *program);
struct decoder *decoder_free(struct decoder *d);
DEFINE_FREEP(struct decoder, decoder)

/* Decodes a picture as picture_decode_fit() does or, without a @fit, as picture_decode(). Waits for
 * the result; may be called from any thread. Returns the same errors, -EINVAL if the child died or
 * exceeded its time, -ENOMEM if the decoder process was killed, and -errno if it cannot be started
 * again. */
int decoder_run(struct decoder *d, const void *data, size_t len, const struct picture_fit *fit,
                struct picture *out, struct picture_layout *layout, struct err *err);
