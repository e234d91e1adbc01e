#pragma once

/*
 * unicode - properties of characters for the tokenizers: the classes by which pre-tokenizers cut, a
 * decoder that accepts any bytes, and NFC in linear time.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/printable.h"

/* Classes of characters. Each character has one of the first five classes, and possibly a finer one
 * as well. */
enum unicode_class {
    /* any other code point; bytes that are not UTF-8 */
    UC_OTHER = 1,
    /* \p{L} */
    UC_LETTER = 2,
    /* \p{M} */
    UC_MARK = 4,
    /* \p{N} */
    UC_NUMBER = 8,
    /* \s: White_Space */
    UC_SPACE = 16,
    /* a UC_SPACE: CR or LF */
    UC_BREAK = 32,
    /* a UC_LETTER: \p{Lu} or \p{Lt} */
    UC_UPPER = 64,
    /* a UC_LETTER: \p{Ll} */
    UC_LOWER = 128,
    /* a UC_OTHER: \p{P} */
    UC_PUNCT = 256,
    /* a UC_OTHER: \p{S}; also a byte that is not UTF-8, as U+FFFD is one */
    UC_SYMBOL = 512,
    /* a UC_NUMBER: \p{Nd} */
    UC_DIGIT = 1024,
};

#define UNICODE_INVALID 0xFFFFFFFFu

extern const uint16_t unicode_ascii_class[128];

/* Returns the class of a code point from 0x80 on. */
unsigned unicode_wide_class(uint32_t cp);

/* Decodes one code point at @s < @end. Returns its length; for a byte that begins no valid
 * sequence, 1 with *cp = UNICODE_INVALID. */
static inline unsigned unicode_decode(const char *s, const char *end, uint32_t *cp) {
    *cp = (uint8_t)*s;
    size_t n = *cp < 0x80 ? 1 : utf8_sequence(s, (size_t)(end - s), cp);

    if (n == 0)
        *cp = UNICODE_INVALID;
    if (!n)
        return 1;
    return (unsigned)n;
}

/* Returns the class of the character at @s < @end; *len: its length in bytes. */
static inline unsigned unicode_class_at(const char *s, const char *end, unsigned *len) {
    uint32_t cp;

    *len = unicode_decode(s, end, &cp);
    if (cp < 0x80)
        return unicode_ascii_class[cp];
    return unicode_wide_class(cp);
}

/* Writes @cp, which must be valid, to @out. Returns its length (1 to 4). */
unsigned unicode_encode(uint32_t cp, char out[4]);

/* Appends @text in NFC to @out; bytes that are not UTF-8 stay unchanged. *changed = false: the text
 * is in NFC already and nothing was appended. Takes linear time. Returns 0, -ENOMEM or
 * -EMSGSIZE. */
int unicode_nfc(const char *text, size_t len, struct buf *out, bool *changed);

/* Normal forms of Unicode Standard Annex 15. */
enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };
/* Appends @text in @form to @out; bytes that are not UTF-8 stay unchanged. Takes linear time.
 * Returns 0, -ENOMEM or -EMSGSIZE. */
int unicode_normal(const char *text, size_t len, enum unicode_form form, struct buf *out);
