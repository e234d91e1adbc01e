/*
 * Lines are `[section]`, `key = value` or `key : value`. A comment begins with # or ; at the
 * beginning of a line or behind a section, and with ; after a blank elsewhere. Blanks around names
 * and values have no meaning. Reading ends at the first error.
 */

#include "daemon/config/keyfile.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/files.h"
#include "base/try.h"

#define BYTE_ORDER_MARK "\xEF\xBB\xBF"
#define BLANKS " \t\r\n\f\v"
#define LINE_MAX_BYTES 8192

struct reading {
    const char *path, *param;
    keyfile_pair pair;
    void *ctx;
    struct err *err;
    FILE *file;
    /* number of the last line read */
    uint32_t line;
    char section[LINE_MAX_BYTES];
};

/* Fails with "FILE:LINE: @why", about @param. Returns @r. */
static int fail_in_line(struct reading *f, int r, const char *param, const char *why) {
    err_set(f->err, 0, param, "%s:%u: %.300s", f->path, f->line, why);
    return r;
}

/* Gets the next line. Returns 1, 0 at the end of the file, or -errno. */
static int next_line(struct reading *f, char out[LINE_MAX_BYTES]) {
    char why[64];

    if (!fgets(out, LINE_MAX_BYTES, f->file))
        return 0;
    f->line++;
    if (strchr(out, '\n') || feof(f->file))
        return 1;
    if (strlen(out) + 1 < LINE_MAX_BYTES)
        return fail_in_line(f, -EINVAL, "", "has a NUL byte; save the file as UTF-8");
    snprintf(why, sizeof(why), "line is longer than %d characters", LINE_MAX_BYTES - 2);
    return fail_in_line(f, -EINVAL, "", why);
}

/* Returns the first byte of @s that is one of @chars or begins a comment, or the end of @s. */
static char *keyfile_find(char *s, const char *chars) {
    bool blank = false;

    for (; *s && !strchr(chars, *s) && !(blank && *s == ';'); s++)
        blank = isspace((unsigned char)*s);
    return s;
}

/* Returns @s without the blanks around it. */
static char *keyfile_trim(char *s) {
    s += strspn(s, BLANKS);
    size_t n = strlen(s);
    while (n > 0 && isspace((unsigned char)s[n - 1]))
        s[--n] = 0;
    return s;
}

static int keyfile_read_line(struct reading *f, char *line) {
    char *end;

    if (f->line == 1 && strncmp(line, BYTE_ORDER_MARK, 3) == 0)
        line += 3;
    line = keyfile_trim(line);
    if (!*line || *line == '#' || *line == ';')
        return 0;
    end = keyfile_find(line, *line == '[' ? "]" : "=:");
    bool is_section = *line == '[' && *end == ']';
    char behind = is_section ? end[1 + strspn(end + 1, BLANKS)] : 0;
    if (!*end || *end == ';' || (behind && behind != '#' && behind != ';'))
        return fail_in_line(f, -EINVAL, f->param, "must be a [section] or key = value");
    *end++ = 0;
    if (is_section) {
        memcpy(f->section, line + 1, strlen(line));
        return 0;
    }
    *keyfile_find(end, "") = 0;
    int r = f->pair(f->ctx, f->line, f->section, keyfile_trim(line), keyfile_trim(end), f->err);
    if (r >= 0)
        return 0;
    struct err e = *f->err;
    return fail_in_line(f, r, e.param, r == -ENOMEM ? "out of memory" : e.message);
}

/* Returns -@e with @err, whose text depends on the errno: it shows whether a later try may
 * succeed. */
static int fail_to_read(const char *path, const char *param, int e, struct err *err) {
    err_set(err, 0, param, "%s: cannot be read: %s", path, strerror(e));
    return -e;
}

static int read_lines(struct reading *f) {
    char line[LINE_MAX_BYTES];
    int r;

    while ((r = next_line(f, line)) > 0)
        TRY(keyfile_read_line(f, line));
    if (r == 0 && ferror(f->file))
        return fail_to_read(f->path, f->param, errno, f->err);
    return r;
}

int keyfile_read(const char *path, const char *param, keyfile_pair pair, void *ctx,
                 struct err *err) {
    struct err local;
    struct reading f = {
        .path = path, .param = param, .pair = pair, .ctx = ctx, .err = err ? err : &local};

    f.file = files_open(path);
    if (!f.file)
        return fail_to_read(path, param, errno, err);
    int r = read_lines(&f);
    fclose(f.file);
    return r;
}
