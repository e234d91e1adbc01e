#include "daemon/workers/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/util.h"

#define FILES 8 /* most recordings that are kept */

/* Returns the index of the row of @id, or FAULTS_MAX. */
static uint32_t faults_find(const struct faults *f, uint64_t id) {
    for (uint32_t i = 0; i < MIN(f->n, FAULTS_MAX); i++)
        if (f->row[i].id == id)
            return i;
    return FAULTS_MAX;
}

static void note_one(struct faults *f, uint64_t id) {
    uint32_t i = faults_find(f, id);

    if (i == FAULTS_MAX) {
        i = f->n++ % FAULTS_MAX;
        f->row[i].id = id;
        f->row[i].n = 0;
    }
    f->row[i].n++;
}

/* Counts ids of steps and of compilations. No request is in both lists, since it runs only when its
 * grammar has been compiled. */
void faults_note(struct faults *f, const struct crash_page *page) {
    for (uint32_t i = 0; i < MIN(page->n, CRASH_PAGE_MAX); i++)
        note_one(f, page->ids[i]);
    for (uint32_t i = 0; i < MIN(page->n_compiling, CRASH_PAGE_COMPILING_MAX); i++)
        note_one(f, page->compiling[i]);
}

uint32_t faults_of(const struct faults *f, uint64_t id) {
    uint32_t i = faults_find(f, id);

    return i == FAULTS_MAX ? 0 : f->row[i].n;
}

void faults_write(const struct buf *record, const char *dir, uint32_t n, char *path, size_t size) {
    char state[201];

    *path = 0;
    if (!*dir && !files_state_folder(state, sizeof(state)))
        return;
    dir = *dir ? dir : state;
    snprintf(path, size, "%.200s/fault-%u.flight", dir, n % FILES);
    errno = 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && write(fd, record->data, record->len) == (ssize_t)record->len;
    if (!ok && errno == 0)
        errno = ENOSPC; /* only a part was written */
    if (!ok)
        log_event(WLOG_WARN, "fault_not_written", "path=%s error=\"%s\"", quoted(path).s,
                  strerror(errno));
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && !ok) /* removes a partial file, which cannot be replayed */
        unlink(path);
    *path = ok ? *path : 0;
}
