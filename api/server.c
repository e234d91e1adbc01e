#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <sys/random.h>
#include "api/generation/gen.h"
#include "api/generation/model_wait.h"
#include "api/generation/model.h"
#include "api/private.h"
#include "api/routes.h"
#include "api/service/service.h"
#include "api/service/trace.h"
#include "base/log.h"
#include "base/probe.h"

/*
 * The composition root: makes the parts and connects them. The life of the whole: api_new, listen,
 * serve, api_drain (no new connections, answers are complete and then close), api_close (everything
 * ends with an error that says so), and when the loop has run out, api_free. Idle connections
 * outlive api_drain(): closing them at once races with requests that are under way on them, so each
 * is told `Connection: close` with its next answer instead.
 */

#define TARGET_MAX (8u << 10) /* bytes of a request target */
#define REFUSED_MAX 32        /* connections beyond the limit that are answered 503 */
#define BODIES 8u             /* bodies of the largest size that may be in memory at once */
#define OUTPUTS 2u            /* answers of the largest size that may wait for their readers */

/* ---- listeners ---- */

int api_load_tls(struct api *a, const char *certificate, const char *key, struct err *err) {
    return http_server_load_tls(&a->http, certificate, key, err);
}

int api_listen_tcp(struct api *a, const char *host, int port, bool tls, int *bound_port,
                   struct err *err) {
    int r = http_server_listen_tcp(&a->http, host, port, tls, bound_port, err);
    bool loopback =
        strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;

    if (r == 0 && !loopback && !a->opts.api_keys_file)
        log_event(WLOG_WARN, "listen_without_keys", "address=%s:%d", host, port);
    if (r == 0 && a->otlp)
        otlp_set_port(a->otlp, *bound_port);
    return r;
}

int api_check_otlp(const char *endpoint, struct err *err) {
    return *endpoint ? otlp_check(endpoint, err) : 0;
}

int api_listen_unix(struct api *a, const char *path, struct err *err) {
    return http_server_listen_unix(&a->http, path, err);
}

int api_listen_fd(struct api *a, int fd, bool tls, struct err *err) {
    return http_server_listen_fd(&a->http, fd, tls, err);
}

int api_last_fd(const struct api *a) {
    return http_server_last_fd(&a->http);
}

void api_own_paths(struct api *a, bool own) {
    http_server_own_paths(&a->http, own);
}

/* ---- exchanges ---- */

