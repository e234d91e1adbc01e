/*
 * The answers of Anthropic's Messages API: a list of blocks (thinking, text, calls) in the order in
 * which the model wrote them, which are the runs of the output taken apart. A stream tells each
 * block between content_block_start and content_block_stop; what a block is changes with the run.
 *
 *      message_start (content_block_start delta* content_block_stop)* message_delta message_stop
 *
 * The generations of a hosted search (search.h) follow one another in one answer, each with the
 * results of its searches.
 *
 * What is in the prompt and was found in the cache counts as cache_read_input_tokens and not as
 * input_tokens. Every computed page is cached; pages count as cache_creation_input_tokens where the
 * request has cache_control. The three together are the prompt.
 */

#include "api/anthropic/anthropic.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "api/anthropic/input.h"
#include "api/anthropic/search.h"
#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/generation/opaque_reasoning.h"
#include "api/generation/writer.h"
#include "api/http/conn.h"
#include "api/http/respond.h"
#include "api/openai/openai.h"
#include "base/try.h"

/* Clients send a thinking block back only with its signature. If they did not want to see the
 * reasoning, the signature holds it; otherwise its content does not matter. */
#define SIGNATURE "weft"
#define SEARCH_ID "srvtoolu_" /* begins the ids of calls that run here */

/* ---- whole values ---- */

static void anthropic_put_usage(struct json *j, const struct writer *w) {
    struct writer_usage u = writer_usage(w);
    enum cache_wish wish = search_cache_wish(w);
    uint32_t page = w->job.model->info->page_tokens;
    int64_t computed = (int64_t)u.prompt - u.cached;
    int64_t created = wish != CACHE_NONE && page ? computed - computed % page : 0;

    json_print(j,
               "usage:{input_tokens:%ld, cache_creation:{ephemeral_5m_input_tokens:%ld, "
               "ephemeral_1h_input_tokens:%ld}, cache_creation_input_tokens:%ld, "
               "cache_read_input_tokens:%u, output_tokens:%u",
               computed - created, wish == CACHE_5M ? created : 0, wish == CACHE_1H ? created : 0,
               created, u.cached, u.output);
    if (w->job.model->family.reasons)
        json_print(j, "output_tokens_details:{thinking_tokens:%u}", u.reasoning);
    else
        json_print(j, "output_tokens_details:null");
    if (search_n_run(w))
        json_print(j,
                   "server_tool_use:{web_fetch_requests:0, web_search_requests:0, "
                   "tool_search_requests:%u}",
                   search_n_run(w));
    else
        json_print(j, "server_tool_use:null");
    json_print(j, "service_tier:'standard', inference_geo:null, speed:null}");
}

/* Returns the reason why the model stopped; *stop is the stop sequence or NULL. */
static const char *reason_of(const struct writer *w, const struct gen *g, const struct str **stop) {
    assert(g->state == GEN_DONE);
    uint32_t before = 0; /* tokens of earlier rounds */
    for (uint32_t i = 0; i + 1 < w->n_choices; i++)
        before += w->choices[i].gen->n_out;
    /* True if the output ended because the context was full. */
    bool full = before + g->m.max_new < w->job.request.input.max_new && !g->repeats;
    *stop = g->stopped && g->finish == FINISH_STOP ? &g->m.stops[g->stop_index] : NULL;
    if (g->score_only)
        return "max_tokens";
    if (*stop)
        return "stop_sequence";
    if (g->finish == FINISH_LENGTH) {
        if (full)
            return "model_context_window_exceeded";
        return "max_tokens";
    }
    if (search_has_other_call(w, g)) /* the client has a tool to run */
        return "tool_use";
    if (output_parser_has_call(g->output))
        return "pause_turn";
    return "end_turn";
}

/* Writes the reason of the stop; @g is NULL while the model has not stopped yet. */
static void put_stop(struct json *j, const struct writer *w, const struct gen *g) {
    const struct str *stop = NULL;

    json_put_string(j, "stop_reason", g ? reason_of(w, g, &stop) : NULL);
    if (stop)
        json_print(j, "stop_sequence:%.*s", (int)stop->len, stop->data);
    else
        json_print(j, "stop_sequence:null");
    json_print(j, "stop_details:null, container:null, diagnostics:null");
    if (g && g->repeats)
        json_print(j, "loop_ended:true");
}

static void anthropic_open_message(struct json *j, const struct writer *w) {
    json_print(j, "{id:%s, type:'message', role:'assistant', model:%s", w->id,
               w->job.model->info->id);
}

