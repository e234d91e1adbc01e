#include "daemon/workers/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "api/api.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/util.h"
#include "daemon/workers/file_work.h"

#define FILES 8 /* most recordings that are kept */

/* Returns the index of the row of @id, or FAULTS_MAX. */
static uint32_t faults_find(const struct faults *f, uint64_t id) {
    for (uint32_t i = 0; i < MIN(f->n, FAULTS_MAX); i++)
        if (f->row[i].id == id)
            return i;
    return FAULTS_MAX;
}

/* Returns the index of the row of @id, which is made if there is none. */
static uint32_t faults_row(struct faults *f, uint64_t id) {
    uint32_t i = faults_find(f, id);

    if (i < FAULTS_MAX)
        return i;
    i = f->n++ % FAULTS_MAX;
    f->row[i].id = id;
    f->row[i].n = f->row[i].n_doubts = 0;
    return i;
}

/* Kinds of deaths, by what they prove about a request that was present. */
enum fault_proof {
    /* counts */
    FAULT_COUNTS,
    /* counts as long as the request does not run alone */
    FAULT_NONE,
    /* beyond that, FAULTS_DOUBTS of them count as one */
    FAULT_IN_DOUBT,
};

/* Counts a death of kind @proof for request @id. */
static void note_one(struct faults *f, uint64_t id, enum fault_proof proof) {
    uint32_t i = faults_row(f, id);
    bool counts = proof == FAULT_COUNTS || f->row[i].n < FAULTS_ALONE;

    if (!counts && proof == FAULT_IN_DOUBT)
        counts = ++f->row[i].n_doubts % FAULTS_DOUBTS == 0;
    f->row[i].n += counts;
}

/* Counts ids of steps and of compilations. No request is in both lists, since it runs only when its
 * grammar has been compiled; all ids of compilations wait for one grammar. */
void faults_note(struct faults *f, const struct crash_page *page, bool is_short) {
    uint32_t n = MIN(page->n, CRASH_PAGE_MAX);
    uint32_t n_compiling = MIN(page->n_compiling, CRASH_PAGE_COMPILING_MAX);
    enum fault_proof of_step = FAULT_COUNTS, of_grammar = FAULT_COUNTS;

    if (is_short && n + n_compiling > 1) {
        of_step = of_grammar = FAULT_IN_DOUBT;
        if (n > 1)
            of_step = FAULT_NONE;
        if (n_compiling > 1)
            of_grammar = FAULT_NONE;
    }
    for (uint32_t i = 0; i < n; i++)
        note_one(f, page->ids[i], of_step);
    for (uint32_t i = 0; i < n_compiling; i++)
        note_one(f, page->compiling[i], of_grammar);
}

uint32_t faults_of(const struct faults *f, uint64_t id) {
    uint32_t i = faults_find(f, id);

    if (i == FAULTS_MAX)
        return 0;
    return f->row[i].n;
}

/* A record that a thread writes. */
struct fault_write {
    struct file_work work;
    /* faults_writing; for the loop's thread */
    struct list link;
    /* whose it is; not read, since it may be gone */
    const struct faults *payer;
    struct buf record;
    /* 0 or a number of errno */
    int error;
    char path[256];
};

/* Records that have not been written, at most one of a payer and FILES in all: a folder that hangs
 * holds no more memory than that, and one model whose workers die does not take the room of others.
 * For the loop's thread. */
static struct list faults_writing = {&faults_writing, &faults_writing}; /* fault_write.link */

/* Returns true if there is room for a record of @payer. */
static bool faults_may_write(const struct faults *payer) {
    uint32_t n = 0;

    LIST_FOREACH_ENTRY(f, &faults_writing, const struct fault_write, link) {
        if (f->payer == payer)
            return false;
        n++;
    }
    return n < FILES;
}

/* Writes the whole of @record, or leaves no file, since a part of one cannot be replayed. Workers
 * of two models may die together and have one number: the lock lets one of them write first.
 * Returns 0 or a number of errno. */
static int faults_write_file(const char *path, const struct buf *record) {
    int fd = open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return errno;
    bool ok = flock(fd, LOCK_EX) == 0 && ftruncate(fd, 0) == 0;
    if (ok) {
        errno = ENOSPC; /* if only a part is written */
        ok = write(fd, record->data, record->len) == (ssize_t)record->len;
    }
    int error = errno;
    close(fd);
    if (ok)
        return 0;
    unlink(path);
    return error;
}

static void faults_on_thread(struct file_work *work) {
    struct fault_write *f = CONTAINER_OF(work, struct fault_write, work);

    f->error = faults_write_file(f->path, &f->record);
}

static void faults_on_written(struct file_work *work) {
    struct fault_write *f = CONTAINER_OF(work, struct fault_write, work);

    api_mark_loop("a recording that was written");
    list_remove(&f->link);
    if (f->error)
        log_event(WLOG_WARN, "fault_not_written", "path=%s error=\"%s\"", quoted(f->path).s,
                  strerror(f->error));
    buf_deinit(&f->record);
    free(f);
}

void faults_write(struct faults *payer, uv_loop_t *loop, struct buf *record, const char *dir,
                  uint32_t n, char *path, size_t size) {
    bool room = faults_may_write(payer);
    char state[201];

    *path = 0;
    if (!*dir && !files_state_folder(state, sizeof(state)))
        return;
    struct fault_write *f = room ? calloc(1, sizeof(*f)) : NULL;
    if (!f) {
        payer->n_lost++;
        log_event(WLOG_WARN, "fault_not_written", "reason=\"%s\" lost=%u",
                  room ? "out of memory" : "earlier ones are still being written", payer->n_lost);
        return;
    }
    snprintf(f->path, sizeof(f->path), "%.200s/fault-%u.flight", *dir ? dir : state, n % FILES);
    snprintf(path, size, "%s", f->path);
    f->payer = payer;
    list_push_back(&faults_writing, &f->link);
    f->record = *record;
    buf_init(record, 0);
    f->work =
        (struct file_work){.run = faults_on_thread, .done = faults_on_written, .kind = FILE_RECORD};
    file_work_submit(&f->work, loop);
}
