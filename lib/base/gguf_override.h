#pragma once

/*
 * gguf_override - replaces values of a model's metadata by values that the operator gives, as
 * llama.cpp's option --override-kv does: KEY=TYPE:VALUE, where TYPE is int, float, bool or str.
 * Readers check the values like those of the file. The model's fingerprint covers them.
 *
 * A new general.architecture also renames the keys that begin with the old one's name, unless the
 * file has a key of the new name: a file of an unknown architecture can then be read as a known
 * one without a further override for each of its keys.
 */

#include "base/gguf.h"

#define GGUF_OVERRIDE_KEY_MAX 127u   /* most bytes of a key */
#define GGUF_OVERRIDE_TEXT_MAX 1024u /* most bytes of a str */

/* Checks one override without a model. Returns 0, or -EINVAL with @err. */
int gguf_override_check(const char *text, struct err *err);
/* Applies the overrides in @list, which are separated by commas, to @g in order. It must follow the
 * opening of @g: strings and arrays of its metadata that were taken before are invalid then.
 * Returns 0, -ENOMEM, or -EINVAL with @err, which names the key. Keys on which the reading of the
 * file depends are refused, because they would have no effect (general.alignment, split.*,
 * weft.*). */
int gguf_override(struct gguf *g, const char *list, struct err *err);
