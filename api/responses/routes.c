/*
 * Routes of a response that is stored or under way: /v1/responses/ID, DELETE of it, /cancel and
 * /input_items. Clients without the right to see it get 404.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/audit.h"
#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/lookup.h"
#include "api/generation/writer.h"
#include "api/http/http.h"
#include "api/http/respond.h"
#include "api/openai/openai.h"
#include "api/responses/background.h"
#include "api/responses/conversation.h"
#include "api/responses/query.h"
#include "api/responses/reply.h"
#include "api/responses/responses.h"
#include "base/try.h"

/* Returns true if the path names a response: conversations are in the same store. */
static bool names_response(const struct exchange *x) {
    return strncmp(x->arg, RESPONSES_ID_PREFIX, strlen(RESPONSES_ID_PREFIX)) == 0;
}

struct stored *responses_named(struct exchange *x) {
    if (!names_response(x))
        return NULL;
    return store_get(env_of(x)->store, x->tenant, x->arg, strlen(x->arg));
}

void responses_not_found(struct exchange *x) {
    struct err err;

    err_set_code(&err, 404, "not_found", "response_id", "Response with id '%.100s' not found.",
                 x->arg);
    respond_error(x, &err);
}

/* Returns a response under way for which the client may ask, or NULL. */
static struct responses *responses_find_live(struct exchange *x) {
    struct responses *rs = responses_find(env_of(x), x->tenant, x->arg);

    bool on_pool = rs && (rs->writer->job.running || rs->writer->writing);

    if (!rs || on_pool || !rs->store)
        return NULL;
    return rs;
}

/* Answers with the whole of @s, which is taken over. */
static void respond_stored(struct exchange *x, struct stored *s) {
    const struct spliced texts[] = {s->parts.head, {.text = s->parts.echo}};

    respond_spliced_texts(x, texts, ARRAY_SIZE(texts), "}");
    stored_unref(s);
}

/* Sends the events of a response behind number `starting_after`. @log is NULL if the response has
 * none. */
static void resume(struct exchange *x, struct http *h, struct event_log *log) {
    char value[16], *end = value;
    unsigned long after = 0;
    struct err err;
    bool given = http_query(h, "starting_after", value, sizeof(value));

    if (given)
        after = strtoul(value, &end, 10);
    if (given && (*value < '0' || *value > '9' || *end || after >= UINT32_MAX))
        json_refuse(&err, "starting_after", "must be the sequence_number of an event");
    else if (!log || log->lost)
        err_set_code(&err, 400, "invalid_value", "stream",
                     "stream: only the events of a response with background are kept, and of this "
                     "one there are none.");
    else {
        background_follow(x, log, given ? (uint32_t)after + 1 : 0);
        return;
    }
    respond_error(x, &err);
}

static void get_serve(struct exchange *x, struct http *h) {
    struct stored *s = responses_named(x);
    struct responses *rs = s ? NULL : responses_find_live(x);
    char value[8];

    if (!s && !rs) {
        responses_not_found(x);
    } else if (http_query(h, "stream", value, sizeof(value)) && strcmp(value, "true") == 0) {
        resume(x, h, s ? s->parts.log : rs->log);
    } else if (s) {
        respond_stored(x, s);
        return;
    } else {
        responses_answer(x, rs->writer,
                         rs->log && !rs->writer->head_sent ? RESPONSES_QUEUED
                                                           : RESPONSES_IN_PROGRESS);
    }
    stored_unref(s);
}

/* Ends a response under way. Its own client is told that it was cancelled. */
static void end_live(struct exchange *x, struct responses *rs) {
    struct err err = {0};

    audit_client(x, "cancel", x->arg, 0, &err);
    rs->cancelled = true;
    err_set_code(&err, 503, "cancelled", NULL, "The response was cancelled.");
    respond_failure(rs->writer->exchange, &err);
}

static void delete_serve(struct exchange *x, struct http *h) {
    struct responses *rs = names_response(x) ? responses_find_live(x) : NULL;

    if (rs)
        end_live(x, rs); /* and stores it */
    bool stored =
        names_response(x) && store_remove(env_of(x)->store, x->tenant, x->arg, strlen(x->arg));
    if (rs || stored)
        respond_shape(x, "{id:%s, object:'response', deleted:true}", x->arg);
    else
        responses_not_found(x);
}

/* Cancels a response under way; @x gets the response as it stands. */
static void responses_cancel(struct exchange *x, struct responses *rs) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    CLEANUP(splices_deinit) struct splices refs = {0};
    struct json j = {.out = &b, .refs = &refs};
    size_t head;

    rs->cancelled = true;
    responses_put(&j, rs->writer, RESPONSES_FAILED, NULL, &head);
    end_live(x, rs);
    respond_spliced(x, &b, &refs, j.error);
}

static void responses_cancel_serve(struct exchange *x, struct http *h) {
    struct responses *rs = responses_find_live(x);
    struct err err = {0};

    if (rs) {
        responses_cancel(x, rs);
        return;
    }
    struct stored *s = responses_named(x);
    if (s && s->parts.cancelled) {
        respond_stored(x, s);
        return;
    }
    if (s) {
        err_set_code(&err, 400, "invalid_value", "response_id", "Response '%s' has already ended.",
                     x->arg);
        respond_error(x, &err);
    } else {
        responses_not_found(x);
    }
    stored_unref(s);
}

/* ---- /v1/responses/input_tokens ---- */

static void responses_write_count(struct json *j, const struct prompt_job *job) {
    json_print(j, "{object:'response.input_tokens', input_tokens:%ld}",
               (int64_t)job->prompts[0].tokens.n);
}

static const struct endpoint count = {.open = responses_open,
                                      .close = responses_close,
                                      .translate = responses_translate,
                                      .rename = responses_rename,
                                      .write = responses_write_count};

/* ---- the dialect ---- */

static const struct route routes[] = {
    {"/v1/responses", HTTP_POST, false, true, responses_serve, &responses_endpoint},
    {"/responses", HTTP_POST, false, true, responses_serve, &responses_endpoint},
    {"/v1/responses/compact", HTTP_POST, false, true, writer_serve, &responses_compact},
    {"/v1/responses/input_tokens", HTTP_POST, false, false, lookup_serve, &count},
    {"/v1/conversations", HTTP_POST, false, false, conversations_create_serve, NULL},
    {"/v1/conversations/*/items", HTTP_POST, false, false, conversations_add_serve, NULL},
    {"/v1/conversations/*/items", HTTP_GET, false, false, conversations_items_serve, NULL},
    {"/v1/conversations/*", HTTP_POST, false, false, conversations_update_serve, NULL},
    {"/v1/conversations/*", HTTP_GET, false, false, conversations_get_serve, NULL},
    {"/v1/conversations/*", HTTP_DELETE, false, false, conversations_delete_serve, NULL},
    {"/v1/responses/*/cancel", HTTP_POST, false, false, responses_cancel_serve, NULL},
    {"/v1/responses/*/input_items", HTTP_GET, false, false, responses_items_serve, NULL},
    {"/v1/responses/*", HTTP_GET, false, false, get_serve, NULL},
    {"/v1/responses/*", HTTP_DELETE, false, false, delete_serve, NULL},
    {0},
};

static const char *const prefixes[] = {"/v1/responses", "/responses", "/v1/conversations", NULL};

const struct dialect responses_dialect = {
    .name = "responses",
    .prefixes = prefixes,
    .routes = routes,
    .websocket = "/v1/responses",
    OPENAI_FORM,
};
