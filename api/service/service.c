/* ---- requests that have ended ---- */

#include "api/service/service.h"

#include <stdio.h>
#include <time.h>

#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/http/loop_lag.h"
#include "api/http/server.h"
#include "api/service/otlp.h"
#include "api/service/trace.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/probe.h"
#include "base/text.h"
#include "base/try.h"

#define LEFT_OUT_TURN 64u /* clients that one turn of the loop logs */

static void service_count(struct api_stats *s, const struct exchange *x) {
    s->n_requests++;
    if (x->tells_state && x->status == 503) {
        s->n_ok++;
        return;
    }
    if (x->status == 499)
        s->n_cancelled++;
    else if (x->status >= 500)
        s->n_server_errors++;
    else if (x->status >= 400)
        s->n_client_errors++;
    else
        s->n_ok++;
    s->n_rejected += x->status == 429 || x->status == 503 || x->status == 529;
}

static void log_left_out(const char *kind, const char *name, const struct log_left_out *o) {
    log_event(WLOG_WARN, "requests_not_logged", "client=\"%s%s\" suppressed=%u server_errors=%u",
              kind, name, o->n, o->n_server_errors);
}

/* Logs how many lines were left out of the log, for @most clients after the last one that was told.
 * Returns false when all have been. */
static bool log_left_out_lines(struct service *s, uint32_t most) {
    uint32_t n_tenants = s->env->tenants.n, at;
    struct log_left_out o;

    loop_items(n_tenants);
    for (; most > 0 && s->left_out_at < n_tenants; s->left_out_at++) {
        struct tenant *t = s->env->tenants.list[s->left_out_at];

        if (log_row_report(&t->log, &o)) {
            log_left_out("tenant:", t->conf.name, &o);
            most--;
        }
    }
    if (most == 0)
        return true;
    at = s->left_out_at - n_tenants;
    while (most > 0 && log_limit_report(&s->env->log_limit, &at, &o)) {
        log_left_out("", o.client, &o);
        most--;
    }
    s->left_out_at = most > 0 ? 0 : n_tenants + at;
    return most == 0;
}

static void on_log_tick(uv_timer_t *t) {
    loop_lag_mark("counts of lines that were not logged");
    if (log_left_out_lines(t->data, LEFT_OUT_TURN))
        uv_timer_start(t, on_log_tick, 1, 0);
}

static void on_history_tick(uv_timer_t *t) {
    struct service *s = t->data;

    loop_lag_mark("the history of the page");
    history_note(&s->history, s->env, clock_now(s->env->clock));
}

static void note_span(struct service *s, const struct exchange *x, int64_t now) {
    struct trace_span span;
    char why[OTLP_WHY];

    if (!s->otlp || !x->route || !x->route->generates || x->parent.unsampled)
        return;
    const char *tenant = x->tenant ? tenants_get(&s->env->tenants, x->tenant)->conf.name : "";
    trace_span_init(&span, x, tenant, now);
    otlp_add(s->otlp, &span);
    if (otlp_news(s->otlp, why))
        log_event(*why ? WLOG_WARN : WLOG_INFO, "traces", "taken=%s why=\"%s\"",
                  *why ? "no" : "yes", why);
}

/* Returns a text of a client or of the operator as a value for the log; "-" for an empty one. */
static struct printable service_value(const char *text) {
    return *text ? quoted(text) : (struct printable){"-"};
}

static void log_request(const struct gen_env *env, const struct exchange *x, enum log_level level,
                        int64_t now) {
    const char *key = x->key ? env->auth.names[x->key - 1] : "";
    bool stranger = !x->tenant && !x->key && env->auth.file;
    const char *tenant = stranger ? "" : tenants_get(&env->tenants, x->tenant)->conf.name;

    log_event(level, "request",
              "id=%s method=%s path=%s status=%d tenant=%s key=%s model=%s client=%s agent=%s "
              "stream=%d prompt=%u cached=%u output=%u finish=%s "
              "queue_ms=%lld ttft_ms=%lld total_ms=%lld prompt_per_s=%.1f output_per_s=%.1f "
              "drafted=%u accepted=%u resumed=%u retries=%u error=%s",
              x->id, x->method, x->route ? x->route->path : service_value(x->path).s, x->status,
              service_value(tenant).s, service_value(key).s, service_value(x->model).s, x->client,
              service_value(x->agent).s, x->stream, x->n_prompt, x->n_cached, x->n_output,
              text_or(x->finish, "-"), (long long)x->queue_ns / 1000000,
              (long long)x->ttft_ns / 1000000, (long long)(now - x->started_ns) / 1000000,
              x->prompt_per_s, x->output_per_s, x->n_drafted, x->n_accepted, x->n_resumed,
              x->retries, text_filled_or(x->code, "-"));
}