/* Writes the members of a call before its input. */
static void anthropic_open_call(struct json *j, const struct writer *w,
                                const struct output_call *c) {
    bool search = search_is_call(w, c);
    char id[sizeof(c->id) + sizeof(SEARCH_ID)];

    snprintf(id, sizeof(id), "%s%s", search ? SEARCH_ID : "", c->id);
    json_print(j, "{type:%s, id:%s, name:%s, caller:{type:'direct'}, input:",
               search ? "server_tool_use" : "tool_use", id, c->name);
}

/* Returns where the last whole value in the beginning of a JSON object ends, and writes the
 * brackets that close the object there to @close (a string of at most JSON_DEPTH). Clients repair a
 * stream that breaks off in the same way. */
static size_t whole_part(const char *s, size_t len, char close[JSON_DEPTH + 1]) {
    char stack[JSON_DEPTH + 1];
    size_t depth = 0, safe = 0;
    bool is_key = false;

    for (size_t i = 0; i < len; i++) {
        bool ends = false;

        if (s[i] == '"') {
            for (i++; i < len && s[i] != '"'; i++)
                i += s[i] == '\\';
            ends = i < len && !is_key;
        } else if (s[i] == '{' || s[i] == '[') {
            if (depth == JSON_DEPTH)
                break;
            is_key = s[i] == '{';
            stack[depth++] = is_key ? '}' : ']';
            ends = true;
        } else if (s[i] == '}' || s[i] == ']') {
            depth -= depth > 0;
            ends = true;
        } else if (s[i] == ':') {
            is_key = false;
        } else if (s[i] == ',') {
            is_key = depth && stack[depth - 1] == '}';
        } else if (strchr("-0123456789tfn", s[i])) { /* ends where something else begins */
            while (i + 1 < len && !strchr(",]} \n\r\t", s[i + 1]))
                i++;
            ends = i + 1 < len;
        }
        if (!ends)
            continue;
        safe = MIN(i + 1, len);
        for (size_t k = 0; k < depth; k++)
            close[k] = stack[depth - 1 - k];
        close[depth] = 0;
    }
    return safe;
}

static void anthropic_put_input(struct json *j, const struct output_parser *s,
                                const struct output_call *c) {
    CLEANUP(buf_deinit) struct buf b = {.max = UINT32_MAX};
    const char *args = s->text[OUTPUT_CALL].data ? s->text[OUTPUT_CALL].data + c->begin : "";
    char close[JSON_DEPTH + 1] = "{}";

    assert(c->begin <= c->end && c->end <= s->text[OUTPUT_CALL].len);
    if (c->complete) {
        json_raw(j, args, c->end - c->begin);
        return;
    }
    size_t n = whole_part(args, c->end - c->begin, close);
    if (buf_add(&b, args, n) < 0 || buf_add_str(&b, close) < 0)
        j->error = -ENOMEM;
    else
        json_raw(j, b.data, b.len);
}

static int anthropic_sign(struct buf *out, const struct writer *w, const char *text, size_t len) {
    if (w->job.request.answer.no_reasoning)
        return opaque_reasoning_write(out, text, len);
    return buf_add_str(out, SIGNATURE);
}

static void put_signature(struct json *j, const struct writer *w, const char *text, size_t len) {
    CLEANUP(buf_deinit) struct buf b = {.max = UINT32_MAX};
    int r = anthropic_sign(&b, w, text, len);

    json_print(j, "signature:%.*s", (int)b.len, b.data);
    j->error = j->error < 0 ? j->error : r;
}

static void put_block(struct json *j, const struct writer *w, const struct output_parser *s,
                      const struct output_run *run) {
    const char *text = s->text[run->kind].data ? s->text[run->kind].data + run->begin : "";
    size_t len = run->end - run->begin;

    assert(run->begin <= run->end && run->end <= s->text[run->kind].len);
    if (run->kind == OUTPUT_CALL) {
        anthropic_open_call(j, w, &s->calls[run->call]);
        anthropic_put_input(j, s, &s->calls[run->call]);
    } else {
        bool thinking = run->kind == OUTPUT_REASONING;

        json_print(j, "{type:%s, %s:%.*s", thinking ? "thinking" : "text",
                   thinking ? "thinking" : "text",
                   thinking && w->job.request.answer.no_reasoning ? 0 : (int)len, text);
        if (thinking) /* a text without citations has none, not null: some clients insist on that */
            put_signature(j, w, text, len);
    }
    json_close(j, '}');
}

