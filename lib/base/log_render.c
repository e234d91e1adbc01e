/*
 * JSON values: plain decimal numbers become numbers, "-" (none) becomes null, all other texts
 * become strings. An id is always a string, since clients choose them and readers of logs want one
 * type for each key.
 */

#include "base/log_render.h"

#include <assert.h>
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/util.h"

#define DIGITS_MAX 15 /* digits of the largest integers that doubles hold exactly */

const char *log_value_end(const char *p) {
    if (*p != '"')
        return p + strcspn(p, " ");
    for (p++; *p && *p != '"'; p++)
        p += *p == '\\' && p[1];
    return p + (*p == '"');
}

static void log_put_time(char out[32], int64_t unix_ms) {
    time_t s = (time_t)(unix_ms / 1000);
    struct tm tm;
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", gmtime_r(&s, &tm));

    snprintf(out + n, 32 - n, ".%03dZ", (int)(unix_ms % 1000));
}

/* Returns true if [@v, @end) is a decimal number in JSON's syntax. */
static bool is_number(const char *v, const char *end) {
    const char *p = v + (*v == '-');
    size_t whole = strspn(p, "0123456789");

    if (whole == 0 || (whole > 1 && *p == '0') || end - v > DIGITS_MAX)
        return false;
    p += whole;
    if (p < end && *p == '.') {
        size_t part = strspn(p + 1, "0123456789");

        p += part ? part + 1 : 0;
    }
    return p == end;
}

/* Returns true if [@v, @end) begins with an escape that JSON has too. */
static bool is_json_escape(const char *v, const char *end) {
    if (end - v < 2 || *v != '\\')
        return false;
    if (v[1] != 'u')
        return v[1] == 'n' || v[1] == '"' || v[1] == '\\';
    for (int i = 2; i < 6; i++)
        if (v + i >= end || !isxdigit((unsigned char)v[i]))
            return false;
    return true;
}

/* Appends [@v, @end) as a JSON string: `\n` and `\uNNNN` of printable.h are JSON's own, `\xNN` and
 * single backslashes are not. */
static size_t log_put_string(char *out, size_t size, const char *v, const char *end) {
    size_t n = 0;

    out[n++] = '"';
    for (; v < end; v++) {
        bool own = is_json_escape(v, end);

        if (n + 8 > size)
            return size;
        if ((*v == '\\' && !own) || *v == '"')
            out[n++] = '\\';
        out[n++] = *v;
        if (own)
            out[n++] = *++v;
    }
    out[n++] = '"';
    return n;
}

/* Appends ,"key":value for the pair whose value is [@v, @end). Returns @size if it does not fit. */
static size_t put_pair(char *out, size_t size, const char *pair, const char *v, const char *end) {
    int n_key = (int)(v - 1 - pair);
    size_t n = (size_t)n_key + 4;

    if (n + 8 > size)
        return size;
    sprintf(out, ",\"%.*s\":", n_key, pair);
    bool id = n_key == 2 && strncmp(pair, "id", 2) == 0;
    if (*v == '"')
        return n + log_put_string(out + n, size - n, v + 1, end - (end > v + 1));
    if (end - v == 1 && *v == '-')
        return n + (size_t)sprintf(out + n, "null");
    if (id || !is_number(v, end))
        return n + log_put_string(out + n, size - n, v, end);
    if (n + (size_t)(end - v) >= size)
        return size;
    memcpy(out + n, v, (size_t)(end - v));
    return n + (size_t)(end - v);
}

static size_t render_json(char *out, size_t size, const struct log_entry *e, const char *time) {
    int head =
        snprintf(out, size, "{\"time\":\"%s\",\"level\":\"%s\",\"process\":\"%s\",\"event\":\"%s\"",
                 time, e->level, e->process, e->event);
    size_t n = (size_t)head, room = size - 3; /* keeps room for the end */

    assert(head > 0 && n < room);
    for (const char *p = e->pairs; *p;) {
        const char *eq = strchr(p, '=');

        if (!eq)
            break;
        const char *end = log_value_end(eq + 1);
        size_t len = put_pair(out + n, room - n, p, eq + 1, end);
        if (len < room - n) /* leaves out a pair for which there is no room */
            n += len;
        p = end + strspn(end, " ");
    }
    memcpy(out + n, "}\n", 3);
    return n + 2;
}

size_t log_render(char *out, size_t size, enum log_format format, const struct log_entry *e) {
    char time[32];

    assert(size >= 256);
    log_put_time(time, e->unix_ms);
    if (format == LOG_JSON)
        return render_json(out, size, e, time);
    int n = snprintf(out, size, "%s %s %s %s %s\n", time, e->level, e->process, e->event, e->pairs);
    assert(n > 0);
    return MIN((size_t)n, size - 1);
}
