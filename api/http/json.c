/*
 * The writer keeps no stack: whether a comma is due is one bit, because closing a bracket always
 * leaves a value behind. Brackets are the caller's to balance; the tests parse everything that is
 * sent.
 */

#include "api/http/json.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_value.h"
#include "base/loop_bytes.h"
#include "base/printable.h"
#include "base/text.h"

#define REFER_FROM 4096u /* fewer bytes are cheaper to copy than to refer to */

/* Adds text. After the first error, which is kept, nothing more is added: callers check once, at
 * the end. */
static void json_put(struct json *j, const char *s, size_t len) {
    if (j->error == 0)
        j->error = buf_add(j->out, s, len);
}

/* Writes the comma before a key or a value that follows another. */
static void separate(struct json *j) {
    if (j->comma)
        json_put(j, ",", 1);
    j->comma = true;
}

int json_add_text(struct buf *out, yyjson_val *v) {
    return buf_add(out, json_text(v), json_len(v));
}

int json_mut_add_text(struct buf *out, yyjson_mut_val *v) {
    return buf_add(out, json_mut_text(v), json_mut_len(v));
}

void json_open(struct json *j, char bracket) {
    assert(bracket == '{' || bracket == '[');
    separate(j);
    json_put(j, &bracket, 1);
    j->comma = false;
}

void json_close(struct json *j, char bracket) {
    assert(bracket == '}' || bracket == ']');
    json_put(j, &bracket, 1);
    j->comma = true;
}

void json_colon(struct json *j) {
    assert(j->comma); /* no bracket and no other colon */
    json_put(j, ":", 1);
    j->comma = false;
}

void json_more(struct json *j) {
    assert(j->comma);
    json_put(j, ",", 1);
    j->comma = false;
}

/* Returns the length of the valid UTF-8 sequence at @s, or 0; then *bad is the number of bytes that
 * one U+FFFD replaces (the longest beginning of a valid sequence, as the Unicode standard
 * recommends). */
static size_t sequence(const unsigned char *s, size_t len, size_t *bad) {
    struct utf8_lead lead = utf8_lead(s[0]);

    *bad = 1;
    for (size_t i = 1; i < lead.n; i++) {
        if (i >= len || s[i] < lead.low || s[i] > lead.high) {
            *bad = i;
            return 0;
        }
        lead.low = 0x80;
        lead.high = 0xBF;
    }
    return lead.n;
}

bool json_begins(const char *text, size_t i) {
    const unsigned char *s = (const unsigned char *)text;

    for (size_t k = 0, bad = 0; k < 4 && k <= i; k++) {
        if ((s[i - k] & 0xC0) == 0x80)
            continue;
        return k == 0 || s[i - k] < 0x80 || MAX(sequence(s + i - k, k + 1, &bad), bad) <= k;
    }
    return true;
}

/* Writes a control character, quote or backslash as an escape; DEL too, which some terminals act
 * on. */
static void json_put_escaped(struct json *j, unsigned char c) {
    static const char hex[] = "0123456789abcdef";
    static const char *const special = "\"\\\b\f\n\r\t", *const letter = "\"\\bfnrt";
    const char *at = c ? strchr(special, c) : NULL;
    char text[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};

    if (at) {
        text[1] = letter[at - special];
        json_put(j, text, 2);
    } else {
        json_put(j, text, 6);
    }
}

void json_string(struct json *j, const char *text, size_t len) {
    const unsigned char *s = (const unsigned char *)text;
    size_t from = 0, i = 0;

    loop_bytes(len);
    separate(j);
    json_put(j, "\"", 1);
    while (i < len) {
        size_t n = 1, bad = 0;

        if (s[i] >= 0x80)
            n = sequence(s + i, len - i, &bad);
        else if (s[i] < 0x20 || s[i] == '"' || s[i] == '\\' || s[i] == 0x7f)
            n = 0;
        if (n) {
            i += n;
            continue;
        }
        json_put(j, text + from, i - from);
        if (bad) {
            json_put(j, "\xEF\xBF\xBD", 3);
            i += bad;
        } else {
            json_put_escaped(j, s[i++]);
        }
        from = i;
    }
    json_put(j, text + from, len - from);
    json_put(j, "\"", 1);
}

/* Writes a value that needs no escapes. */
static void json_put_text(struct json *j, const char *s) {
    separate(j);
    json_put(j, s, strlen(s));
}

