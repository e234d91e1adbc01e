#pragma once

/*
 * media - numbers that stand for rows of pictures in the tokens of a sequence.
 *
 * The pager compares prefixes by their tokens. A row of a picture has no token: in the tokens that
 * the pager gets, all rows of a picture have one negative number, which no token has. A number
 * belongs to one content, which is compared as a whole when the number is assigned, and it is never
 * assigned to another content. Two prefixes are therefore equal to the pager only if they have the
 * same pictures at the same positions. The row that a position stands for follows from the
 * positions before it, because the content includes the number of rows.
 *
 * The table forgets the least recently used content. If that content returns, it gets a new number:
 * pages under the old number are not found any more and are evicted in time.
 *
 * Numbers mean nothing to another worker: the disk tier's file has the contents instead (store.h).
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

/* Content of a picture: everything besides the model on which the values and the number of its rows
 * depend. Compared as bytes, so it has no padding. */
struct kv_medium {
    uint8_t digest[32];
    uint32_t n_rows, n_columns, n_lines, n_positions, width, height;
    /* negative number that stands for each of the rows in a prompt */
    int32_t token;
};

/* Invariants: each of the first n_known entries is in one bucket and in `used`; numbers below
 * `last` were never assigned. */
struct kv_media {
    /* [max] entries */
    struct kv_media_entry *entry;
    /* [n_buckets], a power of two: index of an entry + 1; 0: none */
    uint32_t *bucket;
    uint32_t max, n_buckets, n_known;
    /* kv_media_entry.used, the least recently used first */
    struct list used;
    /* number that was assigned last; the first is -1 */
    int32_t last;
};

/* Initialises a table of at most @max contents. Returns 0 or -ENOMEM. */
int kv_media_init(struct kv_media *m, uint32_t max);
void kv_media_deinit(struct kv_media *m); /* accepts a zeroed one */

/* Returns the negative number of @of; 0: all numbers are used up. */
int32_t kv_media_number(struct kv_media *m, const struct kv_medium *of);
/* Returns the content of @number, or NULL once it is forgotten. Searches the whole table. */
const struct kv_medium *kv_media_find(const struct kv_media *m, int32_t number);
