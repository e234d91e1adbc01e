#include "base/blob.h"

#include <assert.h>
#include <stdlib.h>

struct blob *blob_new(struct buf *text) {
    struct blob *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    atomic_init(&b->refs, 1);
    b->text = *text;
    buf_init(text, text->max);
    char *less = b->text.data ? realloc(b->text.data, b->text.len + 1) : NULL;
    if (less) {
        b->text.data = less;
        b->text.cap = b->text.len + 1;
    }
    return b;
}

struct blob *blob_ref(struct blob *b) {
    if (b)
        atomic_fetch_add(&b->refs, 1);
    return b;
}

struct blob *blob_unref(struct blob *b) {
    if (!b || atomic_fetch_sub(&b->refs, 1) > 1)
        return NULL;
    buf_deinit(&b->text);
    free(b);
    return NULL;
}

size_t blob_bytes(const struct blob *b) {
    if (!b)
        return 0;
    return sizeof(*b) + b->text.cap;
}
