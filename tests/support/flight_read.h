#pragma once

/* flight_read - reads the file of proto/flight_file.h. */

#include "proto/flight_file.h"

/* The content of a flight file; its pointers point into the file's bytes. */
struct flight_file {
    /* version of the weftd that wrote the file */
    const char *version;
    /* time of writing, by the clock of the records */
    int64_t at_ns;
    const struct flight_record *record;
    const struct flight_step *step;
    uint32_t n_records, n_steps;
    /* tape as flight_tape_read() returns it */
    const uint8_t *tape;
    size_t n_tape;
};

/* Returns true if @data begins like a flight file. */
bool flight_file_is(const void *data, size_t n);
/* Parses @data, which is aligned as by malloc() and outlives @out. Returns 0, or -EINVAL if it is
 * damaged or of another version. */
int flight_file_parse(struct flight_file *out, const void *data, size_t n);
/* Returns the next record of the tape from *at on (0 at first) and its length; NULL: there is
 * none. */
const void *flight_file_next(const struct flight_file *f, size_t *at, uint32_t *len);
