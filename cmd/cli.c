#include "cmd/cli.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/buf.h"

static void print(const char *fmt, va_list ap, const char *hint) {
    char text[1024];

    vsnprintf(text, sizeof(text), fmt, ap);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    fflush(stdout);
    fprintf(stderr, "%s: %s%s\n", program_invocation_short_name, text, hint);
}

int cli_fail(const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    print(fmt, ap, "");
    va_end(ap);
    return CLI_FAILED;
}

int cli_usage(const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    print(fmt, ap, " (try --help)");
    va_end(ap);
    return CLI_USAGE;
}

int cli_fail_err(const char *what, const struct err *e, int r) {
    const char *why = e && e->message[0] ? e->message : strerror(-r);

    /* A reader that opened the file itself has named it already. */
    return strncmp(why, what, strlen(what)) == 0 ? cli_fail("%s", why)
                                                 : cli_fail("%s: %s", what, why);
}

bool cli_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out) {
    char *end;
    unsigned shift = 0;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno)
        return false;
    if (*end == 'K' || *end == 'M' || *end == 'G')
        shift = *end == 'K' ? 10 : *end == 'M' ? 20 : 30, end++;
    if (*end || (v << shift) >> shift != v)
        return false;
    v <<= shift;
    if (v < min || v > max)
        return false;
    *out = v;
    return true;
}

bool cli_u32(const char *text, uint32_t min, uint32_t max, uint32_t *out) {
    uint64_t v;

    if (!cli_u64(text, min, max, &v))
        return false;
    *out = (uint32_t)v;
    return true;
}

bool cli_double(const char *text, double min, double max, double *out) {
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !isfinite(v) || v < min || v > max)
        return false;
    *out = v;
    return true;
}

int cli_read_file(const char *path, size_t max, char **out, size_t *len) {
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    struct buf b;
    int r = f ? 0 : -errno;

    buf_init(&b, max);
    while (r == 0) {
        char chunk[65536];
        size_t n = fread(chunk, 1, sizeof(chunk), f);

        if (n == 0) {
            r = ferror(f) ? -EIO : 0;
            break;
        }
        r = buf_add(&b, chunk, n);
    }
    if (f && f != stdin)
        fclose(f);
    if (r == 0)
        r = buf_reserve(&b, 0); /* an empty file is a string too */
    if (r == 0) {
        *len = b.len;
        *out = STEAL(b.data);
    }
    buf_deinit(&b);
    return r;
}

bool cli_flush(void) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    cli_fail("writing the output failed: %s", strerror(errno));
    return false;
}
