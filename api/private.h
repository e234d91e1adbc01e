#pragma once

/*
 * private - what the files of api/ share: the object itself and the limits that are not options.
 */

#include <pthread.h>
#include <stdatomic.h>
#include "api/limits/admit.h"
#include "api/api.h"
#include "api/http/exchange.h"
#include "api/http/dialect.h"
#include "api/http/server.h"
#include "api/limits/auth.h"
#include "api/generation/model.h"
#include "api/http/loop_lag.h"
#include "api/generation/metrics.h"
#include "api/limits/job_pool.h"
#include "api/service/otlp.h"
#include "api/service/recent.h"
#include "api/responses/store.h"
#include "api/limits/tenant.h"
#include "base/list.h"
#include "base/rng.h"

#define API_SEND_MAX (256u << 20) /* bytes of one answer, and unsent ones of a connection */
#define API_RETRY_MS 2000         /* while starting or draining */
#define API_GEN_BUCKETS 1024u
#define API_CHECKED 1024u /* grammars that are remembered */
#define API_RECENT 512u   /* requests whose ids are remembered for the operator */

struct api_recent { /* a request and its first generation */
    char request_id[64];
    uint64_t id;
};

struct api {
    uv_loop_t *loop;
    struct api_opts opts;
    struct list models; /* model.link; never empty */
    /* Written by the loop's thread alone, which reads without it. */
    pthread_rwlock_t models_lock;
    const char *const *bad_presets; /* under the same lock: names, NULL-terminated; or NULL */
    uv_timer_t wait_tick;           /* model_wait.c */
    uint32_t n_waiting;             /* prompt jobs that wait for their models */
    struct clock *clock;
    char started_header[64]; /* a header line: when the service began */
    enum api_health health;
    bool leaving, draining, closing;
    struct http_server http;
    struct list gens;                     /* gen.link: live generations, oldest first */
    struct list buckets[API_GEN_BUCKETS]; /* gen.bucket, by id */
    struct job_pool pool;
    size_t kept_bytes;  /* of those whose turns have not ended; for prewarm.c */
    uint32_t n_prewarm; /* turns for which it is at work */
    uint64_t next_gen;
    struct api_stats stats;
    struct auth auth;
    struct tenants tenants;
    struct log_limit log_limit;
    uv_timer_t log_tick;   /* tells what was left out */
    struct store store;    /* of responses */
    struct list responses; /* responses.link: under way */
    struct admit admit;
    struct metrics metrics;        /* of the loop; those of generations are their models' */
    struct otlp *otlp;             /* NULL: no traces are sent */
    struct recent recent_requests; /* requests that have ended, for the web page */
    struct loop_lag lag;
    int64_t long_told_ns; /* when the last long iteration was logged */
    uint32_t n_long;      /* since then */
    struct rng rng;       /* request ids and seeds */
    /* Grammars that were right and wrong, by hash: any thread (constrain.c). */
    _Atomic uint64_t checked[API_CHECKED], refused[API_CHECKED];
    uint64_t secret[2];                   /* of this process */
    uint64_t share_secret[2];             /* keys the isolation keys of tenants */
    struct api_recent recent[API_RECENT]; /* [n_recent % API_RECENT] is the next */
    uint64_t n_recent;
};

/* The api that @x is an exchange of. */
static inline struct api *api_of(const struct exchange *x) {
    return x->ctx;
}

/* The model that is served where a request names none. */
static inline struct model *model_first(const struct api *a) {
    return LIST_ENTRY(a->models.next, struct model, link);
}

/* port.c: so that the operator can ask about it by the name that the client knows. */
void port_note_request(struct api *a, const char *request_id, uint64_t id);
/* server.c: what a client is told about the service's state now: STARTING, SERVING, REPLACING,
 * FAILED, DRAINING. */
enum api_health server_health(const struct api *a);
