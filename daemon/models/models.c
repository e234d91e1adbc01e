/*
 * The loop's thread runs all code except the reading of a file and the look at one, on threads of
 * file_work.h that touch only the front_model that they make and what they have seen. decide()
 * takes all decisions: it looks at all models, and a timer runs it soon after each change that
 * could matter, and every TICK_MS for decisions that depend on time. So calls of the api decide
 * nothing, and api_worker_failed() is never called inside one.
 *
 * A swap makes a second model under the name of the first (served.next and served.old), which
 * requests do not find until it is READY. Then it takes the place of the first, which is `retired`
 * and removed when its last request has been answered. A successor that cannot be loaded is retired
 * too.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "base/log.h"
#include "base/meant.h"
#include "base/memory.h"
#include "base/printable.h"
#include "base/try.h"
#include "daemon/models/models_find.h"
#include "daemon/models/models_presets.h"
#include "daemon/models/models_private.h"
#include "daemon/workers/expert_file.h"

#define TICK_MS 500
#define QUEUED_TICK_MS 50 /* period of decisions while a model waits for room */
#define RETRY_MIN_MS 5000
#define RETRY_MAX_MS 60000
#define PROMPTS_MS 30000 /* longest wait of a model that is replaced for prompts */
#define KEPT_MS 60000    /* time for which weights of the last daemon wait for a request */
#define KV_PART 8        /* pages of a model without kv-memory: models-memory / KV_PART */

/* Checks the invariants of struct served. */
static void models_check_served(const struct served *s) {
    assert(s->front || s->state == SERVED_ABSENT || s->state == SERVED_OPENING ||
           s->state == SERVED_FAILED);
    assert(!s->old || s->old->next == s);
    assert(!s->next || s->next->old == s);
    assert(!s->retired || (!s->old && !s->next));
    assert(!s->closing || (s->retired && !s->model));
}

/* Changes the state; no other function does. */
void models_set_state(struct served *s, enum served_state next) {
    static const uint8_t legal[] = {
        [SERVED_ABSENT] = 1 << SERVED_OPENING | 1 << SERVED_QUEUED,
        [SERVED_OPENING] = 1 << SERVED_QUEUED | 1 << SERVED_FAILED | 1 << SERVED_ABSENT,
        [SERVED_QUEUED] = 1 << SERVED_LOADING | 1 << SERVED_FAILED | 1 << SERVED_ABSENT,
        [SERVED_LOADING] = 1 << SERVED_READY | 1 << SERVED_LEAVING | 1 << SERVED_ENDING,
        [SERVED_READY] = 1 << SERVED_LEAVING | 1 << SERVED_ENDING,
        [SERVED_LEAVING] = 1 << SERVED_ENDING,
        [SERVED_ENDING] = 1 << SERVED_ABSENT | 1 << SERVED_FAILED,
        [SERVED_FAILED] = 1 << SERVED_OPENING | 1 << SERVED_QUEUED,
    };

    assert(legal[s->state] & 1 << next);
    s->state = next;
    models_check_served(s);
    if (next == SERVED_QUEUED)
        s->queued_ns = models_now_ns(s->of);
    if (next == SERVED_LEAVING)
        s->leaving_ns = models_now_ns(s->of);
}

/* ---- wanted models ---- */

/* Returns the memory that OPEN will offer the worker. */
static struct msg_open room_of(const struct served *s) {
    const struct models *m = s->of;

    return (struct msg_open){
        .kv_bytes = m->several ? m->kv_bytes : 0,
        .memory_bytes = m->several ? m->budget : m->available,
        .has_disk = m->opts.disk_fd >= 0,
    };
}

static uint64_t in_use(const struct models *m) {
    uint64_t sum = 0;

    for (uint32_t i = 0; i < m->n; i++)
        sum += has_memory(m->served[i]) ? m->served[i]->bytes : 0;
    return sum;
}

/* ---- one model ---- */

static uint32_t models_index_of(const struct served *s) {
    const struct models *m = s->of;
    uint32_t i = 0;

    while (i < m->n && m->served[i] != s)
        i++;
    assert(i < m->n);
    return i;
}

/* Describes the model, which was opened, in the api; the names of the list do not change. */
static void describe_opened(struct served *s) {
    const struct api_model listed = s->info;

    assert(s->front);
    s->info = s->front->api;
    s->info.id = listed.id;
    s->info.aliases = listed.aliases;
    s->info.tags = listed.tags;
    s->info.created_unix = listed.created_unix;
}

/* Ends the swap to @s, if it is one, without success: the old model is served on. */
static void end_swap(struct served *s, const char *why) {
    struct served *old = s->old;

    if (!old)
        return;
    assert(old->next == s && s->state != SERVED_READY);
    snprintf(old->swap, sizeof(old->swap), "failed: %.380s", why);
    s->old = old->next = NULL;
    s->retired = true;
    old->wanted = models_has_requests(old);
}

