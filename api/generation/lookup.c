#include "api/generation/lookup.h"

#include <assert.h>
#include <errno.h>
#include "api/generation/endpoint.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/private.h"

struct lookup {
    struct prompt_job job;
    struct exchange *exchange; /* NULL: the client is gone */
    void (*write)(struct json *j, const struct prompt_job *job);
};

static void free_lookup(struct lookup *l) {
    prompt_job_deinit(&l->job);
    free(l);
}

static void on_prepared(struct prompt_job *job) {
    struct lookup *l = CONTAINER_OF(job, struct lookup, job);
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    struct exchange *x = l->exchange;
    struct err err = job->err;
    struct json j;
    int r = job->result;

    if (!x) {
        free_lookup(l);
        return;
    }
    json_begin(&j, &b);
    if (r == 0)
        l->write(&j, job);
    x->ops = NULL;
    x->retry_ms = job->retry_ms;
    free_lookup(l);
    if (r < 0 && err.status)
        respond_error(x, &err);
    else
        respond_buf(x, 200, &b, r < 0 ? r : j.error);
}

/* Where it still runs on_prepared() frees it. */
static void leave(struct lookup *l) {
    l->exchange = NULL;
    if (!prompt_job_abandon(&l->job))
        free_lookup(l);
}

static void on_gone(struct exchange *x) {
    struct lookup *l = x->state;

    leave(l);
    exchange_end(x);
}

static void on_fail(struct exchange *x, const struct err *err) {
    struct lookup *l = x->state;

    leave(l);
    respond_error(x, err);
}

void lookup_serve(struct exchange *x, const struct endpoint *endpoint,
                  void (*write)(struct json *j, const struct prompt_job *job)) {
    assert(endpoint->translate && !endpoint->open == !endpoint->close);
    static const struct exchange_ops ops = {on_gone, NULL, on_fail, NULL};
    struct lookup *l = calloc(1, sizeof(*l));

    if (!l || (endpoint->open && endpoint->open(&l->job, x, NULL) < 0)) {
        free(l);
        respond_errno(x, -ENOMEM);
        return;
    }
    l->exchange = x;
    l->write = write;
    x->ops = &ops;
    x->state = l;
    prompt_job_start(&l->job, x, endpoint, on_prepared);
}
