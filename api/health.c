#include "api/call.h"
#include "api/json.h"
#include "api/private.h"
#include "api/respond.h"

#ifndef WEFT_VERSION
#define WEFT_VERSION "0"
#endif

/* 200 only while new requests are served: a balancer turns away before it is turned away. */
void health_serve(struct call *c, struct http *h) {
    static const char *const names[] = {"starting", "serving", "replacing", "draining"};
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};
    enum api_health s = server_health(c->api);
    struct json j;

    (void)h;
    c->retry_ms = API_RETRY_MS;
    json_begin(&j, &b);
    json_open(&j, '{');
    json_put_string(&j, "status", s == API_SERVING ? "ok" : "unavailable");
    json_put_string(&j, "state", names[s]);
    json_close(&j, '}');
    respond_buf(c, s == API_SERVING ? 200 : 503, &b, j.error);
}

void version_serve(struct call *c, struct http *h) {
    (void)h;
    static const char text[] = "{\"version\":\"" WEFT_VERSION "\",\"server\":\"weft\"}";

    respond(c, 200, RESPOND_JSON, text, sizeof(text) - 1);
}
