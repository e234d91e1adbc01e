#include <assert.h>
#include <errno.h>
#include <string.h>
#include "base/try.h"
#include "daemon/models/models_private.h"

/* time after which a client should ask again for a model that was replaced */
#define REPLACED_RETRY_MS 1000

/* Functions with which the admin socket shows and changes models. */

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
    return m->on_demand ? m->budget : 0;
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

    if (!s->closing)
        use = api_model_use(s->model);
    int64_t used = MAX(s->used_ns, use.last_used_ns);

    *out = (struct models_info){
        .name = s->name,
        .state = names[s->state],
        .why = s->state == SERVED_FAILED ? s->why : "",
        .file = s->config.model,
        .bytes = s->bytes,
        .progress = s->progress,
        .pinned = s->config.pinned,
        .n_running = use.n_running,
        .n_waiting = use.n_waiting,
        .n_loads = s->n_loads,
        .swap = admin_swap_of(s),
        .idle_ms = used ? (now_ns(m) - used) / 1000000 : -1,
        .unload_ms = s->closing ? -1 : models_unload_ms(s),
        .info = &s->info,
        .workers = s->workers,
    };
}

int models_index(const struct models *m, const char *name, struct err *err) {
    for (uint32_t i = 0; i < m->n; i++)
        if (strcmp(m->served[i]->name, name) == 0 && !m->served[i]->old && !m->served[i]->retired)
            return (int)i;
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
    TRY(models_add(m, &c, old->name, old->file_bytes));
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
        models_leave(s);
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
        models_leave(s);
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
