/*
 * The order of a stream:
 *
 *      created, queued (in the background), in_progress
 *      for each item: output_item.added
 *          a message:  content_part.added, output_text.delta*, output_text.done, content_part.done
 *          reasoning:  the same with reasoning_text, or reasoning_summary_part and _text
 *          a call:     function_call_arguments.delta*, .done (or custom_tool_call_input)
 *      output_item.done
 *      completed, incomplete or failed
 *
 * Every event has its type twice, as the event's name and in the data, and the next sequence
 * number. After silence in_progress is repeated: clients count events, not comments.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/generation/timings.h"
#include "api/http/conn.h"
#include "api/http/respond.h"
#include "api/openai/choices.h"
#include "api/openai/openai.h"
#include "api/responses/background.h"
#include "api/responses/responses.h"
#include "base/text.h"
#include "base/try.h"

struct stream_event { /* the event that is being written */
    struct writer *w;
    const char *type;
    struct buf b;
    struct json j;
    /* to be inserted in b */
    struct splices refs;
};

static void stream_event_deinit(struct stream_event *e) {
    buf_deinit(&e->b);
    splices_deinit(&e->refs);
}

/* Begins an event, which end_event() sends. */
static void begin_event(struct stream_event *e, struct writer *w, const char *type) {
    e->w = w;
    e->type = type;
    e->refs = (struct splices){0};
    buf_init(&e->b, API_SEND_MAX);
    e->j = (struct json){.out = &e->b, .refs = &e->refs};
    json_print(&e->j, "{type:%s, sequence_number:%lu", type, (uint64_t)responses_of(w)->sequence++);
}

/* Breaks the stream off when there is no memory: what has been sent cannot be continued. */
static void break_off(const struct writer *w) {
    struct responses *rs = responses_of(w);

    if (rs->log)
        event_log_lose(rs->log);
    else
        conn_break(w->exchange->conn);
}

static void stream_send_event(struct stream_event *e) {
    struct responses *rs = responses_of(e->w);

    json_close(&e->j, '}');
    if (rs->log && e->j.error == 0)
        e->j.error = respond_put_member(e->w->exchange, &e->b);
    if (e->j.error < 0)
        break_off(e->w);
    else if (rs->log)
        background_add(rs, e->type, &e->b, &e->refs);
    else
        respond_spliced_event(e->w->exchange, e->type, &e->b, &e->refs);
}

static void end_event(struct stream_event *e) {
    stream_send_event(e);
    stream_event_deinit(e);
}

/* Writes llama-server's figures behind the response: how far the prompt is, or the times at the
 * end. */
static void stream_put_figures(struct json *j, const struct writer *w, const char *type,
                               enum responses_status status) {
    const struct gen *g = w->n_choices ? w->choices[0].gen : NULL;

    if (!g)
        return;
    if (w->job.request.answer.return_progress && strcmp(type, "response.in_progress") == 0)
        choices_put_progress(j, w, g, false);
    if (status == RESPONSES_DONE && openai_is_llama_server(w->route))
        timings_put(j, g);
}

/* Sends an event with the response as it stands. The last such event is kept in the store. */
static void send_response(struct writer *w, const char *type, enum responses_status status,
                          const struct err *err) {
    bool ended = status == RESPONSES_DONE || status == RESPONSES_FAILED;
    struct stream_event e;

    begin_event(&e, w, type);
    json_print(&e.j, "response:");
    size_t from = e.b.len, head;
    responses_put(&e.j, w, status, err, &head);
    stream_put_figures(&e.j, w, type, status);
    stream_send_event(&e);
    if (ended && responses_of(w)->log)
        background_close(responses_of(w));
    if (ended && e.j.error == 0)
        responses_store(w, &e.j, from, head);
    stream_event_deinit(&e);
}

void responses_stream_queued(struct writer *w) {
    send_response(w, "response.created", RESPONSES_QUEUED, NULL);
    send_response(w, "response.queued", RESPONSES_QUEUED, NULL);
}

void responses_stream_begin(struct writer *w) {
    if (!responses_of(w)->log)
        send_response(w, "response.created", RESPONSES_IN_PROGRESS, NULL);
    send_response(w, "response.in_progress", RESPONSES_IN_PROGRESS, NULL);
}

void responses_stream_alive(struct writer *w) {
    send_response(w, "response.in_progress", RESPONSES_IN_PROGRESS, NULL);
    conn_flush(w->exchange->conn);
}

/* ---- names of the parts of items ---- */

struct words {
    /* NULL: it has no parts */
    const char *part_added, *part_done, *part_index, *part_type;
    /* text: its name in `done` */
    const char *delta, *done, *text;
};

