/*
 * The composition root: makes the parts and connects them. The life of the whole: api_new, listen,
 * serve, api_drain (no new connections, answers are complete and then close), api_close (everything
 * ends with an error that says so), and when the loop has run out, api_free. Idle connections
 * outlive api_drain(): closing them at once races with requests that are under way on them, so each
 * gets `Connection: close` with its next answer instead.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <yyjson.h>

#include "api/generation/gen.h"
#include "api/generation/gen_request.h"
#include "api/generation/model_wait.h"
#include "api/parts.h"
#include "api/responses/background.h"
#include "api/routes.h"
#include "api/service/otlp.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/printable.h"
#include "base/try.h"

#define TARGET_MAX (8u << 10) /* bytes of a request target */
#define REFUSED_MAX 32        /* connections beyond the limit that are answered 503 */
#define BODIES 8u             /* bodies of the largest size that may be in memory at once */
#define BODY_PART 64u         /* of the memory for requests: reading takes 22 bodies */
#define MODEL_PART 0.75       /* of the memory; a larger model leaves parts of it in its file */
#define BODY_LEAST (1u << 20) /* bytes of a body that is allowed, however little memory there is */
#define OUTPUTS 2u            /* answers of the largest size that may wait for their readers */

/* ---- listeners ---- */

void api_set_tls(struct api *a, const struct tls_config *config) {
    http_server_set_tls(&a->http, config);
}

int api_listen_tcp(struct api *a, const char *host, int port, bool tls, int *bound_port,
                   struct err *err) {
    int r = http_server_listen_tcp(&a->http, host, port, tls, bound_port, err);
    bool loopback =
        strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;

    if (r == 0 && !loopback && !a->env.opts.api_keys_file)
        log_event(WLOG_WARN, "listen_without_keys",
                  strchr(host, ':') ? "address=[%s]:%d" : "address=%s:%d", host, *bound_port);
    if (r == 0 && a->service.otlp)
        otlp_set_port(a->service.otlp, *bound_port);
    return r;
}

int api_read_kwargs(const char *text, struct yyjson_doc **out, struct err *err) {
    yyjson_doc *doc = yyjson_read(text, strlen(text), 0);

    if (!gen_request_allows_kwargs(yyjson_doc_get_root(doc))) {
        yyjson_doc_free(doc);
        return err_set(err, 0, "chat-template-kwargs",
                       "chat-template-kwargs: must be a JSON object of plain values, such as "
                       "{\"enable_thinking\": false}, not %.100s",
                       text);
    }
    *out = doc;
    return 0;
}

int api_check_otlp(const char *endpoint, struct err *err) {
    if (!*endpoint)
        return 0;
    return otlp_check(endpoint, err);
}

