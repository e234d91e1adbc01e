#pragma once

/*
 * opaque_reasoning - reasoning that clients send back without reading it: a mark and the text in
 * base64. The text belongs to the client's own conversation, so it needs no encryption.
 */

#include <stdbool.h>

#include "base/buf.h"

/* Adds the sealed text to @out. Returns 0, -ENOMEM. */
int opaque_reasoning_write(struct buf *out, const char *text, size_t len);
/* Returns true if it has our mark, which texts of other services lack. */
bool opaque_reasoning_is_ours(const char *s, size_t len);
/* Adds the text of reasoning that this service sealed to @out. Returns 0, -ENOMEM, or -EINVAL if it
 * was changed. */
int opaque_reasoning_read(struct buf *out, const char *s, size_t len);