/* Marks the model as failed because of @why, a sentence without its full stop; loading may be tried
 * again after a pause. */
static void models_note_failure(struct served *s, const char *why) {
    assert(*why); /* a reason distinguishes FAILED from ABSENT */
    snprintf(s->why, sizeof(s->why), "%s", why);
    s->retry_ms = MIN(MAX(2 * s->retry_ms, RETRY_MIN_MS), RETRY_MAX_MS);
    s->wanted = false;
    log_event(WLOG_ERROR, "model_failed", "model=%s reason=%s", quoted(s->name).s,
              quoted(s->why).s);
    api_worker_failed(s->model, s->why, s->retry_ms);
    models_answer_guests(s);
}

static void models_fail(struct served *s, const char *why) {
    models_set_state(s, SERVED_FAILED);
    models_note_failure(s, why);
    end_swap(s, why);
}

/* Implements workers_opts.want. */
static void on_want(void *ctx) {
    models_want(ctx);
}

/* Implements workers_opts.use. */
static void on_use(void *ctx, uint32_t tenant, double weight) {
    struct served *s = ctx;

    model_share_use(&s->of->share, &s->users, tenant, weight, models_now_ns(s->of));
}

void models_want(struct served *s) {
    bool coming = s->state >= SERVED_QUEUED && s->state <= SERVED_READY;

    s->wanted = !coming && !s->next && !s->retired;
    s->used_ns = models_now_ns(s->of);
    models_decide_soon(s->of);
}

static void models_on_progress(void *ctx, float fraction) {
    struct served *s = ctx;

    s->progress = fraction;
    if (s->state == SERVED_LOADING && s->of->on_demand)
        api_model_set(s->model, API_MODEL_LOADING, fraction);
}

static void notify_ready(struct models *m) {
    if (m->ready_told)
        return;
    m->ready_told = true;
    m->opts.on_ready(m->opts.ctx);
}

/* Puts @s, which is ready, in the place of the model for which it was loaded. Running requests end
 * at the old model; waiting requests continue with @s. */
static void models_replace(struct served *s) {
    struct served *old = s->old;
    struct models *m = s->of;
    uint32_t at = models_index_of(old);

    assert(s->state == SERVED_READY && old->next == s);
    m->served[models_index_of(s)] = old;
    m->served[at] = s;
    s->n_loads += old->n_loads;
    s->users = old->users;
    snprintf(s->swap, sizeof(s->swap), "done");
    s->old = old->next = NULL;
    old->retired = true;
    old->wanted = false;
    api_replace_model(old->model, s->model);
    log_event(WLOG_INFO, "model_swapped", "model=%s file=%s", quoted(s->name).s,
              quoted(s->config.model).s);
    if (old->state == SERVED_READY)
        models_set_state(old, SERVED_LEAVING);
}

/* Implements workers_opts.on_ready. */
static void models_on_ready(void *ctx, const struct msg_ready *r) {
    struct served *s = ctx;
    struct models *m = s->of;

    front_model_ready(s->front, r, &s->info);
    s->bytes = r->memory_bytes;
    s->ready_ns = s->used_ns = models_now_ns(m);
    s->load_ns = s->ready_ns - s->loading_ns;
    s->retry_ms = 0;
    s->progress = 1;
    s->n_loads++;
    models_set_state(s, SERVED_READY);
    models_answer_guests(s);
    if (s->n_loads == 1)
        front_model_warn_of_context(s->front, s->config.engine.max_context);
    if (m->on_demand)
        log_event(WLOG_INFO, "model_loaded", "model=%s bytes=%llu", quoted(s->name).s,
                  (unsigned long long)s->bytes);
    if (s->old)
        models_replace(s);
    if (s->first)
        notify_ready(m);
    models_decide_soon(m);
}

/* Implements workers_opts.on_blocks. */
static void on_blocks(void *ctx, const struct msg_blocks *m) {
    const struct served *s = ctx;

    kv_events_notify(s->of->opts.kv_events, s->name, m);
}

/* Implements workers_opts.on_served: other models of the same device or processor count this. */
static void on_served(void *ctx, const struct msg_served *served, uint32_t n) {
    const struct served *s = ctx;
    const struct models *m = s->of;
    bool on_device = workers_on_device(s->workers);

    api_on_served(s->model, served, n);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->served[i] != s && workers_on_device(m->served[i]->workers) == on_device)
            workers_report_served(m->served[i]->workers, served, n);
}

