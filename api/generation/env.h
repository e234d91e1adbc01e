#pragma once

/*
 * env - the part of the service that every request for a generation uses: options, clock, random
 * source, limits and threads, the served models and the live generations. Handlers find it as the
 * context of their exchange. Higher rooms keep their state in their own structs; this one has
 * pointers to them, and generation/ never reads them.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <uv.h>

#include "api/api.h"
#include "api/generation/ids.h"
#include "api/generation/model.h"
#include "api/generation/picture_sender.h"
#include "api/generation/picture_table.h"
#include "api/http/exchange.h"
#include "api/limits/admit.h"
#include "api/limits/auth.h"
#include "api/limits/job_pool.h"
#include "api/limits/log_limit.h"
#include "api/limits/tenant.h"
#include "api/limits/usage.h"
#include "base/rng.h"

#define API_SEND_MAX (256u << 20) /* bytes of one answer, and unsent ones of a connection */
#define API_RETRY_MS 2000         /* while starting or draining */
#define GEN_BUCKETS 1024u
#define CONSTRAIN_CHECKED 1024u

struct store;
struct service;

struct gen_env {
    uv_loop_t *loop;
    struct clock *clock;
    struct api_opts opts;
    /* request ids and seeds */
    struct rng rng;
    /* random key of this process */
    uint64_t secret[2];
    /* keys the isolation keys of tenants */
    uint64_t share_secret[2];
    bool draining;
    /* health that the daemon reports */
    enum api_health health;
    struct api_stats stats;
    struct auth auth;
    struct tenants tenants;
    struct usage usage;
    /* lines that clients cause */
    struct log_limit log_limit;
    struct admit admit;
    struct job_pool pool;
    struct {
        /* model.link; never empty */
        struct list list;
        /* Only the loop's thread writes, under the lock; it reads without the lock. */
        pthread_rwlock_t lock;
        /* names, NULL-terminated; or NULL */
        const char *const *bad_presets;
    } models;
    struct {
        uv_timer_t tick;
        /* prompt jobs that wait for their models */
        uint32_t n;
    } wait;
    struct {
        /* gen.link: live generations, oldest first */
        struct list list;
        /* gen.failed: those that will be ended */
        struct list failed;
        /* gen.bucket, by id */
        struct list buckets[GEN_BUCKETS];
        uint64_t next_id;
        /* virtual time of the last submit: tenant.submits when it began */
        double submitted;
        /* changes of which generations are WAITING, and of those the ones that gen.n_before has */
        uint64_t n_changes, n_ranked;
    } gens;
    struct gen_ids ids;
    struct {
        /* memory of kept bodies, whose turns have not ended */
        size_t kept_bytes;
        /* turns that are being prepared */
        uint32_t n;
    } prewarm;
    struct { /* constrain.c: grammars that were right and wrong, by hash; any thread */
        _Atomic uint64_t checked[CONSTRAIN_CHECKED], refused[CONSTRAIN_CHECKED];
    } grammars;
    struct picture_table pictures;
    struct picture_sender sender;
    /* jobs that wait for hosts of pictures; zeroed: there are none */
    struct job_pool fetchers;
    /* responses/store.h */
    struct store *store;
    /* service/service.h */
    struct service *service;
};

/* Returns the environment to which @x belongs. */
static inline struct gen_env *env_of(const struct exchange *x) {
    return x->ctx;
}

/* Returns the time until which @x may wait in the queue, the service's limit or its client's; 0 if
 * there is none. */
static inline int64_t queue_deadline(const struct exchange *x) {
    int64_t ms = env_of(x)->opts.request_timeout_ms;

    if (x->timeout_ms && (!ms || x->timeout_ms < ms))
        ms = x->timeout_ms;
    if (!ms)
        return 0;
    return x->started_ns + ms * 1000000;
}

/* Returns the model for requests that name none. */
static inline struct model *model_first(const struct gen_env *env) {
    return LIST_ENTRY(env->models.list.next, struct model, link);
}
