#pragma once

/*
 * printable - escapes texts from outside (file names, hubs, models, clients) for terminals and
 * logs: control characters (C0, DEL, C1), line separators, characters that change the direction of
 * text (bidi) or have no width, and bytes that are not UTF-8.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PRINTABLE_MAX 8 /* most bytes that one character becomes; an escaped one becomes 6 */

/* Length of a UTF-8 character of several bytes, 0 for none, and the range of its second byte. */
struct utf8_lead {
    uint8_t n, low, high;
};

/* Returns what the first byte @c of a character says. The range excludes overlong forms, surrogates
 * and numbers beyond the last plane. */
static inline struct utf8_lead utf8_lead(uint8_t c) {
    struct utf8_lead lead = {.n = 2, .low = 0x80, .high = 0xBF};

    if (c < 0xC2 || c > 0xF4)
        lead.n = 0;
    else if (c >= 0xF0)
        lead.n = 4;
    else if (c >= 0xE0)
        lead.n = 3;
    switch (c) {
    case 0xE0:
        lead.low = 0xA0;
        break;
    case 0xED:
        lead.high = 0x9F;
        break;
    case 0xF0:
        lead.low = 0x90;
        break;
    case 0xF4:
        lead.high = 0x8F;
        break;
    default:
        break;
    }
    return lead;
}

/* Returns the length of the UTF-8 character at @in, which has @len > 0 bytes, and sets *c to its
 * code point. Returns 0 if there is none. */
size_t utf8_sequence(const char *in, size_t len, uint32_t *c);

/* Replaces the bytes of @text that are no UTF-8 character by "?". */
void utf8_repair(char *text, size_t len);

/* Writes the first character of the @len > 0 bytes at @in to @out: itself, or "\n", "\xNN" or
 * "\uNNNN". Returns how many bytes of @in that was, and sets *n_out to how many @out has. */
size_t printable_next(const char *in, size_t len, char out[PRINTABLE_MAX], size_t *n_out);

/* Copies @len bytes at @in, escaped, to @out of @size bytes, and adds a NUL. Cuts a longer text
 * between characters. Escapes quotes and backslashes too if @quotes. Returns the length of @out. */
size_t printable_copy(char *out, size_t size, const char *in, size_t len, bool quotes);

/* Returns whether @text needs no escapes. */
bool is_printable(const char *text);

struct printable {
    char s[600];
};

/* For arguments of printf: printable(text).s; quoted() puts it in double quotes, for values of
 * log_event(). A longer text is cut. */
struct printable printable(const char *text);
struct printable quoted(const char *text);
