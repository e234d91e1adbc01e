#pragma once

/*
 * image_data - decodes pictures in JSON: a data URI with base64, or base64 alone. It fetches no
 * addresses and opens no files.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Decodes @s into a new array of *@n bytes, at most PICTURE_FILE_MAX. The declared type is ignored.
 * Returns 0, -ENOMEM, or a 400 whose message begins with @place. */
int image_data_read(const char *s, size_t len, const char *place, uint8_t **out, size_t *n,
                    struct err *err);
