#pragma once

/* builtin - helpers shared by the tables of filters, tests and methods. */

#include "text/template/render.h"

extern const struct builtin FILTERS_TEXT[], FILTERS_SEQ[];
extern const size_t N_FILTERS_TEXT, N_FILTERS_SEQ;

/* Functions of this file return 0, or a negative value with the render's error set. */

/* Read an argument, whose default is @def or NULL. Return a negative value when the type is
 * wrong. */
int builtin_int(struct render *rd, struct value v, int64_t def, int64_t *out);
int builtin_string(struct render *rd, struct value v, const struct tstr **out);

/* Finds a filter of filters_more.c, a method of methods_kind.c; NULL: there is none. */
const struct builtin *filter_find_more(const struct tstr *name);
const struct builtin *method_find_kind(const struct tstr *name);

/* Gets an attribute by its path, like `a.b.0`; @v itself if @path is missing. */
int builtin_attribute(struct render *rd, struct value v, struct value path, struct value *out);
/* Makes the keys of @n values, their attributes @path, by which they are compared: without case
 * unless @sensitive. */
int builtin_keys(struct render *rd, const struct value *items, uint32_t n, struct value path,
                 bool sensitive, struct value **out);

/* Kinds of characters, as Python has them. */
enum text_kind {
    KIND_ALPHA,
    KIND_ALNUM,
    KIND_ASCII,
    KIND_DECIMAL,
    KIND_DIGIT,
    KIND_NUMERIC,
    KIND_SPACE,
    KIND_UPPER,
    KIND_LOWER,
};
bool text_is_kind(uint32_t cp, enum text_kind kind);
/* Returns whether @s has a letter of @kind, KIND_UPPER or KIND_LOWER, and none of the other one. */
bool text_is_cased(const struct tstr *s, enum text_kind kind);

/* Sides of a text on which padding goes. */
enum pad { PAD_LEFT, PAD_RIGHT, PAD_CENTER };
/* Pads @s with @fill to @width code points. */
int text_pad(struct render *rd, const struct tstr *s, int64_t width, uint32_t fill, enum pad pad,
             struct value *out);
/* Returns the end of the line that begins at @pos, without its newline, and in *@next where the
 * next one begins. Lines are those of str.splitlines(). */
size_t text_line_end(const struct tstr *s, size_t pos, size_t *next);

/* Changes of case. CASE_TITLE: each word, of letters only; CASE_WORDS: each word, between blanks
 * and opening brackets; CASE_SWAP: the other case; CASE_FOLD: for comparison. */
enum case_mode {
    CASE_UPPER,
    CASE_LOWER,
    CASE_CAPITALIZE,
    CASE_TITLE,
    CASE_WORDS,
    CASE_SWAP,
    CASE_FOLD,
};
/* Changes the case of the letters of @s according to @mode. */
int text_case(struct render *rd, const struct tstr *s, enum case_mode mode, struct value *out);
/* Replaces at most @count occurrences from the left, all if @count is negative. */
int text_replace(struct render *rd, const struct tstr *s, const struct tstr *from,
                 const struct tstr *to, int64_t count, struct value *out);
/* Strips characters at the ends. @chars: a string of the characters; V_MISSING or None: white
 * space. */
int text_strip(struct render *rd, const struct tstr *s, struct value chars, bool left, bool right,
               struct value *out);
/* Joins the str() of @v[0, n) with @sep between them; @strict: only strings may be joined. */
int text_join(struct render *rd, const struct tstr *sep, const struct value *v, uint32_t n,
              bool strict, struct value *out);
/* Reads the number that @s consists of; false if @s is not a number. */
bool text_to_int(const struct tstr *s, int base, wide *out);
bool text_to_double(const struct tstr *s, double *out);
