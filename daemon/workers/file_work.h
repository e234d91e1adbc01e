#pragma once

/*
 * file_work - runs work on files that may hang (a mount whose server is away, a FIFO, a failing
 * disk) on threads, and reports its end on a loop.
 *
 * A thread that hangs is lost until its file answers, so kinds of work do not share threads: each
 * kind but FILE_MODEL has one, and models have FILE_MODEL_THREADS, of which those of one folder
 * take at most FILE_FOLDER_THREADS. However many models of a dead mount are asked for, those of
 * other folders are opened, and the configuration is read again. libuv's pool has no such limits:
 * four files that hang stop it.
 *
 * All threads are made at the start, so that no later request fails because a thread cannot be
 * made. They are never joined.
 */

#include <stdint.h>
#include <uv.h>

#include "base/list.h"

enum file_kind { FILE_MODEL, FILE_SETTINGS, FILE_SCAN, FILE_PRESET, FILE_RECORD, FILE_EXPERTS };

#define FILE_KINDS 6u
#define FILE_MODEL_THREADS 16u
#define FILE_FOLDER_THREADS 12u
#define FILE_THREADS (FILE_MODEL_THREADS + FILE_KINDS - 1)

/* Embedded in the owner's struct, which stays until done(). */
struct file_work {
    /* file_work.c: waiting or running */
    struct list link;
    /* called on a thread */
    void (*run)(struct file_work *w);
    /* called on the loop's thread; the owner may be freed, or submit again */
    void (*done)(struct file_work *w);
    enum file_kind kind;
    /* the folder of a model's file */
    uint64_t folder;
    uv_async_t ended;
};

/* Makes the threads, once in a process. Returns 0 or -errno. */
int file_work_start(void);
/* Queues @w, of which the owner has set run, done and kind, and for FILE_MODEL folder. The loop
 * stays alive until done(). */
void file_work_submit(struct file_work *w, uv_loop_t *loop);
/* Returns a number for the folder of @path. */
uint64_t file_work_folder(const char *path);
