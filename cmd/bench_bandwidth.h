#pragma once

/*
 * bench_bandwidth - measures how fast this machine's memory can be read, which is the limit of
 * decoding.
 */

#include <stdint.h>

/* Reads @bytes repeatedly with @n_threads for about @seconds. *out: bytes per second. Returns 0,
 * -ENOMEM or -EAGAIN (no thread can be made). */
int bandwidth_measure(uint32_t n_threads, uint64_t bytes, double seconds, double *out);

/* Returns a buffer size that is larger than the caches and fits into the free memory. */
uint64_t bandwidth_buffer(void);