/* Implements workers_opts.on_refused. At the start the end of the first model ends the daemon. */
static void models_on_refused(void *ctx, const char *why, int error) {
    struct served *s = ctx;
    struct models *m = s->of;

    if (s->first && !m->ready_told) {
        m->opts.on_refused(m->opts.ctx, why, error);
        return;
    }
    models_set_state(s, SERVED_ENDING);
    models_note_failure(s, why); /* no generation is left that waits for the worker */
    end_swap(s, why);
    workers_unload(s->workers);
}

/* Implements workers_opts.on_unloaded. */
static void on_unloaded(void *ctx) {
    struct served *s = ctx;

    if (s->of->stopping)
        return;
    models_set_state(s, *s->why ? SERVED_FAILED : SERVED_ABSENT);
    models_away(s);
    models_decide_soon(s->of);
}

static void end_worker(struct served *s) {
    *s->why = 0;
    log_event(WLOG_INFO, "model_unloaded", "model=%s", quoted(s->name).s);
    models_set_state(s, SERVED_ENDING);
    workers_unload(s->workers);
}

static int start_worker(struct served *s) {
    assert(s->front && !s->closing);
    s->wanted = false;
    *s->why = 0;
    s->progress = 0;
    s->loading_ns = models_now_ns(s->of);
    models_set_state(s, SERVED_LOADING);
    if (s->of->on_demand)
        api_model_set(s->model, API_MODEL_LOADING, 0);
    models_open_disk(s);
    return workers_start(s->workers);
}

/* ---- opening ---- */

/* Reads the files of the model into s->opened, and what was kept for it. On any thread. */
static int models_read_files(struct served *s, struct err *err) {
    s->seen = models_file_state(s->config.model);
    TRY(front_model_open(s->opened, &s->config, &s->room, err));
    s->experts_fd = expert_file_read(s->opened->print);
    return 0;
}

static void models_on_thread(struct file_work *w) {
    struct served *s = CONTAINER_OF(w, struct served, work);

    s->open_result = models_read_files(s, &s->open_err);
}

static void front_free(struct front_model *f) {
    if (f)
        front_model_deinit(f);
    free(f);
}

/* Takes over the model that a thread has read. */
static void own_front(struct served *s) {
    s->front = STEAL(s->opened);
    s->file = s->seen.id;
    if (s->seen.id)
        s->info.created_unix = s->seen.changed_unix;
    s->file_bytes = s->front->api.n_bytes;
    s->bytes = s->front->memory_bytes;
    workers_set_files(s->workers, s->front->file, s->front->draft, s->front->projector.file,
                      s->front->keep_key, s->front->print, s->experts_fd);
    s->experts_fd = -1;
    describe_opened(s);
}

static void on_opened(struct file_work *w) {
    struct served *s = CONTAINER_OF(w, struct served, work);

    api_mark_loop("a model file that was opened");
    if (s->of->stopping || s->open_result < 0) {
        front_free(s->opened);
        s->opened = NULL;
        if (s->of->stopping)
            return;
        models_fail(s, *s->open_err.message ? s->open_err.message : strerror(-s->open_result));
        return;
    }
    own_front(s);
    models_set_state(s, SERVED_QUEUED);
    api_model_opened(s->model);
    if (!s->wanted)
        models_call_off(s);
    models_decide_soon(s->of);
}

/* Lets a thread run @run for the file of @s, then the loop @done. */
static void models_work_on_file(struct served *s, void (*run)(struct file_work *w),
                                void (*done)(struct file_work *w)) {
    s->work = (struct file_work){
        .run = run, .done = done, .kind = FILE_MODEL, .folder = file_work_folder(s->config.model)};
    file_work_submit(&s->work, s->of->opts.loop);
}

static void models_open_file(struct served *s) {
    memset(&s->open_err, 0, sizeof(s->open_err));
    s->opened = calloc(1, sizeof(*s->opened));
    s->open_result = -ENOMEM;
    models_set_state(s, SERVED_OPENING);
    api_model_set(s->model, API_MODEL_LOADING, 0);
    if (s->opened)
        models_work_on_file(s, models_on_thread, on_opened);
    else
        on_opened(&s->work);
}

/* Swaps @s, whose file a thread has looked at, for the file that is now at its path, and returns
 * true, if that file is another one. Each file is tried once; if it cannot be loaded, the old one
 * is. */
static bool renew(struct served *s) {
    struct err err;

    if (s->seen.id == s->file || s->seen.id == 0)
        return false;
    s->file = s->seen.id;
    models_set_state(s, SERVED_ABSENT);
    if (models_swap(s->of, models_index_of(s), NULL, &err) < 0)
        return false;
    s->wanted = false;
    return true;
}

static void look_on_thread(struct file_work *w) {
    struct served *s = CONTAINER_OF(w, struct served, work);

    s->seen = models_file_state(s->config.model);
}

