/* GET /v1/usage: what the key of the request has used, and the quotas of its tenant. The admin
 * socket shows all keys. */

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/generation/env.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/limits/usage_limit.h"
#include "api/service/service.h"

/* Bytes of an answer: the most rows that a table has, with the longest names. */
#define USAGE_TEXT_MAX (16u << 20)

/* Writes the day as YYYY-MM-DD, a whole month as YYYY-MM. */
static void put_date(struct json *j, uint32_t date) {
    char text[24];

    if (date % 100)
        snprintf(text, sizeof(text), "%04u-%02u-%02u", date / 10000, date / 100 % 100, date % 100);
    else
        snprintf(text, sizeof(text), "%04u-%02u", date / 10000, date / 100 % 100);
    json_print(j, "date:%s", text);
}

/* Writes a row. @names: with its tenant and key, where not only the key that asks is shown. */
static void usage_page_put_row(struct json *j, const struct usage_row *row, bool names) {
    json_open(j, '{');
    put_date(j, row->date);
    if (names)
        json_print(j, "tenant:%s, key:%s", row->tenant, *row->key ? row->key : NULL);
    json_print(j,
               "model:%s, requests:%ld, prompt_tokens:%ld, cached_tokens:%ld, output_tokens:%ld}",
               row->model, (int64_t)row->sum.requests, (int64_t)row->sum.prompt_tokens,
               (int64_t)row->sum.cached_tokens, (int64_t)row->sum.output_tokens);
}

static void put_limits(struct json *j, const struct gen_env *env, const struct tenant *t,
                       bool names) {
    struct usage_limit q[USAGE_LIMITS];
    uint32_t n = usage_limits(&env->usage, t, q);

    for (uint32_t i = 0; i < n; i++) {
        time_t at = (time_t)q[i].resets_s;
        struct tm tm;
        char text[32];

        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &tm));
        json_open(j, '{');
        if (names)
            json_print(j, "tenant:%s", t->conf.name);
        json_print(j, "name:%s, limit:%ld, used:%ld, resets_at:%s}", q[i].name, (int64_t)q[i].limit,
                   (int64_t)q[i].used, text);
    }
}

void usage_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = USAGE_TEXT_MAX};
    const struct gen_env *env = env_of(x);
    const struct tenant *t = tenants_get(&env->tenants, x->tenant);
    const char *key = x->key ? env->auth.names[x->key - 1] : "";
    struct json j = {.out = &b};

    json_print(&j, "{object:'usage', tenant:%s, key:%s, limits:[", t->conf.name, *key ? key : NULL);
    put_limits(&j, env, t, false);
    json_print(&j, "], data:[");
    for (uint32_t i = 0; i < env->usage.all.n; i++) {
        const struct usage_row *row = &env->usage.all.rows[i];

        if (strcmp(row->tenant, t->conf.name) == 0 && strcmp(row->key, key) == 0)
            usage_page_put_row(&j, row, false);
    }
    json_print(&j, "]}");
    respond_buf(x, 200, &b, j.error);
}

int service_put_usage(const struct gen_env *env, struct buf *out) {
    struct json j = {.out = out};

    json_print(&j, "{limits:[");
    loop_items(env->tenants.n + env->usage.all.n);
    for (uint32_t i = 0; i < env->tenants.n; i++)
        put_limits(&j, env, env->tenants.list[i], true);
    json_print(&j, "], usage:[");
    for (uint32_t i = 0; i < env->usage.all.n; i++)
        usage_page_put_row(&j, &env->usage.all.rows[i], true);
    json_print(&j, "]}");
    return j.error;
}
