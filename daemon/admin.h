#pragma once

/*
 * admin - the admin socket: HTTP and JSON on a UNIX socket. Only root, the daemon's own user and
 * members of the socket's group are heard (file mode and peer credentials). `curl --unix-socket`
 * works, weftctl is its pleasant form.
 *
 *   GET  /stats              everything at once; ?watch=1s: one JSON object per line, that often
 *   GET  /requests           live generations
 *   POST /requests/ID/cancel
 *   GET  /requests/ID/why    what was decided about it, also when it has ended; ID or x-request-id
 *   GET  /tenants            who uses what
 *   GET  /flight             the flight recorder as a file (proto/flight_file.h)
 *   POST /reload             as SIGHUP; 400 says what is wrong
 *   POST /drain              as SIGTERM
 *   GET  /health             state in words
 *
 * Everything is answered from what the front holds; what the worker reported carries its age_ms.
 */

#include "api/api.h"
#include "daemon/workers.h"

struct admin;

struct admin_opts {
    uv_loop_t *loop;
    struct api *api;
    struct workers *workers;
    const struct api_model *model;
    struct clock *clock;
    int64_t started_ns; /* of the daemon, by @clock */
    void *ctx;
    const char *(*health)(void *ctx); /* "starting", "serving", "replacing", "draining" */
    void (*drain)(void *ctx);
    int (*reload)(void *ctx, struct err *err); /* 0, or what is wrong */
};

int admin_new(struct admin **out, const struct admin_opts *o);
struct admin *admin_free(struct admin *a); /* after admin_close() and the loop has run out */
int admin_listen_unix(struct admin *a, const char *path, struct err *err);
int admin_listen_fd(struct admin *a, int fd, struct err *err);
void admin_close(struct admin *a);
