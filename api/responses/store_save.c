/*
 * Rows of responses. What differs from the database is in a queue, parents before those that
 * continue them. A job takes a part of the queue, writes it in one transaction, and reads what
 * other daemons have added. The queue is made of the responses themselves, which their tenants are
 * charged for, so it is bounded as the store is: a response that is forgotten before it was written
 * is not written. One whose row is to be deleted is kept as `dead`, without its parts.
 *
 * Two daemons may use the rows during an upgrade. Each reads what the other adds; the one that
 * leaves deletes nothing because of its own limits.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "api/http/loop_lag.h"
#include "api/responses/store_private.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/loop_bytes.h"
#include "base/printable.h"
#include "base/try.h"

#define SAVE_MS 100u           /* from a change to its transaction */
#define LOOK_MS 1000u          /* interval between looks for rows of others, and between attempts */
#define BATCH_ROWS 64u         /* rows in a transaction */
#define BATCH_BYTES (4u << 20) /* bytes of what is new in it, or of what is read at once */

static struct store *store_of(struct state_job *j) {
    return CONTAINER_OF(j, struct store, save.job);
}

int64_t save_now(const struct store *s) {
    if (s->limits.unix_s)
        return s->limits.unix_s(s->limits.ctx);
    return time(NULL);
}

int64_t save_use_date(const struct store *s) {
    return s->save.epoch_s + clock_now(s->clock) / 1000000000;
}

static struct list *row_bucket(struct store *s, int64_t number) {
    return &s->save.rows[(uint64_t)number % STORE_BUCKETS];
}

struct stored *save_find_row(struct store *s, int64_t number) {
    LIST_FOREACH_ENTRY(r, row_bucket(s, number), struct stored, by_row) {
        if (r->row == number && !r->dead && r->refs > 0)
            return r;
    }
    return NULL;
}

void save_set_row(struct stored *r, int64_t number) {
    assert(r->row == 0 && number > 0);
    r->row = number;
    list_push_back(row_bucket(r->store, number), &r->by_row);
}

/* ---- the queue ---- */

void save_mark_locked(struct stored *r) {
    struct store *s = r->store;

    if (!s->save.on || !r->wanted || r->leaves_row)
        return;
    if (r->in_batch) {
        r->again = true;
        return;
    }
    if (!list_empty(&r->dirty))
        return;
    if (list_empty(&s->save.dirty) && s->open)
        uv_async_send(&s->save.dirtied);
    list_push_back(&s->save.dirty, &r->dirty);
}

void save_want_locked(struct stored *r) {
    struct store_save *save = &r->store->save;

    if (!save->on || r->wanted)
        return;
    r->wanted = true;
    save_mark_locked(r);
    for (struct stored *p = r->parent; p && !p->wanted; p = p->parent) {
        p->wanted = true;
        list_push_front(&save->dirty, &p->dirty);
    }
}

void save_use_locked(struct stored *r) {
    int64_t now_s = save_use_date(r->store);

    for (struct stored *p = r; p; p = p->parent) {
        loop_items(1);
        p->used_s = now_s;
    }
    save_mark_locked(r);
}

void save_free_locked(struct stored *r) {
    bool has_row = r->row > 0 && r->store->save.on && !r->leaves_row;

    assert(!r->in_batch);
    if (r->parent) /* has been as young as @r only because of it */
        save_mark_locked(r->parent);
    r->parent = NULL;
    if (has_row) {
        r->dead = true;
        save_mark_locked(r);
        return;
    }
    list_remove(&r->dirty);
    list_remove(&r->by_row);
    free(r);
}

void save_pin_locked(struct stored *r) {
    struct store_save *save = &r->store->save;

    if (ARRAY_GROW(save->pins, save->n_pins, save->cap_pins, 16))
        save->pins[save->n_pins++] = r;
    else
        store_unref_locked(r);
}

static void unpin_locked(struct stored **pins, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (!pins[i]->continued) /* perhaps a row to come does */
            pins[i]->leaves_row = true;
        store_unref_locked(pins[i]);
    }
    free(pins);
}

/* Gives back the references of the look before the last one. */
static void turn_pins_locked(struct store_save *save) {
    unpin_locked(save->old_pins, save->n_old_pins);
    save->old_pins = save->pins;
    save->n_old_pins = save->n_pins;
    save->pins = NULL;
    save->n_pins = save->cap_pins = 0;
}

/* ---- the job ---- */

static enum row_listed listed_now(const struct stored *r) {
    if (r->promised)
        return ROW_PROMISED;
    if (list_empty(&r->link))
        return ROW_HIDDEN;
    return ROW_LISTED;
}