void json_cstring(struct json *j, const char *s) {
    if (s)
        json_string(j, s, strlen(s));
    else
        json_put_text(j, "null");
}

static void put_decimal(struct json *j, uint64_t v, bool negative) {
    char text[24];
    size_t at = sizeof(text);

    do
        text[--at] = (char)('0' + v % 10);
    while (v /= 10);
    if (negative)
        text[--at] = '-';
    separate(j);
    json_put(j, text + at, sizeof(text) - at);
}

void json_int(struct json *j, int64_t v) {
    put_decimal(j, v < 0 ? -(uint64_t)v : (uint64_t)v, v < 0);
}

void json_uint(struct json *j, uint64_t v) {
    put_decimal(j, v, false);
}

void json_double(struct json *j, double v) {
    char text[32];

    snprintf(text, sizeof(text), "%.9g", isfinite(v) ? v : -9999.0);
    json_put_text(j, text);
}

void json_raw(struct json *j, const char *text, size_t len) {
    const unsigned char *s = (const unsigned char *)text;
    size_t from = 0, i = 0, bad;

    loop_bytes(len);
    separate(j);
    while (i < len) {
        size_t n = s[i] < 0x80 ? 1 : sequence(s + i, len - i, &bad);
        bool breaks = s[i] == '\n' || s[i] == '\r';

        if (n && !breaks) {
            i += n;
            continue;
        }
        json_put(j, text + from, i - from);
        if (breaks)
            json_put(j, " ", 1);
        else
            json_put(j, "\xEF\xBF\xBD", 3);
        from = i += breaks ? 1 : bad;
    }
    json_put(j, text + from, len - from);
}

void json_valid(struct json *j, const char *text, size_t len) {
    separate(j);
    json_put(j, text, len);
}

void json_refer(struct json *j, struct blob *b, size_t from, size_t len) {
    if (!j->refs || len < REFER_FROM)
        json_put(j, b->text.data + from, len);
    else if (j->error == 0)
        j->error = splices_add(j->refs, b, from, len, j->out->len);
    j->comma = true;
}

size_t json_length(const struct json *j) {
    return j->out->len + (j->refs ? j->refs->len : 0);
}

void json_put_string(struct json *j, const char *key, const char *s) {
    json_cstring(j, key);
    json_colon(j);
    json_cstring(j, s);
}

/* Writes the argument of the conversion at @s; returns what follows it. */
static const char *print_argument(struct json *j, const char *s, va_list *args) {
    static_assert(sizeof(long) == sizeof(int64_t) && sizeof(size_t) == sizeof(long), "LP64");
    bool wide = *s == 'l' || *s == 'z';

    s += wide;
    switch (*s) {
    case '.': {
        assert(strncmp(s, ".*s", 3) == 0);
        int len = va_arg(*args, int);
        const char *text = va_arg(*args, const char *);

        assert(len >= 0);
        json_string(j, text_or(text, ""), text ? (size_t)len : 0);
        s += 2;
        break;
    }
    case 's':
        json_cstring(j, va_arg(*args, const char *));
        break;
    case 'g':
        json_double(j, va_arg(*args, double));
        break;
    case 'i':
        json_put_text(j, va_arg(*args, int) ? "true" : "false");
        break;
    case 'd':
        if (wide)
            json_int(j, va_arg(*args, long));
        else
            json_int(j, va_arg(*args, int));
        break;
    default:
        assert(*s == 'u');
        if (wide)
            json_uint(j, va_arg(*args, unsigned long));
        else
            json_uint(j, va_arg(*args, unsigned));
    }
    return s + 1;
}

/* Writes a key, a word that is a value, or a text between single quotes; none has escapes. */
static const char *print_word(struct json *j, const char *s) {
    bool quoted = *s == '\'';

    s += quoted;
    size_t n = strcspn(s, quoted ? "'" : " ,:]}");
    bool key = !quoted && s[n] == ':';

    assert(n > 0 || quoted);
    separate(j);
    if (quoted || key)
        json_put(j, "\"", 1);
    json_put(j, s, n);
    if (quoted || key)
        json_put(j, "\":", 1 + key);
    j->comma = !key;
    return s + n + (quoted || key);
}

void json_vprint(struct json *j, const char *shape, va_list args) {
    va_list ap;

    va_copy(ap, args); /* print_argument() takes an address, which a parameter of this type lacks */
    for (const char *s = shape; *s;) {
        if (*s == ' ' || *s == ',')
            s++;
        else if (*s == ':')
            json_colon(j), s++;
        else if (*s == '{' || *s == '[')
            json_open(j, *s++);
        else if (*s == '}' || *s == ']')
            json_close(j, *s++);
        else if (*s == '%')
            s = print_argument(j, s + 1, &ap);
        else
            s = print_word(j, s);
    }
    va_end(ap);
}

