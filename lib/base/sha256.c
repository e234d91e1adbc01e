/* OpenSSL 3 calls these functions deprecated, but EVP_MD_CTX, which it recommends, needs memory and
 * can fail: every caller would need a way out for a case that never happens. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "base/sha256.h"

void sha256_init(struct sha256 *s) {
    SHA256_Init(&s->ctx);
}

void sha256_add(struct sha256 *s, const void *data, size_t len) {
    SHA256_Update(&s->ctx, data, len);
}

void sha256_end(struct sha256 *s, uint8_t out[32]) {
    SHA256_Final(out, &s->ctx);
}

void sha256_hex(struct sha256 *s, char out[65]) {
    uint8_t sum[32];

    sha256_end(s, sum);
    hex_write(out, sum, sizeof(sum));
}