int api_check_keys(const char *file, struct err *err) {
    struct auth auth;

    auth_init(&auth, *file ? file : NULL);
    int r = auth_reload(&auth, err);
    auth_deinit(&auth);
    return r;
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

/* ---- life ---- */

/* Returns the memory that the model leaves to requests. */
static uint64_t memory_beside(const struct api_opts *o) {
    uint64_t available = memory_available(), most = (uint64_t)(MODEL_PART * (double)available);

    return available - MIN(o->model_bytes, most);
}

/* Lowers max-body where memory is short: reading one that does not fit ends the process. Of a
 * daemon that is being replaced the memory is still in use, so its successor lowers nothing. */
static void limit_bodies(struct api_opts *o) {
    uint64_t available = memory_beside(o);
    uint64_t limit = MAX(available / BODY_PART, BODY_LEAST);

    if (o->beside || limit >= o->max_body_bytes)
        return;
    o->max_body_bytes = (uint32_t)limit;
    log_event(WLOG_WARN, "bodies_limited", "max_body=%u available=%llu", o->max_body_bytes,
              (unsigned long long)available);
}

static int open_http(struct api *a) {
    const struct api_opts *o = &a->env.opts;
    struct http_server_opts h = {
        .loop = a->env.loop,
        .clock = a->env.clock,
        .ctx = &a->env,
        .name = "listen",
        .limits = {.target = MIN(TARGET_MAX, o->max_header_bytes),
                   .head = o->max_header_bytes,
                   .body = o->max_body_bytes,
                   .n_headers = o->max_header_count,
                   .unpack = &a->unpack},
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
        .max_bodies =
            memory_part(memory_beside(o), (uint64_t)BODIES * o->max_body_bytes, o->max_body_bytes),
        .max_output = (size_t)OUTPUTS * API_SEND_MAX,
        .sends_date = true,
        .stream_headers = "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
        .dialects = api_dialects,
        .routes = service_routes,
        .dialect_of = routes_dialect_of,
        .check_head = routes_check_head,
        .check_route = routes_check,
        .put_headers = routes_put_headers,
        .ended = service_on_ended,
    };

    return http_server_init(&a->http, &h);
}

/* Offers again the generations that the worker did not take. */
static bool server_retry(void *ctx) {
    gen_retry(ctx);
    return gen_any_pending(ctx);
}

static double weight_of(void *ctx, uint32_t tenant) {
    const struct gen_env *env = ctx;

    return tenant_weight(tenants_get(&env->tenants, tenant));
}

static const char *server_name(void *ctx, uint32_t tenant) {
    const struct gen_env *env = ctx;

    return tenants_get(&env->tenants, tenant)->conf.name;
}

static bool server_number(void *ctx, const char *name, uint32_t *tenant) {
    struct gen_env *env = ctx;
    const struct tenant *t = tenants_named(&env->tenants, name);

    if (t)
        *tenant = t->number;
    return t;
}

static int64_t unix_s_of(void *ctx) {
    struct gen_env *env = ctx;

    return usage_now(&env->usage);
}

/* The callback state_opts.trouble: logs what is wrong with the database. */
static void on_state_trouble(void *ctx, int r) {
    const struct api *a = ctx;
    const char *reason = "damaged: it was renamed to end with .damaged; a new one begins";

    if (r == -EMEDIUMTYPE)
        reason = "it belongs to another program, or to another version of weft";
    else if (r < 0)
        reason = strerror(-r);
    log_event(r < 0 ? WLOG_ERROR : WLOG_WARN, "state_file", "path=%s reason=\"%s\"",
              quoted(a->env.opts.state_file).s, reason);
}

/* The callback usage_opts.trouble: logs what is wrong with the file of an earlier version. */
static void on_usage_trouble(void *ctx, int r) {
    const struct api *a = ctx;

    log_event(WLOG_WARN, "usage_file", "path=%s reason=\"%s\"", quoted(a->env.opts.usage_file).s,
              r == -EINVAL ? "damaged: it was renamed to end with .damaged" : strerror(-r));
}

/* Opens the database of the state, if there is one, and reads the usage. */
static int server_open_state(struct api *a) {
    struct gen_env *env = &a->env;
    const struct state_opts state = {
        .loop = env->loop, .path = env->opts.state_file, .trouble = on_state_trouble, .ctx = a};
    const struct usage_opts usage = {.loop = env->loop,
                                     .state = state.path ? &a->state : NULL,
                                     .import = env->opts.usage_file,
                                     .unix_s = env->opts.unix_s,
                                     .trouble = on_usage_trouble,
                                     .ctx = a};

    if (state.path)
        TRY(state_init(&a->state, &state));
    return usage_init(&env->usage, &usage);
}

static void add_stored(const struct gen_env *env, struct api_stats *out) {
    store_size(env->store, &out->n_stored, &out->stored_bytes);
}

/* Opens those parts of a new api that can fail, which api_free() closes. The pool comes last: it is
 * the first that has a handle on the loop, and api_free() expects those closed. */
static int server_open_parts(struct api *a, const struct api_model *first, struct api_port *port) {
    struct gen_env *env = &a->env;
    struct model *m;

    TRY(open_http(a));
    if (getrandom(&env->rng, sizeof(env->rng), 0) < 0 ||
        getrandom(env->secret, sizeof(env->secret), 0) < 0)
        return -errno;
    TRY(uv_loop_configure(env->loop, UV_METRICS_IDLE_TIME)); /* for loop_lag */
    TRY(tenants_init(&env->tenants, &a->http.payers));
    TRY(model_new(&m, env, first, port));
    list_push_back(&env->models.list, &m->link);
    TRY(server_open_state(a));
    TRY(service_init(&a->service, env, &a->http));
    if (picture_fetch_is_on(&env->opts.picture_fetch))
        TRY(job_pool_init(&env->fetchers, env->loop, env->clock, true));
    if (env->opts.state_file)
        TRY(state_start(&a->state));
    return job_pool_init(&env->pool, env->loop, env->clock, false);
}

int api_new(struct api **out, uv_loop_t *loop, const struct api_opts *opts,
            const struct api_model *model, struct api_port *port, struct clock *clock) {
    struct api *a = calloc(1, sizeof(*a));

    if (!a)
        return -ENOMEM;
    struct gen_env *env = &a->env;
    env->loop = loop;
    env->opts = *opts;
    limit_bodies(&env->opts);
    env->clock = clock;
    env->store = &a->store;
    list_init(&env->models.list);
    gens_init(env);
    picture_table_init(&env->pictures, opts->decode, opts->decode_ctx,
                       opts->picture_max_megapixels);
    pthread_rwlock_init(&env->models.lock, NULL);
    auth_init(&a->env.auth, opts->api_keys_file);
    int r = server_open_parts(a, model, port);
    if (r < 0) {
        api_free(a);
        return r;
    }
    memcpy(env->share_secret, opts->share_secret ? opts->share_secret : env->secret,
           sizeof(env->secret));
    struct admit_opts admit = {loop, clock,       &env->rng, opts->max_running, opts->max_queued,
                               env,  server_retry};
    struct store_limits limits = {.n = opts->max_stored,
                                  .bytes = opts->stored_bytes,
                                  .ttl_s = opts->stored_ttl_s,
                                  .weight = weight_of,
                                  .state = opts->state_file ? &a->state : NULL,
                                  .name = server_name,
                                  .named = server_number,
                                  .unix_s = opts->unix_s ? unix_s_of : NULL,
                                  .ctx = env,
                                  .beside = opts->beside};
    admit_init(&env->admit, &admit);
    picture_sender_init(&env->sender, loop, &env->pool);
    store_init(&a->store, loop, clock, &limits);
    store_load(&a->store);
    a->service.more_stats = add_stored;
    usage_start(&env->usage);
    service_start(&a->service);
    model_wait_init(env);
    *out = a;
    return 0;
}

bool api_can_save_state(const struct api *a) {
    return a->state.n_jobs == 0;
}

int api_save_state(struct api *a) {
    uint64_t n_lost;
    uint32_t n_responses;

    int of_store = store_save_end(&a->store, &n_responses);
    if (of_store < 0)
        log_event(WLOG_ERROR, "responses_lost", "path=%s responses=%u reason=\"%s\"",
                  quoted(a->env.opts.state_file).s, n_responses, strerror(-of_store));
    int r = usage_save(&a->env.usage, &n_lost);
    if (r < 0)
        log_event(WLOG_ERROR, "usage_lost", "path=%s requests=%llu reason=\"%s\"",
                  quoted(a->env.opts.state_file).s, (unsigned long long)n_lost, strerror(-r));
    TRY(r);
    return of_store;
}

struct api *api_free(struct api *a) {
    if (!a)
        return NULL;
    struct gen_env *env = &a->env;
    assert(env->wait.n == 0 && env->prewarm.n == 0 && env->prewarm.kept_bytes == 0);
    assert(list_empty(&env->gens.list));
    service_deinit(&a->service);
    usage_deinit(&env->usage);
    job_pool_deinit(&env->pool);
    job_pool_deinit(&env->fetchers);
    picture_table_deinit(&env->pictures);
    auth_deinit(&a->env.auth);
    store_deinit(&a->store);
    state_deinit(&a->state);
    tenants_deinit(&env->tenants);
    http_server_deinit(&a->http);
    while (!list_empty(&env->models.list))
        model_free(model_first(env));
    pthread_rwlock_destroy(&env->models.lock);
    free(a);
    return NULL;
}

int api_read_keys(const struct api *a, struct auth **out, struct err *err) {
    CLEANUP(freep) struct auth *next = malloc(sizeof(*next));

    if (!next)
        return -ENOMEM;
    TRY(auth_read(next, &a->env.auth, err));
    *out = STEAL(next);
    return 0;
}

void api_set_keys(struct api *a, struct auth *keys) {
    struct auth old = a->env.auth;

    a->env.auth = *keys;
    *keys = old;
    api_free_keys(keys);
}

struct auth *api_free_keys(struct auth *keys) {
    if (keys)
        auth_deinit(keys);
    free(keys);
    return NULL;
}

int api_set_tenants(struct api *a, const struct api_tenant *rows, uint32_t n) {
    TRY(tenants_set(&a->env.tenants, rows, n));
    admit_waiting(&a->env.admit);
    return 0;
}

void api_stop_accepting(struct api *a) {
    store_hand_over(&a->store);
    http_server_stop_accepting(&a->http);
}

void api_drain(struct api *a) {
    api_stop_accepting(a);
    a->env.draining = true;
    a->env.health = API_DRAINING;
}

void api_close(struct api *a) {
    struct err err;

    if (a->closing)
        return;
    api_drain(a);
    a->closing = true;
    admit_stop(&a->env.admit);
    err_set_code(&err, 503, "shutting_down", NULL,
                 "The server is stopping. Send the request again.");
    http_server_close(&a->http, &err);
    background_stop(&a->env, &err);
    admit_close(&a->env.admit);
    store_close(&a->store);
    service_close(&a->service);
    usage_close(&a->env.usage);
    state_close(&a->state);
    model_wait_close(&a->env);
    picture_sender_close(&a->env.sender);
    job_pool_close(&a->env.pool);
    if (a->env.fetchers.jobs)
        job_pool_close(&a->env.fetchers);
}

bool api_busy(const struct api *a) {
    return http_server_is_busy(&a->http);
}

void api_set_health(struct api *a, enum api_health h) {
    if (!a->env.draining)
        a->env.health = h;
}
