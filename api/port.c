#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "api/http/exchange.h"
#include "api/generation/gen.h"
#include "api/generation/model_wait.h"
#include "api/generation/model.h"
#include "api/private.h"

/* Entry points for daemon/: the worker's events and life cycle, and the admin socket's
 * questions. */

void api_on_event(struct model *m, const struct event *e) {
    gen_on_event(m, e);
}

void api_on_stats(struct model *m, const struct msg_stats *s) {
    m->worker = *s;
    m->has_stats = true;
}

void api_on_served(struct model *m, const struct msg_served *s, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        tenants_get(&m->api->tenants, s[i].tenant)->stats.device_ns += s[i].ns;
}

void api_worker_down(struct model *m) {
    m->worker_up = m->has_stats = false;
    m->api->stats.n_workers_lost++;
    memset(&m->worker, 0, sizeof(m->worker));
    gen_worker_down(m);
}

void api_worker_stopped(struct model *m) {
    m->worker_up = m->has_stats = false;
    memset(&m->worker, 0, sizeof(m->worker));
    m->progress = 0;
    m->keep_alive_s = API_KEEP_UNSET; /* it was asked of the one that is gone */
    if (m->state != API_MODEL_FAILED)
        m->state = API_MODEL_ABSENT;
}

void api_worker_failed(struct model *m, const char *why, uint32_t retry_ms) {
    assert(!m->worker_up && *why && retry_ms > 0);
    snprintf(m->failure, sizeof(m->failure), "%s", why);
    m->failure_retry_ms = retry_ms;
    m->failed_ns = clock_now(m->api->clock);
    m->state = API_MODEL_FAILED;
    gen_worker_failed(m);
    model_wait_over(m);
}

void api_worker_up(struct model *m, uint32_t (*n_faults)(struct api_port *p, uint64_t id)) {
    m->worker_up = true;
    *m->failure = 0;
    m->state = API_MODEL_READY;
    gen_worker_up(m, n_faults);
    model_wait_over(m);
}

struct model *api_first_model(const struct api *a) {
    return model_first(a);
}

int api_add_model(struct api *a, const struct api_model *info, struct api_port *port,
                  struct model **out) {
    struct model *m;
    int r = model_new(&m, a, info, port);

    if (r < 0)
        return r;
    pthread_rwlock_wrlock(&a->models_lock);
    list_push_back(&a->models, &m->link);
    pthread_rwlock_unlock(&a->models_lock);
    *out = m;
    return 0;
}

int api_new_model(struct api *a, const struct api_model *info, struct api_port *port,
                  struct model **out) {
    return model_new(out, a, info, port);
}

void api_replace_model(struct model *old, struct model *next) {
    struct api *a = old->api;

    assert(!list_empty(&old->link) && list_empty(&next->link));
    pthread_rwlock_wrlock(&a->models_lock);
    list_insert_before(&old->link, &next->link);
    list_remove(&old->link);
    pthread_rwlock_unlock(&a->models_lock);
    next->last_used_ns = old->last_used_ns;
    model_wait_move(old, next);
}

void api_mark_loop(const char *what) {
    loop_lag_mark(what);
}

void api_set_bad_presets(struct api *a, const char *const *names) {
    pthread_rwlock_wrlock(&a->models_lock);
    a->bad_presets = names;
    pthread_rwlock_unlock(&a->models_lock);
}

void api_withdraw_model(struct model *m) {
    struct api *a = m->api;

    pthread_rwlock_wrlock(&a->models_lock);
    list_remove(&m->link);
    pthread_rwlock_unlock(&a->models_lock);
    assert(!list_empty(&a->models) && list_empty(&m->waiting));
}

void api_remove_model(struct model *m) {
    assert(list_empty(&m->link) && m->n_jobs == 0);
    model_free(m);
}

void api_model_opened(struct model *m) {
    model_open(m);
    model_wait_over(m);
}

void api_model_set(struct model *m, enum api_model_state state, float progress) {
    assert(model_on_demand(m) && state != API_MODEL_READY && state != API_MODEL_FAILED);
    m->state = state;
    m->progress = progress;
}

