#pragma once

/*
 * flight_tape - records of any length, one after the other, in a ring of bytes: the plans of the
 * last steps (scheduler/plan_tape.h), behind struct flight in the memory that worker and front
 * share. There is one writer, which may die at any byte; a reader gets whole records only,
 * meanwhile or afterwards.
 */

#include <stdint.h>

#include "base/buf.h"
#include "proto/flight.h"

#define FLIGHT_TAPE_BYTES (4u << 20)

/* n_begun exceeds n_bytes while a record is being written, and stays so if the writer dies then. */
struct flight_tape {
    /* Number of bytes written so far: n_begun with the unfinished record, n_bytes without it. The
     * ring holds the last of them. */
    uint64_t n_begun, n_bytes;
    uint8_t ring[];
};

/* Size of the flight recorder and its tape together, in bytes. */
#define FLIGHT_BYTES (sizeof(struct flight) + sizeof(struct flight_tape) + FLIGHT_TAPE_BYTES)

/* Returns the tape behind @f, in memory of FLIGHT_BYTES. */
static inline struct flight_tape *flight_tape_of(struct flight *f) {
    return (struct flight_tape *)(f + 1);
}

/* Appends a record to the ring of @size bytes; leaves out a record longer than an eighth of the
 * ring. */
void flight_tape_write(struct flight_tape *t, uint32_t size, const void *data, uint32_t len);

/* Appends to @out the records that are whole, the oldest first: of each the length as uint32_t,
 * then its bytes. Returns 0, or -errno of buf_add(). */
int flight_tape_read(const struct flight_tape *t, uint32_t size, struct buf *out);
