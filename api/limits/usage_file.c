#include "api/limits/usage_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/err.h"
#include "base/try.h"
#include "base/util.h"

/*
 * The lock is a file of its own, because the file itself is replaced: a lock on it would be one on
 * a file that is no longer there. Closing the descriptor, also by death, releases it.
 */

#define LOCK_WAIT_MS 2000 /* others hold the lock for some milliseconds */
#define LOCK_EACH_MS 2
#define FILE_MAX (64u << 20) /* bytes; far above what usage_table_fold() leaves */

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
}

/* Returns 0, -EBUSY: another process has the lock, or another -errno. */
static int try_lock(int fd) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    return errno == EWOULDBLOCK || errno == EINTR ? -EBUSY : -errno;
}

/* Returns a descriptor that holds the lock, or -errno. A process that has it and does not go on is
 * not waited for: what could not be done is tried again later. */
static int lock(const char *path) {
    char name[PATH_MAX];
    int r;

    if (snprintf(name, sizeof(name), "%s.lock", path) >= (int)sizeof(name))
        return -ENAMETOOLONG;
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return -errno;
    for (int ms = 0; (r = try_lock(fd)) == -EBUSY && ms < LOCK_WAIT_MS; ms += LOCK_EACH_MS)
        usleep(LOCK_EACH_MS * 1000);
    if (r < 0)
        close(fd);
    return r < 0 ? r : fd;
}

/* Reads the whole file into @out, which stays empty if there is none. Returns 0 or -errno; -EFBIG:
 * it is larger than FILE_MAX. */
static int load(const char *path, struct buf *out) {
    CLEANUP(close_fd) int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat st;
    ssize_t n;

    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode)) /* a device would be replaced by a file */
        return S_ISDIR(st.st_mode) ? -EISDIR : -EOPNOTSUPP;
    if (st.st_size > FILE_MAX)
        return -EFBIG;
    TRY(buf_reserve(out, (size_t)st.st_size + 1));
    while ((n = read(fd, out->data + out->len, (size_t)st.st_size + 1 - out->len)) > 0) {
        out->len += (size_t)n;
        if (out->len > (size_t)st.st_size)
            return -EFBIG; /* another process wrote to the file while it was read */
    }
    return n < 0 ? -errno : 0;
}

/* Writes all of @text to the file @name, durably. */
static int write_file(const char *name, const struct buf *text) {
    CLEANUP(close_fd)
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    for (size_t done = 0; done < text->len;) {
        ssize_t n = write(fd, text->data + done, text->len - done);

        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return fsync(fd) < 0 ? -errno : 0;
}

/* Replaces the file durably by @text, or leaves it as it was. */
static int replace(const char *path, const struct buf *text) {
    char name[PATH_MAX];

    if (snprintf(name, sizeof(name), "%s.new", path) >= (int)sizeof(name))
        return -ENAMETOOLONG;
    int r = write_file(name, text);
    if (r == 0 && rename(name, path) < 0)
        r = -errno;
    if (r < 0)
        unlink(name);
    return r;
}

static int put_aside(const char *path) {
    char name[PATH_MAX];

    if (snprintf(name, sizeof(name), "%s.damaged", path) >= (int)sizeof(name))
        return -ENAMETOOLONG;
    return rename(path, name) < 0 ? -errno : 0;
}

/* Reads the rows of the file; moves the file aside if a row cannot be read. */
static int read_rows(const char *path, struct usage_table *t, bool *damaged) {
    CLEANUP(buf_deinit) struct buf text = {.max = FILE_MAX + 1};
    struct err err;
    int r = load(path, &text);

    if (r == 0 && text.len > 0)
        r = usage_table_read(t, text.data, text.len, &err);
    if (r != -EINVAL && r != -EFBIG)
        return r;
    *damaged = true;
    usage_table_deinit(t);
    return put_aside(path);
}

int usage_file_add(const char *path, const struct usage_table *own, uint32_t today,
                   struct usage_table *out, bool *damaged) {
    CLEANUP(close_fd) int fd = lock(path);
    CLEANUP(buf_deinit) struct buf text = {.max = FILE_MAX};
    struct usage_table t = {0};
    int r = fd < 0 ? fd : read_rows(path, &t, damaged);

    if (r == 0 && own->n > 0) {
        if ((r = usage_table_merge(&t, own)) == 0 && (r = usage_table_fold(&t, today)) == 0 &&
            (r = usage_table_write(&t, &text)) == 0)
            r = replace(path, &text);
    }
    if (r < 0)
        usage_table_deinit(&t);
    *out = t;
    return r;
}
