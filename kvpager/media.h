#pragma once

/*
 * media - numbers that stand for rows of pictures in the tokens of a sequence.
 *
 * The pager compares prefixes by their tokens. A row of a picture has no token of its own: in what
 * the pager is given all rows of a picture have one negative number, which no token has. A number
 * belongs to one content, the whole of which is compared when it is given out, and it is never
 * given out for another one. So two prefixes are equal to the pager only when they have the same
 * pictures at the same places; which row of its picture a position is follows from the positions
 * before it, since the content says how many rows there are.
 *
 * The table forgets the content that was asked for least recently. It gets a new number when it
 * comes again: pages under the old one are not found any more, and are evicted in time.
 *
 * Numbers mean nothing to another worker: the disk tier's file has the contents instead (store.h).
 */

#include <stdbool.h>
#include <stdint.h>
#include "base/list.h"

/* Holds all that the values of a picture's rows, and how many there are, depend on besides the
 * model. Compared as bytes: it has no padding. */
struct kv_medium {
    uint8_t digest[32];
    uint32_t n_rows, n_columns, n_lines, n_positions, width, height;
    int32_t token; /* stands for each row in a prompt */
};

/* Invariants: each of the first n_known entries is in one bucket and in `used`; numbers above
 * `last` were never given out. */
struct kv_media {
    struct kv_media_entry *entry; /* [max] */
    uint32_t *bucket;             /* [n_buckets], a power of two: index of an entry + 1; 0: none */
    uint32_t max, n_buckets, n_known;
    struct list used; /* kv_media_entry.used, the least recently used first */
    int32_t last;     /* number that was given out last; the first is -1 */
};

/* A table of at most @max contents. Returns 0 or -ENOMEM. */
int kv_media_init(struct kv_media *m, uint32_t max);
void kv_media_deinit(struct kv_media *m); /* accepts a zeroed one */

/* Returns the number of @of: negative. 0: all numbers were given out. */
int32_t kv_media_number(struct kv_media *m, const struct kv_medium *of);
/* Returns the content of @number, or NULL once it is forgotten. Searches the whole table. */
const struct kv_medium *kv_media_find(const struct kv_media *m, int32_t number);
