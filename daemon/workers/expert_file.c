#include "daemon/workers/expert_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "api/api.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/result.h"
#include "base/try.h"
#include "base/util.h"
#include "daemon/workers/file_work.h"

/* largest size of the file; 512 layers of 1024 experts take half of it */
#define SIZE_LIMIT (8 << 20)
#define KEEP_NS INT64_C(600000000000)

/* Makes the path of the kept file of the model with the fingerprint @print; "" if there is no
 * folder. */
static void expert_file_path(const uint8_t print[16], char *out, size_t size) {
    char state[201], digits[2 * 16 + 1];

    *out = 0;
    if (!files_state_folder(state, sizeof(state)))
        return;
    hex_write(digits, print, 16);
    snprintf(out, size, "%s/experts-%s", state, digits);
}

/* Copies the whole of @from, from its beginning. Returns 0 or -errno. */
static int expert_file_copy(int to, int from) {
    off_t at = 0;
    ssize_t n;

    while ((n = sendfile(to, from, &at, SIZE_LIMIT)) > 0)
        if (at > SIZE_LIMIT)
            return -EFBIG;
    return errno_if_negative(n);
}

int expert_file_read(const uint8_t print[16]) {
    char path[EXPERT_FILE_PATH];
    int fd = memfd_create("weft-experts", MFD_CLOEXEC), from = -1;

    if (fd < 0) {
        log_event(WLOG_WARN, "experts_not_kept", "error=\"%s\"", strerror(errno));
        return -1;
    }
    expert_file_path(print, path, sizeof(path));
    if (*path)
        from = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW);
    if (from >= 0) {
        expert_file_copy(fd, from); /* a short copy is ignored by the engine */
        close(from);
    }
    return fd;
}

void expert_file_set(struct expert_file *f, const uint8_t print[16], int fd) {
    expert_file_close(f);
    if (fd < 0)
        return;
    f->fd = fd;
    f->n_kept = 0;
    expert_file_path(print, f->path, sizeof(f->path));
}

/* A copy that a thread writes. It outlives its expert_file. */
struct expert_save {
    struct file_work work;
    /* NULL: closed */
    struct expert_file *of;
    /* of the file in memory */
    int fd;
    int result;
    char path[EXPERT_FILE_PATH];
};

/* Copies the descriptor @from to the new file @to, named @next, which then takes the place of
 * @path. */
static int expert_file_replace(int to, int from, const char *next, const char *path) {
    TRY(expert_file_copy(to, from));
    return errno_if_negative(rename(next, path));
}

/* Keeps the old file until the new one is complete. Several models may have one file, so the name
 * of the new one has the descriptor, which no other copy has meanwhile. */
static void expert_file_on_thread(struct file_work *work) {
    struct expert_save *s = CONTAINER_OF(work, struct expert_save, work);
    char next[sizeof(s->path) + 20];

    snprintf(next, sizeof(next), "%s.%d.new", s->path, s->fd);
    CLEANUP(files_closep) int to = files_create(AT_FDCWD, next, 0600);
    s->result = to;
    if (to < 0)
        return;
    s->result = expert_file_replace(to, s->fd, next, s->path);
    if (s->result < 0)
        unlink(next);
}

static void expert_file_on_saved(struct file_work *work) {
    struct expert_save *s = CONTAINER_OF(work, struct expert_save, work);
    struct expert_file *f = s->of;

    api_mark_loop("choices of experts that were written");
    if (s->result < 0)
        log_event(WLOG_WARN, "experts_not_kept", "path=%s error=\"%s\"", quoted(s->path).s,
                  strerror(-s->result));
    close(s->fd);
    free(s);
    if (!f)
        return;
    f->saving = NULL;
    if (f->is_stale)
        expert_file_save(f);
}

void expert_file_save(struct expert_file *f) {
    f->is_stale = f->saving != NULL;
    if (f->saving || f->fd <= 0 || !*f->path || lseek(f->fd, 0, SEEK_END) <= 0)
        return;
    struct expert_save *s = calloc(1, sizeof(*s));
    int fd = s ? fcntl(f->fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (fd < 0) {
        log_event(WLOG_WARN, "experts_not_kept", "path=%s error=\"%s\"", quoted(f->path).s,
                  strerror(s ? errno : ENOMEM));
        free(s);
        return;
    }
    *s = (struct expert_save){.of = f, .fd = fd};
    memcpy(s->path, f->path, sizeof(s->path));
    f->saving = s;
    s->work = (struct file_work){
        .run = expert_file_on_thread, .done = expert_file_on_saved, .kind = FILE_EXPERTS};
    file_work_submit(&s->work, f->loop);
}

void expert_file_save_due(struct expert_file *f, uint64_t n_picks, int64_t now_ns) {
    if (n_picks == f->n_kept || now_ns - f->kept_ns < KEEP_NS)
        return;
    expert_file_save(f);
    f->n_kept = n_picks;
    f->kept_ns = now_ns;
}

void expert_file_close(struct expert_file *f) {
    if (f->saving)
        f->saving->of = NULL;
    f->saving = NULL;
    f->is_stale = false;
    if (f->fd > 0)
        close(f->fd);
    f->fd = 0;
}