static void on_looked(struct file_work *w) {
    struct served *s = CONTAINER_OF(w, struct served, work);

    api_mark_loop("a model file that was looked at");
    if (s->of->stopping || (s->wanted && renew(s)))
        return;
    models_set_state(s, SERVED_QUEUED);
    if (!s->wanted)
        models_call_off(s);
    models_decide_soon(s->of);
}

/* Begins the load of @s, which was opened once. Its file may have been replaced since; a thread
 * looks, because the file system may not answer. */
static void models_load_again(struct served *s) {
    if (!s->found || s->old || s->next || s->retired) {
        models_set_state(s, SERVED_QUEUED);
        return;
    }
    models_set_state(s, SERVED_OPENING);
    models_work_on_file(s, look_on_thread, on_looked);
}

static struct served *served_free(struct served *s) {
    if (!s)
        return NULL;
    workers_free(s->workers);
    front_free(s->front);
    config_deinit(&s->config);
    if (s->disk_fd >= 0)
        close(s->disk_fd);
    if (s->experts_fd >= 0)
        close(s->experts_fd);
    free(s->name);
    free(s);
    return NULL;
}

/* ---- deciding ---- */

/* Returns true if no present or future request can need the model's worker. */
static bool is_done(const struct served *s) {
    struct api_model_use use = api_model_use(s->model);

    if (use.n_running > 0)
        return false;
    /* A model that is to be replaced also waits for requests whose prompts are being made, since it
     * will not be loaded again. The wait is limited, because those requests may wait for a model
     * that needs its memory. */
    return !(s->next || s->retired) || use.n_jobs == use.n_waiting ||
           models_now_ns(s->of) - s->leaving_ns >= PROMPTS_MS * INT64_C(1000000);
}

void models_drain(struct served *s) {
    models_set_state(s, SERVED_LEAVING);
    api_model_set(s->model, API_MODEL_UNLOADING, 0);
    if (is_done(s))
        end_worker(s);
}

/* Returns the bytes that will be free when the workers that are about to end have ended. */
static uint64_t about_to_end(const struct models *m) {
    uint64_t sum = 0;

    for (uint32_t i = 0; i < m->n; i++)
        if (m->served[i]->state == SERVED_LEAVING || m->served[i]->state == SERVED_ENDING)
            sum += m->served[i]->bytes;
    return sum;
}

/* Returns true if the model that @s replaces has left: both share a file of the disk tier. */
static bool models_is_alone(struct served *s) {
    struct served *old = s->old;

    if (!old || s->of->opts.disk_fd < 0)
        return true;
    if (old->state == SERVED_READY)
        models_drain(old);
    return old->state == SERVED_ABSENT || old->state == SERVED_FAILED;
}

/* Starts the worker of @s if there is room for it; else makes models leave. */
static void models_make_room(struct served *s) {
    assert(s->state == SERVED_QUEUED && s->front);
    struct models *m = s->of;
    const uint8_t *own = s->front->keep_key[0]; /* counted in s->bytes */
    uint64_t used = in_use(m), pinned = 0;
    char why[200];

    for (uint32_t i = 0; i < m->n; i++)
        if (m->served[i] != s && has_memory(m->served[i]) && !models_may_unload(m->served[i], s))
            pinned += m->served[i]->bytes;
    if (s->bytes > m->budget - MIN(pinned, m->budget)) {
        snprintf(why, sizeof(why),
                 "it needs %llu MiB, but models-memory is %llu MiB and pinned models use %llu MiB",
                 (unsigned long long)(s->bytes >> 20), (unsigned long long)(m->budget >> 20),
                 (unsigned long long)(pinned >> 20));
        models_fail(s, why);
        return;
    }
    if (!models_is_alone(s))
        return;
    if (used + kept_unclaimed(m->opts.kept, own) + s->bytes > m->budget)
        kept_drop_unclaimed(m->opts.kept, own);
    if (used + s->bytes <= m->budget) {
        int r = start_worker(s);

        if (r < 0) {
            snprintf(why, sizeof(why), "no worker can be started: %s", strerror(-r));
            models_on_refused(s, why, r);
        }
        return;
    }
    /* Ends after at most one turn for each model, since a model that leaves is not chosen again. */
    while (used - about_to_end(m) + s->bytes > m->budget) {
        struct served *victim = models_choose_victim(s);

        if (!victim)
            return; /* tried again at the next tick */
        models_drain(victim);
    }
}

