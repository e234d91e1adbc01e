/* GET /v1/requests: the last requests that have ended, those of the key's tenant, or with the key
 * of an operator those of all tenants. GET /v1/requests/GENERATION/why: the scheduler's decisions
 * about one of them. GET /web/history: what the page's charts show of the last hour. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/http/exchange.h"
#include "api/http/http.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/service/service.h"
#include "base/try.h"
#include "proto/flight.h"

#define RECORDS 64u /* decisions about a request */
#define SHOWN 100u

static void put_ms(struct json *j, const char *key, int64_t ns) {
    json_print(j, "%s:%g", key, (double)(MAX(ns, 0) / 1000) / 1000);
}

/* Reads a whole number into *out. Returns false if it is another text. */
static bool recent_number(const char *text, uint64_t *out) {
    char *end;

    errno = 0;
    uint64_t v = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        return false;
    *out = v;
    return true;
}

/* Reads the parameter @name, if there is one, into *out. Returns false if it is no number. */
static bool recent_seconds(const struct http *h, const char *name, uint64_t *out) {
    char text[24];

    return !http_query(h, name, text, sizeof(text)) || recent_number(text, out);
}

int api_read_ended(const struct http *h, struct api_ended_filter *out, struct err *err) {
    char order[16] = "";

    *out = (struct api_ended_filter){.oldest_s = UINT64_MAX};
    http_query(h, "tenant", out->tenant, sizeof(out->tenant));
    http_query(h, "order", order, sizeof(order));
    out->slowest = strcmp(order, "slowest") == 0;
    if (!recent_seconds(h, "oldest_s", &out->oldest_s) ||
        !recent_seconds(h, "newest_s", &out->newest_s) || (*order && !out->slowest))
        return err_set_code(err, 400, "invalid_value", NULL,
                            "oldest_s, newest_s: a number of seconds; order: slowest");
    return 0;
}

int recent_filter_of(const struct gen_env *env, const struct api_ended_filter *f,
                     struct recent_filter *out) {
    const uint64_t max_s = (uint64_t)INT64_MAX / 1000000000;
    const struct tenant *t = *f->tenant ? tenants_find(&env->tenants, f->tenant) : NULL;

    if (*f->tenant && !t)
        return -ENOENT;
    *out = (struct recent_filter){
        .all_tenants = !t,
        .tenant = t ? t->number : 0,
        .oldest_ns = (int64_t)MIN(f->oldest_s, max_s) * 1000000000,
        .newest_ns = (int64_t)MIN(f->newest_s, max_s) * 1000000000,
        .slowest = f->slowest,
    };
    return 0;
}

static void put_request(struct json *j, const struct gen_env *env, const struct recent_request *q,
                        int64_t now) {
    int64_t queue = q->queue_ns ? q->queue_ns : q->total_ns; /* 0: it never began */
    int64_t first = q->ttft_ns ? MAX(q->ttft_ns, queue) : q->total_ns;

    json_print(j,
               "{id:%s, generation:%lu, tenant:%s, path:%s, status:%d, finish:%s, "
               "prompt_tokens:%u, cached_tokens:%u, output_tokens:%u, resumed:%u",
               q->id, q->gen, tenants_get(&env->tenants, q->tenant)->conf.name, q->path, q->status,
               q->finish, q->n_prompt, q->n_cached, q->n_output, q->n_resumed);
    put_ms(j, "queue_ms", queue);
    put_ms(j, "prefill_ms", first - queue);
    put_ms(j, "decode_ms", q->total_ns - first);
    put_ms(j, "total_ms", q->total_ns);
    put_ms(j, "ago_ms", now - q->ended_ns);
    json_close(j, '}');
}

/* Reads the filter of a client, who sees other tenants only with the key of an operator. Returns 0,
 * or -EINVAL with @err. */
static int recent_filter_read(const struct exchange *x, const struct http *h,
                              struct recent_filter *out, struct err *err) {
    const struct gen_env *env = env_of(x);
    const char *own = tenants_get(&env->tenants, x->tenant)->conf.name;
    struct api_ended_filter f;

    TRY(api_read_ended(h, &f, err));
    if (!x->is_operator && *f.tenant && strcmp(f.tenant, own) != 0)
        return err_set_code(err, 403, "not_allowed", NULL,
                            "Only the key of an operator sees the requests of other tenants.");
    if (!x->is_operator)
        snprintf(f.tenant, sizeof(f.tenant), "%s", own);
    if (recent_filter_of(env, &f, out) < 0)
        return err_set_code(err, 404, "not_found", NULL, "No tenant has this name.");
    return 0;
}

void recent_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    const struct recent_request *list[SHOWN];
    const struct gen_env *env = env_of(x);
    int64_t now = clock_now(env->clock);
    struct recent_filter f;
    struct json j = {.out = &b};
    struct err err;

    if (recent_filter_read(x, h, &f, &err) < 0) {
        respond_error(x, &err);
        return;
    }
    uint32_t n = recent_find(&env->service->recent, &f, now, list, SHOWN);
    json_print(&j, "{operator:%i, requests:[", x->is_operator);
    for (uint32_t i = 0; i < n; i++)
        put_request(&j, env, list[i], now);
    json_print(&j, "]}");
    respond_buf(x, 200, &b, j.error);
}

/* Writes the waits of generation @gen at the front and the scheduler's decisions about it, as far
 * as they are still known. */
static void put_story(struct json *j, const struct gen_env *env, uint64_t gen) {
    struct flight_record told[RECORDS], r[RECORDS + API_STORY_MORE];
    int64_t begin_ns;
    uint32_t n = 0;

    LIST_FOREACH_ENTRY(m, &env->models.list, const struct model, link) {
        if (n > 0)
            break;
        if (m->port->story)
            n = m->port->story(m->port, gen, told, RECORDS);
    }
    n = gen_ids_story(&env->ids, gen, told, n, r, ARRAY_SIZE(r), &begin_ns);
    for (uint32_t i = 0; i < n; i++) {
        json_print(j, "{code:%s, text:%s", flight_name(r[i].why), flight_text(r[i].why));
        put_ms(j, "at_ms", r[i].from_ns - begin_ns);
        put_ms(j, "ms", r[i].until_ns - r[i].from_ns);
        json_print(j, "steps:%u, rows:%u}", r[i].n_steps, r[i].n_rows);
    }
}

void recent_why_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    const struct gen_env *env = env_of(x);
    const struct recent_request *q = NULL;
    struct json j = {.out = &b};
    struct err err;
    uint64_t gen;

    if (recent_number(x->arg, &gen))
        q = recent_of_gen(&env->service->recent, gen);
    if (!q || (q->tenant != x->tenant && !x->is_operator)) {
        err_set_code(&err, 404, "not_found", NULL,
                     "No request that has ended lately has this generation.");
        respond_error(x, &err);
        return;
    }
    json_print(&j, "{id:%s, generation:%lu, records:[", q->id, q->gen);
    put_story(&j, env, q->gen);
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
