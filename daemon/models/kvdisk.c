/*
 * The folder's content reveals prompts. Therefore its files must belong to the daemon and be
 * unreadable for other users. They are opened relative to the folder and never through a link;
 * files that break these rules are refused and not repaired. The lock belongs to the open file: the
 * workers inherit it, and the next daemon gets it when the last worker has ended or, in an upgrade,
 * has left the file.
 */

#include "daemon/models/kvdisk.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/files.h"
#include "base/try.h"
#include "base/util.h"

#define FILE_NAME "prefixes.kv"
#define KEY_NAME "prefixes.key"
#define NEW_KEY_NAME "prefixes.key.new"
/* tries for the lock: the worker of a killed daemon may need seconds to end */
#define LOCK_TRIES 100
#define LOCK_PAUSE_NS 50000000

/* Returns -EINVAL with @err about file @name of the folder ("": the folder itself). */
static int kvdisk_fail(struct err *err, const char *path, const char *name, const char *why) {
    return err_set(err, 0, "kv-disk", "kv-disk: %.200s/%s: %s", path, name, why);
}

/* Returns -@e and sets @err with the text of the errno, which shows whether a later try may
 * succeed. */
static int kvdisk_fail_errno(struct err *err, const char *path, const char *name, int e) {
    kvdisk_fail(err, path, name, strerror(e));
    return -e;
}

/* Rejects a file that other users could read: prompts can be inferred from it. */
static int check_private(int fd, const char *path, const char *name, struct err *err) {
    struct stat st;

    if (fstat(fd, &st) < 0)
        return kvdisk_fail_errno(err, path, name, errno);
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return kvdisk_fail(
            err, path, name,
            "must belong to this user, and no other user may have access (chmod 600)");
    return 0;
}

bool kvdisk_lock(int fd) {
    return flock(fd, LOCK_EX | LOCK_NB) == 0;
}

void kvdisk_unlock(int fd) {
    flock(fd, LOCK_UN);
}

/* Locks like kvdisk_lock(), but waits for a worker to end. Returns 0, or -EAGAIN with @err. */
static int wait_lock(int fd, const char *path, struct err *err) {
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};

    for (int i = 0; i < LOCK_TRIES; i++) {
        if (kvdisk_lock(fd))
            return 0;
        if (errno != EWOULDBLOCK && errno != EINTR)
            break;
        nanosleep(&pause, NULL);
    }
    kvdisk_fail(err, path, FILE_NAME,
                errno == EWOULDBLOCK ? "another weftd uses it; give each daemon a folder of its own"
                                     : strerror(errno));
    return -EAGAIN;
}

/* Draws the secret and gives the file its name once all of it is on the disk. Returns 0 or -errno
 * with @err. */
static int kvdisk_make_key(int dir, const char *path, struct err *err) {
    uint64_t secret[2];
    CLEANUP(files_closep)
    int fd = files_create(dir, NEW_KEY_NAME, 0600);

    if (fd < 0)
        return kvdisk_fail_errno(err, path, KEY_NAME, -fd);
    errno = 0; /* a short write sets none */
    if (getrandom(secret, sizeof(secret), 0) != sizeof(secret) ||
        write(fd, secret, sizeof(secret)) != sizeof(secret) || fsync(fd) < 0 ||
        renameat(dir, NEW_KEY_NAME, dir, KEY_NAME) < 0) {
        int e = errno ? errno : ENOSPC;

        unlinkat(dir, NEW_KEY_NAME, 0);
        return kvdisk_fail_errno(err, path, KEY_NAME, e);
    }
    return 0;
}

/* Reads the secret. Returns 0; -ENOENT: there is none yet; or another -errno with @err. */
static int kvdisk_read_key(int dir, const char *path, uint64_t secret[2], struct err *err) {
    CLEANUP(files_closep)
    int fd = openat(dir, KEY_NAME, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0) {
        if (errno == ENOENT)
            return -ENOENT;
        return kvdisk_fail_errno(err, path, KEY_NAME, errno);
    }
    TRY(check_private(fd, path, KEY_NAME, err));
    ssize_t n = read(fd, secret, 2 * sizeof(*secret));
    if (n < 0)
        return kvdisk_fail_errno(err, path, KEY_NAME, errno);
    if (n != 2 * (ssize_t)sizeof(*secret))
        return kvdisk_fail(err, path, KEY_NAME,
                           "is damaged; remove it, and weftd creates a new one");
    return 0;
}

int kvdisk_open(const char *path, bool lock, int *out, uint64_t secret[2], struct err *err) {
    assert(*path);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return kvdisk_fail_errno(err, path, "", errno);
    CLEANUP(files_closep) int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return kvdisk_fail_errno(err, path, "", errno);
    CLEANUP(files_closep)
    int fd = openat(dir, FILE_NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return kvdisk_fail_errno(err, path, FILE_NAME, errno);
    TRY(check_private(fd, path, FILE_NAME, err));
    if (lock)
        TRY(wait_lock(fd, path, err));
    int r = kvdisk_read_key(dir, path, secret, err);
    if (r == -ENOENT) {
        TRY(kvdisk_make_key(dir, path, err));
        r = kvdisk_read_key(dir, path, secret, err);
    }
    TRY(r);
    *out = fd; /* the lock belongs to the open file */
    fd = -1;
    return 0;
}

/* Makes the name of a model's file. Returns false if it is too long. */
static bool kvdisk_file(const char *name, char *out, size_t size) {
    size_t n = (size_t)snprintf(out, size, "prefixes-");

    for (; *name && n + sizeof("%XX.kv") <= size; name++) {
        bool plain = isalnum((unsigned char)*name) || strchr("._-:", *name);

        n += (size_t)snprintf(out + n, size - n, plain ? "%c" : "%%%02X", (unsigned char)*name);
    }
    snprintf(out + n, size - n, ".kv");
    return !*name;
}

int kvdisk_open_model(const char *path, const char *name, int *out, struct err *err) {
    char file[240];
    CLEANUP(files_closep) int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (dir < 0)
        return kvdisk_fail_errno(err, path, "", errno);
    if (!kvdisk_file(name, file, sizeof(file)))
        return kvdisk_fail(err, path, name, "the name is too long");
    CLEANUP(files_closep)
    int fd = openat(dir, file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return kvdisk_fail_errno(err, path, file, errno);
    TRY(check_private(fd, path, file, err));
    *out = fd;
    fd = -1;
    return 0;
}
