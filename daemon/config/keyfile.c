#include "daemon/config/keyfile.h"

#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>
#include "base/files.h"

/*
 * inih splits the lines, but it does not report line numbers, reads a line that is too long for its
 * buffer as two, treats an indented line as a continuation of the previous value, and cuts names of
 * sections after 49 characters. Therefore this file gives it the lines, one at a time and without
 * indentation, parses the sections itself, and ends at the first error.
 */

#define BYTE_ORDER_MARK "\xEF\xBB\xBF"

struct reading {
    const char *path;
    keyfile_pair pair;
    void *ctx;
    struct err *err;
    FILE *file;
    int line;          /* number of the last line handed to inih */
    char section[200]; /* longer than the name of any section */
    int result;        /* error of the first bad pair */
};

/* Reads a line and counts it for on_pair(), since inih does not report line numbers. A line that
 * ends early has a NUL byte, as files in UTF-16 have. */
static char *read_line(char *out, int n, void *stream) {
    struct reading *r = stream;
    char *line = fgets(out, n, r->file);

    r->line++;
    if (line && !strchr(line, '\n') && !feof(r->file) && !r->result)
        r->result = strlen(line) + 1 < (size_t)n
                        ? err_set(r->err, 0, "", "%s:%d: has a NUL byte; save the file as UTF-8",
                                  r->path, r->line)
                        : err_set(r->err, 0, "", "%s:%d: line is longer than %d characters",
                                  r->path, r->line, n - 2);
    if (!line || r->result)
        return NULL;
    bool marked = r->line == 1 && strncmp(line, BYTE_ORDER_MARK, 3) == 0;
    size_t indent = marked ? 3 : 0;
    indent += strspn(line + indent, " \t");
    memmove(line, line + indent, strlen(line + indent) + 1);
    if (*line == '[' && strchr(line, ']')) /* inih refuses other lines */
        snprintf(r->section, sizeof(r->section), "%.*s", (int)strcspn(line + 1, "]"), line + 1);
    return line;
}

/* Prefixes the error with "FILE:LINE: ". */
static int on_pair(void *user, const char *section, const char *name, const char *value) {
    struct reading *r = user;

    if (r->result)
        return 0;
    int code = r->pair(r->ctx, r->section, name, value, r->err);
    if (code >= 0)
        return 1;
    struct err e = *r->err;
    err_set(r->err, 0, e.param, "%s:%d: %.300s", r->path, r->line,
            code == -ENOMEM ? "out of memory" : e.message);
    r->result = code;
    return 0;
}

/* Returns -@e with @err, whose text depends on the errno: it shows whether a later try may
 * succeed. */
static int fail_to_read(const char *path, const char *param, int e, struct err *err) {
    err_set(err, 0, param, "%s: cannot be read: %s", path, strerror(e));
    return -e;
}

int keyfile_read(const char *path, const char *param, keyfile_pair pair, void *ctx,
                 struct err *err) {
    struct err local;
    struct reading r = {.path = path, .pair = pair, .ctx = ctx, .err = err ? err : &local};

    r.file = files_open(path);
    if (!r.file)
        return fail_to_read(path, param, errno, err);
    int bad = ini_parse_stream(read_line, &r, on_pair, &r);
    int io = ferror(r.file) ? errno : 0;
    fclose(r.file);
    if (io)
        return fail_to_read(path, param, io, err);
    if (r.result < 0)
        return r.result;
    if (bad)
        return err_set(err, 0, param, "%s:%d: must be a [section] or key = value", path, bad);
    return 0;
}
