#include "base/hash_index.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static void hash_index_enter(struct hash_index *x, struct hash_slot s) {
    uint32_t at = s.hash & x->mask;

    while (x->slot[at].item)
        at = (at + 1) & x->mask;
    x->slot[at] = s;
}

int hash_index_reserve(struct hash_index *x, uint32_t n) {
    struct hash_index bigger = {.n = x->n};
    uint32_t size = 64;

    assert(n >= x->n && n <= UINT32_MAX / 4); /* 2 n does not overflow */
    while (size < 2 * n)
        size *= 2;
    if (x->slot && size <= x->mask + 1)
        return 0;
    bigger.slot = calloc(size, sizeof(*bigger.slot));
    if (!bigger.slot)
        return -ENOMEM;
    bigger.mask = size - 1;
    for (uint32_t i = 0; x->slot && i <= x->mask; i++)
        if (x->slot[i].item)
            hash_index_enter(&bigger, x->slot[i]);
    free(x->slot);
    *x = bigger;
    return 0;
}

int hash_index_add(struct hash_index *x, uint32_t hash, uint32_t item) {
    int r = hash_index_reserve(x, x->n + 1);

    assert(item < HASH_INDEX_NONE);
    if (r == 0) {
        hash_index_enter(x, (struct hash_slot){hash, item + 1});
        x->n++;
    }
    return r;
}

void hash_index_deinit(struct hash_index *x) {
    free(x->slot);
    *x = (struct hash_index){0};
}
