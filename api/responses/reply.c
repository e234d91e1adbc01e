#include "api/responses/reply.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "api/generation/env.h"
#include "api/http/exchange.h"
#include "api/http/respond.h"
#include "api/responses/responses.h"

/* An answer made of a stored object. Invariant: while @exchange is set, this is its state, and both
 * belong to the loop; @body and @result belong to the job until reply_on_written(). */
struct reply {
    /* NULL: the client has left */
    struct exchange *exchange;
    struct job job;
    struct stored *stored;
    struct items_query query;
    stored_write *write;
    struct buf body;
    int result;
};

static void reply_free(struct reply *r) {
    assert(!r->exchange);
    stored_unref(r->stored);
    buf_deinit(&r->body);
    free(r);
}

/* Detaches the reply from its exchange. The job runs on to its next pause, and reply_on_written()
 * frees the reply. */
static void reply_detach(struct exchange *x, void *state) {
    struct reply *r = state;

    job_pool_abandon(&env_of(x)->pool, &r->job);
    r->exchange = NULL;
}

static const struct exchange_ops ops = {.abandon = reply_detach};

static void reply_on_thread(struct job *j) {
    struct reply *r = CONTAINER_OF(j, struct reply, job);

    r->result = r->write(r->stored, &r->query, &r->body);
}

/* Ends @x with what was written. */
static void reply_end(struct exchange *x, struct reply *r) {
    struct err err;

    if (r->result != -ENOENT) {
        respond_buf(x, 200, &r->body, r->result);
        return;
    }
    err_set_code(&err, 404, "not_found", NULL, "Item with id '%.99s' not found.", r->query.after);
    respond_error(x, &err);
}

static void reply_on_written(struct job *j) {
    struct reply *r = CONTAINER_OF(j, struct reply, job);
    struct exchange *x = r->exchange;

    if (x) {
        r->exchange = NULL;
        exchange_detach(x);
        reply_end(x, r);
    }
    reply_free(r);
}

void stored_reply(struct exchange *x, struct stored *s, const struct items_query *q, size_t work,
                  stored_write *write) {
    struct reply *r = calloc(1, sizeof(*r));

    assert(s && write);
    if (!r) {
        stored_unref(s);
        respond_errno(x, -ENOMEM);
        return;
    }
    r->stored = s;
    r->query = q ? *q : (struct items_query){0};
    r->write = write;
    r->result = -ECANCELED; /* unless the job runs */
    buf_init(&r->body, API_SEND_MAX);
    r->job = (struct job){.run = reply_on_thread, .done = reply_on_written};
    if (work <= REPLY_INLINE) {
        reply_on_thread(&r->job);
        reply_end(x, r);
        reply_free(r);
        return;
    }
    int error =
        job_pool_submit(&env_of(x)->pool, &r->job, tenants_get(&env_of(x)->tenants, x->tenant));
    if (error < 0) {
        reply_free(r);
        respond_errno(x, error);
        return;
    }
    r->exchange = x;
    exchange_attach(x, &ops, r);
}
