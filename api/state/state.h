#pragma once

/*
 * state - the database of the daemon's state: usage, stored responses, conversations. The truth is
 * in memory; a thread of its own writes what has changed, so the loop never waits for the disk.
 *
 * Several daemons may have the database open, for example during an upgrade: each writes its own
 * changes, in transactions. A file that is damaged at the start is renamed to PATH.damaged, and a
 * new one begins. A database that cannot be opened is tried again with every job.
 */

#include <pthread.h>
#include <uv.h>

#include "api/state/db.h"
#include "base/list.h"

/* A transaction, embedded in the object that it concerns. Until done() is called it belongs to the
 * thread. */
struct state_job {
    struct list link;
    /* NULL, or tells before a transaction whether there must be one: run() is not called if the
     * answer is 0. Returns 1, 0 or -errno. */
    int (*wants)(struct state_job *j, struct db *db);
    /* Reads and writes in a transaction; an error undoes all of it. */
    int (*run)(struct state_job *j, struct db *db);
    /* NULL, or called where run() was, once everything is on the disk. */
    void (*committed)(struct state_job *j);
    /* Called on the loop after the end: @r is 0 when everything is on the disk, else -errno. May
     * put the job again. */
    void (*done)(struct state_job *j, int r);
    int result;
};

struct state_opts {
    uv_loop_t *loop;
    const char *path;
    /* Reports, once for each problem, that the database cannot be used (@r < 0), or that it was
     * damaged and is renamed. Called on the loop's thread. */
    void (*trouble)(void *ctx, int r);
    void *ctx;
};

/* Invariants: under `lock`, todo and ended are lists of jobs, and n_jobs counts the jobs in them
 * and with the thread; db belongs to the thread while it runs. */
struct state {
    struct state_opts opts;
    struct db *db;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct list todo, ended;
    uint32_t n_jobs;
    uv_async_t async;
    /* the thread was made */
    bool running;
    /* the thread ends */
    bool stopping;
    bool open, closing;
    /* set once it was open: later damage is for the next start */
    bool opened;
    /* was put aside, to be reported */
    bool damaged;
    /* reported, and no success since */
    bool troubled;
};

/* Makes the thread and opens the database, which may fail: then it is tried again later. Returns 0
 * or -errno. */
int state_init(struct state *s, const struct state_opts *opts);
int state_start(struct state *s); /* opens the handle on the loop. Returns 0 or -errno */
/* Runs @j at once in this thread, while no job is with the state's own, and returns its result;
 * done() is not called. */
int state_run(struct state *s, struct state_job *j);
/* Runs @j on the thread. On the loop, between state_start() and state_close(). */
void state_submit(struct state *s, struct state_job *j);
/* Closes the handle when the jobs that were put have ended; state_run() may follow. */
void state_close(struct state *s);
void state_deinit(struct state *s); /* when the loop has run out; accepts a zeroed one */
