/* Entry points for daemon/: the worker's events and life cycle, and the admin socket's
 * questions. */

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/gen.h"
#include "api/generation/model_wait.h"
#include "api/generation/waits.h"
#include "api/parts.h"
#include "base/try.h"

void api_on_event(struct model *m, const struct event *e) {
    gen_on_event(m, e);
}

void api_on_need_picture(struct model *m, const struct msg_need_picture *n) {
    struct gen_env *env = m->env;
    struct gen *g = gen_find(env, n->id);

    if (!g || g->model != m || n->index >= g->m.n_pictures || !m->port->picture ||
        (!g->seen && !g->need_picture))
        return; /* the generation has ended; the worker is told, too */
    const struct picture_ask ask = {.model = m,
                                    .tenant = tenants_get(&env->tenants, g->m.tenant),
                                    .id = n->id,
                                    .index = n->index,
                                    .shown = &g->m.pictures[n->index],
                                    .seen = g->seen ? g->seen[n->index] : NULL};
    int r = picture_sender_send(&env->sender, &ask);
    if (r < 0)
        gen_fail(g, 503, "out_of_memory", "Out of memory.");
    else if (r == 0 && !g->seen)
        g->need_picture(g, n->index);
}

void api_on_stats(struct model *m, const struct msg_stats *s) {
    m->worker = *s;
    m->has_stats = true;
}

void api_on_served(struct model *m, const struct msg_served *s, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct tenant *t = tenants_get(&m->env->tenants, s[i].tenant);
        struct tenant_stats *own = model_of_tenant(m, t->number);

        t->stats.device_ns += s[i].ns;
        if (own)
            own->device_ns += s[i].ns;
    }
}

void api_worker_down(struct model *m) {
    m->worker_up = m->has_stats = false;
    m->env->stats.n_workers_lost++;
    memset(&m->worker, 0, sizeof(m->worker));
    gen_worker_down(m);
}

void api_worker_stopped(struct model *m) {
    m->worker_up = m->has_stats = false;
    memset(&m->worker, 0, sizeof(m->worker));
    m->progress = 0;
    m->keep_alive_s = API_KEEP_UNSET; /* keep_alive was asked of the model that is gone */
    if (m->state != API_MODEL_FAILED)
        m->state = API_MODEL_ABSENT;
}

