#pragma once

/* sha256 - the checksum of FIPS 180-4, in pieces. */

#include <stdbool.h>
#include "base/util.h"

/* The state of the hash after n_bytes bytes. */
struct sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    uint8_t block[64]; /* the last n_bytes % 64 bytes */
};

/* Chooses whether sums are computed with the processor's instructions for SHA-256, which happens by
 * itself at the start. Returns true if they are used. For tests and measurements. */
bool sha256_use_fast(bool wanted);
/* Starts a hash of no bytes. */
void sha256_init(struct sha256 *s);
/* Adds the next @len bytes. */
void sha256_add(struct sha256 *s, const void *data, size_t len);
/* The checksum in 32 bytes; @s must be begun anew after that. */
void sha256_end(struct sha256 *s, uint8_t out[32]);
/* The checksum as 64 hexadecimal digits and a NUL; @s must be begun anew after that. */
void sha256_hex(struct sha256 *s, char out[65]);
