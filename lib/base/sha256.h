#pragma once

/* sha256 - the checksum of FIPS 180-4, in pieces, by libcrypto. */

#include <openssl/sha.h>

#include "base/util.h"

/* State of the hash of the bytes so far. */
struct sha256 {
    SHA256_CTX ctx;
};

/* Starts a hash of no bytes. */
void sha256_init(struct sha256 *s);
/* Adds the next @len bytes. */
void sha256_add(struct sha256 *s, const void *data, size_t len);
/* Writes the checksum of 32 bytes; sha256_init() must follow before @s is used again. */
void sha256_end(struct sha256 *s, uint8_t out[32]);
/* Writes the checksum as 64 hexadecimal digits and a NUL; sha256_init() must follow before @s is
 * used again. */
void sha256_hex(struct sha256 *s, char out[65]);
