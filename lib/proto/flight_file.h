#pragma once

/*
 * flight_file - the flight recorder in a file: written by `weftctl dump`, and by weftd when a
 * worker has died; `weft-sim replay` reads it (tests/support/flight_read.h). The file has numbers
 * of requests, tokens and pages, and times. It has no texts, tokens or names.
 */

#include "proto/flight_tape.h"

#define FLIGHT_FILE_MAX (FLIGHT_BYTES + 65536)
#define FLIGHT_MAGIC "weftflt1"

/* Head of a file; records, steps and tape follow it. */
struct flight_head {
    char magic[8];
    char version[48];
    int64_t at_ns;
    /* Sizes of a record and of a step: a file whose sizes differ has another layout. */
    uint32_t record_size, step_size, n_records, n_steps;
    uint64_t n_tape;
};

/* Appends the contents of @f and of the tape of @tape_bytes behind it, complete records only,
 * because the writer may have died at any byte. Returns 0 or -errno of buf_add(). */
int flight_file_write(struct buf *out, const struct flight *f, uint32_t tape_bytes,
                      const char *version, int64_t now_ns);
