#include "api/generation/opaque_reasoning.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "api/http/base64.h"
#include "base/try.h"

#define MARK "weft1."

static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int opaque_reasoning_write(struct buf *out, const char *text, size_t len) {
    TRY(buf_add_str(out, MARK));
    return base64_add(out, text, len);
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
