#include "api/generation/model_wait.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/audit.h"
#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/generation/models.h"
#include "api/generation/prompt.h"
#include "api/generation/rescan.h"
#include "api/http/json.h"
#include "api/http/loop_lag.h"
#include "base/json_value.h"

#define TICK_MS 1000
#define RETRY_MS 5000 /* sent to clients as Retry-After while the time of loading is unknown */
#define RETRY_MAX_MS 60000
/* Limit of the times that one job's model is looked up. One or two are enough unless models come
 * and go meanwhile. */
#define MAX_LOOKUPS 8

/* ---- on any thread ---- */

static bool is_usable(const struct model *m, bool computes) {
    return !model_on_demand(m) || (computes ? m->state == API_MODEL_READY : m->opened);
}

/* Returns the model that a request for @name gets (generation/models.h); NULL if there is none. */
static struct model *model_wait_find(const struct gen_env *env, const char *name, size_t len) {
    struct model *m;

    if (name)
        m = models_find(env, name, len);
    else
        m = model_first(env);

    /* A single model, where there is never another, accepts the names that its dialect decides.
     * Clients of Anthropic's API name its models, and get the first one. */
    bool one = env->models.list.next == env->models.list.prev &&
               (!env->opts.rescan || env->opts.any_model_name);
    if (!m && (one || strcasestr(name, "claude")))
        m = model_first(env);
    return m;
}

/* Returns true if the answer is a stream. @stream: member of the body; NULL: there is none. */
static bool asks_stream(const struct endpoint *endpoint, yyjson_val *stream) {
    if (endpoint->streams_unasked)
        return !yyjson_is_false(stream);
    return yyjson_is_true(stream);
}

int model_wait_check(struct prompt_job *job, yyjson_val *body, struct err *err) {
    yyjson_val *v = yyjson_obj_get(body, "model");
    const char *name = json_len(v) ? json_cstr(v) : NULL;
    const struct gen_env *env = job->env;

    if (!name && json_len(v))
        return json_refuse(err, "model", "must not contain a NUL character");
    free(job->wanted);
    job->wanted = name ? strndup(name, json_len(v)) : NULL;
    if (name && !job->wanted)
        return -ENOMEM;
    pthread_rwlock_rdlock((pthread_rwlock_t *)&env->models.lock);
    const struct model *m = model_wait_find(env, name, json_len(v));
    bool goes_on = m == job->model && is_usable(m, job->computes);
    pthread_rwlock_unlock((pthread_rwlock_t *)&env->models.lock);
    if (!m && !env->opts.rescan)
        return models_unknown(env, name, json_len(v), err);
    if (goes_on)
        return 0;
    job->streams = asks_stream(job->endpoint, yyjson_obj_get(body, "stream"));
    return -EBUSY;
}

/* ---- on the loop's thread ---- */

void model_wait_assign(struct prompt_job *job, struct model *m) {
    if (job->model) {
        assert(job->model->n_jobs > 0);
        job->model->n_jobs--;
    }
    job->model = m;
    if (m)
        m->n_jobs++;
}

/* Estimates when the model will be ready, from the progress of loading. */
static uint32_t model_wait_retry_ms(const struct model *m, int64_t waited_ns) {
    double left = m->progress > 0.05f ? (1.0 - (double)m->progress) / (double)m->progress : 0;
    double ms = left * (double)waited_ns / 1e6;

    return (uint32_t)MIN(MAX(ms, RETRY_MS), RETRY_MAX_MS);
}

/* Sets a 503 about the model that the job waited for, or would have to wait for. */
static int still_loading(struct prompt_job *job, int64_t waited_ns) {
    job->retry_ms = model_wait_retry_ms(job->model, waited_ns);
    return err_set_code(&job->err, 503, "model_loading", "model",
                        "The model `%.200s` is being loaded. Try again later.",
                        job->model->info->id);
}

static int cannot_load(struct prompt_job *job) {
    const struct model *m = job->model;
    int64_t ms = (clock_now(job->env->clock) - m->failed_ns) / 1000000;

    job->retry_ms = (uint32_t)MAX((int64_t)m->failure_retry_ms - ms, INT64_C(1000));
    return model_unavailable(m, "model", &job->err);
}

/* Sets a 503 about a model that an earlier look-up found and this one does not. */
static int comes_and_goes(struct prompt_job *job) {
    job->retry_ms = RETRY_MS;
    return err_set_code(&job->err, 503, "model_loading", "model",
                        "The model `%.200s` was removed or replaced while the request waited for "
                        "it. Send the request again.",
                        job->wanted ? job->wanted : job->model->info->id);
}

static void model_wait_start_tick(struct gen_env *env);

void model_wait_cancel(struct prompt_job *job) {
    if (!job->waits)
        return;
    assert(job->env->wait.n > 0);
    job->waits = false;
    list_remove(&job->waiting);
    list_remove(&job->rescan.link);
    job->env->wait.n--;
}

/* Ends the wait; @job may be gone afterwards. */
static void end_wait(struct prompt_job *job, int result) {
    assert(job->waits && !job->pooled && !job->abandoned);
    model_wait_cancel(job);
    if (job->waits_since_ns)
        job->waits_until_ns = clock_now(job->env->clock);
    job->result = result;
    job->go_on(job);
}

