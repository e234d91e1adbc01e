#pragma once

/*
 * reply - makes answers of a stored response's text, which may be as large as the store: short ones
 * at once, others on the pool, in their tenant's turn.
 */

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct exchange;
struct stored;

#define REPLY_INLINE 65536u /* most bytes that are read on the loop */

/* Query for a response's input items. */
struct items_query {
    size_t limit;
    bool descending;
    /* "": from the beginning; or the id of the only one */
    char after[1024];
};

/* Appends the answer to @out. On any thread. Returns 0 or -errno; -ECANCELED: it was abandoned;
 * -ENOENT: there is no item query.after. */
typedef int stored_write(const struct stored *s, const struct items_query *q, struct buf *out);

/* Ends @x with the answer that @write makes of @s, which is taken over; @work: approximate number
 * of bytes that @write reads. */
void stored_reply(struct exchange *x, struct stored *s, const struct items_query *q, size_t work,
                  stored_write *write);
