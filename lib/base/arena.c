#include "base/arena.h"

#include <assert.h>
#include <stdalign.h>
#include <string.h>

#include "base/loop_bytes.h"

#define CHUNK_BYTES 4096

/* Invariant: used <= cap, the bytes of data. */
struct arena_chunk {
    struct arena_chunk *next;
    size_t used, cap;
    alignas(max_align_t) char data[];
};

void arena_init(struct arena *a, size_t max) {
    *a = (struct arena){.max = max};
}

void arena_deinit(struct arena *a) {
    while (a->chunks) {
        struct arena_chunk *next = a->chunks->next;

        free(a->chunks);
        a->chunks = next;
    }
    a->used = 0;
    a->full = a->starved = false;
}

void *arena_alloc(struct arena *a, size_t size) {
    struct arena_chunk *c = a->chunks;

    assert(a->used <= a->max);
    if (size > a->max || round_up(size, alignof(max_align_t)) > a->max - a->used) {
        a->full = true;
        return NULL;
    }
    size = round_up(size, alignof(max_align_t));
    if (!c || c->cap - c->used < size) {
        size_t cap = MAX(size, (size_t)CHUNK_BYTES);

        c = calloc(1, sizeof(*c) + cap);
        if (!c) {
            a->starved = true;
            return NULL;
        }
        c->cap = cap;
        c->next = a->chunks;
        a->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += size;
    a->used += size;
    assert(c->used <= c->cap && a->used <= a->max);
    return p;
}

void *arena_alloc_array(struct arena *a, size_t n, size_t size) {
    size_t bytes;

    if (size_mul(n, size, &bytes))
        return NULL;
    return arena_alloc(a, bytes);
}

char *arena_strndup(struct arena *a, const char *s, size_t n) {
    size_t bytes;
    char *p = size_add(n, 1, &bytes) ? NULL : arena_alloc(a, bytes);

    loop_bytes(n);
    if (p && n)
        memcpy(p, s, n);
    return p;
}
