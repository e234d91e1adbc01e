#pragma once

/* siphash - SipHash-2-4 (Aumasson, Bernstein 2012): a short hash whose collisions cannot be found
 * without the key. */

#include <stddef.h>
#include <stdint.h>

/* Returns the hash of the @len bytes at @data under the secret @key; the same on every machine. */
uint64_t siphash(const uint64_t key[2], const void *data, size_t len);