int64_t models_unload_ms(const struct served *s) {
    int64_t own_s = s->config.keep_alive_s, keep_s;

    if (s->state != SERVED_READY || s->config.pinned || !s->of->on_demand)
        return -1; /* the api may have removed the model */
    keep_s = api_model_use(s->model).keep_alive_s;
    if (keep_s == API_KEEP_UNSET)
        keep_s = own_s > 0 ? own_s : -1;
    if (keep_s < 0 || !is_done(s))
        return -1;
    keep_s = MIN(keep_s, INT32_MAX);
    return MAX(keep_s * 1000 - (models_now_ns(s->of) - models_idle_since(s)) / 1000000, INT64_C(0));
}

/* Implements workers_opts.on_closed for a model that was removed. */
static void models_on_closed(void *ctx) {
    struct served *s = ctx;
    struct models *m = s->of;

    if (!s->closing)
        return;
    uint32_t i = models_index_of(s);
    memmove(&m->served[i], &m->served[i + 1], (--m->n - i) * sizeof(*m->served));
    served_free(s);
}

static void decide(struct models *m) {
    struct served *s;

    if (m->away)
        return;
    models_charge_memory(m);
    for (uint32_t i = 0; i < m->n; i++) {
        s = m->served[i];
        if ((s->state == SERVED_ABSENT || s->state == SERVED_FAILED) && s->wanted) {
            if (s->front)
                models_load_again(s);
            else
                models_open_file(s);
        }
        if (s->state == SERVED_LEAVING && is_done(s))
            end_worker(s);
        if (s->retired && (s->state == SERVED_ABSENT || s->state == SERVED_FAILED))
            models_remove_retired(s);
        if (models_unload_ms(s) == 0)
            models_drain(s);
    }
    /* Ends after at most one turn for each model: it leaves SERVED_QUEUED, or the loop ends. */
    while ((s = models_first_queued(m))) {
        models_make_room(s);
        if (s->state == SERVED_QUEUED)
            return; /* later models wait too, because they would take its room */
    }
}

static void models_on_timer(uv_timer_t *t) {
    struct models *m = t->data;

    api_mark_loop("which models are loaded");
    decide(m);
    if (models_now_ns(m) - m->started_ns > KEPT_MS * INT64_C(1000000))
        kept_drop_unclaimed(m->opts.kept, NULL);
    models_rescan_tick(m);
    uv_timer_start(t, models_on_timer, models_first_queued(m) ? QUEUED_TICK_MS : TICK_MS, 0);
}

void models_decide_soon(struct models *m) {
    if (m->on_demand && !m->stopping)
        uv_timer_start(&m->timer, models_on_timer, 0, 0);
}

/* ---- life ---- */

/* Adds a model of a preset or of the folder. Implements models_find_cb. */
static int models_add_served(void *ctx, struct config *c, const char *name, uint64_t file_bytes) {
    struct models *m = ctx;

    TRY(models_add(m, c, name, file_bytes, models_file_state(c->model)));
    m->served[m->n - 1]->found = true;
    return 0;
}

int models_add(struct models *m, struct config *c, const char *name, uint64_t file_bytes,
               struct model_file file) {
    struct served *s = calloc(1, sizeof(*s));
    struct served **all = reallocarray(m->served, m->n + 1, sizeof(*all));

    if (all)
        m->served = all;
    if (!s || !all || !(s->name = strdup(name))) {
        free(s);
        return -ENOMEM;
    }
    s->of = m;
    s->disk_fd = s->experts_fd = -1;
    s->config = *c;
    memset(c, 0, sizeof(*c)); /* its members were taken over */
    s->file = file.id;
    s->info.created_unix = file.id ? file.changed_unix : time(NULL);
    s->file_bytes = file_bytes;
    m->served[m->n++] = s;
    return 0;
}

/* Fills in the known properties of a model whose file was not opened. */
static void models_describe(struct served *s) {
    const char *slash = strrchr(s->config.model, '/');

    s->info.id = s->name;
    s->info.aliases = (const char *const *)s->config.aliases;
    s->info.tags = (const char *const *)s->config.tags;
    s->info.file = slash ? slash + 1 : s->config.model;
    s->info.n_bytes = s->file_bytes;
    s->info.keep_alive_s = s->config.keep_alive_s;
    s->bytes = s->file_bytes;
}

/* Makes the workers of @s, without starting one, and describes the model as far as that is possible
 * before its file is opened. Returns 0 or -errno with @err. */
static int models_prepare(struct served *s, struct err *err) {
    struct models *m = s->of;

    s->room = room_of(s);
    struct workers_opts o = {
        .loop = m->opts.loop,
        .config = &s->config,
        .kv_bytes = s->room.kv_bytes,
        .memory_bytes = s->room.memory_bytes,
        .disk_fd = s->first ? m->opts.disk_fd : -1,
        .disk_waits = m->disk_waits,
        .kept = m->opts.kept,
        .clock = m->opts.clock,
        .ctx = s,
        .on_ready = models_on_ready,
        .on_refused = models_on_refused,
        .want = on_want,
        .use = on_use,
        .on_progress = models_on_progress,
        .on_unloaded = on_unloaded,
        .on_disk_left = models_disk_left,
        .on_away = models_away,
        .on_answer = models_answered,
        .on_served = on_served,
        .on_blocks = m->opts.kv_events ? on_blocks : NULL,
        .on_closed = models_on_closed,
    };

    models_describe(s);
    TRY(workers_new(&s->workers, &o, err));
    if (m->on_demand)
        workers_on_demand(s->workers);
    return 0;
}

