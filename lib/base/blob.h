#pragma once

/*
 * blob - an immutable text that several holders share without copying it. Any thread may take and
 * give back references.
 */

#include <stdatomic.h>
#include <stdint.h>

#include "base/buf.h"

struct blob {
    _Atomic uint32_t refs;
    struct buf text;
};

/* Makes a blob of @text, which is taken over, trimmed and left empty. NULL: no memory, and @text is
 * unchanged. */
struct blob *blob_new(struct buf *text);
struct blob *blob_ref(struct blob *b);                      /* another reference; accepts NULL */
struct blob *blob_unref(struct blob *b);                    /* accepts NULL, returns NULL */
static inline const char *blob_data(const struct blob *b) { /* accepts NULL: "" */
    if (!b || !b->text.data)
        return "";
    return b->text.data;
}
size_t blob_bytes(const struct blob *b); /* memory that it takes; accepts NULL */

/* What is to be inserted at byte `at` of a text: @len bytes of a blob. */
struct splice {
    /* NULL: nothing */
    struct blob *blob;
    size_t from, len, at;
};

/* Returns all of @b, at the beginning of a text. */
static inline struct splice blob_part(struct blob *b) {
    return (struct splice){.blob = b, .len = b ? b->text.len : 0};
}

/* Returns the length of what is inserted; @s may be NULL. */
static inline size_t splice_len(const struct splice *s) {
    if (s && s->blob)
        return s->len;
    return 0;
}
