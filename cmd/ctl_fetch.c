#include "cmd/ctl_fetch.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/result.h"
#include "base/sha256.h"
#include "base/text.h"
#include "cmd/ctl.h"

#define PATH_BYTES 4096
#define NAME_BYTES 512
#define SUM_TAIL ".sha256"
#define LOCK_WAIT_MS 300

/* State of a download. Invariants from resume_part() on: have <= f->size, and `sum` is the checksum
 * of the first `have` bytes of the part, which is locked. */
struct loading {
    const struct fetch *f;
    /* folder of the target, relative to which all files are opened; -1: closed */
    int dir;
    /* descriptor of the locked part; -1: closed */
    int fd;
    char part[NAME_BYTES];
    uint64_t have;
    /* checksum of the bytes so far */
    struct sha256 sum;
    /* the part has become the target */
    bool loaded;
    /* reason why the sink took no more data: an errno; EPROTO: @err has the reason */
    int local;
    struct err *err;
};

bool fetch_sleep(const volatile sig_atomic_t *stop, int64_t ms) {
    for (; ms > 0 && !*stop; ms -= 100) {
        struct timespec t = {.tv_nsec = MIN(ms, (int64_t)100) * 1000000};

        nanosleep(&t, NULL);
    }
    return !*stop;
}

/* ---- names ----
 *
 * Others may write into the folder. So it is opened once, files are named in it, and neither the
 * part nor the file of the checksum is written through a link. */

/* Returns the length of "DIR/" in DIR/NAME. */
static size_t folder_len(const char *target) {
    const char *slash = strrchr(target, '/');

    if (!slash)
        return 0;
    return (size_t)(slash + 1 - target);
}

static const char *fetch_name(const char *target) {
    return target + folder_len(target);
}

/* Writes "DIR/.NAME@tail" of DIR/NAME. Returns false if the path is too long. */
static bool hidden_path(const char *target, const char *tail, char *out, size_t size) {
    int n =
        snprintf(out, size, "%.*s.%s%s", (int)folder_len(target), target, fetch_name(target), tail);

    return n > 0 && (size_t)n < size;
}

bool fetch_sum_path(const char *target, char *out, size_t size) {
    return hidden_path(target, SUM_TAIL, out, size);
}

static bool part_path(const struct fetch *f, const char *target, char *out, size_t size) {
    char tail[32];

    snprintf(tail, sizeof(tail), "-%.16s.part", text_filled_or(f->sha256, "unknown"));
    return hidden_path(target, tail, out, size);
}

/* Opens the folder of @target. Returns a descriptor or -errno. */
static int open_folder(const char *target) {
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof(path), "%.*s", (int)folder_len(target), target);

    if (n < 0 || (size_t)n >= sizeof(path))
        return -ENAMETOOLONG;
    int fd = open(n ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return fd;
}

/* ---- files on the disk ---- */

/* Returns the size of a regular file, or -1 if there is none. @flags are those of fstatat(). */
static int64_t size_of(int dir, const char *path, int flags) {
    struct stat st;

    if (fstatat(dir, path, &st, flags) != 0 || !S_ISREG(st.st_mode))
        return -1;
    return st.st_size;
}

uint64_t fetch_missing(const struct fetch *f) {
    char part[PATH_BYTES];
    int64_t have = 0;

    assert(f->size <= INT64_MAX);
    if (size_of(AT_FDCWD, f->target, 0) == (int64_t)f->size)
        return 0;
    if (*f->sha256 && part_path(f, f->target, part, sizeof(part)))
        have = size_of(AT_FDCWD, part, AT_SYMLINK_NOFOLLOW);
    return f->size - MIN((uint64_t)MAX(have, (int64_t)0), f->size);
}

/* Computes the checksum of the first @size bytes of @fd, which may take long. Returns 0, -errno or
 * -EINTR. */
