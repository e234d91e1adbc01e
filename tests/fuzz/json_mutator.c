/* Changes JSON by its structure: a value becomes one of another type, or one from elsewhere in the
 * text; a member is removed, or gets the name of another one. One time in four, and if the input is
 * no JSON, its bytes are changed. The input's first byte, which is no part of the JSON, is not
 * changed. */

#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "base/rng.h"
#include "tests/fuzz/fuzz.h"

static const char *const values[] = {
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1e400",
    "1.5",
    "18446744073709551615",
    "\"\"",
    "\"a\"",
    "\"a\\u0000b\"",
    "\"\\ud83d\\ude00\"",
    "[]",
    "{}",
    "[\"a\"]",
    "[{}]",
    "{\"a\":1}",
    "[[[]]]",
    "{\"type\":\"text\",\"text\":\"x\"}",
    "[null]",
    "9007199254740993",
    "\"auto\"",
};

/* Counts the values at and below @v, and stores the one that is number *@left in *@at. */
static void find(yyjson_mut_val *v, uint32_t *left, yyjson_mut_val **at) {
    size_t i, n;
    yyjson_mut_val *key, *item;

    if ((*left)-- == 0)
        *at = v;
    if (yyjson_mut_is_arr(v))
        yyjson_mut_arr_foreach(v, i, n, item) find(item, left, at);
    if (yyjson_mut_is_obj(v))
        yyjson_mut_obj_foreach(v, i, n, key, item) find(item, left, at);
    (void)key;
}

static yyjson_mut_val *any(yyjson_mut_doc *d, struct rng *r) {
    yyjson_mut_val *at = NULL;
    uint32_t left = UINT32_MAX;

    find(yyjson_mut_doc_get_root(d), &left, &at);
    left = rng_below(r, UINT32_MAX - left);
    find(yyjson_mut_doc_get_root(d), &left, &at);
    return at;
}

static yyjson_mut_val *given(yyjson_mut_doc *d, struct rng *r) {
    const char *text = values[rng_below(r, ARRAY_SIZE(values))];
    yyjson_doc *doc = yyjson_read(text, strlen(text), YYJSON_READ_BIGNUM_AS_RAW);
    yyjson_mut_val *v = yyjson_val_mut_copy(d, yyjson_doc_get_root(doc));

    yyjson_doc_free(doc);
    return v;
}

/* Drops or renames a member of @v, or doubles or drops an item. */
static void reshape(yyjson_mut_doc *d, yyjson_mut_val *v, struct rng *r) {
    size_t n = yyjson_mut_is_obj(v) ? yyjson_mut_obj_size(v) : yyjson_mut_arr_size(v);
    uint32_t at = n ? rng_below(r, (uint32_t)n) : 0;

    if (yyjson_mut_is_arr(v) && n) {
        if (rng_below(r, 2))
            yyjson_mut_arr_remove(v, at);
        else
            yyjson_mut_arr_append(v, yyjson_mut_val_mut_copy(d, yyjson_mut_arr_get(v, at)));
    } else if (yyjson_mut_is_obj(v)) {
        yyjson_mut_val *from = any(d, r), *key = NULL;
        yyjson_mut_obj_iter it = yyjson_mut_obj_iter_with(yyjson_mut_is_obj(from) ? from : v);

        for (uint32_t i = 0; i <= at && yyjson_mut_obj_iter_has_next(&it); i++)
            key = yyjson_mut_obj_iter_next(&it);
        if (!key)
            return;
        if (from == v)
            yyjson_mut_obj_remove(v, key);
        else
            yyjson_mut_obj_add(v, yyjson_mut_val_mut_copy(d, key),
                               yyjson_mut_val_mut_copy(d, yyjson_mut_obj_iter_get_val(key)));
    }
}

/* Puts @new into the place of @old in its container. */
static void replace(yyjson_mut_val *old, yyjson_mut_val *new) {
    old->tag = new->tag;
    old->uni = new->uni;
}

static size_t change(yyjson_mut_doc *d, struct rng *r, char **out) {
    yyjson_mut_val *at = any(d, r);
    size_t len = 0;

    switch (rng_below(r, 4)) {
    case 0:
        reshape(d, at, r);
        break;
    case 1: /* a copy, so that the value does not contain itself */
        replace(at, yyjson_mut_val_mut_copy(d, any(d, r)));
        break;
    default:
        replace(at, given(d, r));
    }
    *out = yyjson_mut_write(d, YYJSON_WRITE_ALLOW_INVALID_UNICODE, &len);
    return len;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t len, size_t max, unsigned seed) {
    struct rng r = {seed};
    yyjson_doc *doc = len > 1 && rng_below(&r, 4)
                          ? yyjson_read((const char *)data + 1, len - 1, YYJSON_READ_BIGNUM_AS_RAW)
                          : NULL;
    yyjson_mut_doc *d = doc ? yyjson_doc_mut_copy(doc, NULL) : NULL;
    CLEANUP(freep) char *text = NULL;
    size_t n = d ? change(d, &r, &text) : 0;

    yyjson_doc_free(doc);
    yyjson_mut_doc_free(d);
    if (!text || n + 1 > max)
        return LLVMFuzzerMutate(data, len, max);
    memcpy(data + 1, text, n);
    return n + 1;
}