void service_on_ended(const struct exchange *x) {
    struct service *s = env_of(x)->service;
    int64_t now = clock_now(s->env->clock);
    bool probe = x->route && x->route->open; /* balancers ask many times a second */
    enum log_level level = x->status >= 500 ? WLOG_WARN : WLOG_INFO;

    if (x->second)
        return;
    if (probe)
        level = WLOG_DEBUG;
    if (x->route && x->route->serve == recent_serve && x->status < 400)
        level = WLOG_DEBUG; /* the live view asks every few seconds */
    if (x->route)
        PROBE5(request__end, x->id, x->status, x->n_prompt, x->n_output, now - x->started_ns);
    service_count(&s->env->stats, x);
    recent_note(&s->recent, x, now);
    note_span(s, x, now);
    if (!log_enabled(level))
        return;
    struct log_row *tenant = x->tenant ? &tenants_get(&s->env->tenants, x->tenant)->log : NULL;
    if (!log_limit_allows(&s->env->log_limit, tenant, x, now)) {
        if (!uv_is_active((uv_handle_t *)&s->log_tick) && !s->closing)
            uv_timer_start(&s->log_tick, on_log_tick, LOG_BURST_S * 1000, 0);
        return;
    }
    log_request(s->env, x, level, now);
}

/* The callback loop_lag.on_iteration: counts the iteration. */
static void on_iteration(void *ctx, uint64_t busy_ns, uint64_t cpu_ns) {
    metrics_loop(&((struct service *)ctx)->metrics, busy_ns, cpu_ns);
}

/* Logs an iteration that let everything else on the loop wait for too long; at most one line a
 * second. */
static void on_long(void *ctx, const struct loop_lag_long *it) {
    struct service *s = ctx;
    int64_t now = clock_now(s->env->clock);

    s->n_long++;
    if (s->long_told_ns && now - s->long_told_ns < 1000000000)
        return;
    log_event(WLOG_WARN, "loop_busy",
              "cpu_ms=%.1f wall_ms=%.1f longest=\"%s\" longest_ms=%.1f n=%u",
              (double)it->cpu_ns / 1e6, (double)it->busy_ns / 1e6, it->in,
              (double)it->in_cpu_ns / 1e6, s->n_long);
    s->long_told_ns = now;
    s->n_long = 0;
}

/* ---- what monitors ask ---- */

void service_stats(const struct service *s, struct api_stats *out) {
    *out = s->env->stats;
    out->n_connections = s->http->n_connections;
    out->n_rejected += s->http->n_refused;
    out->n_displaced = s->http->n_displaced;
    out->n_lost_bodies = s->http->n_lost_bodies;
    out->n_deferred = s->http->n_deferred;
    out->n_unlogged = s->env->log_limit.n_left_out;
    out->n_lost_outputs = s->http->n_lost_outputs;
    out->n_running = s->env->admit.n_running;
    out->n_queued = s->env->admit.n_queued;
    if (s->env->opts.kv_events) {
        out->n_kv_batches = s->env->opts.kv_events->n_published;
        out->n_kv_overruns = s->env->opts.kv_events->n_overruns;
        out->n_kv_replayed = s->env->opts.kv_events->n_replayed;
    }
    if (s->otlp)
        otlp_counts(s->otlp, &out->n_traces, &out->n_traces_waiting, &out->n_traces_dropped);
    s->more_stats(s->env, out);
    out->loop_lag_us = (uint32_t)MIN(loop_lag_longest_ns(&s->lag) / 1000, UINT32_MAX);
}

enum api_health service_health(const struct gen_env *env) {
    if (env->health != API_SERVING)
        return env->health;
    LIST_FOREACH_ENTRY(m, &env->models.list, const struct model, link) {
        if (m->worker_up || (model_on_demand(m) && !*m->failure))
            return API_SERVING;
    }
    if (*model_first(env)->failure)
        return API_FAILED;
    return API_REPLACING;
}

/* ---- life ---- */

int service_init(struct service *s, struct gen_env *env, struct http_server *http) {
    s->env = env;
    s->http = http;
    env->service = s;
    metrics_init(&s->metrics);
    snprintf(s->started_header, sizeof(s->started_header), "Process-Start-Time-Unix: %lld\r\n",
             (long long)time(NULL));
    TRY(log_limit_init(&env->log_limit, env->opts.log_lines));
    if (env->opts.otlp_endpoint && *env->opts.otlp_endpoint)
        return otlp_new(&s->otlp, env->opts.otlp_endpoint);
    return 0;
}

void service_start(struct service *s) {
    loop_lag_init(&s->lag, s->env->loop, on_iteration, on_long, s);
    uv_timer_init(s->env->loop, &s->log_tick);
    s->log_tick.data = s;
    uv_timer_init(s->env->loop, &s->history_tick);
    s->history_tick.data = s;
    if (s->env->opts.web_page)
        uv_timer_start(&s->history_tick, on_history_tick, 0, HISTORY_S * 1000);
    uv_unref((uv_handle_t *)&s->history_tick);
}

void service_close(struct service *s) {
    s->closing = true;
    loop_lag_close(&s->lag);
    uv_close((uv_handle_t *)&s->log_tick, NULL);
    uv_close((uv_handle_t *)&s->history_tick, NULL);
}

void service_deinit(struct service *s) {
    otlp_free(s->otlp);
    s->left_out_at = 0;
    if (s->env)
        log_left_out_lines(s, UINT32_MAX);
}
