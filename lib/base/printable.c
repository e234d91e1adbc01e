#include "base/printable.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/loop_bytes.h"
#include "base/util.h"

size_t utf8_sequence(const char *in, size_t len, uint32_t *c) {
    assert(len > 0);
    const uint8_t *p = (const uint8_t *)in;
    struct utf8_lead lead = utf8_lead(p[0]);
    uint32_t v = p[0];

    if (v < 0x80) {
        *c = v;
        return 1;
    }
    if (lead.n == 0 || len < lead.n || p[1] < lead.low || p[1] > lead.high)
        return 0;
    v = (v & (0x7Fu >> lead.n)) << 6 | (p[1] & 0x3F);
    for (size_t i = 2; i < lead.n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        v = v << 6 | (p[i] & 0x3F);
    }
    *c = v;
    return lead.n;
}

void utf8_repair(char *text, size_t len) {
    uint32_t c;

    loop_bytes(len);
    for (size_t i = 0, n; i < len; i += MAX(n, (size_t)1)) {
        n = utf8_sequence(text + i, len - i, &c);
        if (n == 0)
            text[i] = '?';
    }
}

static bool is_hidden(uint32_t c) {
    static const uint32_t ranges[][2] = {
        {0x7F, 0x9F},     {0xAD, 0xAD},     {0x61C, 0x61C},   {0x180E, 0x180E}, {0x200B, 0x200F},
        {0x2028, 0x202E}, {0x2060, 0x206F}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F},
    };

    if (c < 0x7F) /* nearly all of a log */
        return c < 0x20;
    for (size_t i = 0; i < ARRAY_SIZE(ranges); i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return true;
    return false;
}

size_t printable_next(const char *in, size_t len, char out[PRINTABLE_MAX], size_t *n_out) {
    uint32_t c = 0;
    size_t n = utf8_sequence(in, len, &c);
    if (n > 0 && !is_hidden(c)) {
        memcpy(out, in, n);
        *n_out = n;
    } else if (n == 1 && c == '\n') {
        *n_out = (size_t)snprintf(out, PRINTABLE_MAX, "\\n");
    } else {
        *n_out = (size_t)snprintf(out, PRINTABLE_MAX, n > 1 ? "\\u%04x" : "\\x%02x",
                                  n > 1 ? (unsigned)c : (unsigned char)*in);
    }
    if (n)
        return n;
    return 1;
}

size_t printable_copy(char *out, size_t size, const char *in, size_t len, bool quotes) {
    size_t n = 0, n_one;

    assert(size > 0);
    for (size_t i = 0; i < len;) {
        char one[PRINTABLE_MAX];
        bool marked = quotes && (in[i] == '"' || in[i] == '\\');

        i += printable_next(in + i, len - i, one, &n_one);
        if (n + marked + n_one >= size)
            break;
        if (marked)
            out[n++] = '\\';
        memcpy(out + n, one, n_one);
        n += n_one;
    }
    out[n] = 0;
    return n;
}

bool is_printable(const char *text) {
    size_t len = strlen(text), n_one;
    char one[PRINTABLE_MAX];

    for (size_t i = 0, n; i < len; i += n) {
        n = printable_next(text + i, len - i, one, &n_one);
        if (n_one != n || memcmp(one, text + i, n) != 0)
            return false;
    }
    return true;
}

struct printable printable(const char *text) {
    struct printable p;

    printable_copy(p.s, sizeof(p.s), text, strlen(text), false);
    return p;
}

struct printable quoted(const char *text) {
    struct printable p = {"\""};
    size_t n = 1 + printable_copy(p.s + 1, sizeof(p.s) - 2, text, strlen(text), true);

    memcpy(p.s + n, "\"", 2);
    return p;
}
