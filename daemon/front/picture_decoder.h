#pragma once

/*
 * picture_decoder - decodes the pictures of requests in a process of its own (vision/decoder.h),
 * which is started with the first one.
 */

#include "vision/fit.h"

/* api_opts.decode; @ctx is not used. On any thread. */
int picture_decoder_run(void *ctx, const void *data, size_t len, const struct picture_fit *fit,
                        struct picture *out, struct picture_layout *layout, struct err *err);
void picture_decoder_stop(void); /* when no thread decodes any more */
