#pragma once

/*
 * json_value - accessors of parsed JSON. Only this header calls yyjson_get_str(), yyjson_get_len(),
 * yyjson_get_raw() and unsafe_yyjson_*(), because the "length" of an array is the number of its
 * members, and it has no text; tests/lint/check_json.py enforces this. All accessors accept NULL,
 * which stands for a missing member. A text is valid as long as its document.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <yyjson.h>

/* Reads the @len bytes of JSON at @text. Returns 0; -EINVAL: the text is not JSON; -ENOMEM. @out is
 * written in any case, NULL after an error. */
static inline int json_parse(yyjson_doc **out, const char *text, size_t len,
                             yyjson_read_flag flags) {
    yyjson_read_err e;

    *out = yyjson_read_opts((char *)(uintptr_t)text, len, flags, NULL, &e);
    if (*out)
        return 0;
    if (e.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
        return -ENOMEM;
    return -EINVAL;
}

/* For CLEANUP(json_doc_freep). */
static inline void json_doc_freep(yyjson_doc **doc) {
    yyjson_doc_free(*doc);
}
static inline void json_mut_doc_freep(yyjson_mut_doc **doc) {
    yyjson_mut_doc_free(*doc);
}

/* Returns the text of a string, which may contain NUL and has json_len() bytes; NULL if @v is no
 * string. */
static inline const char *json_text(yyjson_val *v) {
    return yyjson_get_str(v);
}

/* Returns the length of a string in bytes; 0 if @v is not a string. */
static inline size_t json_len(yyjson_val *v) {
    if (!yyjson_is_str(v))
        return 0;
    return yyjson_get_len(v);
}

/* Returns the text of a string that can be a C string; NULL if @v is not a string or contains
 * NUL. */
static inline const char *json_cstr(yyjson_val *v) {
    const char *s = yyjson_get_str(v);

    if (!s || strlen(s) != yyjson_get_len(v))
        return NULL;
    return s;
}

/* Returns true if @v is a string of 1 to @max bytes without NUL: a name or an id, which can be a C
 * string. */
static inline bool json_is_name(yyjson_val *v, size_t max) {
    return json_cstr(v) && json_len(v) > 0 && json_len(v) <= max;
}

/* Returns true if @v is missing, null, a number, a boolean, or an empty string, array or object. */
static inline bool json_is_empty(yyjson_val *v) {
    return !(yyjson_is_ctn(v) || yyjson_is_str(v)) || yyjson_get_len(v) == 0;
}

/* Reads a whole number, which some clients write as 5.0. Returns false, with *@out unchanged, if @v
 * is no whole number or does not fit. The real -2^63 does not: what is written may be below it. */
static inline bool json_whole(yyjson_val *v, int64_t *out) {
    double d = yyjson_get_real(v);

    if (yyjson_is_int(v) && (yyjson_is_sint(v) || yyjson_get_uint(v) <= INT64_MAX))
        *out = yyjson_get_sint(v);
    else if (yyjson_is_real(v) && d > -0x1p63 && d < 0x1p63 && d == (double)(int64_t)d)
        *out = (int64_t)d;
    else
        return false;
    return true;
}

/* Returns the value that follows @v and its content: the next member of an array, or the end of
 * @v. */
static inline yyjson_val *json_next(yyjson_val *v) {
    return unsafe_yyjson_get_next(v);
}

/* Return the digits of a number in a document that was read with YYJSON_READ_NUMBER_AS_RAW, and
 * their count; NULL and 0 if @v is not a number. */
static inline const char *json_digits(yyjson_val *v) {
    return yyjson_get_raw(v);
}
static inline size_t json_n_digits(yyjson_val *v) {
    if (!yyjson_is_raw(v))
        return 0;
    return yyjson_get_len(v);
}

/* Returns the four accessors for a document that is being built. */
static inline const char *json_mut_text(yyjson_mut_val *v) {
    return yyjson_mut_get_str(v);
}
static inline size_t json_mut_len(yyjson_mut_val *v) {
    if (!yyjson_mut_is_str(v))
        return 0;
    return yyjson_mut_get_len(v);
}
static inline const char *json_mut_cstr(yyjson_mut_val *v) {
    const char *s = yyjson_mut_get_str(v);

    if (!s || strlen(s) != yyjson_mut_get_len(v))
        return NULL;
    return s;
}
