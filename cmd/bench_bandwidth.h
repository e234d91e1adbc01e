#pragma once

/*
 * bench_bandwidth - how fast this machine's memory can be read: the limit that decoding is measured
 * against.
 */

#include <stdint.h>

/* Reads @bytes again and again with @n_threads for about @seconds. *out: bytes a second. Returns 0,
 * -ENOMEM or -EAGAIN (no thread). */
int bandwidth_measure(uint32_t n_threads, uint64_t bytes, double seconds, double *out);

/* A buffer size that no cache holds and that this machine has to spare. */
uint64_t bandwidth_buffer(void);
