#pragma once

/* kinds - the kinds of text as sets of bytes: kinds.c. */

#include "grammar/vocab/trie.h"

extern const uint16_t KIND_BYTES[ASCII_KINDS]; /* masks of kinds_of_byte() */
unsigned kinds_of_byte(unsigned c);            /* bit set of the ASCII kinds of @c */
/* Returns the bit of byte @c: most letters, the digits, frequent marks and the quote have their own
 * bits; the other letters share one bit, the other bytes of the ASCII kinds another, and all other
 * bytes a third. */
uint64_t text_bit(unsigned c);
#define TEXT_BIT_QUOTE (UINT64_C(1) << 62)
#define TEXT_BIT_NONE (UINT64_C(1) << 63)
bool kind_has(unsigned kind, unsigned c);
/* Returns whether @s begins a text of KIND_TEXT; its last character may be cut. */
bool kinds_is_text(const uint8_t *s, size_t len);

/* Rows of an automaton for UTF-8 without some rare characters: the bytes that may come next, and
 * the next row. Row 0 is between characters. From ROW_HIGH on, the same rows follow for text
 * without ASCII. */
enum { ROW_HIGH = 10, ROWS = 2 * ROW_HIGH };
struct row_range {
    /* hi 0: the end */
    uint8_t lo, hi, row;
};
/* Returns the ranges of @row, in ascending order; the last has hi 0. */
const struct row_range *kinds_row(unsigned row);

/* Returns the row after a byte of range @r of @row. */
static inline unsigned kinds_row_after(unsigned row, const struct row_range *r) {
    return r->row + (row >= ROW_HIGH ? ROW_HIGH : 0);
}
