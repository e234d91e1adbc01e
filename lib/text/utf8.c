#include <string.h>

#include "base/loop_bytes.h"
#include "text/stops.h"
#include "text/unicode.h"

size_t utf8_incomplete_tail(const char *text, size_t len) {
    for (size_t n = 1; n <= 3 && n <= len; n++) {
        uint8_t c = (uint8_t)text[len - n];
        char padded[4];
        uint32_t cp;

        if (c < 0x80)
            return 0;
        if (c < 0xC0)
            continue;
        /* Incomplete if some continuation makes it valid; only the second byte is restricted
         * further. */
        memset(padded, 0x80, sizeof(padded));
        memcpy(padded, text + len - n, n);
        if (n == 1 && (c == 0xE0 || c == 0xF0))
            padded[1] = (char)0xA0;
        if (unicode_decode(padded, padded + 4, &cp) > n)
            return n;
        return 0;
    }
    return 0;
}

bool utf8_valid(const char *text, size_t len) {
    const char *end = text + len;

    loop_bytes(len);
    while (text < end) {
        uint64_t eight;
        uint32_t cp;

        if (end - text >= 8) {
            memcpy(&eight, text, 8);
            if (!(eight & 0x8080808080808080u)) {
                text += 8;
                continue;
            }
        }
        text += unicode_decode(text, end, &cp);
        if (cp == UNICODE_INVALID)
            return false;
    }
    return true;
}
