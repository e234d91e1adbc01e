#pragma once

/*
 * stops - finds stop strings in a stream of bytes that arrives in pieces, and complete UTF-8. The
 * worker uses it to end a generation, the front to hold back a possible beginning of a stop string
 * and to cut the text; both see the same bytes and therefore decide equally. Takes linear time
 * (Aho-Corasick).
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/util.h"

#define STOPS_MAX 16
#define STOPS_LEN_MAX 256

struct stops;

/* A stop string of 1 to STOPS_LEN_MAX bytes. */
struct stop_string {
    const char *data;
    size_t len;
};

/* The stop string that was found. */
struct stops_match {
    /* index of the stop string */
    uint32_t index;
    /* offset of its first byte in the whole stream */
    uint64_t begin;
};

/* Makes a search for the @n strings @s, which are copied. Returns 0; -EINVAL: more than STOPS_MAX
 * strings, or one that is empty or too long; -ENOMEM. */
int stops_new(struct stops **out, const struct stop_string *s, uint32_t n);
struct stops *stops_free(struct stops *s);
DEFINE_FREEP(struct stops, stops)

/* Feeds @len bytes. Returns true when a stop string is complete: the one that ends first; of
 * several that end there, the longest, which begins first. Then *m is set and the remaining bytes
 * are ignored. */
bool stops_feed(struct stops *s, const char *bytes, size_t len, struct stops_match *m);

/* Returns the number of bytes at the end of the stream that may be the beginning of a stop string
 * and must not be sent yet. */
size_t stops_held(const struct stops *s);

/* Returns the number of bytes (0 to 3) at the end of @text that begin an incomplete UTF-8
 * sequence. */
size_t utf8_incomplete_tail(const char *text, size_t len);
/* Returns whether @text is valid UTF-8 (no surrogates, no overlong forms). */
bool utf8_valid(const char *text, size_t len);
