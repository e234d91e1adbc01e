#include "api/limits/usage.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <time.h>
#include "api/limits/usage_file.h"

/*
 * While the thread writes, `writing` belongs to it, and the loop does not change it. If writing
 * fails, the rows go back to `unsaved` and are written next time. Without memory for a row its
 * counts are lost, which is less harm than ending requests that have been answered.
 */

int64_t usage_now(const struct usage *u) {
    return u->opts.unix_s ? u->opts.unix_s(u->opts.ctx) : time(NULL);
}

/* Reports an error or a damaged file, unless the last attempt failed, too. */
static void tell(struct usage *u, int r) {
    bool is = r < 0 || u->damaged;

    if (is && !u->troubled)
        u->opts.trouble(u->opts.ctx, r);
    u->troubled = r < 0;
    u->damaged = false;
}

int usage_init(struct usage *u, const struct usage_opts *opts) {
    *u = (struct usage){.opts = *opts};
    u->work.data = u;
    if (!opts->path)
        return 0;
    int r = usage_file_add(opts->path, &u->unsaved, usage_day(usage_now(u)), &u->all, &u->damaged);
    if (r == -ENOMEM)
        return r;
    u->unread = r < 0;
    tell(u, r);
    return 0;
}

static void start_tick(struct usage *u);

void usage_start(struct usage *u) {
    uv_timer_init(u->opts.loop, &u->tick);
    u->tick.data = u;
    u->open = true;
    if (u->unread)
        start_tick(u);
}

static void on_thread(uv_work_t *work) {
    struct usage *u = work->data;

    u->result =
        usage_file_add(u->opts.path, &u->writing, usage_day(usage_now(u)), &u->read, &u->damaged);
}

/* Takes over what the file has; after the error @r, keeps the rows that were not written. */
static void take(struct usage *u, int r) {
    if (r == 0) {
        u->unread = false;
        usage_table_deinit(&u->all);
        u->all = u->read;
        usage_table_merge(&u->all, &u->unsaved);
    } else {
        usage_table_merge(&u->unsaved, &u->writing);
    }
    u->read = (struct usage_table){0};
    usage_table_deinit(&u->writing);
    tell(u, r);
}

static void on_written(uv_work_t *work, int status) {
    struct usage *u = work->data;

    u->is_writing = false;
    take(u, status < 0 ? status : u->result);
    if (u->unsaved.n > 0 || u->unread)
        start_tick(u);
}

static void on_tick(uv_timer_t *t) {
    struct usage *u = t->data;

    assert(!u->is_writing && u->writing.n == 0 && u->opts.path);
    u->writing = u->unsaved;
    u->unsaved = (struct usage_table){0};
    u->is_writing = uv_queue_work(u->opts.loop, &u->work, on_thread, on_written) == 0;
    if (!u->is_writing)
        take(u, -ENOMEM);
}

static void start_tick(struct usage *u) {
    if (u->opts.path && !u->is_writing && !u->closed && !uv_is_active((uv_handle_t *)&u->tick))
        uv_timer_start(&u->tick, on_tick, USAGE_WRITE_MS, 0);
}

void usage_count(struct usage *u, const char *tenant, const char *key, const char *model,
                 const struct usage_sum *sum) {
    struct usage_row row = {.date = usage_day(usage_now(u)), .sum = *sum};

    assert(u->open);
    snprintf(row.tenant, sizeof(row.tenant), "%s", tenant);
    snprintf(row.key, sizeof(row.key), "%s", key);
    snprintf(row.model, sizeof(row.model), "%s", model);
    usage_table_add(&u->all, &row);
    if (u->opts.path)
        usage_table_add(&u->unsaved, &row);
    start_tick(u);
}

void usage_close(struct usage *u) {
    if (!u->open || u->closed)
        return;
    u->closed = true;
    uv_close((uv_handle_t *)&u->tick, NULL);
}

int usage_save(struct usage *u, uint64_t *n_lost) {
    assert(!u->is_writing && (!u->open || u->closed));
    *n_lost = 0;
    if (u->unsaved.n == 0)
        return 0;
    u->writing = u->unsaved;
    u->unsaved = (struct usage_table){0};
    on_thread(&u->work);
    take(u, u->result);
    for (uint32_t i = 0; i < u->unsaved.n; i++)
        *n_lost += u->unsaved.rows[i].sum.requests;
    return u->result;
}

void usage_deinit(struct usage *u) {
    assert(!u->is_writing && (!u->open || u->closed));
    usage_table_deinit(&u->all);
    usage_table_deinit(&u->unsaved);
    u->open = false;
}