static void count(struct api_stats *s, const struct exchange *x) {
    s->n_requests++;
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

/* Logs how many lines were left out of the log since the last time. */
static void tell_left_out(struct api *a) {
    struct log_left_out o;
    uint32_t at = 0;

    for (uint32_t i = 0; i < a->tenants.n; i++)
        if (log_row_tell(&a->tenants.list[i]->log, &o))
            log_left_out("tenant:", a->tenants.list[i]->conf.name, &o);
    while (log_limit_tell(&a->log_limit, &at, &o))
        log_left_out("", o.client, &o);
}

static void on_log_tick(uv_timer_t *t) {
    tell_left_out(t->data);
}

static void note_span(struct api *a, const struct exchange *x, int64_t now) {
    struct trace_span s;
    char why[OTLP_WHY];

    if (!a->otlp || !x->route || !x->route->generates || x->parent.unsampled)
        return;
    const char *tenant = x->tenant ? tenants_get(&a->tenants, x->tenant)->conf.name : "";
    trace_span_init(&s, x, tenant, now);
    otlp_add(a->otlp, &s);
    if (otlp_news(a->otlp, why))
        log_event(*why ? WLOG_WARN : WLOG_INFO, "traces", "taken=%s why=\"%s\"",
                  *why ? "no" : "yes", why);
}

/* Counts it and writes the one line that every request ends with, unless its client had many. */
static void on_ended(const struct exchange *x) {
    struct api *a = api_of(x);
    int64_t now = clock_now(a->clock);
    bool probe = x->route && x->route->open; /* balancers ask many times a second */
    enum log_level level = probe ? WLOG_DEBUG : x->status >= 500 ? WLOG_WARN : WLOG_INFO;

    if (x->route)
        PROBE5(request__end, x->id, x->status, x->n_prompt, x->n_output, now - x->started_ns);
    count(&a->stats, x);
    recent_note(&a->recent_requests, x, now);
    note_span(a, x, now);
    if (!log_enabled(level))
        return;
    struct log_row *tenant = x->tenant ? &tenants_get(&a->tenants, x->tenant)->log : NULL;
    if (!log_limit_take(&a->log_limit, tenant, x, now)) {
        if (!uv_is_active((uv_handle_t *)&a->log_tick) && !a->closing)
            uv_timer_start(&a->log_tick, on_log_tick, LOG_BURST_S * 1000, 0);
        return;
    }
    log_event(level, "request",
              "id=%s method=%s path=%s status=%d stream=%d prompt=%u cached=%u output=%u finish=%s "
              "queue_ms=%lld ttft_ms=%lld total_ms=%lld prompt_per_s=%.1f output_per_s=%.1f "
              "drafted=%u accepted=%u resumed=%u retries=%u error=%s",
              x->id, x->method, x->route ? x->route->path : "-", x->status, x->stream, x->n_prompt,
              x->n_cached, x->n_output, x->finish ? x->finish : "-",
              (long long)x->queue_ns / 1000000, (long long)x->ttft_ns / 1000000,
              (long long)(now - x->started_ns) / 1000000, x->prompt_per_s, x->output_per_s,
              x->n_drafted, x->n_accepted, x->n_resumed, x->retries, *x->code ? x->code : "-");
}

/* An iteration of the loop that was too long for what else waited: at most one line a second. */
static void on_long(void *ctx, const struct loop_lag_long *it) {
    struct api *a = ctx;
    int64_t now = clock_now(a->clock);

    a->n_long++;
    if (a->long_told_ns && now - a->long_told_ns < 1000000000)
        return;
    log_event(WLOG_WARN, "loop_busy",
              "cpu_ms=%.1f wall_ms=%.1f longest=\"%s\" longest_ms=%.1f n=%u",
              (double)it->cpu_ns / 1e6, (double)it->busy_ns / 1e6, it->in,
              (double)it->in_cpu_ns / 1e6, a->n_long);
    a->long_told_ns = now;
    a->n_long = 0;
}

/* ---- life ---- */

static int open_http(struct api *a) {
    const struct api_opts *o = &a->opts;
    struct http_server_opts h = {
        .loop = a->loop,
        .clock = a->clock,
        .ctx = a,
        .name = "listen",
        .limits = {.target = MIN(TARGET_MAX, o->max_header_bytes),
                   .head = o->max_header_bytes,
                   .body = o->max_body_bytes,
                   .n_headers = o->max_header_count},
        .has_keys = o->api_keys_file != NULL,
        .max_connections = o->max_connections,
        .max_refused = REFUSED_MAX,
        .header_timeout_ms = o->header_timeout_ms,
        .body_timeout_ms = o->body_timeout_ms,
        .idle_timeout_ms = o->idle_timeout_ms,
        .keepalive_ms = o->keepalive_ms,
        .stall_timeout_ms = o->stall_timeout_ms,
        .stream_buffer_bytes = o->stream_buffer_bytes,
        .max_unsent = API_SEND_MAX,
        .max_bodies = (size_t)BODIES * o->max_body_bytes,
        .max_output = (size_t)OUTPUTS * API_SEND_MAX,
        .sends_date = true,
        .stream_headers = "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
        .dialects = api_dialects,
        .routes = service_routes,
        .dialect_of = routes_dialect_of,
        .check_head = routes_check_head,
        .check_route = routes_check,
        .put_headers = routes_put_headers,
        .ended = on_ended,
    };

    return http_server_init(&a->http, &h);
}

/* Offers again the generations that the worker did not take. */
static bool retry(void *ctx) {
    gen_retry(ctx);
    return gen_any_pending(ctx);
}

static double weight_of(void *ctx, uint32_t tenant) {
    const struct api *a = ctx;

    return tenant_weight(tenants_get(&a->tenants, tenant));
}

/* Opens those parts of a new api that can fail, which api_free() closes. The pool comes last: it is
 * the first that has a handle on the loop, and api_free() expects those closed. */
static int open_parts(struct api *a, const struct api_model *first, struct api_port *port) {
    const struct api_opts *o = &a->opts;
    struct model *m;
    int r = open_http(a);

    if (r == 0 && (getrandom(&a->rng, sizeof(a->rng), 0) < 0 ||
                   getrandom(a->secret, sizeof(a->secret), 0) < 0))
        r = -errno;
    r = r < 0 ? r : uv_loop_configure(a->loop, UV_METRICS_IDLE_TIME); /* for loop_lag */
    r = r < 0 ? r : tenants_init(&a->tenants, &a->http.payers);
    r = r < 0 ? r : log_limit_init(&a->log_limit, o->log_lines);
    if (r == 0 && (r = model_new(&m, a, first, port)) == 0)
        list_push_back(&a->models, &m->link);
    if (r == 0 && o->otlp_endpoint && *o->otlp_endpoint)
        r = otlp_new(&a->otlp, o->otlp_endpoint);
    return r < 0 ? r : job_pool_init(&a->pool, a->loop, a->clock);
}

int api_new(struct api **out, uv_loop_t *loop, const struct api_opts *opts,
            const struct api_model *model, struct api_port *port, struct clock *clock) {
    struct api *a = calloc(1, sizeof(*a));

    if (!a)
        return -ENOMEM;
    a->loop = loop;
    a->opts = *opts;
    a->clock = clock;
    a->next_gen = 1;
    list_init(&a->models);
    list_init(&a->gens);
    list_init(&a->responses);
    for (uint32_t i = 0; i < API_GEN_BUCKETS; i++)
        list_init(&a->buckets[i]);
    pthread_rwlock_init(&a->models_lock, NULL);
    snprintf(a->started_header, sizeof(a->started_header), "Process-Start-Time-Unix: %lld\r\n",
             (long long)time(NULL));
    metrics_init(&a->metrics);
    auth_init(&a->auth, opts->api_keys_file);
    int r = open_parts(a, model, port);
    if (r < 0) {
        api_free(a);
        return r;
    }
    memcpy(a->share_secret, opts->share_secret ? opts->share_secret : a->secret, sizeof(a->secret));
    struct admit_opts admit = {loop, clock, &a->rng, opts->max_running, opts->max_queued, a, retry};
    struct store_limits limits = {.n = opts->max_stored,
                                  .bytes = opts->stored_bytes,
                                  .ttl_s = opts->stored_ttl_s,
                                  .weight = weight_of,
                                  .ctx = a};
    admit_init(&a->admit, &admit);
    store_init(&a->store, loop, clock, &limits);
    loop_lag_init(&a->lag, loop, &a->metrics, on_long, a);
    uv_timer_init(loop, &a->log_tick);
    a->log_tick.data = a;
    model_wait_init(a);
    *out = a;
    return 0;
}

struct api *api_free(struct api *a) {
    if (!a)
        return NULL;
    assert(a->n_waiting == 0 && a->n_prewarm == 0 && a->kept_bytes == 0 && list_empty(&a->gens));
    otlp_free(a->otlp);
    job_pool_deinit(&a->pool);
    auth_deinit(&a->auth);
    store_deinit(&a->store);
    tell_left_out(a);
    tenants_deinit(&a->tenants);
    http_server_deinit(&a->http);
    while (!list_empty(&a->models))
        model_free(model_first(a));
    pthread_rwlock_destroy(&a->models_lock);
    free(a);
    return NULL;
}

int api_reload_keys(struct api *a, struct err *err) {
    return auth_reload(&a->auth, err);
}

int api_set_tenants(struct api *a, const struct api_tenant *rows, uint32_t n) {
    return tenants_set(&a->tenants, rows, n);
}

void api_leave(struct api *a) {
    http_server_leave(&a->http);
}

void api_drain(struct api *a) {
    api_leave(a);
    a->draining = true;
    a->health = API_DRAINING;
}

void api_close(struct api *a) {
    struct err err;

    if (a->closing)
        return;
    api_drain(a);
    a->closing = true;
    admit_stop(&a->admit);
    err_set_code(&err, 503, "shutting_down", NULL, "The service is stopping.");
    http_server_close(&a->http, &err);
    admit_close(&a->admit);
    store_close(&a->store);
    loop_lag_close(&a->lag);
    uv_close((uv_handle_t *)&a->log_tick, NULL);
    model_wait_close(a);
    job_pool_close(&a->pool);
}

bool api_busy(const struct api *a) {
    return http_server_is_busy(&a->http);
}

void api_set_health(struct api *a, enum api_health h) {
    if (!a->draining)
        a->health = h;
}

enum api_health server_health(const struct api *a) {
    if (a->health != API_SERVING)
        return a->health;
    for (const struct list *l = a->models.next; l != &a->models; l = l->next) {
        const struct model *m = LIST_ENTRY(l, const struct model, link);

        if (m->worker_up || (model_on_demand(m) && !*m->failure))
            return API_SERVING;
    }
    return *model_first(a)->failure ? API_FAILED : API_REPLACING;
}
