#include "base/share_ring.h"

#include <assert.h>

#include "base/util.h"

/* Returns the owner with the most things. */
static uint32_t share_ring_most(const struct share_ring *r) {
    uint32_t most = 0;

    for (uint32_t i = 1; i < r->n_owners; i++)
        if (r->owner[i].n > r->owner[most].n)
            most = i;
    return most;
}

/* Takes the oldest place from the owner with the most things. */
static uint32_t share_ring_evict(struct share_ring *r) {
    struct share_ring_owner *o = &r->owner[share_ring_most(r)];
    uint32_t place = o->first;

    o->first = r->next[place];
    o->n--;
    return place;
}

uint32_t share_ring_add(struct share_ring *r, uint32_t n_places, uint32_t owner) {
    uint32_t slot = owner % SHARE_RING_OWNERS, place = r->n_used;
    struct share_ring_owner *o = &r->owner[slot];

    assert(n_places > 0 && n_places <= SHARE_RING_PLACES);
    if (r->n_used < n_places)
        r->n_used++;
    else
        place = share_ring_evict(r);
    if (o->n == 0)
        o->first = (uint16_t)place;
    else
        r->next[o->last] = (uint16_t)place;
    o->last = (uint16_t)place;
    o->n++;
    r->n_owners = MAX(r->n_owners, slot + 1);
    return place;
}
