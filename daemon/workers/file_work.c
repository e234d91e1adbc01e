#include "daemon/workers/file_work.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>

#include "api/api.h"
#include "base/thread.h"
#include "base/util.h"

/* One for the process, as its threads outlive every loop. The mutex guards it. */
static struct {
    pthread_mutex_t mutex;
    /* work may begin */
    pthread_cond_t news;
    /* file_work.link */
    struct list waiting, running;
    uint32_t n_threads;
} pool = {
    .mutex = PTHREAD_MUTEX_INITIALIZER,
    .news = PTHREAD_COND_INITIALIZER,
    .waiting = {&pool.waiting, &pool.waiting},
    .running = {&pool.running, &pool.running},
};

/* FNV-1a. Folders with one number share their threads, which costs time only. */
uint64_t file_work_folder(const char *path) {
    const char *end = strrchr(path, '/');
    uint64_t hash = 0xcbf29ce484222325;

    for (const char *c = path; end && c < end; c++)
        hash = (hash ^ (uint8_t)*c) * 0x100000001b3;
    return hash;
}

/* ---- which work may run, under the mutex ---- */

static bool may_run(const struct file_work *w) {
    uint32_t n_kind = 0, n_folder = 0;

    LIST_FOREACH_ENTRY(r, &pool.running, const struct file_work, link) {
        n_kind += r->kind == w->kind;
        n_folder += r->kind == w->kind && r->folder == w->folder;
    }
    if (w->kind != FILE_MODEL)
        return n_kind == 0;
    return n_kind < FILE_MODEL_THREADS && n_folder < FILE_FOLDER_THREADS;
}

/* Moves the oldest work that may run to the running ones and returns it, or NULL. */
static struct file_work *file_work_next(void) {
    LIST_FOREACH_ENTRY(w, &pool.waiting, struct file_work, link) {
        if (!may_run(w))
            continue;
        list_remove(&w->link);
        list_push_back(&pool.running, &w->link);
        return w;
    }
    return NULL;
}

static void *file_work_serve(void *arg) {
    prctl(PR_SET_NAME, "weft-files");
    pthread_mutex_lock(&pool.mutex);
    for (;;) {
        struct file_work *w = file_work_next();

        if (!w) {
            pthread_cond_wait(&pool.news, &pool.mutex);
            continue;
        }
        pthread_mutex_unlock(&pool.mutex);
        w->run(w);
        pthread_mutex_lock(&pool.mutex);
        list_remove(&w->link);
        uv_async_send(&w->ended);
    }
    return NULL;
}

/* ---- the owner's side ---- */

static void file_work_on_closed(uv_handle_t *h) {
    struct file_work *w = CONTAINER_OF(h, struct file_work, ended);

    w->done(w);
}

static void file_work_on_ended(uv_async_t *a) {
    api_mark_loop("work on files that has ended");
    uv_close((uv_handle_t *)a, file_work_on_closed);
}

int file_work_start(void) {
    int r = 0;

    while (pool.n_threads < FILE_THREADS && r == 0) {
        pthread_t id;

        r = thread_start(&id, NULL, file_work_serve, NULL);
        if (r < 0)
            break;
        pthread_detach(id);
        pool.n_threads++;
    }
    return r;
}

void file_work_submit(struct file_work *w, uv_loop_t *loop) {
    assert(w->run && w->done && w->kind < FILE_KINDS);
    int r = file_work_start(); /* a test may not have done so */
    assert(r == 0);
    r = uv_async_init(loop, &w->ended, file_work_on_ended);
    assert(r == 0); /* the loop has asyncs of its own since uv_loop_init() */
    pthread_mutex_lock(&pool.mutex);
    list_push_back(&pool.waiting, &w->link);
    pthread_cond_signal(&pool.news);
    pthread_mutex_unlock(&pool.mutex);
}
