#pragma once

/*
 * charsmap - SentencePiece's map of strings to their replacements (precompiled_charsmap): a
 * double-array trie of byte strings, each with the offset of its replacement in a pool of strings
 * behind the trie. The map comes from a file, so every index is checked where it is used.
 */

#include "base/err.h"
#include "base/gguf.h"

/* A map; zeroed: none. bytes: the size of the trie, its units, strings, the last of which is 0. */
struct charsmap {
    uint8_t *bytes;
    uint32_t n_units, n_strings;
    const char *strings;
};

/* Reads the map of the file, if there is one. Returns 0, -ENOMEM or -EINVAL with @err. */
int charsmap_load(struct charsmap *m, const struct gguf *g, struct err *err);
void charsmap_deinit(struct charsmap *m); /* accepts a zeroed one */

/* Finds the longest string of the map with which @s begins, or, if @shortest, the shortest. Returns
 * its length, 0 for none, and its replacement in *@out, which lives as long as the map. */
size_t charsmap_find(const struct charsmap *m, const char *s, size_t len, bool shortest,
                     struct gguf_str *out);