/* Writes the block with the result of a search. */
static void anthropic_put_result(void *to, const struct output_call *call,
                                 const struct buf *content) {
    struct json *j = to;
    char id[sizeof(call->id) + sizeof(SEARCH_ID)];

    snprintf(id, sizeof(id), SEARCH_ID "%s", call->id);
    json_print(j, "{type:'tool_search_tool_result', tool_use_id:%s, content:", id);
    json_raw(j, content->data, content->len);
    json_close(j, '}');
}

/* Writes the blocks of round @i: what the model wrote, and the results of its searches. */
static void put_round(struct json *j, const struct writer *w, uint32_t i) {
    const struct output_parser *s = w->choices[i].gen->output;

    for (uint32_t k = 0; k < s->n_runs; k++)
        put_block(j, w, s, &s->runs[k]);
    search_put_results(w, i, anthropic_put_result, j);
}

static void anthropic_put_whole(struct json *j, struct writer *w) {
    anthropic_open_message(j, w);
    json_print(j, "content:[");
    for (uint32_t i = 0; i < w->n_choices; i++)
        put_round(j, w, i);
    json_close(j, ']');
    put_stop(j, w, w->choices[w->n_choices - 1].gen);
    anthropic_put_usage(j, w);
    json_close(j, '}');
}

/* ---- events ---- */

struct sse {
    struct json j;
    struct buf b;
    const char *type;
};

static struct json *anthropic_begin(struct sse *e, const char *type) {
    memset(e, 0, sizeof(*e));
    buf_init(&e->b, API_SEND_MAX);
    e->type = type;
    e->j.out = &e->b;
    json_print(&e->j, "{type:%s", type);
    return &e->j;
}

static void anthropic_emit(struct writer *w, struct sse *e) {
    assert(w->exchange && w->head_sent);
    json_close(&e->j, '}');
    if (e->j.error < 0)
        conn_break(w->exchange->conn);
    else
        respond_named_event(w->exchange, e->type, e->b.data, e->b.len);
    buf_deinit(&e->b);
}

static void send_start(struct writer *w) {
    struct sse e;
    struct json *j = anthropic_begin(&e, "message_start");

    json_print(j, "message:");
    anthropic_open_message(j, w);
    json_print(j, "content:[]");
    put_stop(j, w, NULL);
    anthropic_put_usage(j, w);
    json_close(j, '}');
    anthropic_emit(w, &e);
}

/* Sends a delta of the open block: {"type": @type, @key: text}. */
static void anthropic_send_delta(struct writer *w, const char *type, const char *key,
                                 const char *text, size_t len) {
    struct sse e;
    struct json *j = anthropic_begin(&e, "content_block_delta");

    assert(w->block.open && w->block.n > 0);

    json_print(j, "index:%u, delta:{type:%s, %s:%.*s}", w->block.n - 1, type, key, (int)len, text);
    anthropic_emit(w, &e);
}

static void send_signature(struct writer *w) {
    CLEANUP(buf_deinit) struct buf b = {.max = UINT32_MAX};
    const char *text = w->choices[w->n_choices - 1].gen->output->text[OUTPUT_REASONING].data;

    assert(w->block.from <= w->block.reasoned);
    if (anthropic_sign(&b, w, text ? text + w->block.from : "",
                       w->block.reasoned - w->block.from) == 0)
        anthropic_send_delta(w, "signature_delta", "signature", b.data, b.len);
}

static void close_block(struct writer *w) {
    struct sse e;

    if (!w->block.open)
        return;
    if (w->block.kind == OUTPUT_REASONING)
        send_signature(w);
    json_print(anthropic_begin(&e, "content_block_stop"), "index:%u", w->block.n - 1);
    anthropic_emit(w, &e);
    w->block.open = false;
}

static void open_block(struct writer *w, const struct output_parser *s,
                       const struct output_piece *part) {
    struct sse e;
    struct json *j = anthropic_begin(&e, "content_block_start");

    assert(!w->block.open && (part->kind != OUTPUT_CALL || part->call < s->n_calls));

    json_print(j, "index:%u, content_block:", w->block.n++);
    if (part->kind == OUTPUT_CALL) {
        anthropic_open_call(j, w, &s->calls[part->call]);
        json_print(j, "{}");
    } else {
        bool thinking = part->kind == OUTPUT_REASONING;

        json_print(j, thinking ? "{type:'thinking', thinking:'', signature:''"
                               : "{type:'text', text:''");
    }
    json_close(j, '}');
    anthropic_emit(w, &e);
    w->block.open = true;
    w->block.kind = part->kind;
    w->block.from = w->block.reasoned;
}

