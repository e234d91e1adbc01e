#pragma once

/*
 * tstr - strings that remember which of their bytes came from a user. A string never changes and
 * may share its bytes with others. A sink builds strings; a string taken from it can be continued
 * in place as long as no other text was appended to the sink, so that a template which collects its
 * output with `ns.text = ns.text + part` needs linear time and memory.
 *
 * Marks are sorted and disjoint. The last one may reach beyond the end of the string (the bytes
 * were continued by another string): readers clip it.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/util.h"
#include "text/tokenizer.h"

struct render;
struct sink;

/* Invariants: marks are sorted, disjoint, not empty, and begin within len; a string with a tail is
 * the end of its sink's text, as long as nothing was appended to the sink since. */
struct tstr {
    const char *data;
    size_t len;
    const struct text_range *marks;
    uint32_t n_marks;
    /* the string is markup: `+` escapes the other operand */
    bool safe;
    /* sink in which the string may be continued; NULL: none */
    struct sink *tail;
};

/* Invariants: len <= cap; len <= max unless max is 0; marks are sorted, disjoint, not empty and end
 * within len. Bytes and marks that were taken as a string are never changed. */
struct sink {
    char *data;
    /* max: limit of len; 0: none */
    size_t len, cap, max;
    struct text_range *marks;
    uint32_t n_marks, cap_marks;
    /* > 0: all added text is the user's */
    uint32_t all_user;
};

/* Returns a string for a literal of this program; static. */
#define TSTR_STATIC(text)                                                                          \
    __extension__({                                                                                \
        static const struct tstr s_ = {.data = (text), .len = sizeof(text) - 1};                   \
        &s_;                                                                                       \
    })

/* Errors: functions that take a render return NULL, or a negative error, with its error set when a
 * limit is reached. */
const struct tstr *tstr_new(struct render *rd, const char *data, size_t len,
                            bool user); /* borrows the bytes */
/* Returns bytes [begin, end) of @s, end <= s->len, without a copy. */
const struct tstr *tstr_slice(struct render *rd, const struct tstr *s, size_t begin, size_t end);
/* Returns @a followed by @b; if only one of them is safe, the other one is escaped. Takes time
 * linear in @b if @a was the last string taken from its sink. */
const struct tstr *tstr_concat(struct render *rd, const struct tstr *a, const struct tstr *b);
const struct tstr *tstr_safe(struct render *rd, const struct tstr *s, bool safe);
/* replaces characters by &amp; &lt; ... */
const struct tstr *tstr_escape(struct render *rd, const struct tstr *s);

bool tstr_equal(const struct tstr *a, const struct tstr *b); /* compares bytes, not marks */
bool tstr_is(const struct tstr *s, const char *text);        /* @text is NUL-terminated */
/* Compares by code points. Returns a negative value, 0 or a positive value. */
int tstr_compare(const struct tstr *a, const struct tstr *b);
/* Returns whether byte @pos came from a user. */
bool tstr_user_at(const struct tstr *s, size_t pos);

size_t tstr_count(const struct tstr *s); /* returns the number of code points */
/* returns the offset in bytes of code point @index, at most len */
size_t tstr_offset(const struct tstr *s, size_t index);
/* Decodes the code point at @pos (an invalid byte: itself + 0x110000) and its length in bytes. */
uint32_t tstr_decode(const char *data, size_t len, size_t pos, size_t *n);
/* Encodes code point @cp, as tstr_decode() returns it. Returns the number of bytes. */
size_t tstr_encode(uint32_t cp, char out[4]);
/* Returns whether @cp is white space where Python strips and splits. */
bool tstr_is_space(uint32_t cp);
/* Sets *@begin and *@end to the bounds of @s without white space on its @left and @right. */
void tstr_trim(const struct tstr *s, bool left, bool right, size_t *begin, size_t *end);
/* Returns the offset of the first @what in bytes [from, to), to <= s->len, or SIZE_MAX. */
size_t tstr_find(const struct tstr *s, const struct tstr *what, size_t from, size_t to);

/* Returns an empty sink without its own limit, which lives as long as the rendering. */
struct sink *sink_new(struct render *rd);
/* Makes room for @extra more bytes. */
int sink_reserve(struct render *rd, struct sink *k, size_t extra);
/* Appends a copy of the bytes; @user: they are text of the user. */
int sink_add(struct render *rd, struct sink *k, const char *data, size_t len, bool user);
/* appends NUL-terminated text that is not the user's */
int sink_add_text(struct render *rd, struct sink *k, const char *text);
/* Appends a string, or its bytes [begin, end), with its marks. */
int sink_add_str(struct render *rd, struct sink *k, const struct tstr *s);
int sink_add_part(struct render *rd, struct sink *k, const struct tstr *s, size_t begin,
                  size_t end);
int sink_add_cp(struct render *rd, struct sink *k, uint32_t cp, bool user);
/* Returns the text added so far as a string; the sink can be continued. */
const struct tstr *sink_string(struct render *rd, struct sink *k);
