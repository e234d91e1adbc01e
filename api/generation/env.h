#pragma once

/*
 * env - the part of the service that every request for a generation uses: options, clock, random
 * source, limits and threads, the served models and the live generations. Handlers find it as the
 * context of their exchange. The rooms above keep what is theirs in structs of their own, to which
 * this one has pointers and into which generation/ never looks.
 */

#include <uv.h>
#include "api/api.h"
#include "api/generation/constrain.h"
#include "api/generation/gen.h"
#include "api/generation/ids.h"
#include "api/generation/model.h"
#include "api/generation/model_wait.h"
#include "api/generation/models.h"
#include "api/generation/prewarm.h"
#include "api/http/exchange.h"
#include "api/limits/admit.h"
#include "api/limits/auth.h"
#include "api/limits/job_pool.h"
#include "api/limits/tenant.h"
#include "base/rng.h"

#define API_SEND_MAX (256u << 20) /* bytes of one answer, and unsent ones of a connection */
#define API_RETRY_MS 2000         /* while starting or draining */

struct store;
struct service;

struct gen_env {
    uv_loop_t *loop;
    struct clock *clock;
    struct api_opts opts;
    struct rng rng;           /* request ids and seeds */
    uint64_t secret[2];       /* of this process */
    uint64_t share_secret[2]; /* keys the isolation keys of tenants */
    bool draining;
    struct api_stats stats;
    struct tenants tenants;
    struct admit admit;
    struct job_pool pool;
    struct model_list models;
    struct model_wait wait;
    struct gens gens;
    struct gen_ids ids;
    struct prewarm prewarm;
    struct constrain_memory grammars;
    struct store *store;     /* responses/store.h */
    struct service *service; /* service/service.h */
};

/* Returns the environment that @x is an exchange of. */
static inline struct gen_env *env_of(const struct exchange *x) {
    return x->ctx;
}

/* Returns the model that is served where a request names none. */
static inline struct model *model_first(const struct gen_env *env) {
    return LIST_ENTRY(env->models.list.next, struct model, link);
}
