#pragma once

/* admin_opts - the parts of the daemon that the admin socket shows, and its commands; shared by
 * routes (admin.c) and JSON (admin_json.c). */

#include "api/api.h"
#include "api/http/json.h"
#include "daemon/models/models.h"

struct admin_opts {
    uv_loop_t *loop;
    struct api *api;
    struct models *models;
    struct clock *clock;
    /* start of the daemon, by @clock */
    int64_t started_ns;
    void *ctx;
    /* "starting", "serving", "replacing", "failed", "draining" */
    const char *(*health)(void *ctx);
    /* address of the first listener, as in the line "ready"; may be empty */
    const char *url;
    void (*drain)(void *ctx);
    /* Begins to read the configuration again. Returns 0: admin_reload_over() follows; or -errno
     * with the reason in @err. */
    int (*reload)(void *ctx, struct err *err);
    /* Starts an upgrade. Returns 0: admin_upgrade_over() follows; or -errno with the reason in
     * @err. */
    int (*upgrade)(void *ctx, struct err *err);
};
