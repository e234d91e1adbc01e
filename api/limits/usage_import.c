#include "api/limits/usage_import.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/limits/usage_rows.h"
#include "api/state/db.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/result.h"
#include "base/try.h"
#include "base/util.h"

#define FILE_MAX (64u << 20) /* bytes; far above what usage_table_fold() left */

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
}

/* Reads the rest of @fd, a file of @size bytes. Returns 0 or -errno. */
static int usage_import_load(int fd, size_t size, struct buf *out) {
    ssize_t n;

    TRY(buf_reserve(out, size + 1));
    while ((n = read(fd, out->data + out->len, size + 1 - out->len)) > 0) {
        out->len += (size_t)n;
        if (out->len > size)
            return -EINVAL; /* another process wrote to the file while it was read */
    }
    return errno_if_negative(n);
}

/* Reads the rows of the file @fd, which @st describes. Returns 0 or -errno; -EINVAL: damaged. */
static int usage_import_read_file(int fd, const struct stat *st, struct usage_table *out) {
    CLEANUP(buf_deinit) struct buf text = {.max = FILE_MAX + 1};
    struct err err;

    if (!S_ISREG(st->st_mode)) { /* a device would be read without an end */
        if (S_ISDIR(st->st_mode))
            return -EISDIR;
        return -EOPNOTSUPP;
    }
    if (st->st_size > FILE_MAX)
        return -EINVAL;
    TRY(usage_import_load(fd, (size_t)st->st_size, &text));
    if (text.len > 0)
        return usage_table_read(out, text.data, text.len, &err);
    return 0;
}

/* Notes that the file is added. Returns 0, 1 if it was before, or -errno. */
static int note_file(struct db *db, const struct stat *st) {
    static const char get[] = "SELECT 1 FROM imported WHERE file = ?";
    static const char put[] = "INSERT INTO imported VALUES (?)";
    struct db_rows *rows;
    char name[96];
    int n = snprintf(name, sizeof(name), "%llu:%lld.%09ld", (unsigned long long)st->st_ino,
                     (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
    const struct db_value v = {.text = name, .len = (size_t)n};

    TRY(db_rows_begin(db, &rows, get, &v, 1));
    int r = db_next(rows);
    db_rows_end(rows);
    if (r != 0)
        return r;
    return db_run(db, put, &v, 1);
}

int usage_import(struct db *db, const char *path, uint32_t today, int *of_file) {
    CLEANUP(close_fd) int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    CLEANUP(usage_table_deinit) struct usage_table t = {0}, all = {0};
    struct stat st;

    *of_file = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;
    if (*of_file == 0)
        *of_file = usage_import_read_file(fd, &st, &t);
    if (*of_file < 0)
        return 0;
    int r = note_file(db, &st);
    if (r != 0)
        return MIN(r, 0);
    return usage_rows_add(db, &t, today, &all);
}

void usage_import_over(const char *path, bool damaged) {
    const char *ending = damaged ? "damaged" : "imported";
    char name[PATH_MAX];

    if (snprintf(name, sizeof(name), "%s.%s", path, ending) < (int)sizeof(name))
        rename(path, name);
}
