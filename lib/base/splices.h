#pragma once

/*
 * splices - parts of blobs in a text: what several texts repeat is stored once, and sent by
 * reference.
 */

#include "base/blob.h"

/* Parts to be inserted in a text, in the order of their places. Invariants: each holds a reference
 * to its blob; len is the sum of their lengths. */
struct splices {
    struct splice *part;
    uint32_t n, cap;
    size_t len;
};

/* Inserts bytes [@from, @from + @len) of @b at byte @at of the text, behind the parts that are
 * there already. Returns 0 or -ENOMEM. */
int splices_add(struct splices *s, struct blob *b, size_t from, size_t len, size_t at);
/* Adds the parts of @from that are inserted in bytes [@begin, @end) of its text, for a text that
 * consists of these bytes. Returns 0 or -ENOMEM. */
int splices_copy(struct splices *s, const struct splices *from, size_t begin, size_t end);
/* Gives the references back and empties @s; accepts a zeroed one. */
void splices_deinit(struct splices *s);

/* A text with such parts, complete. */
struct spliced {
    /* NULL: empty */
    struct blob *text;
    /* inserted in it */
    struct splices in;
};

void spliced_deinit(struct spliced *r); /* makes it empty; accepts a zeroed one */
/* Makes @out another such text of the same parts. Returns 0 or -ENOMEM. */
int spliced_copy(struct spliced *out, const struct spliced *r);
size_t spliced_len(const struct spliced *r);
/* Returns the memory that the text takes, with the parts of blobs that it refers to. */
size_t spliced_bytes(const struct spliced *r);
/* Returns the part of @r that holds its byte @at < spliced_len(), up to the end of that part. The
 * splice has no reference of its own. */
struct splice spliced_part(const struct spliced *r, size_t at);
/* Appends bytes [@from, @from + @len) to @out. Returns 0, or -errno of buf_add(). */
int spliced_read(const struct spliced *r, size_t from, size_t len, struct buf *out);
