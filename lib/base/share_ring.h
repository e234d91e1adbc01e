#pragma once

/*
 * share_ring - the places of a table of the last things of several owners. A new thing gets the
 * place of the oldest thing of the owner that has the most, so an owner that floods the table
 * drives out its own things.
 */

#include <stdint.h>

#define SHARE_RING_PLACES 4096u
#define SHARE_RING_OWNERS 1024u

/* Invariants: the places of an owner are linked from first to last, the oldest first; n_used is the
 * sum of all n; no owner from n_owners on has had a thing. Zeroed, it is empty. */
struct share_ring {
    struct share_ring_owner {
        /* meaningless if n is 0 */
        uint16_t first, last;
        uint16_t n;
    } owner[SHARE_RING_OWNERS];
    uint16_t next[SHARE_RING_PLACES];
    uint32_t n_used, n_owners;
};

/* Returns the place, below @n_places, of a new thing of @owner. @n_places: always the same, at most
 * SHARE_RING_PLACES. Owners whose numbers are equal modulo SHARE_RING_OWNERS count as one. */
uint32_t share_ring_add(struct share_ring *r, uint32_t n_places, uint32_t owner);
