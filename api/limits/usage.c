/*
 * While the thread writes, `writing` belongs to it, and the loop does not change it. If writing
 * fails, the rows go back to `unsaved` and are written next time. Without memory for a row its
 * counts are lost, which is less harm than ending requests that have been answered.
 */

#include "api/limits/usage.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "api/http/loop_lag.h"
#include "api/limits/usage_import.h"
#include "api/limits/usage_rows.h"
#include "base/try.h"

int64_t usage_now(const struct usage *u) {
    if (u->opts.unix_s)
        return u->opts.unix_s(u->opts.ctx);
    return time(NULL);
}

/* The callback state_job.run. */
static int usage_on_thread(struct state_job *j, struct db *db) {
    struct usage *u = CONTAINER_OF(j, struct usage, job);
    uint32_t today = usage_day(usage_now(u));

    usage_table_deinit(&u->read); /* rows of an attempt that was not committed */
    TRY(u->to_import ? usage_import(db, u->opts.import, today, &u->imported) : 0);
    return usage_rows_add(db, &u->writing, today, &u->read);
}

/* The callback state_job.committed: what the import has added is on the disk, so its file can be
 * renamed. */
static void usage_committed(struct state_job *j) {
    const struct usage *u = CONTAINER_OF(j, struct usage, job);
    bool damaged = u->imported == -EINVAL;

    if (u->to_import && (u->imported == 0 || damaged))
        usage_import_over(u->opts.import, damaged);
}

/* Ends the import, whose file is renamed. */
static void end_import(struct usage *u) {
    if (u->imported < 0 && u->imported != -ENOENT)
        u->opts.trouble(u->opts.ctx, u->imported);
    u->to_import = false;
}

/* Takes over what the database has; after the error @r, keeps the rows that were not written. */
static void usage_merge(struct usage *u, int r) {
    if (r == 0) {
        u->unread = false;
        usage_table_deinit(&u->all);
        u->all = u->read;
        u->read = (struct usage_table){0};
        usage_table_merge(&u->all, &u->unsaved);
    } else {
        usage_table_merge(&u->unsaved, &u->writing);
    }
    usage_table_deinit(&u->read);
    usage_table_deinit(&u->writing);
    if (r == 0 && u->to_import)
        end_import(u);
}

static void usage_start_tick(struct usage *u);

/* The callback state_job.done. */
static void usage_on_written(struct state_job *j, int r) {
    struct usage *u = CONTAINER_OF(j, struct usage, job);

    loop_lag_mark("usage that was written");
    u->is_writing = false;
    usage_merge(u, r);
    if (u->unsaved.n > 0 || u->unread)
        usage_start_tick(u);
}

int usage_init(struct usage *u, const struct usage_opts *opts) {
    *u = (struct usage){.opts = *opts, .to_import = opts->state && opts->import};
    u->job = (struct state_job){
        .run = usage_on_thread, .committed = usage_committed, .done = usage_on_written};
    if (!opts->state)
        return 0;
    int r = state_run(opts->state, &u->job);
    if (r == -ENOMEM)
        return r;
    u->unread = r < 0;
    usage_merge(u, r);
    return 0;
}

void usage_start(struct usage *u) {
    uv_timer_init(u->opts.loop, &u->tick);
    u->tick.data = u;
    u->open = true;
    if (u->unread)
        usage_start_tick(u);
}

static void usage_on_tick(uv_timer_t *t) {
    struct usage *u = t->data;

    loop_lag_mark("usage to be written");
    assert(!u->is_writing && u->writing.n == 0 && u->opts.state);
    u->writing = u->unsaved;
    u->unsaved = (struct usage_table){0};
    u->is_writing = true;
    state_submit(u->opts.state, &u->job);
}

static void usage_start_tick(struct usage *u) {
    if (u->opts.state && !u->is_writing && !u->closed && !uv_is_active((uv_handle_t *)&u->tick))
        uv_timer_start(&u->tick, usage_on_tick, USAGE_WRITE_MS, 0);
}

void usage_count(struct usage *u, const char *tenant, const char *key, const char *model,
                 const struct usage_sum *sum) {
    struct usage_row row = {.date = usage_day(usage_now(u)), .sum = *sum};

    assert(u->open);
    snprintf(row.tenant, sizeof(row.tenant), "%s", tenant);
    snprintf(row.key, sizeof(row.key), "%s", key);
    snprintf(row.model, sizeof(row.model), "%s", model);
    usage_table_add(&u->all, &row);
    if (u->opts.state)
        usage_table_add(&u->unsaved, &row);
    usage_start_tick(u);
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
    int r = state_run(u->opts.state, &u->job);
    usage_merge(u, r);
    for (uint32_t i = 0; i < u->unsaved.n; i++)
        *n_lost += u->unsaved.rows[i].sum.requests;
    return r;
}

void usage_deinit(struct usage *u) {
    assert(!u->is_writing && (!u->open || u->closed));
    usage_table_deinit(&u->all);
    usage_table_deinit(&u->unsaved);
    usage_table_deinit(&u->read);
    u->open = false;
}