static int sum_file(const struct fetch *f, int fd, uint64_t size, struct sha256 *sum) {
    static char block[1 << 20];

    sha256_init(sum);
    for (uint64_t at = 0; at < size;) {
        ssize_t n = pread(fd, block, MIN(sizeof(block), size - at), (off_t)at);

        if (*f->stop)
            return -EINTR;
        if (n <= 0) {
            if (n < 0)
                return -errno;
            return -EIO;
        }
        sha256_add(sum, block, (size_t)n);
        at += (uint64_t)n;
        progress_at(f->progress, "checking", at);
    }
    return 0;
}

/* Writes the checksum beside the target; without it the next pull reads the target again. */
static void remember_sum(const struct loading *l) {
    char name[NAME_BYTES];

    if (!*l->f->sha256 || !fetch_sum_path(fetch_name(l->f->target), name, sizeof(name)))
        return;
    unlinkat(l->dir, name, 0);
    int fd = openat(l->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    dprintf(fd, "%s\n", l->f->sha256);
    close(fd);
}

/* Reads the checksum beside the target: 64 digits, or "". */
static void read_sum(const struct loading *l, char out[65]) {
    char name[NAME_BYTES];
    int fd = fetch_sum_path(fetch_name(l->f->target), name, sizeof(name))
                 ? openat(l->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
                 : -1;
    ssize_t n = fd < 0 ? 0 : read(fd, out, 64);

    if (fd >= 0)
        close(fd);
    out[MAX(n, (ssize_t)0)] = 0;
}

/* Returns 1 if the target exists with the right content, 0 if not, or -errno. */
static int fetch_is_complete(const struct loading *l) {
    const struct fetch *f = l->f;
    const char *name = fetch_name(f->target);
    char known[65], now[65];
    struct sha256 sum;

    if (size_of(l->dir, name, 0) != (int64_t)f->size)
        return 0;
    if (!*f->sha256)
        return !f->anew || l->loaded;
    read_sum(l, known);
    if (strcmp(known, f->sha256) == 0)
        return 1;
    int fd = openat(l->dir, name, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : sum_file(f, fd, f->size, &sum);
    if (fd >= 0)
        close(fd);
    if (r < 0)
        return r;
    sha256_hex(&sum, now);
    if (strcmp(now, f->sha256) != 0)
        return 0;
    remember_sum(l);
    return 1;
}

/* ---- the part ---- */

/* Opens and locks the part, and waits for another process that has it. Returns 0; 1 if it was
 * renamed or removed meanwhile, so that the caller must open it again; or -errno. */
static int lock_part(struct loading *l) {
    struct stat ours, now;
    bool said = false;

    assert(l->fd < 0);
    l->fd = openat(l->dir, l->part, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (l->fd < 0)
        return -errno;
    if (fstat(l->fd, &ours) < 0)
        return -errno;
    if (!S_ISREG(ours.st_mode) || ours.st_nlink > 1)
        return -ELOOP; /* a file with a second name may belong to another program */
    while (flock(l->fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (!said)
            progress_print(l->f->progress, "waiting", "another process downloads %s", l->f->target);
        said = true;
        if (!fetch_sleep(l->f->stop, LOCK_WAIT_MS))
            return -EINTR;
        if (fstat(l->fd, &now) == 0)
            progress_at(l->f->progress, "waiting for another process",
                        MIN((uint64_t)now.st_size, l->f->size));
    }
    if (fstat(l->fd, &ours) < 0)
        return -errno;
    if (fstatat(l->dir, l->part, &now, AT_SYMLINK_NOFOLLOW) < 0 || now.st_ino != ours.st_ino ||
        now.st_dev != ours.st_dev)
        return 1;
    return 0;
}

static int restart(struct loading *l) {
    assert(l->fd >= 0);
    sha256_init(&l->sum);
    l->have = 0;
    return errno_if_negative(ftruncate(l->fd, 0));
}

/* Continues with the bytes that an earlier run has left in the part. */
static int resume_part(struct loading *l) {
    struct stat st;

    assert(l->fd >= 0);
    if (fstat(l->fd, &st) < 0)
        return -errno;
    if (!*l->f->sha256 || (uint64_t)st.st_size > l->f->size)
        return restart(l);
    l->have = (uint64_t)st.st_size;
    return sum_file(l->f, l->fd, l->have, &l->sum);
}

/* ---- loading ---- */

static bool fetch_refuse(struct loading *l, int why) {
    l->local = why;
    return false;
}

static bool on_begin(void *ctx, const struct hub_reply *reply) {
    struct loading *l = ctx;

    if (reply->total >= 0 && (uint64_t)reply->total != l->f->size) {
        err_set(l->err, 0, NULL, "the hub announced %llu bytes, but sends %lld",
                (unsigned long long)l->f->size, (long long)reply->total);
        return fetch_refuse(l, EPROTO);
    }
    if ((uint64_t)reply->from == l->have)
        return true;
    if (reply->from != 0) {
        err_set(l->err, 0, NULL, "byte %llu was requested, but the hub sent byte %lld",
                (unsigned long long)l->have, (long long)reply->from);
        return fetch_refuse(l, EPROTO);
    }
    int r = restart(l); /* the server does not know ranges */
    return r == 0 || fetch_refuse(l, -r);
}

static bool fetch_on_data(void *ctx, const void *data, size_t len) {
    struct loading *l = ctx;

    assert(l->fd >= 0 && l->have <= l->f->size);
    if (len > l->f->size - l->have) {
        err_set(l->err, 0, NULL, "the hub sends more than the %llu bytes that it announced",
                (unsigned long long)l->f->size);
        return fetch_refuse(l, EPROTO);
    }
    for (size_t at = 0; at < len;) {
        ssize_t n = pwrite(l->fd, (const char *)data + at, len - at, (off_t)l->have);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fetch_refuse(l, n < 0 ? errno : ENOSPC);
        sha256_add(&l->sum, (const char *)data + at, (size_t)n);
        l->have += (uint64_t)n;
        at += (size_t)n;
    }
    progress_at(l->f->progress, "", l->have);
    return true;
}

static void fetch_on_tick(void *ctx) {
    struct loading *l = ctx;

    progress_at(l->f->progress, "", l->have);
}

static int fail_local(struct loading *l, int why) {
    const struct fetch *f = l->f;

    if (why == EINTR)
        return FETCH_INTERRUPTED;
    if (why == ELOOP) {
        err_set(l->err, 0, NULL, "%.*s%s is not a regular file; remove it",
                (int)folder_len(f->target), f->target, l->part);
        return CTL_REFUSED;
    }
    if (why == ENOSPC || why == EDQUOT || why == EFBIG)
        err_set(l->err, 507, NULL,
                "%s: %s after %s of %s; what arrived is kept, and the same command continues",
                f->target, strerror(why), size_text(l->have).s, size_text(f->size).s);
    else if (why != EPROTO)
        err_set(l->err, 0, NULL, "%s: %s; --models DIR takes another folder", f->target,
                strerror(why));
    return CTL_REFUSED;
}

static int fail_refused(const struct err *err) {
    if (err->status != 401 && err->status != 403)
        return CTL_REFUSED;
    return CTL_DENIED;
}

/* Downloads the missing bytes. Returns CTL_OK when the file is complete. */
static int fetch_load(struct loading *l) {
    const struct fetch *f = l->f;
    const struct hub_sink sink = {on_begin, fetch_on_data, fetch_on_tick, l};
    struct hub_reply reply;

    for (uint32_t n = 0; l->have < f->size;) { /* n: number of successive attempts without data */
        uint64_t before = l->have;
        int r = hub_get(f->hub, f->path, l->have, &sink, &reply, l->err);

        if (r == HUB_STOPPED)
            return FETCH_INTERRUPTED;
        if (r == HUB_LOCAL) {
            if (l->local)
                return fail_local(l, l->local);
            return CTL_REFUSED;
        }
        bool no_range = r == HUB_REFUSED && reply.status == 416 && l->have > 0;
        if (no_range) { /* the file has fewer bytes than the part, or the server knows no ranges */
            int e = restart(l);
            if (e < 0)
                return fail_local(l, -e);
        } else if (r == HUB_REFUSED) {
            return fail_refused(l->err);
        }
        if (l->have == f->size)
            break;
        if (r == HUB_OK)
            err_set(l->err, 503, NULL, "the connection ended before the file was complete");
        n = l->have > before ? 1 : n + 1;
        int64_t wait_ms = hub_wait_ms(&reply, n);
        if (n >= f->n_tries || wait_ms < 0)
            return CTL_UNREACHABLE;
        progress_print(f->progress, "retrying", "%.300s; next try in %.1f s", l->err->message,
                       (double)wait_ms / 1000);
        if (!fetch_sleep(f->stop, wait_ms))
            return FETCH_INTERRUPTED;
    }
    return CTL_OK;
}

/* Checks and renames a complete part. Returns 0, -EBADMSG if it was wrong and has been removed, or
 * -errno. */
static int fetch_finish(struct loading *l) {
    const struct fetch *f = l->f;
    char hex[65];

    assert(l->have == f->size);
    sha256_hex(&l->sum, hex);
    if (*f->sha256 && strcmp(hex, f->sha256) != 0) {
        err_set(l->err, 502, NULL,
                "%s: the download has the checksum %.16s... instead of %.16s...; it was removed",
                f->target, hex, f->sha256);
        unlinkat(l->dir, l->part, 0);
        return -EBADMSG;
    }
    if (fsync(l->fd) < 0 || renameat(l->dir, l->part, l->dir, fetch_name(f->target)) < 0)
        return -errno;
    remember_sum(l);
    l->loaded = true;
    return 0;
}

/* Tries once to complete the part. Returns an exit code, or AGAIN; then @err has the reason, if one
 * is to be reported. */
enum { AGAIN = -1 };

static int fetch_try_once(struct loading *l, bool may_repeat) {
    int r = lock_part(l);

    l->err->message[0] = 0;
    if (r != 0) {
        if (r < 0)
            return fail_local(l, -r);
        return AGAIN;
    } /* the other process has finished or given up */
    r = resume_part(l);
    if (r < 0)
        return fail_local(l, -r);
    bool was_continued = l->have > 0;
    r = fetch_load(l);
    if (r != CTL_OK) {
        if (l->have == 0)
            unlinkat(l->dir, l->part, 0);
        return r;
    }
    r = fetch_finish(l);
    if (r == -EBADMSG) { /* the bytes of an earlier run may have been wrong */
        if (!was_continued || !may_repeat)
            return CTL_REFUSED;
        return AGAIN;
    }
    if (r < 0)
        return fail_local(l, -r);
    return CTL_OK;
}

/* Downloads until the target is complete. Returns an exit code. */
static int fetch_in(struct loading *l) {
    const struct fetch *f = l->f;
    bool may_repeat = true;
    int r;

    while ((r = fetch_is_complete(l)) == 0) {
        r = fetch_try_once(l, may_repeat);
        if (l->fd >= 0)
            close(l->fd);
        l->fd = -1;
        if (r != AGAIN)
            return r;
        if (l->err->message[0]) {
            progress_print(f->progress, "retrying", "%.300s; starting over", l->err->message);
            may_repeat = false;
        }
    }
    if (r < 0)
        return fail_local(l, -r);
    return CTL_OK;
}

int fetch_file(const struct fetch *f, struct err *err) {
    struct loading l = {.f = f, .dir = -1, .fd = -1, .err = err};

    assert(f->size > 0 && f->size <= INT64_MAX && f->n_tries > 0);
    if (!part_path(f, fetch_name(f->target), l.part, sizeof(l.part)))
        return fail_local(&l, ENAMETOOLONG);
    l.dir = open_folder(f->target);
    if (l.dir < 0)
        return fail_local(&l, -l.dir);
    int r = fetch_in(&l);
    close(l.dir);
    if (r != CTL_OK)
        return r;
    progress_at(f->progress, "", f->size);
    return CTL_OK;
}
