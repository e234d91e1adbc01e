/*
 * The writer of a response in the background is that of a stream, with an exchange that has no
 * connection: its events go to a log (event_log.h), and no slow reader holds it back. The client's
 * connection continues with an exchange of its own, which is answered with the response as it
 * stands or, for a stream, reads the log like any other reader.
 *
 * An event only marks the readers of its log. Each takes some of what is new in a turn of its own
 * connection, which its payer is charged for, so neither many readers nor long events hold up
 * others.
 *
 * Logs of responses under way are bounded in all by the bytes of the store. A log for which there
 * is no room is lost: its readers are told so, and the response itself goes on.
 */

#include "api/responses/background.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "api/generation/env.h"
#include "api/http/conn.h"
#include "api/http/respond.h"
#include "api/responses/responses.h"
#include "base/try.h"

#define TURN_MAX (32u << 10) /* bytes of events that a reader takes in a turn */

/* ---- readers ---- */

/* A reader of a log. Invariant: while it lives, it is the state of @exchange and watches @log. */
struct reader {
    struct event_watch watch;
    struct exchange *exchange;
    struct event_log *log;
    struct event_place next;
};

static void background_unwatch(struct exchange *x, void *state) {
    struct reader *r = state;

    event_log_unwatch(r->log, &r->watch);
    event_log_unref(r->log);
    free(r);
}

static void end_lost(struct exchange *x) {
    struct err err;

    err_set_code(&err, 503, "events_lost", NULL,
                 "There is no more room for the events of this response. Ask for it without "
                 "stream.");
    respond_failure(x, &err);
}

/* Sends what a turn allows and the connection takes. */
static void reader_send(struct reader *r) {
    const struct event_log *l = r->log;
    struct exchange *x = r->exchange;
    struct splice part;
    size_t n = 0;

    if (l->lost) {
        end_lost(x);
        return;
    }
    while (n < TURN_MAX && !conn_is_full(x->conn) &&
           event_log_read(l, &r->next, TURN_MAX - n, &part)) {
        respond_part(x, &part);
        n += part.len;
    }
    if (r->next.event >= l->n && l->closed) {
        exchange_abandon(x);
        respond_stream_end(x);
        return;
    }
    conn_start_keepalive(x->conn);
    conn_flush(x->conn);
    if (r->next.event < l->n)
        conn_want_room(x->conn);
}

static void background_on_news(struct event_watch *w) {
    conn_want_room(CONTAINER_OF(w, struct reader, watch)->exchange->conn);
}

static void background_on_drained(struct exchange *x) {
    reader_send(x->state);
}

static const struct exchange_ops ops = {.abandon = background_unwatch,
                                        .drained = background_on_drained};

static void refuse_reader(struct exchange *x) {
    struct err err;

    err_set_code(&err, 429, "too_many_readers", "stream",
                 "%u clients read the events of this response already, which is the most.",
                 EVENT_LOG_READERS);
    respond_error(x, &err);
}

void background_follow(struct exchange *x, struct event_log *log, uint32_t from) {
    struct reader *r = calloc(1, sizeof(*r));

    if (!r) {
        respond_errno(x, -ENOMEM);
        return;
    }
    if (!event_log_watch(log, &r->watch)) {
        free(r);
        refuse_reader(x);
        return;
    }
    r->watch.news = background_on_news;
    r->exchange = x;
    r->log = event_log_ref(log);
    r->next.event = from;
    exchange_attach(x, &ops, r);
    if (!x->stream)
        respond_stream(x);
    reader_send(r);
}

/* ---- the response ---- */

/* Lets the database have the response as failed, which it is if this process is killed. It has
 * neither the input nor what was generated until then. Without memory there is no such row. */
static void promise(struct writer *w) {
    CLEANUP(buf_deinit) struct buf text = {.max = API_SEND_MAX};
    CLEANUP(splices_deinit) struct splices refs = {0};
    struct responses *rs = responses_of(w);
    struct store *s = rs->env->store;
    struct stored_parts parts;
    struct err err;
    size_t head;

    if (!s->save.on || !rs->kept.echo)
        return;
    err_set_code(&err, 500, "server_ended", NULL,
                 "The server ended before the response did. Send the request again.");
    struct json j = {.out = &text, .refs = &refs};
    responses_put(&j, w, RESPONSES_FAILED, &err, &head);
    text.len = MIN(text.len, head);
    stored_parts_init(&parts);
    parts.head.text = j.error == 0 ? blob_new(&text) : NULL;
    if (!parts.head.text)
        return;
    parts.echo = blob_ref(rs->kept.echo);
    if (store_hold(s, rs->tenant, w->id, rs->parent, &parts, &rs->promise) == 0)
        store_promise(rs->promise);
}

int background_begin(struct writer *w, struct err *err) {
    struct responses *rs = responses_of(w);
    struct exchange *x = w->exchange;
    bool streams = w->job.request.answer.stream;

    if (!rs->background)
        return 0;
    assert(rs->store && x->conn && !rs->log);
    TRY(admit_precheck(&rs->env->admit, tenants_get(&rs->env->tenants, x->tenant), &x->retry_ms,
                       err));
    struct event_log *log = event_log_new();
    struct exchange *client = log ? exchange_separate_conn(x) : NULL;
    if (!client) {
        event_log_unref(log);
        return -ENOMEM;
    }
    rs->log = log;
    x->timeout_ms = 0; /* it is the client's, which does not wait */
    w->job.request.answer.stream = true;
    promise(w);
    responses_stream_queued(w);
    if (streams)
        background_follow(client, rs->log, 0);
    else
        responses_answer(client, w, RESPONSES_QUEUED);
    return 0;
}

/* Updates the size of the log in the store's sum over responses under way. */
static void background_count(struct responses *rs) {
    struct store *s = rs->env->store;
    size_t n = 0;

    if (!rs->log->closed)
        n = event_log_bytes(rs->log) + logprobs_bytes(&rs->logprobs);

    assert(s->n_logged >= rs->n_logged);
    s->n_logged = s->n_logged - rs->n_logged + n;
    rs->n_logged = n;
}

void background_add(struct responses *rs, const char *type, const struct buf *json,
                    const struct splices *in) {
    event_log_add(rs->log, type, json, in);
    background_count(rs);
    if (rs->env->store->n_logged <= rs->env->store->limits.bytes)
        return;
    event_log_lose(rs->log);
    background_count(rs);
}

void background_close(struct responses *rs) {
    event_log_close(rs->log);
    background_count(rs);
    if (!rs->log->lost)
        rs->kept.log = event_log_ref(rs->log);
}

/* Returns a response in the background that is under way, or NULL. */
static struct responses *background_first(struct gen_env *env) {
    LIST_FOREACH_ENTRY(rs, &env->store->live, struct responses, link) {
        if (rs->log && rs->writer->exchange)
            return rs;
    }
    return NULL;
}

void background_stop(struct gen_env *env, const struct err *err) {
    struct responses *rs;

    while ((rs = background_first(env)))
        respond_failure(rs->writer->exchange, err);
}