static void anthropic_send_piece(struct writer *w, const struct piece *p) {
    static const char *const deltas[OUTPUT_KINDS][2] = {
        [OUTPUT_CONTENT] = {"text_delta", "text"},
        [OUTPUT_REASONING] = {"thinking_delta", "thinking"},
        [OUTPUT_CALL] = {"input_json_delta", "partial_json"},
    };
    const struct output_piece *part = p->part;

    if (!part)
        return; /* the end: anthropic_send_end() */
    if (!w->block.open || w->block.kind != part->kind || part->begins) {
        close_block(w);
        open_block(w, p->choice->gen->output, part);
    }
    if (part->kind == OUTPUT_REASONING) {
        w->block.reasoned += part->len;
        if (w->job.request.answer.no_reasoning)
            return;
    }
    if (part->len)
        anthropic_send_delta(w, deltas[part->kind][0], deltas[part->kind][1], part->text,
                             part->len);
}

static void send_result(void *to, const struct output_call *call, const struct buf *content) {
    struct writer *w = to;
    struct sse e;
    struct json *j = anthropic_begin(&e, "content_block_start");

    json_print(j, "index:%u, content_block:", w->block.n++);
    anthropic_put_result(j, call, content);
    anthropic_emit(w, &e);
    json_print(anthropic_begin(&e, "content_block_stop"), "index:%u", w->block.n - 1);
    anthropic_emit(w, &e);
}

static void send_results(struct writer *w) {
    close_block(w);
    search_put_results(w, w->n_choices - 1, send_result, w);
    w->block.reasoned = 0;
}

static int anthropic_again(struct prompt_job *job, yyjson_val **messages) {
    return search_again(job, messages, put_round);
}

static void anthropic_send_end(struct writer *w) {
    const struct gen *g = w->choices[w->n_choices - 1].gen;
    struct sse e;

    close_block(w);
    assert(!w->block.open && g->state == GEN_DONE);
    struct json *j = anthropic_begin(&e, "message_delta");
    json_print(j, "delta:{");
    put_stop(j, w, g);
    json_close(j, '}');
    anthropic_put_usage(j, w);
    anthropic_emit(w, &e);
    anthropic_begin(&e, "message_stop");
    anthropic_emit(w, &e);
}

static int anthropic_too_long(const char *field, size_t n, uint32_t context, struct err *err) {
    return err_set_code(err, 400, "context_length_exceeded", field, "%zu tokens > %u maximum", n,
                        context - 1);
}

/* ---- the request ---- */

/* Reads @body and takes it over. */
static int anthropic_read_body(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    CLEANUP(buf_deinit) struct buf prefill = {.max = UINT32_MAX};
    struct gen_request *r = &job->request;
    bool offered[TOOL_SEARCH_KINDS] = {false};
    yyjson_doc *chat = NULL;
    bool warms = anthropic_warms(yyjson_doc_get_root(body));
    bool count = job->endpoint == &anthropic_count;
    int result = anthropic_translate(job->env, body, count, &chat, &prefill, offered, err);

    if (result < 0 || !search_begin_state(job, offered, body))
        yyjson_doc_free(body);
    TRY(result);
    TRY(openai_read_chat(job, chat, err));
    r->input.score_only = warms;
    if (prefill.len == 0)
        return 0;
    return gen_request_set_prefill(r, prefill.data, prefill.len);
}

const struct endpoint anthropic_messages = {
    .open = search_open,
    .close = search_close,
    .translate = anthropic_read_body,
    .rename = anthropic_rename,
    .too_long = anthropic_too_long,
    .id_prefix = "msg_",
    .repeats = REPEATS_BLOCKS,
    .parsed = true,
    .asks = search_asks,
    .again = anthropic_again,
    .round = send_results,
    .begin = send_start,
    .piece = anthropic_send_piece,
    .end = anthropic_send_end,
    .whole = anthropic_put_whole,
};

/* ---- /v1/messages/count_tokens ---- */

static void anthropic_write_count(struct json *j, const struct prompt_job *job) {
    json_print(j, "{input_tokens:%ld}", (int64_t)job->prompts[0].tokens.n);
}

const struct endpoint anthropic_count = {.translate = anthropic_read_body,
                                         .rename = anthropic_rename,
                                         .too_long = anthropic_too_long,
                                         .write = anthropic_write_count};
