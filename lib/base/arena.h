#pragma once

/*
 * arena - memory of one request: allocated piece by piece, freed at once. It has a limit, because
 * its content comes from a client.
 */

#include <stdbool.h>

#include "base/util.h"

struct arena_chunk;

/* Invariant: used <= max; used is the sum of the allocated pieces, each rounded up to the
 * alignment. For one thread at a time. */
struct arena {
    struct arena_chunk *chunks;
    /* in bytes */
    size_t used, max;
    /* an allocation was refused because of the limit */
    bool full;
    /* an allocation was refused because memory was short */
    bool starved;
};

/* Initialises an arena of at most @max bytes, alignment included. Allocates nothing yet. */
void arena_init(struct arena *a, size_t max);
/* Frees all pieces at once. The arena may be used again. */
void arena_deinit(struct arena *a);

/* Returns @size zeroed bytes, aligned for any type. NULL: the limit or the memory is exhausted. */
void *arena_alloc(struct arena *a, size_t size);
/* Does the same, but the bytes have no value yet: for text, which is written before it is read. */
void *arena_alloc_raw(struct arena *a, size_t size);
/* Allocates an array of @n elements of @size bytes; NULL also when the product overflows. */
void *arena_alloc_array(struct arena *a, size_t n, size_t size);
/* Returns a copy of the @n bytes at @s with a NUL behind them; NULL as arena_alloc(). */
char *arena_strndup(struct arena *a, const char *s, size_t n);
