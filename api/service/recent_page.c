#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/generation/model.h"
#include "api/generation/env.h"
#include "api/service/service.h"
#include "proto/flight.h"

/* GET /web/state: what the page's live view shows of a tenant's own requests. GET /web/history:
 * what its charts show of the last hour. */

#define RECORDS 32u /* decisions about a request */
#define SHOWN 12u
#define SHOWN_NS (10 * 60 * 1000000000ll) /* age up to which an ended request is shown */

static void put_ms(struct json *j, const char *key, int64_t ns) {
    json_print(j, "%s:%g", key, (double)(MAX(ns, 0) / 1000) / 1000);
}

/* Writes the scheduler's decisions about generation @gen, as far as the flight recorder still has
 * them. */
static void put_story(struct json *j, const struct gen_env *env, uint64_t gen) {
    struct flight_record r[RECORDS];
    uint32_t n = 0;

    json_print(j, "why:[");
    if (gen)
        LIST_FOREACH_ENTRY(m, &env->models.list, const struct model, link) {
            if (n > 0)
                break;
            if (m->port->story)
                n = m->port->story(m->port, gen, r, RECORDS);
        }
    for (uint32_t i = 0; i < n; i++) {
        json_print(j, "{code:%s, text:%s", flight_name(r[i].why), flight_text(r[i].why));
        put_ms(j, "at_ms", r[i].from_ns - r[0].from_ns);
        put_ms(j, "ms", r[i].until_ns - r[i].from_ns);
        json_print(j, "steps:%u}", r[i].n_steps);
    }
    json_close(j, ']');
}

static void put_request(struct json *j, const struct gen_env *env, const struct recent_request *q) {
    int64_t first = MAX(q->ttft_ns, q->queue_ns);

    json_print(j,
               "{id:%s, path:%s, status:%d, finish:%s, prompt_tokens:%u, cached_tokens:%u, "
               "output_tokens:%u, resumed:%u",
               q->id, q->path, q->status, q->finish, q->n_prompt, q->n_cached, q->n_output,
               q->n_resumed);
    put_ms(j, "queue_ms", q->queue_ns);
    put_ms(j, "prefill_ms", first - q->queue_ns);
    put_ms(j, "decode_ms", q->ttft_ns ? q->total_ns - q->ttft_ns : 0);
    put_ms(j, "total_ms", q->total_ns);
    put_story(j, env, q->gen);
    json_close(j, '}');
}

void recent_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    const struct recent_filter own = {.tenant = x->tenant, .oldest_ns = SHOWN_NS, .slowest = true};
    const struct recent_request *list[SHOWN];
    const struct gen_env *env = env_of(x);
    struct json j = {.out = &b};

    uint32_t n = recent_find(&env->service->recent, &own, clock_now(env->clock), list, SHOWN);
    json_print(&j, "{requests:[");
    for (uint32_t i = 0; i < n; i++)
        put_request(&j, env, list[i]);
    json_print(&j, "]}");
    respond_buf(x, 200, &b, j.error);
}

void history_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct json j = {.out = &b};

    json_open(&j, '{');
    history_put(&env_of(x)->service->history, &j);
    json_close(&j, '}');
    respond_buf(x, 200, &b, j.error);
}
