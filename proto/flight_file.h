#pragma once

/*
 * flight_file - the flight recorder in a file: `weftctl dump`, and what weftd writes when a worker
 * has died. `weft-sim replay` reads it (docs/simulator.md). Numbers of requests, tokens and pages
 * are in it, and times; no text, no tokens, no names.
 */

#include "proto/flight_tape.h"

#define FLIGHT_FILE_MAX (FLIGHT_BYTES + 65536)

/* Appends all that @f and the tape of @tape_bytes behind it hold, whole records only: the process
 * that writes there may have died at any byte. 0 or -errno of buf_add(). */
int flight_file_write(struct buf *out, const struct flight *f, uint32_t tape_bytes,
                      const char *version, int64_t now_ns);

/* The content of a flight file; its pointers point into the file's bytes. */
struct flight_file {
    const char *version; /* version of the weftd that wrote the file */
    int64_t at_ns;       /* time of writing, by the clock of the records */
    const struct flight_record *record;
    const struct flight_step *step;
    uint32_t n_records, n_steps;
    const uint8_t *tape; /* tape as flight_tape_read() returns it */
    size_t n_tape;
};

/* Returns true if @data begins like a flight file. */
bool flight_file_is(const void *data, size_t n);
/* Parses @data, which is aligned as by malloc() and outlives @out. 0, or -EINVAL if it is damaged
 * or of another version. */
int flight_file_parse(struct flight_file *out, const void *data, size_t n);
/* The next record of the tape from *at on (0 at first): its bytes and length, or NULL. */
const void *flight_file_next(const struct flight_file *f, size_t *at, uint32_t *len);