/* Removes a model that could not be made; if it has workers, when these are closed. */
static void models_drop(struct served *s) {
    s->retired = s->closing = true;
    if (s->workers)
        workers_stop(s->workers);
    else
        models_on_closed(s);
}

static int make_model(struct served *s, models_make *make, struct err *err) {
    TRY(models_prepare(s, err));
    return make(s->of->api, &s->info, workers_port(s->workers), &s->model);
}

int models_bring(struct served *s, models_make *make, struct err *err) {
    struct models *m = s->of;
    int r = make_model(s, make, err);

    assert(m->n > 0 && m->served[m->n - 1] == s);
    if (r == 0)
        workers_attach(s->workers, s->model);
    else
        models_drop(s);
    return r;
}

/* Adds the model of the option model. */
static int add_first(struct models *m) {
    CLEANUP(config_deinit) struct config c = {0};

    TRY(config_clone(&c, m->opts.config));
    TRY(models_add(m, &c, "", 0, models_file_state(c.model)));
    m->served[0]->first = true;
    return 0;
}

/* Removes the model of the folder that is the model of the option model. */
static void remove_namesake(const struct served *first) {
    struct models *m = first->of;

    for (uint32_t i = 1; i < m->n; i++) {
        struct served *s = m->served[i];

        if (strcmp(s->name, first->name) != 0)
            continue;
        memmove(&m->served[i], &m->served[i + 1], (--m->n - i) * sizeof(*m->served));
        served_free(s);
        return;
    }
}

/* Opens the model of @s, and refuses one that needs more memory than a running daemon leaves. */
static int open_beside(struct served *s, struct err *err) {
    const struct models *m = s->of;

    TRY(models_read_files(s, err));
    if (!m->opts.beside || m->opts.waits || s->opened->memory_bytes <= m->available)
        return 0;
    return err_set(err, 0, "model",
                   "%.150s: does not fit beside the running daemon: its worker needs %llu MiB, "
                   "and %llu MiB are left",
                   s->config.model, (unsigned long long)(s->opened->memory_bytes >> 20),
                   (unsigned long long)(m->available >> 20));
}

/* Opens the first model before the daemon listens on anything. */
static int open_first(struct served *s, struct err *err) {
    if (!(s->opened = calloc(1, sizeof(*s->opened))))
        return -ENOMEM;
    s->room = room_of(s);
    int r = open_beside(s, err);
    if (r < 0) {
        front_free(s->opened);
        s->opened = NULL;
        return r;
    }
    free(s->name);
    s->name = strdup(s->opened->name);
    s->file_bytes = s->opened->api.n_bytes;
    if (!s->name)
        return -ENOMEM;
    remove_namesake(s);
    return 0;
}

int models_new(struct models **out, const struct models_opts *o) {
    struct models *m = calloc(1, sizeof(*m));

    if (!m)
        return -ENOMEM;
    m->opts = *o;
    m->available = memory_available() + kept_unclaimed(o->kept, NULL);
    m->started_ns = models_now_ns(m);
    uv_timer_init(o->loop, &m->timer);
    m->timer.data = m;
    models_disk_init(m);
    list_init(&m->scan.waiting);
    list_init(&m->pulls);
    list_init(&m->changes);
    list_init(&m->guest_links);
    m->several = *o->config->models || *o->config->models_dir;
    m->on_demand = m->several || o->config->keep_alive_s > 0;
    m->budget = o->config->models_memory ? o->config->models_memory : m->available / 10 * 9;
    m->kv_bytes = m->several ? MIN(m->available / 4, m->budget / KV_PART) : m->available / 4;
    *out = m;
    return 0;
}

int models_open(struct models *m, struct err *err) {
    if (*m->opts.config->model)
        TRY(add_first(m));
    if (*m->opts.config->models)
        presets_recover(m->opts.config);
    TRY(models_find_all(m->opts.config, models_add_served, NULL, m, err));
    if (m->n == 0)
        return models_refuse_none(m->opts.config, err);
    if (m->served[0]->first)
        TRY(open_first(m->served[0], err));
    /* Allows the only model to be loaded again after it was unloaded. */
    if (!m->several && !m->opts.config->models_memory)
        m->budget = MAX(m->budget, m->served[0]->opened->memory_bytes);
    for (uint32_t i = 0; i < m->n; i++) {
        struct served *s = m->served[i];

        TRY(models_prepare(s, err));
        if (s->opened)
            own_front(s);
    }
    return 0;
}

