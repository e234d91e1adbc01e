#pragma once

/*
 * picture_decoder - decodes the pictures of requests in a separate process (vision/decoder.h),
 * which is started for the first picture.
 */

#include "vision/fit.h"

/* Implements api_opts.decode; @ctx is not used. May be called on any thread. */
int picture_decoder_run(void *ctx, const void *data, size_t len, const struct picture_fit *fit,
                        struct picture *out, struct picture_layout *layout, struct err *err);
void picture_decoder_stop(void); /* called when no thread decodes any more */