void api_worker_failed(struct model *m, const char *why, uint32_t retry_ms) {
    assert(!m->worker_up && *why && retry_ms > 0);
    snprintf(m->failure, sizeof(m->failure), "%s", why);
    m->failure_retry_ms = retry_ms;
    m->failed_ns = clock_now(m->env->clock);
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

void api_worker_room(struct model *m) {
    gen_room(m);
}

struct model *api_first_model(const struct api *a) {
    return model_first(&a->env);
}

int api_add_model(struct api *a, const struct api_model *info, struct api_port *port,
                  struct model **out) {
    struct model *m;
    TRY(model_new(&m, &a->env, info, port));
    pthread_rwlock_wrlock(&a->env.models.lock);
    list_push_back(&a->env.models.list, &m->link);
    pthread_rwlock_unlock(&a->env.models.lock);
    *out = m;
    return 0;
}

int api_new_model(struct api *a, const struct api_model *info, struct api_port *port,
                  struct model **out) {
    return model_new(out, &a->env, info, port);
}

void api_replace_model(struct model *old, struct model *next) {
    struct gen_env *env = old->env;

    assert(!list_empty(&old->link) && list_empty(&next->link));
    pthread_rwlock_wrlock(&env->models.lock);
    list_insert_before(&old->link, &next->link);
    list_remove(&old->link);
    pthread_rwlock_unlock(&env->models.lock);
    next->last_used_ns = old->last_used_ns;
    model_wait_move(old, next);
}

bool api_marks_pictures(const struct projector *p, const struct tokenizer *t) {
    struct sight s;

    return sight_init(&s, p, t);
}

void api_mark_loop(const char *what) {
    loop_lag_mark(what);
}

void api_set_bad_presets(struct api *a, const char *const *names) {
    pthread_rwlock_wrlock(&a->env.models.lock);
    a->env.models.bad_presets = names;
    pthread_rwlock_unlock(&a->env.models.lock);
}

void api_withdraw_model(struct model *m) {
    struct gen_env *env = m->env;

    pthread_rwlock_wrlock(&env->models.lock);
    list_remove(&m->link);
    pthread_rwlock_unlock(&env->models.lock);
    assert(!list_empty(&env->models.list) && list_empty(&m->waiting));
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

    LIST_FOREACH(node, &m->waiting)
    n_waiting++;
    return (struct api_model_use){m->n_running, m->n_jobs, n_waiting, m->last_used_ns,
                                  m->keep_alive_s};
}

enum api_health api_health(const struct api *a) {
    return service_health(&a->env);
}

void api_stats(const struct api *a, struct api_stats *out) {
    service_stats(&a->service, out);
}

static const char *port_state(const struct gen *g) {
    if (g->state == GEN_RUNNING && g->first_step_ns)
        return "running";
    return "queued";
}

uint32_t api_requests(const struct api *a, struct api_request_info *out, uint32_t max) {
    int64_t now = clock_now(a->env.clock);
    uint32_t n = 0;

    LIST_FOREACH_ENTRY(g, &a->env.gens.list, const struct gen, link) {
        const struct exchange *x = g->exchange ? *g->exchange : NULL;

        if (n == max)
            break;
        if (g->state == GEN_DONE || !x)
            continue;
        struct api_request_info *i = &out[n++];
        struct gen_wait w;

        gen_waits(g, &w);
        *i = (struct api_request_info){
            .id = g->m.id,
            .endpoint = x->route->path,
            .state = port_state(g),
            .session = g->m.session,
            .session_from = g->session_from,
            .n_prompt = g->n_prompt,
            .n_output = g->n_out,
            .n_cached = g->n_cached,
            .n_done = w.n_done,
            .waits_for = w.name,
            .expect_ms = w.expect_ms,
            .max_new = g->m.max_new,
            .age_ms = (now - g->m.arrived_ns) / 1000000,
        };
        snprintf(i->request_id, sizeof(i->request_id), "%s", x->id);
    }
    return n;
}

static void ended_info(const struct api *a, const struct recent_request *q, int64_t now,
                       struct api_ended_info *out) {
    *out = (struct api_ended_info){
        .endpoint = q->path,
        .finish = q->finish,
        .status = q->status,
        .n_prompt = q->n_prompt,
        .n_cached = q->n_cached,
        .n_output = q->n_output,
        .ago_ms = (now - q->ended_ns) / 1000000,
        .queue_ms = q->queue_ns / 1000000,
        .ttft_ms = q->ttft_ns / 1000000,
        .total_ms = q->total_ns / 1000000,
    };
    snprintf(out->request_id, sizeof(out->request_id), "%s", q->id);
    snprintf(out->tenant, sizeof(out->tenant), "%s",
             tenants_get(&a->env.tenants, q->tenant)->conf.name);
}

int api_ended(const struct api *a, const struct api_ended_filter *f, struct api_ended_info *out,
              uint32_t max) {
    CLEANUP(freep) const struct recent_request **list = calloc(max, sizeof(*list));
    struct recent_filter by;
    int64_t now = clock_now(a->env.clock);

    if (!list)
        return -ENOMEM;
    TRY(recent_filter_of(&a->env, f, &by));
    uint32_t n = recent_find(&a->service.recent, &by, now, list, max);
    for (uint32_t i = 0; i < n; i++)
        ended_info(a, list[i], now, &out[i]);
    return (int)n;
}

int api_find(const struct api *a, const char *request_id, uint64_t *id) {
    return gen_ids_find(&a->env.ids, request_id, id);
}

uint32_t api_story(const struct api *a, uint64_t id, const struct flight_record *r, uint32_t n,
                   struct flight_record *out, int64_t *begin_ns) {
    return gen_ids_story(&a->env.ids, id, r, n, out, n + API_STORY_MORE, begin_ns);
}

const char *api_left_out(const struct api *a, uint64_t id) {
    return gen_ids_left_out(&a->env.ids, id);
}

uint32_t api_tenants(const struct api *a, struct api_tenant_info *out, uint32_t max) {
    uint32_t n = MIN(a->env.tenants.n, max);

    for (uint32_t i = 0; i < n; i++) {
        const struct tenant *t = a->env.tenants.list[i];

        out[i] = (struct api_tenant_info){
            .weight = t->conf.weight,
            .class = t->conf.class,
            .stats = t->stats,
        };
        snprintf(out[i].name, sizeof(out[i].name), "%s", t->conf.name);
    }
    return n;
}

bool api_wait_text(const struct api *a, uint64_t id, char *out, size_t size) {
    const struct gen *g = gen_find(&a->env, id);
    struct gen_wait w;

    if (!g || g->state == GEN_DONE || g->n_out > 0)
        return false;
    gen_waits(g, &w);
    gen_wait_text(g, &w, out, size);
    return true;
}

int api_usage(const struct api *a, struct buf *out) {
    return service_put_usage(&a->env, out);
}

bool api_cancel(struct api *a, uint64_t id) {
    struct gen *g = gen_find(&a->env, id);

    if (!g || g->state == GEN_DONE)
        return false;
    gen_fail(g, 503, "cancelled", "The generation was cancelled by the operator.");
    return true;
}
