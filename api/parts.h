#pragma once

/* parts - the object behind api/api.h: the parts of all rooms together. */

#include "api/generation/env.h"
#include "api/http/server.h"
#include "api/responses/store.h"
#include "api/service/service.h"
#include "api/state/state.h"

struct api {
    /* the context of exchanges */
    struct gen_env env;
    struct http_server http;
    /* decoders of request bodies */
    struct unpack_room unpack;
    /* stored responses */
    struct store store;
    struct service service;
    /* zeroed: nothing outlives the process */
    struct state state;
    bool closing;
};

/* Returns the api to which @x belongs. */
static inline struct api *api_of(const struct exchange *x) {
    return CONTAINER_OF(env_of(x), struct api, env);
}
