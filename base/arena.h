#pragma once

/*
 * arena - memory of one request: allocated piece by piece, freed at once. It has a limit, since
 * what is put into it comes from a client.
 */

#include "base/util.h"

struct arena_chunk;

struct arena {
    struct arena_chunk *chunks;
    size_t used, max; /* bytes */
};

void arena_init(struct arena *a, size_t max);
void arena_deinit(struct arena *a);

/* @size bytes, zeroed, aligned for any type. NULL: the limit or the memory is exhausted. */
void *arena_alloc(struct arena *a, size_t size);
void *arena_alloc_array(struct arena *a, size_t n, size_t size);
char *arena_strndup(struct arena *a, const char *s, size_t n); /* NUL-terminated copy */
