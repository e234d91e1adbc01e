#pragma once

/* base64 - writes bytes as base64 with padding. */

#include "base/buf.h"

/* Writes the first @n of up to three bytes as four characters. */
void base64_group(const uint8_t *bytes, size_t n, char out[4]);
/* Appends @len bytes to @out. Returns 0, or an error of buf_add(). */
int base64_add(struct buf *out, const void *data, size_t len);