/* Takes the first part of the queue, and notes what is to be written of it. */
static void store_save_batch_locked(struct store *s) {
    struct store_save *save = &s->save;
    size_t n_bytes = 0;

    for (uint32_t n = 0; n < BATCH_ROWS && n_bytes < BATCH_BYTES; n++) {
        struct list *node = list_pop_front(&save->dirty);

        if (!node)
            return;
        struct stored *r = LIST_ENTRY(node, struct stored, dirty);
        list_push_back(&save->batch, node);
        r->in_batch = true;
        r->listed_then = listed_now(r);
        r->used_then = r->used_s;
        if (r->dead)
            continue;
        r->refs++;
        n_bytes += r->row == 0 ? stored_bytes(r) : 0;
    }
}

/* Ends the batch: on the disk, or back in the queue. */
static void end_batch_locked(struct store *s, bool written) {
    struct store_save *save = &s->save;

    while (!list_empty(&save->batch)) {
        struct stored *r = LIST_ENTRY(save->batch.prev, struct stored, dirty);
        bool again = r->again || !written;

        list_remove(&r->dirty);
        r->in_batch = r->again = false;
        if (written && r->dead) {
            list_remove(&r->by_row);
            free(r);
            continue;
        }
        if (written && r->row == 0)
            save_set_row(r, r->next_row);
        if (again) /* from the last on, so the order stays */
            list_push_front(&save->dirty, &r->dirty);
        if (!r->dead)
            store_unref_locked(r);
    }
}

/* Writes the batch; the names of tenants are read under the lock, as their array may move. */
static int write_batch(struct store *s, struct db *db) {
    char tenant[64];

    for (struct list *node = s->save.batch.next; node != &s->save.batch; node = node->next) {
        struct stored *r = LIST_ENTRY(node, struct stored, dirty);

        pthread_mutex_lock(&s->lock);
        memcpy(tenant, s->tenants[r->tenant].name, sizeof(tenant));
        pthread_mutex_unlock(&s->lock);
        TRY(rows_write(db, r, tenant, s->save.writer));
    }
    return 0;
}

static void free_found(struct store_save *save) {
    for (struct list *node; (node = list_pop_front(&save->found));)
        stored_row_free(LIST_ENTRY(node, struct stored_row, link));
}

/* The callback state_job.wants: an idle daemon does not lock the database. */
static int save_wants(struct state_job *j, struct db *db) {
    const struct store_save *save = &store_of(j)->save;
    int64_t version;

    if (!list_empty(&save->batch) || !save->cleaned || save->more)
        return 1;
    TRY(db_version(db, &version));
    return version != save->version;
}

/* The callback state_job.run. */
static int save_run(struct state_job *j, struct db *db) {
    struct store *s = store_of(j);
    struct store_save *save = &s->save;
    int64_t version;

    free_found(save);
    save->look = (struct save_look){.last = save->last};
    if (!save->cleaned) /* before new rows, whose dates are those of this process's clock */
        TRY(rows_clean(db, save_use_date(s), s->limits.ttl_s));
    TRY(write_batch(s, db));
    TRY(db_version(db, &version));
    if (version == save->version && !save->more)
        return 0;
    TRY(rows_read(db, save->writer, BATCH_BYTES, &save->look.last, &save->found, &save->look.more,
                  &save->look.n_bad));
    save->look.version = version;
    save->look.done = true;
    return 0;
}

/* The callback state_job.committed: the rows that were read count from now on. Those of a
 * transaction that failed are read again. */
static void save_committed(struct state_job *j) {
    struct store_save *save = &store_of(j)->save;

    if (!save->look.done)
        return;
    save->cleaned = true;
    save->last = save->look.last;
    save->version = save->look.version;
    save->more = save->look.more;
}

/* Returns true if the process that promised the row still generates the response. */
static bool is_under_way(const struct store *s, const struct stored_row *row) {
    return row->listed == ROW_PROMISED && (s->save.begun || s->limits.beside);
}

/* Enters what other processes have added. On the loop's thread. */
static void save_insert_found(struct store *s) {
    int64_t now_ns = clock_now(s->clock), now_s = save_use_date(s);

    for (struct list *node; (node = list_pop_front(&s->save.found));) {
        struct stored_row *row = LIST_ENTRY(node, struct stored_row, link);
        int64_t age_s = now_s - row->used_s, oldest_s = (int64_t)s->limits.ttl_s + 1;
        uint32_t tenant;

        age_s = MAX(MIN(age_s, oldest_s), 0);
        if (!is_under_way(s, row) && s->limits.named(s->limits.ctx, row->tenant, &tenant)) {
            store_watch(s, tenant);
            pthread_mutex_lock(&s->lock);
            if (tenant < s->n_tenants)
                store_insert_row(s, row, tenant, now_ns - age_s * 1000000000);
            pthread_mutex_unlock(&s->lock);
        }
        stored_row_free(row);
    }
}

