#pragma once

/*
 * service - the daemon's state for operators and monitoring: health, load, metrics, the log line
 * and the trace of each request that has ended, and long iterations of the loop. The routes here
 * have no dialect.
 */

#include "api/api.h"
#include "api/generation/metrics.h"
#include "api/http/dialect.h"
#include "api/http/loop_lag.h"
#include "api/service/history.h"
#include "api/service/recent.h"

struct buf;
struct gen_env;
struct http_server;
struct otlp;

struct service {
    struct gen_env *env;
    struct http_server *http;
    /* a header line: when the service began */
    char started_header[64];
    bool closing;
    /* logs the number of omitted lines */
    uv_timer_t log_tick;
    /* place of the next client whose lines were left out: tenants, then rows of addresses */
    uint32_t left_out_at;
    /* metrics of the loop; each model has those of its generations */
    struct metrics metrics;
    /* NULL: no traces are sent */
    struct otlp *otlp;
    /* Adds the counts of rooms that this one may not know. */
    void (*more_stats)(const struct gen_env *env, struct api_stats *out);
    uv_timer_t history_tick;
    /* samples for the charts of the web page */
    struct history history;
    /* requests that have ended, for the web page */
    struct recent recent;
    struct loop_lag lag;
    /* time when the last long iteration was logged */
    int64_t long_told_ns;
    /* long iterations since then */
    uint32_t n_long;
};

/* Makes the service of @env and @http, which outlive it; @s is zeroed. Returns 0 or -errno. */
int service_init(struct service *s, struct gen_env *env, struct http_server *http);
void service_start(struct service *s);  /* opens the handles on the loop */
void service_close(struct service *s);  /* closes them */
void service_deinit(struct service *s); /* accepts a zeroed one */

/* http_server_opts.ended: counts the exchange and writes the one line that every request ends with,
 * unless its client had many. */
void service_on_ended(const struct exchange *x);
/* Returns the state that clients are told: STARTING, SERVING, REPLACING, FAILED, DRAINING. */
enum api_health service_health(const struct gen_env *env);
void service_stats(const struct service *s, struct api_stats *out);

extern const struct route service_routes[]; /* ends with one without path */

/* route.serve: metrics_page.c, recent_page.c, sleep.c, usage_page.c */
void metrics_serve(struct exchange *x, struct http *h);
void recent_serve(struct exchange *x, struct http *h);
void recent_why_serve(struct exchange *x, struct http *h);
void history_serve(struct exchange *x, struct http *h);
void sleep_serve(struct exchange *x, struct http *h);
void wake_up_serve(struct exchange *x, struct http *h);
void sleeping_serve(struct exchange *x, struct http *h);
void usage_serve(struct exchange *x, struct http *h);
/* Makes @out select what @f does. Returns 0, or -ENOENT: there is no such tenant. */
int recent_filter_of(const struct gen_env *env, const struct api_ended_filter *f,
                     struct recent_filter *out);
/* Writes the usage of all keys and the quotas of all tenants as JSON. Returns 0 or -errno. */
int service_put_usage(const struct gen_env *env, struct buf *out);