static const struct words *stream_words(const struct writer *w, const struct output_run *run) {
    static const struct words message = {
        "response.content_part.added", "response.content_part.done", "content_index", "output_text",
        "response.output_text.delta",  "response.output_text.done",  "text"};
    static const struct words reasoning = {"response.content_part.added",
                                           "response.content_part.done",
                                           "content_index",
                                           "reasoning_text",
                                           "response.reasoning_text.delta",
                                           "response.reasoning_text.done",
                                           "text"};
    static const struct words summary = {"response.reasoning_summary_part.added",
                                         "response.reasoning_summary_part.done",
                                         "summary_index",
                                         "summary_text",
                                         "response.reasoning_summary_text.delta",
                                         "response.reasoning_summary_text.done",
                                         "text"};
    static const struct words call = {.delta = "response.function_call_arguments.delta",
                                      .done = "response.function_call_arguments.done",
                                      .text = "arguments"};
    static const struct words custom = {.delta = "response.custom_tool_call_input.delta",
                                        .done = "response.custom_tool_call_input.done",
                                        .text = "input"};

    static const struct words native = {0}; /* reported as a whole when it is complete */

    if (responses_of(w)->compacts)
        return &native;
    if (!run || run->kind == OUTPUT_CONTENT)
        return &message;
    if (run->kind == OUTPUT_REASONING) {
        if (responses_of(w)->summary)
            return &summary;
        return &reasoning;
    }
    if (responses_is_native(w, run))
        return &native;
    if (responses_is_custom(w, run))
        return &custom;
    return &call;
}

/* ---- items ---- */

/* An item and its names. @run is NULL for the empty message. */
struct item {
    const struct output_run *run;
    const struct words *words;
    uint32_t i;
    char id[64];
};

static uint32_t stream_number(const struct writer *w, const struct output_run *run) {
    assert(run >= w->choices[0].gen->output->runs);
    return (uint32_t)(run - w->choices[0].gen->output->runs);
}

static struct item stream_item(const struct writer *w, const struct output_run *run) {
    uint32_t n = run ? stream_number(w, run) : w->choices[0].gen->output->n_runs;
    struct item it = {.run = run, .words = stream_words(w, run), .i = responses_number(w, n)};

    responses_item_id(w, run, it.i, it.id, sizeof(it.id));
    return it;
}

/* Begins an event about the only part of @it, with the members that tell its place. */
static void stream_begin_part(struct stream_event *e, struct writer *w, const struct item *it,
                              const char *type) {
    begin_event(e, w, type);
    json_print(&e->j, "item_id:%s, output_index:%u", it->id, it->i);
    if (it->words->part_index)
        json_print(&e->j, "%s:0", it->words->part_index);
}

static void send_item(struct writer *w, const struct item *it, bool finished) {
    struct stream_event e;

    begin_event(&e, w, finished ? "response.output_item.done" : "response.output_item.added");
    json_print(&e.j, "output_index:%u, item:", it->i);
    if (it->run)
        responses_put_item(&e.j, w, stream_number(w, it->run), it->i, finished);
    else
        responses_put_empty(&e.j, w, it->i, finished);
    end_event(&e);
}

static void stream_send_part(struct writer *w, const struct item *it, const char *type,
                             const char *text, size_t len) {
    struct stream_event e;

    if (!it->words->part_type)
        return;
    stream_begin_part(&e, w, it, type);
    json_print(&e.j, "part:");
    responses_put_part(&e.j, w, it->run, it->words->part_type, text, len);
    end_event(&e);
}

static bool is_message(const struct item *it) {
    return !it->run || it->run->kind == OUTPUT_CONTENT;
}

/* Writes the log probabilities of a delta that ends with byte @end of the content: of all tokens
 * up to there that no delta has had. */
static void stream_put_new_logprobs(struct stream_event *e, size_t end) {
    struct logprobs *l = &responses_of(e->w)->logprobs;
    const struct gen *g = e->w->choices[0].gen;
    uint32_t from = l->sent;

    if (responses_of(e->w)->wants_logprobs && logprobs_update(l, e->w, g, end) < 0)
        e->j.error = -ENOMEM;
    l->sent = MAX(from, logprobs_until(l, end));
    logprobs_put(&e->j, l, from, l->sent);
}

static void stream_send_delta(struct writer *w, const struct item *it, const char *text,
                              size_t len) {
    const struct buf *content = &w->choices[0].gen->output->text[OUTPUT_CONTENT];
    struct stream_event e;

    stream_begin_part(&e, w, it, it->words->delta);
    json_print(&e.j, "delta:%.*s", (int)len, text);
    if (is_message(it))
        stream_put_new_logprobs(&e, (size_t)(text - content->data) + len);
    if (w->job.request.answer.timings_per_token && openai_is_llama_server(w->route))
        timings_put(&e.j, w->choices[0].gen);
    end_event(&e);
}

/* Sends the whole text of a part again. */
static void stream_send_text(struct writer *w, const struct item *it, const char *text,
                             size_t len) {
    struct stream_event e;

    stream_begin_part(&e, w, it, it->words->done);
    if (it->words->part_index == NULL)
        json_print(&e.j, "name:%s", responses_call_name(w, it->run));
    json_print(&e.j, "%s:%.*s", it->words->text, (int)len, text);
    if (is_message(it))
        responses_put_logprobs(&e.j, w, it->run, len);
    end_event(&e);
}

