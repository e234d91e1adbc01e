#include "api/http/siphash.h"

#include <string.h>

static inline uint64_t siphash_rotate(uint64_t v, int n) {
    return v << n | v >> (64 - n);
}

/* SipRound of the paper: two of them for each word of 8 bytes, four at the end. */
static void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[1] = siphash_rotate(v[1], 13) ^ v[0];
    v[0] = siphash_rotate(v[0], 32);
    v[2] += v[3];
    v[3] = siphash_rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = siphash_rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = siphash_rotate(v[1], 17) ^ v[2];
    v[2] = siphash_rotate(v[2], 32);
}

uint64_t siphash(const uint64_t key[2], const void *data, size_t len) {
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
                     key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
    const uint8_t *p = data;

    for (size_t i = 0; i <= len / 8; i++) {
        uint64_t m = i < len / 8 ? 0 : (uint64_t)len << 56;
        size_t n = i < len / 8 ? 8 : len % 8;

        if (n)
            memcpy(&m, p + 8 * i, n);
        v[3] ^= m;
        sip_round(v);
        sip_round(v);
        v[0] ^= m;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
