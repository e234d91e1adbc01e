#pragma once

/*
 * disk_io - the thread that reads and writes slots of the disk tier's file. It works on the jobs in
 * turn, one piece of each (store_go_on()), so that a job of a few pages does not wait for a large
 * state. Private.
 */

#include <pthread.h>

#include "base/list.h"
#include "base/mbox.h"
#include "kvpager/store.h"

#define DISK_IO_PAGES 8u /* pages of one job */

/* A job: slots to be read or written one after the other. */
struct disk_io {
    struct mbox_link mail;
    /* disk_thread.turns */
    struct list link;
    enum { IO_READ, IO_WRITE, IO_STOP } what;
    uint32_t n, n_done, page_tokens;
    /* after writing: the file is deleted */
    bool lost;
    /* error of the first piece that failed; 0: none */
    int answer;
    /* time that its pieces took; 0 with disk_thread.in_step */
    int64_t ns;
    uint32_t slot[DISK_IO_PAGES];
    void *bytes[DISK_IO_PAGES];
    struct store_head head[DISK_IO_PAGES];
    /* [n][page_tokens] tokens of pages to be written */
    const int32_t *tokens;
    /* pictures of these pages, as store_write() takes them */
    const struct kv_medium *media;
    /* I/O of slot[n_done]; NULL: it has not begun */
    struct store_io *now;
};

struct disk_thread {
    const struct store *store;
    struct mbox to, from;
    /* disk_io.link: jobs in round-robin order, the next one first */
    struct list turns;
    pthread_t thread;
    /* tests: no thread, jobs are done in disk_thread_submit() */
    bool in_step;
    bool started, used;
    /* readable when disk_thread_receive() may return a job */
    int fd;
};

/* Initialises @t; the thread runs from disk_thread_start() on. @in_step: see
 * disk_thread.in_step. */
void disk_thread_init(struct disk_thread *t, bool in_step);
int disk_thread_start(struct disk_thread *t, const struct store *store); /* 0 or -errno */
/* Finishes all jobs and ends the thread; disk_thread_receive() returns them until
 * disk_thread_deinit(). */
void disk_thread_stop(struct disk_thread *t);
void disk_thread_deinit(struct disk_thread *t);
/* Gives job @io to the thread, which owns it until disk_thread_receive() returns it. */
void disk_thread_submit(struct disk_thread *t, struct disk_io *io);
/* Returns a finished job, or NULL. */
struct disk_io *disk_thread_receive(struct disk_thread *t);
/* Clears the descriptor, before taking: jobs that finish from now on make it readable again. */
void disk_thread_clear(struct disk_thread *t);