uint64_t models_bytes_at_start(const struct models *m) {
    const struct served *s = m->served[0];

    if (!s->first || memory_for_model(m->available) == 0)
        return 0;
    return s->front->memory_bytes;
}

int models_open_api(struct models *m, const struct api_opts *o, struct api **out) {
    struct served *first = m->served[0];

    TRY(api_new(out, m->opts.loop, o, &first->info, workers_port(first->workers), m->opts.clock));
    m->api = *out;
    first->model = api_first_model(*out);
    workers_attach(first->workers, first->model);
    for (uint32_t i = 1; i < m->n; i++) {
        struct served *s = m->served[i];

        TRY(api_add_model(*out, &s->info, workers_port(s->workers), &s->model));
        workers_attach(s->workers, s->model);
    }
    return 0;
}

int models_start(struct models *m) {
    int r = 0;

    for (uint32_t i = 0; i < m->n; i++)
        m->served[i]->wanted = m->on_demand && m->served[i]->config.pinned;
    if (m->served[0]->first) {
        models_set_state(m->served[0], SERVED_QUEUED);
        r = start_worker(m->served[0]);
    } else {
        notify_ready(m);
    }
    if (!m->on_demand) /* no other model can use kept weights */
        kept_drop_unclaimed(m->opts.kept, NULL);
    models_decide_soon(m);
    models_rescan(m, NULL); /* reads the headers of the files */
    return r;
}

void models_stop(struct models *m) {
    m->stopping = true;
    kept_stop_passing(m->opts.kept);
    models_pull_stop(m);
    models_close_guests(m, NULL);
    for (uint32_t i = 0; i < m->n; i++) {
        m->served[i]->closing = false; /* models_free() frees it */
        workers_stop(m->served[i]->workers);
    }
    uv_close((uv_handle_t *)&m->timer, NULL);
    uv_close((uv_handle_t *)&m->disk_timer, NULL);
}

struct models *models_free(struct models *m) {
    if (!m)
        return NULL;
    for (uint32_t i = 0; i < m->n; i++) {
        struct served *s = m->served[i];

        if (s->model && (s->old || s->retired))
            api_remove_model(s->model); /* api_free() frees the models that it still has */
        served_free(s);
    }
    models_free_guests(m);
    models_rescan_deinit(m);
    model_share_deinit(&m->share);
    free(m->served);
    free(m);
    return NULL;
}

/* time after which a client should ask again for a model that was replaced */
#define REPLACED_RETRY_MS 1000

/* ---- functions with which the admin socket shows and changes models ---- */

uint32_t models_n(const struct models *m) {
    return m->n;
}

const char *models_bad_preset(const struct models *m, size_t i, const char **why) {
    if (i >= m->n_bad)
        return NULL;
    *why = m->bad[i].why;
    return m->bad[i].name;
}

uint64_t models_budget(const struct models *m) {
    if (m->on_demand)
        return m->budget;
    return 0;
}

/* Returns models_info.swap: the part of @s in a swap, or the result of its last one. */
static const char *admin_swap_of(const struct served *s) {
    if (s->old)
        return "next";
    if (s->retired)
        return "old";
    if (s->next)
        return "under way";
    return s->swap;
}

void models_info(const struct models *m, uint32_t i, struct models_info *out) {
    static const char *const names[] = {"unloaded", "opening", "queued", "loading",
                                        "loaded",   "leaving", "ending", "failed"};
    assert(i < m->n);
    const struct served *s = m->served[i];
    struct api_model_use use = {0};
    uint64_t memory = 0;

    if (!s->closing)
        use = api_model_use(s->model);
    if (has_memory(s))
        memory = s->bytes;
    int64_t used = MAX(s->used_ns, use.last_used_ns);

    *out = (struct models_info){
        .name = s->name,
        .state = names[s->state],
        .why = s->state == SERVED_FAILED ? s->why : "",
        .file = s->config.model,
        .bytes = s->bytes,
        .memory = memory,
        .progress = s->progress,
        .pinned = s->config.pinned,
        .n_running = use.n_running,
        .n_waiting = use.n_waiting,
        .n_loads = s->n_loads,
        .swap = admin_swap_of(s),
        .idle_ms = used ? (models_now_ns(m) - used) / 1000000 : -1,
        .unload_ms = s->closing ? -1 : models_unload_ms(s),
        .info = &s->info,
        .workers = s->workers,
    };
}

