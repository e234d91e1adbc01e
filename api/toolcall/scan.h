#pragma once

/*
 * scan - reads one value, byte by byte, and writes it as JSON. It reads JSON and two similar forms:
 * Python literals (single quotes, True, None) and the one of Gemma (<|"|> for quotes, bare keys).
 * JSON comes out as it went in, apart from what models get wrong and what can only be meant in one
 * way: line breaks and other control characters in strings, escapes that do not exist ("\d"), half
 * surrogates, a comma before a closing bracket.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define SCAN_DEPTH 64u

enum scan_mode { SCAN_JSON, SCAN_PYTHON, SCAN_GEMMA };
/* Result: the value continues; it has ended; the bytes are not such a value. */
enum scan_result { SCAN_MORE, SCAN_DONE, SCAN_BAD };

/* Position in a value. Invariants: depth <= SCAN_DEPTH; white space is held (n_ws) only behind a
 * comma that is not written yet; high is 0 or the first half of a surrogate pair. */
struct scan {
    uint8_t mode, state, depth, n_word, n_hex, n_quote, n_ws;
    char quote;
    bool comma, is_key, bare;
    /* mends: a bracket that closes an outer level closes inner ones, too */
    bool mends, mended;
    uint16_t hex, high;
    /* bit i: level i is an object */
    uint64_t objects;
    char word[6], ws[16];
};

void scan_begin(struct scan *s, enum scan_mode mode); /* at the beginning of a value */
/* Takes bytes up to the end of the value; *used says how many. @out may be NULL. Enum scan_result;
 * -ENOMEM and -EMSGSIZE are @out's. Not after SCAN_DONE. */
int scan_feed(struct scan *s, const char *data, size_t len, size_t *used, struct buf *out);
/* No more bytes: a number or a word may be complete, SCAN_DONE; else SCAN_BAD. */
int scan_end(struct scan *s, struct buf *out);
/* No more bytes: writes the closing brackets that are missing. SCAN_DONE, or SCAN_BAD: more than
 * these is missing. */
int scan_close(struct scan *s, struct buf *out);
/* The bytes of a string, escaped, without quotes. */
int scan_escape(struct buf *out, const char *data, size_t len);
