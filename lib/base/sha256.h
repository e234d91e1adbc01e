#pragma once

/* sha256 - the checksum of FIPS 180-4, in pieces. */

#include <stdbool.h>
#include "base/util.h"

/* State of the hash after n_bytes bytes. */
struct sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    uint8_t block[64]; /* the last n_bytes % 64 bytes */
};

/* Chooses whether the processor's instructions for SHA-256 are used; by default they are used if
 * they exist. Returns true if they are used now. For tests and measurements. */
bool sha256_use_fast(bool wanted);
/* Starts a hash of no bytes. */
void sha256_init(struct sha256 *s);
/* Adds the next @len bytes. */
void sha256_add(struct sha256 *s, const void *data, size_t len);
/* Writes the checksum of 32 bytes; sha256_init() must follow before @s is used again. */
void sha256_end(struct sha256 *s, uint8_t out[32]);
/* Writes the checksum as 64 hexadecimal digits and a NUL; sha256_init() must follow before @s is
 * used again. */
void sha256_hex(struct sha256 *s, char out[65]);
