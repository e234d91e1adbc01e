#include "api/generation/lookup.h"

#include <assert.h>
#include <errno.h>

#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/prompt_job.h"
#include "api/http/dialect.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"

struct lookup {
    struct prompt_job job;
    /* NULL: the client is gone */
    struct exchange *exchange;
    struct buf answer;
    int answer_error;
};

static void free_lookup(struct lookup *l) {
    prompt_job_deinit(&l->job);
    buf_deinit(&l->answer);
    free(l);
}

/* The callback prompt_job.write: writes the answer on the job's thread, because it may have a
 * million tokens. */
static void write_answer(struct prompt_job *job) {
    struct lookup *l = CONTAINER_OF(job, struct lookup, job);
    struct json j = {.out = &l->answer};

    job->endpoint->write(&j, job);
    l->answer_error = j.error;
}

static void lookup_on_prepared(struct prompt_job *job) {
    struct lookup *l = CONTAINER_OF(job, struct lookup, job);
    struct exchange *x = l->exchange;
    struct err err = job->err;
    int r = job->result < 0 ? job->result : l->answer_error;

    if (!x) {
        free_lookup(l);
        return;
    }
    CLEANUP(buf_deinit) struct buf b = l->answer;
    buf_init(&l->answer, 0);
    exchange_detach(x);
    x->retry_ms = job->retry_ms;
    prompt_job_name_model(job, x);
    free_lookup(l);
    if (r < 0 && err.status)
        respond_error(x, &err);
    else
        respond_buf(x, 200, &b, r);
}

/* Detaches the lookup; while it still runs, lookup_on_prepared() frees it later. */
static void lookup_detach(struct exchange *x, void *state) {
    struct lookup *l = state;

    l->exchange = NULL;
    if (!prompt_job_abandon(&l->job))
        free_lookup(l);
}

void lookup_serve(struct exchange *x, struct http *h) {
    static const struct exchange_ops ops = {.abandon = lookup_detach};
    const struct endpoint *endpoint = x->route->endpoint;

    assert(endpoint->translate && endpoint->write && !endpoint->open == !endpoint->close);
    struct lookup *l = calloc(1, sizeof(*l));
    if (!l || (endpoint->open && endpoint->open(&l->job, x, NULL) < 0)) {
        free(l);
        respond_errno(x, -ENOMEM);
        return;
    }
    buf_init(&l->answer, API_SEND_MAX);
    l->exchange = x;
    l->job.write = write_answer;
    exchange_attach(x, &ops, l);
    prompt_job_start(&l->job, x, endpoint, lookup_on_prepared);
}
