/*
 * A record stands between two copies of its length, so the ring can be walked from its end to the
 * oldest record that is still whole. A new record overwrites the oldest bytes; n_begun is raised
 * before the first of them changes.
 */

#include "proto/flight_tape.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FRAME (2 * (uint32_t)sizeof(uint32_t)) /* bytes of the lengths before and after a record */
#define PART 8                                 /* the longest record takes 1/PART of the ring */

/* Writes @len bytes at byte @at, counted over everything that was ever written: the ring wraps
 * around. */
static void flight_write(struct flight_tape *t, uint32_t size, uint64_t at, const void *data,
                         uint32_t len) {
    uint32_t from = (uint32_t)(at % size), n = MIN(len, size - from);

    assert(len <= size);
    memcpy(t->ring + from, data, n);
    memcpy(t->ring, (const uint8_t *)data + n, len - n);
}

/* Reads @len bytes at byte @at, counted as for flight_write(). */
static void flight_get(const uint8_t *ring, uint32_t size, uint64_t at, void *data, uint32_t len) {
    uint32_t from = (uint32_t)(at % size), n = MIN(len, size - from);

    assert(len <= size);
    memcpy(data, ring + from, n);
    memcpy((uint8_t *)data + n, ring, len - n);
}

void flight_tape_write(struct flight_tape *t, uint32_t size, const void *data, uint32_t len) {
    uint64_t at = t->n_bytes;

    assert(size >= PART * FRAME);
    if (len > size / PART - FRAME)
        return;
    __atomic_store_n(&t->n_begun, at + len + FRAME, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    flight_write(t, size, at, &len, sizeof(len));
    flight_write(t, size, at + sizeof(len), data, len);
    flight_write(t, size, at + sizeof(len) + len, &len, sizeof(len));
    __atomic_store_n(&t->n_bytes, at + len + FRAME, __ATOMIC_RELEASE);
}

/* Returns the begin of the oldest record in [from, end) of @ring; @end if there is none. Checks
 * every length, because the writer may have died at any byte. */
static uint64_t oldest(const uint8_t *ring, uint32_t size, uint64_t from, uint64_t end) {
    uint32_t len, first;
    uint64_t at = end;

    while (at - from >= FRAME) {
        flight_get(ring, size, at - sizeof(len), &len, sizeof(len));
        if (len > at - from - FRAME)
            break;
        flight_get(ring, size, at - len - FRAME, &first, sizeof(first));
        if (first != len)
            break;
        at -= len + FRAME;
    }
    return at;
}

int flight_tape_read(const struct flight_tape *t, uint32_t size, struct buf *out) {
    uint64_t end = __atomic_load_n(&t->n_bytes, __ATOMIC_ACQUIRE), begun;
    CLEANUP(freep) uint8_t *ring = malloc(size);
    uint32_t len;
    int e = 0;

    if (!ring)
        return -ENOMEM;
    memcpy(ring, t->ring, size);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    begun = MAX(__atomic_load_n(&t->n_begun, __ATOMIC_RELAXED), end); /* less if damaged */
    uint64_t from = begun > size ? begun - size : 0;
    for (uint64_t at = from < end ? oldest(ring, size, from, end) : end; at < end && e == 0;
         at += len + FRAME) {
        flight_get(ring, size, at, &len, sizeof(len));
        e = buf_reserve(out, sizeof(len) + len);
        if (e < 0)
            break;
        e = buf_add(out, &len, sizeof(len));
        flight_get(ring, size, at + sizeof(len), out->data + out->len, len);
        out->len += len;
        out->data[out->len] = '\0';
    }
    return e;
}