/* Ends a job with the result @r. */
static void save_end_job(struct store *s, int r) {
    bool look = r == 0 && !s->save.more;

    if (r == 0)
        save_insert_found(s);
    if (r == 0 && s->save.look.n_bad > 0)
        log_event(WLOG_WARN, "responses_damaged", "path=%s responses=%u",
                  quoted(s->limits.state->opts.path).s, s->save.look.n_bad);
    s->save.look.n_bad = 0;
    s->save.begun |= look;
    pthread_mutex_lock(&s->lock);
    end_batch_locked(s, r == 0);
    if (look)
        turn_pins_locked(&s->save);
    pthread_mutex_unlock(&s->lock);
}

/* ---- when it runs ---- */

static void save_on_timer(uv_timer_t *t) {
    struct store *s = t->data;

    loop_lag_mark("responses to be written");
    assert(!s->save.running);
    pthread_mutex_lock(&s->lock);
    store_save_batch_locked(s);
    pthread_mutex_unlock(&s->lock);
    s->save.running = true;
    state_submit(s->limits.state, &s->save.job);
}

static void start_timer(struct store *s, uint32_t ms) {
    if (s->open && !s->save.running)
        uv_timer_start(&s->save.timer, save_on_timer, ms, 0);
}

/* The callback state_job.done. */
static void save_done(struct state_job *j, int r) {
    struct store *s = store_of(j);

    loop_lag_mark("responses that were written");
    s->save.running = false;
    save_end_job(s, r);
    pthread_mutex_lock(&s->lock);
    bool waits = !list_empty(&s->save.dirty) || s->save.more;
    pthread_mutex_unlock(&s->lock);
    start_timer(s, r == 0 && waits ? 0 : LOOK_MS);
}

static void on_dirtied(uv_async_t *a) {
    struct store *s = a->data;

    loop_lag_mark("responses that have changed");
    if (uv_timer_get_due_in(&s->save.timer) > SAVE_MS)
        start_timer(s, SAVE_MS);
}

/* ---- life ---- */

void save_init(struct store *s, uv_loop_t *loop) {
    struct store_save *save = &s->save;

    list_init(&save->dirty);
    list_init(&save->batch);
    list_init(&save->found);
    for (uint32_t i = 0; i < STORE_BUCKETS; i++)
        list_init(&save->rows[i]);
    if (!s->limits.state || s->limits.n == 0)
        return;
    uv_timer_init(loop, &save->timer);
    uv_async_init(loop, &save->dirtied, on_dirtied);
    save->timer.data = save->dirtied.data = s;
    save->job = (struct state_job){
        .wants = save_wants, .run = save_run, .committed = save_committed, .done = save_done};
    if (getrandom(&save->writer, sizeof(save->writer), GRND_NONBLOCK) != sizeof(save->writer))
        save->writer = uv_hrtime(); /* daemons that share the database began at different times */
    save->epoch_s = save_now(s) - clock_now(s->clock) / 1000000000;
    save->version = -1;
    save->on = true;
}

void store_load(struct store *s) {
    int r = 0;

    if (!s->save.on)
        return;
    do {
        r = state_run(s->limits.state, &s->save.job);
        save_end_job(s, r);
    } while (r == 0 && s->save.more);
    start_timer(s, LOOK_MS);
}

void save_close(struct store *s) {
    if (!s->save.on)
        return;
    uv_close((uv_handle_t *)&s->save.timer, NULL);
    uv_close((uv_handle_t *)&s->save.dirtied, NULL);
}

int store_save_end(struct store *s, uint32_t *n_lost) {
    struct store_save *save = &s->save;
    int r = 0;

    *n_lost = 0;
    if (!save->on)
        return 0;
    pthread_mutex_lock(&s->lock);
    turn_pins_locked(save);
    turn_pins_locked(save);
    store_free_locked(s); /* marks their rows */
    pthread_mutex_unlock(&s->lock);
    while (r == 0 && !list_empty(&save->dirty)) {
        pthread_mutex_lock(&s->lock);
        store_save_batch_locked(s);
        pthread_mutex_unlock(&s->lock);
        r = state_run(s->limits.state, &save->job);
        save_end_job(s, r);
    }
    for (struct list *node = save->dirty.next; node != &save->dirty; node = node->next)
        ++*n_lost;
    return r;
}

void save_deinit(struct store *s) {
    struct store_save *save = &s->save;

    if (!save->on)
        return;
    assert(!save->running && list_empty(&save->batch));
    save->on = false;
    free_found(save);
    turn_pins_locked(save);
    turn_pins_locked(save);
    free(save->old_pins);
    while (!list_empty(&save->dirty)) {
        struct stored *r = LIST_ENTRY(list_pop_front(&save->dirty), struct stored, dirty);

        if (r->dead)
            save_free_locked(r);
    }
}