void json_print(struct json *j, const char *shape, ...) {
    va_list args;

    va_start(args, shape);
    json_vprint(j, shape, args);
    va_end(args);
}

/* Checks the depth and the number of values before anything is allocated. Text that is not JSON is
 * left to the parser to refuse. */
static int survey(const char *s, size_t len, struct err *err) {
    size_t depth = 0, n = 0;

    for (size_t i = 0; i < len; i++) {
        char c = s[i];

        if (c == '"') {
            for (i++; i < len && s[i] != '"'; i++)
                i += s[i] == '\\';
        } else if (c == '{' || c == '[') {
            n++;
            if (++depth > JSON_DEPTH)
                return err_set_code(err, 400, "json_depth", NULL,
                                    "The JSON body is nested deeper than %u levels.", JSON_DEPTH);
        } else if (c == '}' || c == ']') {
            depth -= depth > 0;
        } else if (c == ',' || c == ':') {
            n++;
        }
    }
    if (n > JSON_NODES)
        return err_set_code(err, 400, "json_size", NULL, "The JSON body has more than %u values.",
                            JSON_NODES);
    return 0;
}

#define ESCAPE_LEN 6u /* of \\u and four digits */

/* Returns the UTF-16 unit of the escape at @s, or 0 if there is none. */
static unsigned json_unit_at(const char *s, size_t len) {
    unsigned unit = 0;

    if (len < ESCAPE_LEN || s[0] != '\\' || s[1] != 'u')
        return 0;
    for (size_t i = 2; i < ESCAPE_LEN; i++) {
        if (!isxdigit((unsigned char)s[i]))
            return 0;
        unit = unit * 16 + (unsigned)(s[i] <= '9' ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    return unit;
}

/* Replaces escapes of unpaired surrogates by that of U+FFFD. Clients in JavaScript send them when
 * they have cut a text inside an emoji, and once such a text is in a conversation, each later
 * request repeats it. Returns true if there were any. */
static bool replace_unpaired(char *s, size_t len) {
    bool any = false;

    for (size_t i = 0; i + 1 < len; i++) {
        if (s[i] != '\\')
            continue;
        unsigned unit = json_unit_at(s + i, len - i);
        bool high = unit >= 0xD800 && unit <= 0xDBFF, low = unit >= 0xDC00 && unit <= 0xDFFF;
        unsigned next = high ? json_unit_at(s + i + ESCAPE_LEN, len - i - ESCAPE_LEN) : 0;

        if (next >= 0xDC00 && next <= 0xDFFF) {
            i += 2 * ESCAPE_LEN - 1;
        } else if (high || low) {
            memcpy(s + i + 2, "fffd", 4);
            any = true;
        } else {
            i++; /* the character behind the backslash */
        }
    }
    return any;
}

int json_read(yyjson_doc **out, char *data, size_t len, struct err *err) {
    yyjson_read_err e;

    loop_bytes(len);
    if (len >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0) {
        data += 3; /* a byte order mark, with which Windows begins its files */
        len -= 3;
    }
    if (len == 0)
        return err_set_code(err, 400, "invalid_json", NULL,
                            "The request body is empty: JSON is expected.");
    if (survey(data, len, err) < 0)
        return -EINVAL;
    yyjson_doc *doc = yyjson_read_opts(data, len, 0, NULL, &e);
    if (!doc && e.code == YYJSON_READ_ERROR_INVALID_STRING && replace_unpaired(data, len))
        doc = yyjson_read_opts(data, len, 0, NULL, &e);
    if (!doc && e.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
        return -ENOMEM;
    if (!doc)
        return err_set_code(err, 400, "invalid_json", NULL,
                            "The request body is not valid JSON: %.200s at byte %zu.", e.msg,
                            e.pos);
    if (!yyjson_is_obj(yyjson_doc_get_root(doc))) {
        yyjson_doc_free(doc);
        return err_set_code(err, 400, "invalid_json", NULL,
                            "The request body must be a JSON object.");
    }
    *out = doc;
    return 0;
}

int json_refuse(struct err *err, const char *param, const char *must) {
    return err_set_code(err, 400, "invalid_value", param, "%s %s.", param, must);
}
