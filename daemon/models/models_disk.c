/*
 * models_disk - decides which daemon uses the files of the disk tier. Each file has a lock, which
 * belongs to the open file that the workers inherit. In an upgrade the old daemon's workers write
 * the missing pages and leave the files, and its front releases the locks. Only then does the next
 * daemon take over: it locks the files, its workers read them, and requests follow. A file that is
 * still locked is tried again until it is free, and so is a worker whose channel is full.
 */

#include <assert.h>
#include <fcntl.h>
#include <uv.h>

#include "base/log.h"
#include "base/printable.h"
#include "daemon/models/kvdisk.h"
#include "daemon/models/models_private.h"

#define LEAVE_MS 8000 /* more than a worker takes (worker.c); a worker that hangs keeps its lock */
#define TRY_MS 200

/* Returns the file of the disk tier of @s; -1: it has none. */
static int fd_of(const struct served *s) {
    if (!s->first)
        return s->disk_fd;
    return s->of->opts.disk_fd;
}

static void on_try(uv_timer_t *t) {
    api_mark_loop("files of the disk tier");
    models_use_disk(t->data);
}

static void try_again(struct models *m) {
    if (!m->stopping)
        uv_timer_start(&m->disk_timer, on_try, TRY_MS, 0);
}

void models_disk_init(struct models *m) {
    m->disk_waits = m->opts.beside;
    uv_timer_init(m->opts.loop, &m->disk_timer);
    uv_unref((uv_handle_t *)&m->disk_timer);
    m->disk_timer.data = m;
}

void models_open_disk(struct served *s) {
    struct models *m = s->of;
    struct err err;
    int r = 0;

    if (m->opts.disk_fd < 0 || s->first || s->disk_fd >= 0)
        return;
    if (s->old && s->old->disk_fd >= 0)
        s->disk_fd = fcntl(s->old->disk_fd, F_DUPFD_CLOEXEC, 0);
    else
        r = kvdisk_open_model(m->opts.config->kv_disk, s->name, &s->disk_fd, &err);
    if (r < 0)
        log_event(WLOG_WARN, "kv_disk", "model=%s what=%s", quoted(s->name).s,
                  quoted(err.message).s);
    workers_set_disk(s->workers, s->disk_fd);
    if (s->disk_fd < 0 || m->disk_waits)
        return;
    if (!kvdisk_lock(s->disk_fd) || !workers_use_disk(s->workers))
        try_again(m);
}

void models_use_disk(struct models *m) {
    bool all = true;

    if (m->opts.disk_fd < 0)
        return;
    m->disk_waits = false;
    m->disk_left = NULL;
    uv_timer_stop(&m->disk_timer);
    all = kvdisk_lock(m->opts.disk_fd); /* also the lock of the folder */
    for (uint32_t i = 0; i < m->n; i++) {
        int fd = fd_of(m->served[i]);

        all &= fd < 0 || (kvdisk_lock(fd) && workers_use_disk(m->served[i]->workers));
    }
    if (!all)
        try_again(m);
}

static void models_end_leaving(struct models *m) {
    void (*left)(void *) = m->disk_left;

    m->disk_left = NULL;
    uv_timer_stop(&m->disk_timer);
    if (left)
        left(m->opts.ctx);
}

void models_disk_left(void *served) {
    struct served *s = served;

    assert(fd_of(s) >= 0 && s->of->n_disk_leaving > 0);
    kvdisk_unlock(fd_of(s));
    if (--s->of->n_disk_leaving == 0)
        models_end_leaving(s->of);
}

static void on_release_limit(uv_timer_t *t) {
    api_mark_loop("files of the disk tier");
    log_event(WLOG_WARN, "kv_disk", "what=\"a worker did not release its file in time\"");
    models_end_leaving(t->data);
}

void models_release_disk(struct models *m, void (*left)(void *ctx)) {
    assert(left);
    m->disk_waits = true;
    m->disk_left = left;
    m->n_disk_leaving = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        struct served *s = m->served[i];

        if (workers_release_disk(s->workers))
            m->n_disk_leaving++;
        else if (fd_of(s) >= 0)
            kvdisk_unlock(fd_of(s));
    }
    if (m->opts.disk_fd >= 0 && !(m->n && m->served[0]->first))
        kvdisk_unlock(m->opts.disk_fd); /* no model uses it */
    if (m->n_disk_leaving == 0)
        models_end_leaving(m);
    else
        uv_timer_start(&m->disk_timer, on_release_limit, LEAVE_MS, 0);
}
