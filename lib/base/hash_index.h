#pragma once

/*
 * hash_index - finds items, which are indices into an array of the caller, by the hashes of their
 * keys: open addressing, at most half full. It stores no keys: the caller compares them.
 *
 *     HASH_INDEX_EACH(x, hash, i) {
 *         if (equal(&item[i], key))
 *             return i;
 *     }
 */

#include <stdint.h>

/* An index; zeroed: empty. */
struct hash_index {
    /* mask: number of slots - 1; slot = NULL: empty */
    uint32_t n, mask;
    struct hash_slot {
        /* item: index of the item + 1; 0: free */
        uint32_t hash, item;
    } * slot;
};

#define HASH_INDEX_NONE UINT32_MAX

/* Makes room for @n items, at most UINT32_MAX / 4. Returns 0, or -ENOMEM with the index
 * unchanged. */
int hash_index_reserve(struct hash_index *x, uint32_t n);
/* Enters @item, which has this hash. Returns 0, or -ENOMEM with the index unchanged. */
int hash_index_add(struct hash_index *x, uint32_t hash, uint32_t item);
void hash_index_deinit(struct hash_index *x); /* leaves an empty index */

/* Returns an item of this hash at or behind slot *@at, which becomes the slot behind it;
 * HASH_INDEX_NONE: there are no more. */
static inline uint32_t hash_index_next(const struct hash_index *x, uint32_t hash, uint32_t *at) {
    const struct hash_slot *s;

    if (!x->slot)
        return HASH_INDEX_NONE;
    do
        s = &x->slot[(*at)++ & x->mask];
    while (s->item && s->hash != hash);
    return s->item - 1;
}

/* Returns a hash of @s, for keys that are not chosen to collide. */
static inline uint32_t hash_text(const char *s) {
    uint32_t h = 2166136261u;

    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 16777619u;
    return h;
}

/* Iterates over the items @i of this hash, in no particular order. */
#define HASH_INDEX_EACH(x, h, i)                                                                   \
    for (uint32_t i##_hash = (h), i##_at = i##_hash, i;                                            \
         (i = hash_index_next(&(x), i##_hash, &i##_at)) != HASH_INDEX_NONE;)