int models_index(const struct models *m, const char *name, struct err *err) {
    for (uint32_t i = 0; i < m->n; i++)
        if (strcmp(m->served[i]->name, name) == 0 && !m->served[i]->old && !m->served[i]->retired)
            return (int)i;
    struct meant near;

    meant_init(&near, name);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct served *s = m->served[i];

        if (!s->old && !s->retired)
            meant_try(&near, s->name);
        for (char *const *alias = s->config.aliases; alias && *alias; alias++)
            if (strcmp(*alias, name) == 0)
                near.name = s->name;
    }
    if (near.name)
        err_set(err, 404, NULL, "no model is named %.100s; is %.100s meant? (weftctl ps lists all)",
                name, near.name);
    else
        err_set(err, 404, NULL, "no model is named %.100s (weftctl ps lists all)", name);
    return -ENOENT;
}

/* Begins loading on demand in a daemon that had one model, always loaded. */
static void start_on_demand(struct models *m) {
    if (m->on_demand)
        return;
    m->on_demand = true;
    for (uint32_t i = 0; i < m->n; i++)
        workers_on_demand(m->served[i]->workers);
    models_decide_soon(m); /* starts the timer */
}

int models_swap(struct models *m, uint32_t i, const char *file, struct err *err) {
    CLEANUP(config_deinit) struct config c = {0};
    assert(i < m->n);
    struct served *old = m->served[i], *s;

    if (old->next ||
        (old->state != SERVED_READY && old->state != SERVED_ABSENT && old->state != SERVED_FAILED))
        return err_set(err, 409, NULL,
                       "%.100s is being loaded, unloaded or swapped; try again later", old->name);
    start_on_demand(m);
    TRY(config_clone(&c, &old->config));
    if (file)
        TRY(config_set(&c, "model", file, err));
    TRY(config_set(&c, "model-name", old->name, err));
    TRY(models_add(m, &c, old->name, old->file_bytes, (struct model_file){0}));
    s = m->served[m->n - 1];
    s->first = old->first;
    s->found = old->found && !file; /* a file that is named by its path is not in the folder */
    TRY(models_bring(s, api_new_model, err));
    assert(s != old && !s->old && !old->next);
    s->old = old;
    old->next = s;
    *old->swap = 0;
    models_want(s);
    return 0;
}

void models_remove_retired(struct served *s) {
    if (s->closing)
        return;
    if (api_model_use(s->model).n_jobs > 0) {
        api_worker_failed(s->model, "it was replaced while the request waited", REPLACED_RETRY_MS);
        return;
    }
    assert(!has_memory(s));
    models_close_guests(s->of, s);
    s->closing = true;
    api_remove_model(s->model);
    s->model = NULL;
    workers_stop(s->workers);
}

int models_load(struct models *m, uint32_t i, struct err *err) {
    assert(i < m->n);
    if (m->on_demand)
        models_want(m->served[i]);
    return 0;
}

void models_call_off(struct served *s) {
    if (models_has_requests(s))
        return;
    s->wanted = false;
    if (s->state == SERVED_LOADING)
        models_drain(s);
    if (s->state != SERVED_QUEUED)
        return;
    models_set_state(s, SERVED_ABSENT);
    api_model_set(s->model, API_MODEL_ABSENT, 0);
}

int models_unload(struct models *m, uint32_t i, struct err *err) {
    assert(i < m->n);
    struct served *s = m->served[i];

    if (s->config.pinned) {
        err_set_code(err, 400, "pinned", "model", "%.100s is pinned: it stays loaded", s->name);
        return -EBUSY;
    }
    if (s->first && !m->ready_told)
        return err_set(err, 409, NULL, "%.100s is loaded at the start; try again later", s->name);
    start_on_demand(m);
    if (s->state == SERVED_READY)
        models_drain(s);
    models_call_off(s);
    return 0;
}

int models_sleep(void *ctx, const char *id, struct err *err) {
    struct models *m = ctx;
    int i = models_index(m, id, err);

    TRY(i);
    return models_unload(m, (uint32_t)i, err);
}

const char *models_changing(const struct models *m) {
    if (!list_empty(&m->pulls))
        return "a model is being pulled";
    if (!list_empty(&m->changes))
        return "a preset is being changed";
    for (uint32_t i = 0; i < m->n; i++)
        if (m->served[i]->next || m->served[i]->old)
            return "a model is being replaced";
    return NULL;
}

const char *models_loading(const struct models *m) {
    for (uint32_t i = 0; i < m->n; i++)
        if (m->served[i]->state >= SERVED_OPENING && m->served[i]->state <= SERVED_LOADING)
            return "a model is being loaded";
    return NULL;
}

const char *models_device(const struct models *m) {
    for (uint32_t i = 0; i < m->n; i++)
        if (workers_on_device(m->served[i]->workers))
            return "cuda";
    return NULL;
}
