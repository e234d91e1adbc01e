#include "api/state/state.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/try.h"

/* Columns are documented in docs/reference/state.md. */
static const char *const tables[] = {
    "CREATE TABLE usage (day INTEGER NOT NULL, tenant TEXT NOT NULL, key TEXT NOT NULL, "
    "model TEXT NOT NULL, requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, "
    "cached_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, "
    "PRIMARY KEY (tenant, day, key, model)) WITHOUT ROWID",
    "CREATE TABLE imported (file TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE responses (number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, "
    "id TEXT NOT NULL, parent INTEGER NOT NULL, listed INTEGER NOT NULL, "
    "created INTEGER NOT NULL, used INTEGER NOT NULL, bytes INTEGER NOT NULL, "
    "writer INTEGER NOT NULL, cancelled INTEGER NOT NULL, head TEXT NOT NULL, "
    "echo TEXT NOT NULL, input TEXT NOT NULL, output_items TEXT NOT NULL, "
    "input_items TEXT NOT NULL, events TEXT NOT NULL)",
    "CREATE INDEX responses_by_id ON responses (tenant, id)",
    NULL,
};
static const struct db_schema schema = {
    .program = 0x77656674, /* "weft" */
    .version = 1,
    .create = tables,
};

/* Renames the file and its journal; the index of the journal is made again from it. */
static int rename_aside(const char *path) {
    static const char *const parts[] = {"-wal", ""};
    char from[PATH_MAX], to[PATH_MAX];

    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        snprintf(from, sizeof(from), "%s%s", path, parts[i]);
        if (snprintf(to, sizeof(to), "%s.damaged%s", path, parts[i]) >= (int)sizeof(to))
            return -ENAMETOOLONG;
        if (rename(from, to) < 0 && errno != ENOENT)
            return -errno;
    }
    snprintf(from, sizeof(from), "%s-shm", path);
    unlink(from);
    return 0;
}

static int open_checked(struct state *s) {
    int r = db_open(&s->db, s->opts.path, &schema);

    if (r == 0 && (r = db_check(s->db)) < 0)
        s->db = db_close(s->db);
    return r;
}

static int have_db(struct state *s) {
    if (s->db)
        return 0;
    int r = open_checked(s);
    if (r == -EBADMSG && !s->opened) {
        TRY(rename_aside(s->opts.path));
        pthread_mutex_lock(&s->lock);
        s->damaged = true;
        pthread_mutex_unlock(&s->lock);
        r = open_checked(s);
    }
    s->opened |= r == 0;
    return r;
}

/* Reports an error or a damaged file, unless the last attempt failed, too. On the loop's thread. */
static void state_report(struct state *s, int r) {
    pthread_mutex_lock(&s->lock);
    bool damaged = s->damaged;
    s->damaged = false;
    pthread_mutex_unlock(&s->lock);
    if ((r < 0 || damaged) && !s->troubled)
        s->opts.trouble(s->opts.ctx, r);
    s->troubled = r < 0;
}

static int run_and_commit(struct state *s, struct state_job *j) {
    int r = j->run(j, s->db);

    if (r != 0)
        return r;
    return db_commit(s->db);
}

static int transact(struct state *s, struct state_job *j) {
    TRY(have_db(s));
    int r = j->wants ? j->wants(j, s->db) : 1;
    if (r <= 0)
        return r;
    TRY(db_begin(s->db));
    r = run_and_commit(s, j);
    if (r < 0)
        db_rollback(s->db);
    else if (j->committed)
        j->committed(j);
    return r;
}

/* ---- the thread ---- */

static void *state_serve(void *ctx) {
    struct state *s = ctx;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (list_empty(&s->todo) && !s->stopping)
            pthread_cond_wait(&s->news, &s->lock);
        if (list_empty(&s->todo))
            break;
        struct state_job *j = LIST_ENTRY(list_pop_front(&s->todo), struct state_job, link);
        pthread_mutex_unlock(&s->lock);
        j->result = transact(s, j);
        pthread_mutex_lock(&s->lock);
        list_push_back(&s->ended, &j->link);
        uv_async_send(&s->async);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Returns the next job that has ended, or NULL. */
static struct state_job *next_ended(struct state *s) {
    pthread_mutex_lock(&s->lock);
    struct list *node = list_pop_front(&s->ended);
    s->n_jobs -= node != NULL;
    pthread_mutex_unlock(&s->lock);
    if (!node)
        return NULL;
    return LIST_ENTRY(node, struct state_job, link);
}

static void close_if_idle(struct state *s) {
    if (!s->closing || !s->open || s->n_jobs > 0)
        return;
    s->open = false;
    uv_close((uv_handle_t *)&s->async, NULL);
}

static void state_on_ended(uv_async_t *a) {
    struct state *s = CONTAINER_OF(a, struct state, async);
    struct state_job *j;

    while ((j = next_ended(s))) {
        state_report(s, j->result);
        j->done(j, j->result);
    }
    close_if_idle(s);
}

/* ---- life ---- */

int state_init(struct state *s, const struct state_opts *opts) {
    *s = (struct state){.opts = *opts};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->news, NULL);
    list_init(&s->todo);
    list_init(&s->ended);
    int r = pthread_create(&s->thread, NULL, state_serve, s);
    s->running = r == 0;
    if (r != 0)
        return -r;
    r = have_db(s);
    state_report(s, r);
    if (r == -ENOMEM)
        return r;
    return 0;
}

int state_start(struct state *s) {
    TRY(uv_async_init(s->opts.loop, &s->async, state_on_ended));
    s->open = true;
    return 0;
}

int state_run(struct state *s, struct state_job *j) {
    assert(s->n_jobs == 0);
    int r = transact(s, j);
    state_report(s, r);
    return r;
}

void state_submit(struct state *s, struct state_job *j) {
    assert(s->open);
    pthread_mutex_lock(&s->lock);
    s->n_jobs++;
    list_push_back(&s->todo, &j->link);
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
}

void state_close(struct state *s) {
    if (!s->open || s->closing)
        return;
    s->closing = true;
    state_on_ended(&s->async);
}

void state_deinit(struct state *s) {
    if (!s->opts.loop)
        return;
    assert(s->n_jobs == 0);
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
    if (s->running)
        pthread_join(s->thread, NULL);
    s->db = db_close(s->db);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->news);
}
