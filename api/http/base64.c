#include "api/http/base64.h"

#include "base/loop_bytes.h"
#include "base/try.h"

void base64_group(const uint8_t *bytes, size_t n, char out[4]) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t v =
        (uint32_t)bytes[0] << 16 | (n > 1 ? (uint32_t)bytes[1] << 8 : 0) | (n > 2 ? bytes[2] : 0u);

    for (size_t i = 0; i < 4; i++)
        out[i] = i <= n ? digits[v >> (18 - 6 * i) & 63] : '=';
}

int base64_add(struct buf *out, const void *data, size_t len) {
    const uint8_t *bytes = data;
    char four[4];

    loop_bytes(len);
    for (size_t i = 0; i < len; i += 3) {
        base64_group(bytes + i, MIN(len - i, 3u), four);
        TRY(buf_add(out, four, sizeof(four)));
    }
    return 0;
}
