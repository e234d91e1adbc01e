#include "grammar/front/source.h"

#include <string.h>

#include "base/printable.h"
#include "base/try.h"

size_t source_line(const struct source *s) {
    size_t n = 1;

    for (const char *p = s->start; p < s->p; p++)
        n += *p == '\n';
    return n;
}

int source_invalid(struct source *s, const char *what) {
    if (s->is_regex)
        return build_invalid(s->b, "regular expression, byte %zu: %s", (size_t)(s->p - s->start),
                             what);
    return build_invalid(s->b, "grammar, line %zu: %s", source_line(s), what);
}

int source_unsupported(struct source *s, const char *what) {
    if (s->is_regex)
        return build_unsupported(s->b, "regular expression, byte %zu: %s not supported",
                                 (size_t)(s->p - s->start), what);
    return build_unsupported(s->b, "grammar, line %zu: %s not supported", source_line(s), what);
}

bool source_skip(struct source *s, const char *text) {
    size_t n = strlen(text);

    if ((size_t)(s->end - s->p) < n || memcmp(s->p, text, n) != 0)
        return false;
    s->p += n;
    return true;
}

char source_peek(const struct source *s, size_t i) {
    if ((size_t)(s->end - s->p) <= i)
        return 0;
    return s->p[i];
}

int source_read_number(struct source *s, uint32_t *out) {
    const char *from = s->p;
    uint64_t v = 0;

    while (source_peek(s, 0) >= '0' && source_peek(s, 0) <= '9' && v < NO_MAX)
        v = v * 10 + (uint64_t)(*s->p++ - '0');
    if (v >= NO_MAX)
        return source_invalid(s, "the repetition count is malformed or too large");
    *out = (uint32_t)v;
    return s->p > from;
}

int source_need_number(struct source *s, uint32_t *out) {
    if (!source_read_number(s, out))
        return source_invalid(s, "the repetition count is malformed or too large");
    return s->b->failed;
}

int source_read_hex(struct source *s, int n, uint32_t *out) {
    uint32_t v = 0;

    for (int i = 0; i < n; i++, s->p++) {
        int d = hex_digit(source_peek(s, 0));

        if (d < 0)
            return source_invalid(s, "a hexadecimal digit is missing in an escape sequence");
        v = v * 16 + (uint32_t)d;
    }
    *out = v;
    return 0;
}

int source_check_cp(struct source *s, uint32_t cp) {
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        return source_invalid(s, "the escape sequence is not a valid code point");
    return 0;
}

int source_read_utf8(struct source *s, uint32_t *cp) {
    size_t n = s->p < s->end ? utf8_sequence(s->p, (size_t)(s->end - s->p), cp) : 0;

    if (n == 0)
        return source_invalid(s, "invalid UTF-8");
    s->p += n;
    return 0;
}

int source_read_char(struct source *s, const struct source_escapes *escapes, uint32_t *cp) {
    if (source_skip(s, "\\")) {
        char c = source_peek(s, 0);
        const char *at = c ? strchr(escapes->from, c) : NULL;

        s->p += c != 0;
        if (at) {
            *cp = (uint8_t)escapes->to[at - escapes->from];
            return 0;
        }
        if (c != 'x' && c != 'u' && c != 'U')
            return source_invalid(s, "unknown escape sequence");
        unsigned n_digits = c == 'x' ? 2 : 4;
        if (c == 'U')
            n_digits = 8;
        TRY(source_read_hex(s, n_digits, cp));
        return source_check_cp(s, *cp);
    }
    return source_read_utf8(s, cp);
}
