#pragma once

/* admin_opts - what the admin socket shows and what it can ask for; shared by its routes and its
 * JSON. */

#include "api/api.h"
#include "daemon/models/models.h"

struct admin_opts {
    uv_loop_t *loop;
    struct api *api;
    struct models *models;
    struct clock *clock;
    int64_t started_ns; /* start of the daemon, by @clock */
    void *ctx;
    const char *(*health)(void *ctx); /* "starting", "serving", "replacing", "failed", "draining" */
    void (*drain)(void *ctx);
    int (*reload)(void *ctx, struct err *err); /* 0, or what is wrong */
    /* 0: admin_upgrade_over() follows; or what is wrong. */
    int (*upgrade)(void *ctx, struct err *err);
};
