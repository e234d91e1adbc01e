#include <assert.h>
#include <time.h>

#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/service/page.h"
#include "api/service/service.h"

#ifndef WEFT_VERSION
#define WEFT_VERSION "0"
#endif

/* Writes the states of several models. A model that cannot be loaded does not affect the others. */
static void put_models(struct json *j, const struct gen_env *env) {
    if (env->models.list.next == env->models.list.prev)
        return;
    json_print(j, "models:{");
    LIST_FOREACH_ENTRY(m, &env->models.list, const struct model, link) {
        json_print(j, "%s:%s", m->info->id, model_state_name(m));
    }
    json_close(j, '}');
}

/* Answers 200 only while new requests are served, so that a balancer routes elsewhere before a
 * request is refused. */
static void health_answer(struct exchange *x, struct http *h) {
    static const char *const names[] = {"starting", "serving", "replacing", "failed", "draining"};
    CLEANUP(buf_deinit) struct buf b = {.max = 1u << 20};
    enum api_health s = service_health(env_of(x));
    struct json j = {.out = &b};

    assert((size_t)s < ARRAY_SIZE(names));
    x->tells_state = true;
    x->retry_ms = s == API_FAILED ? model_first(env_of(x))->failure_retry_ms : API_RETRY_MS;
    json_print(&j, "{status:%s, state:%s", s == API_SERVING ? "ok" : "unavailable", names[s]);
    if (s == API_FAILED)
        json_print(&j, "reason:%s", model_first(env_of(x))->failure);
    put_models(&j, env_of(x));
    json_close(&j, '}');
    respond_buf(x, s == API_SERVING ? 200 : 503, &b, j.error);
}

static void health_version_serve(struct exchange *x, struct http *h) {
    static const char text[] = "{\"version\":\"" WEFT_VERSION "\",\"server\":\"weft\"}";

    respond(x, 200, RESPOND_JSON, text, sizeof(text) - 1);
}

/* Answers a browser with the page, and other clients with a text, by which Ollama's client finds
 * before each command that the server lives. */
static void root_serve(struct exchange *x, struct http *h) {
    static const char text[] =
        "weft " WEFT_VERSION " is running: models are at /v1/models, what it does at /metrics.\n";

    if (page_is_asked_for(x, h))
        page_answer(x, h, "index.html");
    else
        respond(x, 200, "text/plain; charset=utf-8", text, sizeof(text) - 1);
}

/* ---- the load, in the forms that routers ask for ---- */

/* Answers /load as vLLM does. */
static void health_load_serve(struct exchange *x, struct http *h) {
    struct api_stats s;

    service_stats(env_of(x)->service, &s);
    respond_shape(x, "{server_load:%u}", s.n_running + s.n_queued);
}

/* Answers /v1/loads as SGLang does. */
static void loads_serve(struct exchange *x, struct http *h) {
    const struct model *model = model_first(env_of(x));
    const struct msg_stats *w = &model->worker;
    const struct api_model *m = model->info;
    uint64_t page = m->page_tokens;
    struct api_stats s;

    service_stats(env_of(x)->service, &s);
    respond_shape(x,
                  "{timestamp:%ld, dp_rank_count:1, loads:[{dp_rank:0, num_running_reqs:%u, "
                  "num_waiting_reqs:%u, num_total_reqs:%ld, num_used_tokens:%ld, "
                  "max_total_num_tokens:%ld, token_usage:%g, max_running_requests:%u}]}",
                  (int64_t)time(NULL), s.n_running, s.n_queued, (int64_t)s.n_running + s.n_queued,
                  (int64_t)(w->n_used * page), (int64_t)(m->n_pages * page),
                  w->n_pages ? (double)w->n_used / w->n_pages : 0, env_of(x)->opts.max_running);
}

/* Answers /get_load, the older form of /v1/loads. */
static void load_of_ranks_serve(struct exchange *x, struct http *h) {
    const struct model *model = model_first(env_of(x));
    struct api_stats s;

    service_stats(env_of(x)->service, &s);
    respond_shape(x, "[{dp_rank:0, num_reqs:%u, num_waiting_reqs:%u, num_tokens:%lu}]",
                  s.n_running + s.n_queued, s.n_queued,
                  (uint64_t)model->worker.n_used * model->info->page_tokens);
}

/* Answers SGLang's gateway, which asks each worker that it is given. The answer is about the first
 * model. */
static void server_info_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = 64u << 10};
    const struct api_model *m = model_first(env_of(x))->info;
    struct json j = {.out = &b};

    json_print(&j, "{model_path:%s, served_model_name:%s, tokenizer_path:%s", m->id, m->id, m->id);
    if (m->arch)
        json_print(&j, "model_type:%s", m->arch);
    json_print(&j,
               "is_generation:%i, version:%s, dp_size:1, tp_size:1, context_length:%u, "
               "max_total_tokens:%ld, "
               "max_running_requests:%u}",
               !m->encoder && !m->ranks, WEFT_VERSION, m->max_context,
               (int64_t)m->n_pages * m->page_tokens, env_of(x)->opts.max_running);
    respond_buf(x, 200, &b, j.error);
}

const struct route service_routes[] = {
    {"/health", HTTP_GET, true, false, health_answer, NULL},
    {"/ping", HTTP_GET, true, false, health_answer, NULL},
    {"/v1/health", HTTP_GET, true, false, health_answer, NULL},
    {"/", HTTP_GET, true, false, root_serve, NULL},
    {"/v1/requests", HTTP_GET, false, false, recent_serve, NULL},
    {"/v1/requests/*/why", HTTP_GET, false, false, recent_why_serve, NULL},
    {"/web/history", HTTP_GET, true, false, history_serve, NULL},
    {"/web/*", HTTP_GET, true, false, page_serve, NULL},
    {"/v1/usage", HTTP_GET, false, false, usage_serve, NULL},
    {"/version", HTTP_GET, true, false, health_version_serve, NULL},
    {"/metrics", HTTP_GET, true, false, metrics_serve, NULL},
    {"/load", HTTP_GET, true, false, health_load_serve, NULL},
    {"/v1/loads", HTTP_GET, true, false, loads_serve, NULL},
    {"/get_load", HTTP_GET, true, false, load_of_ranks_serve, NULL},
    {"/is_sleeping", HTTP_GET, true, false, sleeping_serve, NULL},
    {"/sleep", HTTP_POST, false, false, sleep_serve, NULL},
    {"/wake_up", HTTP_POST, false, false, wake_up_serve, NULL},
    {"/server_info", HTTP_GET, false, false, server_info_serve, NULL},
    {"/get_server_info", HTTP_GET, false, false, server_info_serve, NULL},
    {"/model_info", HTTP_GET, false, false, server_info_serve, NULL},
    {"/get_model_info", HTTP_GET, false, false, server_info_serve, NULL},
    {0},
};
