#pragma once

/* kinds - the kinds of text as sets of bytes: kinds.c. */

#include "text/grammar/trie.h"

extern const uint16_t KIND_BYTES[ASCII_KINDS]; /* of kinds_of_byte() */
unsigned kinds_of_byte(unsigned c);            /* which sets of these @c is in */
bool kind_has(unsigned kind, unsigned c);

/* What may come next in UTF-8 as JSON has it (no surrogates), and the row after it. Row 0 is
 * between characters. From ROW_HIGH on there are the same rows for text without ASCII. */
enum { ROWS = 16, ROW_HIGH = 8 };
struct row_range {
    uint8_t lo, hi, row; /* hi 0: the end */
};
const struct row_range *kinds_row(unsigned row);
