#include "daemon/workers/expert_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/try.h"
#include "base/util.h"

/* largest size of the file; 512 layers of 1024 experts take half of it */
#define SIZE_LIMIT (8 << 20)
#define KEEP_NS INT64_C(600000000000)

/* Makes the path of the kept file; "" if there is no folder. */
static void name_path(struct expert_file *f) {
    char state[201], print[2 * sizeof(f->print) + 1];

    *f->path = 0;
    if (!files_state_folder(state, sizeof(state)))
        return;
    hex_write(print, f->print, sizeof(f->print));
    snprintf(f->path, sizeof(f->path), "%s/experts-%s", state, print);
}

/* Copies the whole of @from, from its beginning. Returns 0 or -errno. */
static int expert_file_copy(int to, int from) {
    off_t at = 0;
    ssize_t n;

    while ((n = sendfile(to, from, &at, SIZE_LIMIT)) > 0)
        if (at > SIZE_LIMIT)
            return -EFBIG;
    return n < 0 ? -errno : 0;
}

int expert_file_open(struct expert_file *f, const struct gguf *model) {
    uint8_t print[16];

    gguf_fingerprint(model, print);
    if (f->fd > 0 && memcmp(print, f->print, sizeof(print)) == 0)
        return f->fd;
    expert_file_close(f);
    int fd = memfd_create("weft-experts", MFD_CLOEXEC);
    if (fd < 0) {
        log_event(WLOG_WARN, "experts_not_kept", "error=\"%s\"", strerror(errno));
        return -1;
    }
    f->fd = fd;
    f->n_kept = 0;
    memcpy(f->print, print, sizeof(print));
    name_path(f);
    int from =
        *f->path ? open(f->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (from >= 0) {
        expert_file_copy(fd, from); /* a short copy is ignored by the engine */
        close(from);
    }
    return fd;
}

/* Copies @f to the new file @next, which then takes its place. */
static int expert_file_replace(const struct expert_file *f, const char *next) {
    CLEANUP(files_closep) int to = files_create(AT_FDCWD, next, 0600);

    TRY(to);
    TRY(expert_file_copy(to, f->fd));
    return rename(next, f->path) < 0 ? -errno : 0;
}

/* Keeps the old file until the new one is complete. */
void expert_file_save(const struct expert_file *f) {
    char next[sizeof(f->path) + 8];

    if (f->fd <= 0 || !*f->path || lseek(f->fd, 0, SEEK_END) <= 0)
        return;
    snprintf(next, sizeof(next), "%s.new", f->path);
    int r = expert_file_replace(f, next);
    if (r < 0) {
        log_event(WLOG_WARN, "experts_not_kept", "path=%s error=\"%s\"", quoted(f->path).s,
                  strerror(-r));
        unlink(next);
    }
}

void expert_file_keep(struct expert_file *f, uint64_t n_picks, int64_t now_ns) {
    if (n_picks == f->n_kept || now_ns - f->kept_ns < KEEP_NS)
        return;
    expert_file_save(f);
    f->n_kept = n_picks;
    f->kept_ns = now_ns;
}

void expert_file_close(struct expert_file *f) {
    if (f->fd > 0)
        close(f->fd);
    f->fd = 0;
}