/* The callback api_rescan.over: looks the name up again. */
static void model_wait_on_rescanned(struct api_rescan *r) {
    end_wait(CONTAINER_OF(r, struct prompt_job, rescan), -EBUSY);
}

/* Makes the job wait until the folders of models have been read again. Returns -EBUSY, or a 404 if
 * there are no folders to read. */
static int model_wait_unknown(struct prompt_job *job) {
    job->rescan.over = model_wait_on_rescanned;
    if (!rescan_begin(job->env, &job->rescan))
        return models_unknown(job->env, job->wanted, strlen(job->wanted), &job->err);
    job->waits = true;
    list_init(&job->waiting);
    job->env->wait.n++;
    return -EBUSY;
}

int model_wait_begin(struct prompt_job *job) {
    struct gen_env *env = job->env;
    const char *name = job->wanted;
    struct model *m = model_wait_find(env, name, name ? strlen(name) : 0);
    int64_t now = clock_now(env->clock);

    assert(!job->waits);
    if (job->n_lookups++ >= MAX_LOOKUPS)
        return comes_and_goes(job);
    if (!m)
        return model_wait_unknown(job);
    if (!models_are_allowed(job->tenant, m))
        return models_hidden(name, &job->err);
    model_wait_assign(job, m);
    m->last_used_ns = now;
    if (job->computes && model_on_demand(m))
        m->port->use(m->port, job->tenant->number, tenant_weight(job->tenant));
    if (is_usable(m, job->computes))
        return 0;
    if (*m->failure && now - m->failed_ns < (int64_t)m->failure_retry_ms * 1000000)
        return cannot_load(job);
    if (m->state == API_MODEL_ABSENT || m->state == API_MODEL_FAILED)
        audit_load(job->tenant, m->info->id);
    if (env->wait.n >= env->opts.max_queued || env->opts.load_wait_ms == 0) {
        m->port->want(m->port);
        return still_loading(job, 0);
    }
    job->waits = true;
    list_init(&job->rescan.link);
    job->waits_since_ns = now;
    list_push_back(&m->waiting, &job->waiting);
    env->wait.n++;
    m->port->want(m->port);
    model_wait_start_tick(env);
    return -EBUSY;
}

/* Returns the first job in @l whose wait for @m is over, or NULL. */
static struct prompt_job *first_over(const struct model *m, struct list *l) {
    LIST_FOREACH_ENTRY(job, l, struct prompt_job, waiting) {
        if (m->state == API_MODEL_FAILED || is_usable(m, job->computes))
            return job;
    }
    return NULL;
}

void model_wait_over(struct model *m) {
    struct prompt_job *job;

    /* At most max_queued iterations. Each may free other jobs, but no job begins to wait: the model
     * is there, or has just failed. */
    while ((job = first_over(m, &m->waiting)))
        end_wait(job, m->state == API_MODEL_FAILED ? cannot_load(job) : 0);
}

void model_wait_move(struct model *old, struct model *next) {
    assert(old != next && old->env == next->env);
    while (!list_empty(&old->waiting)) {
        struct list *node = list_pop_front(&old->waiting);

        model_wait_assign(LIST_ENTRY(node, struct prompt_job, waiting), next);
        list_push_back(&next->waiting, node);
    }
}

/* Returns a job that has waited for too long, or NULL. */
static struct prompt_job *model_wait_late(struct model *m, int64_t now, int64_t limit_ns) {
    LIST_FOREACH_ENTRY(job, &m->waiting, struct prompt_job, waiting) {
        if (now - job->waits_since_ns >= limit_ns)
            return job;
    }
    return NULL;
}

/* Tells each waiting request how far the loading is. */
static void model_wait_notify(struct model *m) {
    LIST_FOREACH_ENTRY(job, &m->waiting, struct prompt_job, waiting) {
        if (job->on_wait)
            job->on_wait(job);
    }
}

static void model_wait_on_tick(uv_timer_t *t) {
    struct gen_env *env = t->data;
    int64_t limit_ns = (int64_t)env->opts.load_wait_ms * 1000000;

    loop_lag_mark("requests that wait for a model");
    LIST_FOREACH_ENTRY(m, &env->models.list, struct model, link) {
        struct prompt_job *job;

        /* At most max_queued iterations: a job that begins to wait meanwhile is not late. */
        while ((job = model_wait_late(m, clock_now(env->clock), limit_ns)))
            end_wait(job, still_loading(job, limit_ns));
        model_wait_notify(m);
    }
    if (env->wait.n == 0)
        uv_timer_stop(t);
}

static void model_wait_start_tick(struct gen_env *env) {
    if (!uv_is_active((uv_handle_t *)&env->wait.tick))
        uv_timer_start(&env->wait.tick, model_wait_on_tick, TICK_MS, TICK_MS);
}

void model_wait_init(struct gen_env *env) {
    uv_timer_init(env->loop, &env->wait.tick);
    env->wait.tick.data = env;
}

void model_wait_close(struct gen_env *env) {
    uv_close((uv_handle_t *)&env->wait.tick, NULL);
}