struct api_model_use api_model_use(const struct model *m) {
    uint32_t n_waiting = 0;

    for (const struct list *l = m->waiting.next; l != &m->waiting; l = l->next)
        n_waiting++;
    return (struct api_model_use){m->n_running, m->n_jobs, n_waiting, m->last_used_ns,
                                  m->keep_alive_s};
}

enum api_health api_health(const struct api *a) {
    return server_health(a);
}

void api_stats(const struct api *a, struct api_stats *out) {
    *out = a->stats;
    out->n_connections = a->http.n_connections;
    out->n_rejected += a->http.n_refused;
    out->n_displaced = a->http.n_displaced;
    out->n_lost_bodies = a->http.n_lost_bodies;
    out->n_deferred = a->http.n_deferred;
    out->n_unlogged = a->log_limit.n_left_out;
    out->n_lost_outputs = a->http.n_lost_outputs;
    out->n_running = a->admit.n_running;
    out->n_queued = a->admit.n_queued;
    if (a->opts.kv_events) {
        out->n_kv_batches = a->opts.kv_events->n_published;
        out->n_kv_overruns = a->opts.kv_events->n_overruns;
        out->n_kv_replayed = a->opts.kv_events->n_replayed;
    }
    if (a->otlp)
        otlp_counts(a->otlp, &out->n_traces, &out->n_traces_waiting, &out->n_traces_dropped);
    out->loop_lag_us = (uint32_t)MIN(loop_lag_longest_ns(&a->lag) / 1000, UINT32_MAX);
}

static const char *state_of(const struct gen *g) {
    return g->state == GEN_RUNNING && g->first_step_ns ? "running" : "queued";
}

uint32_t api_requests(const struct api *a, struct api_request_info *out, uint32_t max) {
    int64_t now = clock_now(a->clock);
    uint32_t n = 0;

    for (const struct list *l = a->gens.next; l != &a->gens && n < max; l = l->next) {
        const struct gen *g = LIST_ENTRY(l, struct gen, link);
        const struct exchange *x = g->exchange ? *g->exchange : NULL;

        if (g->state == GEN_DONE || !x)
            continue;
        struct api_request_info *i = &out[n++];
        *i = (struct api_request_info){
            .id = g->m.id,
            .endpoint = x->route->path,
            .state = state_of(g),
            .session = g->m.session,
            .session_from = g->session_from,
            .n_prompt = g->n_prompt,
            .n_output = g->n_out,
            .n_cached = g->n_cached,
            .max_new = g->m.max_new,
            .age_ms = (now - g->m.arrived_ns) / 1000000,
        };
        snprintf(i->request_id, sizeof(i->request_id), "%s", x->id);
    }
    return n;
}

void port_note_request(struct api *a, const char *request_id, uint64_t id) {
    struct api_recent *r = &a->recent[a->n_recent++ % API_RECENT];

    snprintf(r->request_id, sizeof(r->request_id), "%s", request_id);
    r->id = id;
}

bool api_find(const struct api *a, const char *request_id, uint64_t *id) {
    for (uint64_t i = a->n_recent; i > 0 && i + API_RECENT > a->n_recent; i--) {
        const struct api_recent *r = &a->recent[(i - 1) % API_RECENT];

        if (strcmp(r->request_id, request_id) == 0) {
            *id = r->id;
            return true;
        }
    }
    return false;
}

uint32_t api_tenants(const struct api *a, struct api_tenant_info *out, uint32_t max) {
    uint32_t n = MIN(a->tenants.n, max);

    for (uint32_t i = 0; i < n; i++) {
        const struct tenant *t = a->tenants.list[i];

        out[i] = (struct api_tenant_info){
            .weight = t->conf.weight,
            .class = t->conf.class,
            .stats = t->stats,
        };
        snprintf(out[i].name, sizeof(out[i].name), "%s", t->conf.name);
    }
    return n;
}

bool api_cancel(struct api *a, uint64_t id) {
    struct gen *g = gen_find(a, id);

    if (!g || g->state == GEN_DONE)
        return false;
    gen_fail(g, 503, "cancelled", "The generation was cancelled by the operator.");
    return true;
}
