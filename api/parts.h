#pragma once

/* parts - the object behind api/api.h: the parts of all rooms together. */

#include "api/generation/env.h"
#include "api/http/server.h"
#include "api/responses/store.h"
#include "api/service/service.h"
#include "api/state/state.h"

struct api {
    struct gen_env env; /* the context of exchanges */
    struct http_server http;
    struct unpack_room unpack; /* decoders of request bodies */
    struct store store;        /* stored responses */
    struct service service;
    struct state state; /* zeroed: nothing outlives the process */
    bool closing;
};

/* Returns the api to which @x belongs. */
static inline struct api *api_of(const struct exchange *x) {
    return CONTAINER_OF(env_of(x), struct api, env);
}
