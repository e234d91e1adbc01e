#pragma once

/* json_read - loops over parsed arrays and objects, and questions about their members. */

#include <stdio.h>

#include "base/json_value.h"

/* Runs the following block for each entry @item of the array @list; never, if it is no array. */
#define JSON_EACH(item, list)                                                                      \
    for (yyjson_val *item = yyjson_arr_get_first(list), *item##_end = json_end(item, list);        \
         item != item##_end; item = json_next(item))
/* Runs the following block for each entry like JSON_EACH(), and counts the entries from 0 in @i. */
#define JSON_EACH_AT(i, item, list)                                                                \
    for (size_t i = 0, item##_once = 1; item##_once; item##_once = 0)                              \
        for (yyjson_val *item = yyjson_arr_get_first(list), *item##_end = json_end(item, list);    \
             item != item##_end; item = json_next(item), i++)
/* Runs the following block for each member of @object; never, if it is no object. */
#define JSON_MEMBERS(key, value, object)                                                           \
    for (yyjson_val *key = json_first_key(object), *value = NULL,                                  \
                    *key##_end = json_end(key, object);                                            \
         key != key##_end && (value = yyjson_obj_iter_get_val(key)); key = json_next(value))

/* Returns the place behind the last entry of @v, whose first entry is @first, or NULL. */
static inline yyjson_val *json_end(yyjson_val *first, yyjson_val *v) {
    if (!first)
        return NULL;
    return json_next(v);
}

/* Returns the key of the first member; NULL if there is none. */
static inline yyjson_val *json_first_key(yyjson_val *object) {
    yyjson_obj_iter it = yyjson_obj_iter_with(object);

    return yyjson_obj_iter_next(&it);
}

/* Returns member @key of @object; NULL if there is none, or null. */
static inline yyjson_val *json_given(yyjson_val *object, const char *key) {
    yyjson_val *v = yyjson_obj_get(object, key);

    if (yyjson_is_null(v))
        return NULL;
    return v;
}

/* Why a text is not JSON; returned by value. */
struct json_reason {
    char s[120];
};

/* Returns why json_parse() refused the @len bytes at @text: "line 3: unexpected end of data". */
static inline struct json_reason json_why(const char *text, size_t len, yyjson_read_flag flags) {
    struct json_reason out = {{0}};
    yyjson_read_err e = {0};
    size_t line = 1;

    yyjson_doc_free(yyjson_read_opts((char *)(uintptr_t)text, len, flags, NULL, &e));
    for (size_t i = 0; i < e.pos && i < len; i++)
        line += text[i] == '\n';
    snprintf(out.s, sizeof(out.s), "line %zu: %s", line, e.msg ? e.msg : "");
    return out;
}

/* Returns true if @v is one of @words, which blanks separate. */
static inline bool json_is(yyjson_val *v, const char *words) {
    const char *text = json_text(v);
    size_t n = json_len(v);

    for (size_t len; text && *words; words += len + strspn(words + len, " ")) {
        len = strcspn(words, " ");
        if (len == n && memcmp(words, text, n) == 0)
            return true;
    }
    return false;
}

/* Returns true if member @key of @object is one of @words. */
static inline bool json_has(yyjson_val *object, const char *key, const char *words) {
    return json_is(yyjson_obj_get(object, key), words);
}
