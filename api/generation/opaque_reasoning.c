#include "api/generation/opaque_reasoning.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#define MARK "weft1."

static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int opaque_reasoning_write(struct buf *out, const char *text, size_t len) {
    const unsigned char *s = (const unsigned char *)text;
    int r = buf_add_str(out, MARK);

    for (size_t i = 0; i < len && r == 0; i += 3) {
        size_t n = MIN(len - i, 3u);
        uint32_t v = (uint32_t)s[i] << 16 | (n > 1 ? s[i + 1] << 8 : 0) | (n > 2 ? s[i + 2] : 0);
        char four[4] = {DIGITS[v >> 18], DIGITS[v >> 12 & 63], n > 1 ? DIGITS[v >> 6 & 63] : '=',
                        n > 2 ? DIGITS[v & 63] : '='};

        r = buf_add(out, four, sizeof(four));
    }
    return r;
}

bool opaque_reasoning_is_ours(const char *s, size_t len) {
    return len > strlen(MARK) && memcmp(s, MARK, strlen(MARK)) == 0;
}

int opaque_reasoning_read(struct buf *out, const char *s, size_t len) {
    uint32_t bits = 0;
    int n = 0;

    for (size_t i = strlen(MARK); i < len && s[i] != '='; i++) {
        const char *at = s[i] ? strchr(DIGITS, s[i]) : NULL;

        if (!at)
            return -EINVAL;
        bits = bits << 6 | (uint32_t)(at - DIGITS);
        if ((n += 6) >= 8 && buf_add_char(out, (char)(bits >> (n -= 8))) < 0)
            return -ENOMEM;
    }
    return 0;
}
