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

/* The allocator gets large blocks of zeros from the kernel as new pages, each of which takes a
 * fault: chunks are not zeroed, pieces are. */
void *arena_alloc_raw(struct arena *a, size_t size) {
    struct arena_chunk *c = a->chunks;

    assert(a->used <= a->max);
    if (size > a->max || round_up(size, alignof(max_align_t)) > a->max - a->used) {
        a->full = true;
        return NULL;
    }
    size = round_up(size, alignof(max_align_t));
    if (!c || c->cap - c->used < size) {
        size_t cap = MAX(size, (size_t)CHUNK_BYTES);

        c = malloc(sizeof(*c) + cap);
        if (!c) {
            a->starved = true;
            return NULL;
        }
        *c = (struct arena_chunk){.next = a->chunks, .cap = cap};
        a->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += size;
    a->used += size;
    assert(c->used <= c->cap && a->used <= a->max);
    return p;
}

void *arena_alloc(struct arena *a, size_t size) {
    void *p = arena_alloc_raw(a, size);

    if (p)
        memset(p, 0, size);
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
    char *p = size_add(n, 1, &bytes) ? NULL : arena_alloc_raw(a, bytes);

    loop_bytes(n);
    if (!p)
        return NULL;
    if (n)
        memcpy(p, s, n);
    p[n] = 0;
    return p;
}
