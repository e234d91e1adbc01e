/* The endpoints that make responses. A response that is complete is stored here, or held by its
 * WebSocket. */

#include <assert.h>
#include <string.h>

#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/http/conn.h"
#include "api/http/respond.h"
#include "api/responses/background.h"
#include "api/responses/conversation.h"
#include "api/responses/responses.h"
#include "base/json_read.h"
#include "base/try.h"

static void responses_forget(void *state) {
    stored_unref(state);
}

/* Lets the WebSocket hold the response, which its next message may continue. A response that is not
 * to be stored is removed from the index, so that only the WebSocket has it. */
static void responses_remember(const struct writer *w, bool whole) {
    const struct responses *rs = responses_of(w);
    struct websocket *ws = w->exchange->conn ? w->exchange->conn->http.ws : NULL;
    struct stored *s = store_get(rs->env->store, rs->tenant, w->id, strlen(w->id));

    if (!rs->store)
        store_remove(rs->env->store, rs->tenant, w->id, strlen(w->id));
    if (ws && whole) {
        stored_unref(ws->state);
        ws->state = STEAL(s);
        ws->drop = responses_forget;
    }
    stored_unref(s);
}

void responses_store(const struct writer *w, const struct json *j, size_t from, size_t head) {
    struct responses *rs = responses_of(w);

    if (!rs->store && !rs->framed)
        return;
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    assert(rs->kept.echo && head > from && j->out->data[head - 1] == ',');
    rs->kept.cancelled = rs->cancelled;
    rs->kept.transient = !rs->store;
    struct spliced *kept = &rs->kept.head;
    if (buf_add(&text, j->out->data + from, head - from) < 0 || !(kept->text = blob_new(&text)) ||
        splices_copy(&kept->in, j->refs, from, head) < 0 ||
        store_add(rs->env->store, rs->tenant, w->id, rs->parent, &rs->kept) < 0)
        return;
    bool whole = w->n_choices > 0 && w->choices[0].gen->finish != FINISH_ERROR &&
                 w->choices[0].gen->state == GEN_DONE;
    if (rs->conversation && whole)
        conversation_add(rs->conversation, w->id);
    if (rs->framed)
        responses_remember(w, whole);
}

static void responses_put_whole(struct json *j, struct writer *w) {
    size_t head;

    if (responses_of(w)->wants_logprobs)
        j->error = logprobs_update(&responses_of(w)->logprobs, w, w->choices[0].gen, SIZE_MAX);
    responses_put(j, w, RESPONSES_DONE, NULL, &head);
    if (j->error == 0)
        responses_store(w, j, 0, head);
}

const struct endpoint responses_compact = {
    .open = responses_open,
    .close = responses_close,
    .translate = responses_translate_compact,
    .rename = responses_rename,
    .id_prefix = RESPONSES_ID_PREFIX,
    .parsed = true,
    .begin = responses_stream_begin,
    .piece = responses_stream_piece,
    .end = responses_stream_end,
    .whole = responses_put_compacted,
    .fail = responses_stream_fail,
    .alive = responses_stream_alive,
};

/* Applies context_management. No conversation is compacted in the middle of a request, so one that
 * is longer than the threshold is refused like one that does not fit. */
static int responses_check_length(const struct responses *rs, const struct gen *g,
                                  struct err *err) {
    if (!rs->compact_from || rs->compacts || g->n_prompt < rs->compact_from)
        return 0;
    err_set_code(
        err, 400, "context_length_exceeded", "context_management",
        "The conversation has %u tokens, the compact_threshold is %u. Make it shorter with "
        "/v1/responses/compact or an item compaction_trigger.",
        g->n_prompt, rs->compact_from);
    return err_add_lengths(err, g->n_prompt, rs->compact_from);
}

/* The callback endpoint.prepared: makes the last checks before the response begins. */
static int responses_prepare(struct writer *w, struct err *err) {
    struct responses *rs = responses_of(w);

    TRY(responses_check_length(rs, w->choices[0].gen, err));
    TRY(conversation_lock(rs, err));
    if (rs->store || rs->framed)
        store_watch(rs->env->store, rs->tenant);
    return background_begin(w, err);
}

const struct endpoint responses_endpoint = {
    .open = responses_open,
    .close = responses_close,
    .translate = responses_translate,
    .rename = responses_rename,
    .id_prefix = RESPONSES_ID_PREFIX,
    .repeats = REPEATS_PARTS,
    .parsed = true,
    .prepared = responses_prepare,
    .begin = responses_stream_begin,
    .piece = responses_stream_piece,
    .end = responses_stream_end,
    .whole = responses_put_whole,
    .fail = responses_stream_fail,
    .alive = responses_stream_alive,
};

#define TELLS_MAX 256u /* bytes of a message that asks for nothing */

/* Returns true for a message in which Codex tells that it has read a response; nothing is to be
 * done. */
static bool responses_is_receipt(const struct http *h) {
    if (h->body.len == 0 || h->body.len > TELLS_MAX)
        return false;
    yyjson_doc *doc = yyjson_read(h->body.data, h->body.len, 0);
    bool tells = doc && json_has(yyjson_doc_get_root(doc), "type", "response.processed");

    yyjson_doc_free(doc);
    return tells;
}

void responses_serve(struct exchange *x, struct http *h) {
    if (x->framed && responses_is_receipt(h))
        respond(x, 200, NULL, "", 0);
    else
        writer_serve(x, h);
}