/* Begins the item of @run; NULL is the empty message. */
static void begin_item(struct writer *w, const struct output_run *run) {
    struct responses *rs = responses_of(w);

    assert(!rs->open);
    rs->open = true;
    rs->run = run ? stream_number(w, run) : UINT32_MAX;
    buf_clear(&rs->custom.text);
    rs->custom = (struct custom_text){.text = rs->custom.text};
    struct item it = stream_item(w, run);
    send_item(w, &it, false);
    stream_send_part(w, &it, it.words->part_added, "", 0);
}

/* Sends the part of a custom tool's text that has not been sent yet. */
static void send_custom(struct writer *w, const struct item *it, const char *text, size_t len) {
    struct custom_text *t = &responses_of(w)->custom;

    if (len > t->n_sent)
        stream_send_delta(w, it, text + t->n_sent, len - t->n_sent);
    t->n_sent = MAX(t->n_sent, len);
}

/* Completes the log probabilities of the message @it. Returns 0 or -errno. */
static int stream_seal_logprobs(struct writer *w, const struct item *it) {
    struct logprobs *l = &responses_of(w)->logprobs;
    size_t end = it->run ? it->run->end : SIZE_MAX;

    TRY(logprobs_update(l, w, w->choices[0].gen, end));
    return logprobs_seal(l);
}

/* Ends the part of @it: sends its whole text again. */
static void finish_text(struct writer *w, const struct item *it) {
    const struct output_parser *s = w->choices[0].gen->output;
    const char *text = "";
    size_t len = 0;
    CLEANUP(buf_deinit) struct buf custom = {.max = UINT32_MAX};

    if (!it->words->delta)
        return;
    if (responses_of(w)->wants_logprobs && is_message(it) && stream_seal_logprobs(w, it) < 0)
        break_off(w);
    if (it->run && s->text[it->run->kind].data) {
        text = s->text[it->run->kind].data + it->run->begin;
        len = it->run->end - it->run->begin;
    }
    if (it->run && responses_is_custom(w, it->run)) {
        if (custom_whole(text, len, &custom) < 0)
            break_off(w);
        text = text_or(custom.data, "");
        len = custom.len;
        send_custom(w, it, text, len);
    }
    stream_send_text(w, it, text, len);
    stream_send_part(w, it, it->words->part_done, text, len);
}

/* Ends the open item, if there is one. */
static void end_item(struct writer *w) {
    struct responses *rs = responses_of(w);
    const struct output_parser *s = w->choices[0].gen->output;

    if (!rs->open)
        return;
    rs->open = false;
    struct item it = stream_item(w, rs->run == UINT32_MAX ? NULL : &s->runs[rs->run]);
    finish_text(w, &it);
    send_item(w, &it, true);
}

/* ---- pieces ---- */

static void send_more(struct writer *w, const struct item *it, const struct piece *p) {
    struct custom_text *t = &responses_of(w)->custom;
    const struct output_parser *s = w->choices[0].gen->output;

    if (!responses_is_custom(w, it->run)) {
        if (p->len && it->words->delta)
            stream_send_delta(w, it, p->text, p->len);
        return;
    }
    size_t known = (size_t)(p->text - (s->text[OUTPUT_CALL].data + it->run->begin)) + p->len;
    if (p->len && custom_read(t, s->text[OUTPUT_CALL].data + it->run->begin, known) < 0)
        break_off(w);
    send_custom(w, it, t->text.data, t->text.len);
}

void responses_stream_piece(struct writer *w, const struct piece *p) {
    struct responses *rs = responses_of(w);
    const struct output_parser *s = p->choice->gen->output;

    if (w->job.request.answer.return_progress && p->from == 0 && p->to > 0)
        send_response(w, "response.in_progress", RESPONSES_IN_PROGRESS,
                      NULL); /* the prompt's end */
    if (p->part && responses_is_item(w, &s->runs[p->choice->at.run])) {
        const struct output_run *run = &s->runs[p->choice->at.run];

        if (!rs->open || rs->run != p->choice->at.run) {
            end_item(w);
            begin_item(w, run);
        }
        struct item it = stream_item(w, run);
        send_more(w, &it, p);
    }
    if (!p->last)
        return;
    end_item(w);
    if (responses_needs_empty(w)) {
        begin_item(w, NULL);
        end_item(w);
    }
}

void responses_stream_end(struct writer *w) {
    bool cut = w->choices[0].gen->finish == FINISH_LENGTH && !responses_of(w)->warms;

    assert(!responses_of(w)->open);
    send_response(w, cut ? "response.incomplete" : "response.completed", RESPONSES_DONE, NULL);
}

/* Returns true if the stream reports @err, which came before the stream began. */
static bool belongs_into_stream(const struct writer *w, const struct err *err) {
    return responses_of(w)->streams_errors && !w->job.running && w->job.request.answer.stream &&
           strcmp(err->code, "context_length_exceeded") == 0;
}

bool responses_stream_fail(struct writer *w, const struct err *err) {
    bool background = responses_of(w)->log;

    if (!w->head_sent && !background && !belongs_into_stream(w, err))
        return false;
    if (!w->head_sent)
        respond_stream(w->exchange);
    if (!w->head_sent && !background)
        responses_stream_begin(w);
    w->head_sent = true;
    send_response(w, "response.failed", RESPONSES_FAILED, err);
    return true;
}
