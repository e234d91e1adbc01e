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

/* Changes of case. */
enum case_mode { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE };
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
