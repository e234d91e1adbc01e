/*
 * The output of a generation is a list of runs (output_parser.h); each run is an item: a message,
 * reasoning, or a call. An item's place in the output is that of its run, and its id is made of the
 * response's id and that number, so that an item is the same in every event and in the response
 * itself.
 *
 * An answer that said nothing (only reasoning, or not even that) gets an empty message at its end:
 * agents take the message as the end of their turn.
 */

#include "api/responses/responses.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/opaque_reasoning.h"
#include "api/http/conn.h"
#include "api/http/respond.h"

#define ARENA_MAX (64u << 20)

/* ---- life ---- */

/* Returns true for Codex, which makes its conversation shorter when a stream tells it that it is
 * too long, and gives up when the answer is a 400. */
static bool is_codex(const struct http *h) {
    const char *who = http_header(h, "originator", NULL);

    return who && strncasecmp(who, "codex", 5) == 0;
}

struct responses *responses_new(struct exchange *x) {
    struct responses *rs = calloc(1, sizeof(*rs));

    if (!rs)
        return NULL;
    list_init(&rs->link);
    rs->env = env_of(x);
    rs->tenant = x->tenant;
    rs->streams_errors = is_codex(&x->conn->http);
    rs->framed = x->framed;
    if (x->framed && x->conn->http.ws->state)
        rs->last = stored_ref(x->conn->http.ws->state);
    arena_init(&rs->arena, ARENA_MAX);
    stored_parts_init(&rs->kept);
    buf_init(&rs->custom.text, UINT32_MAX);
    logprobs_init(&rs->logprobs);
    return rs;
}

struct responses *responses_free(struct responses *rs) {
    if (!rs)
        return NULL;
    list_remove(&rs->link);
    assert(!rs->log || rs->n_logged == 0);
    event_log_unref(rs->log);
    stored_unref(rs->conversation);
    stored_unref(rs->parent);
    stored_unref(rs->last);
    stored_unref(rs->promise);
    stored_parts_deinit(&rs->kept);
    buf_deinit(&rs->custom.text);
    logprobs_deinit(&rs->logprobs);
    arena_deinit(&rs->arena);
    free(rs);
    return NULL;
}

int responses_open(struct prompt_job *job, struct exchange *x, struct writer *w) {
    struct responses *rs = responses_new(x);

    if (!rs)
        return -ENOMEM;
    assert(!job->state);
    rs->writer = w;
    if (w)
        list_push_back(&rs->env->store->live, &rs->link);
    job->state = rs;
    return 0;
}

void responses_close(struct prompt_job *job) {
    responses_free(job->state);
}

struct responses *responses_find(struct gen_env *env, uint32_t tenant, const char *id) {
    LIST_FOREACH_ENTRY(rs, &env->store->live, struct responses, link) {
        if (rs->tenant == tenant && strcmp(rs->writer->id, id) == 0)
            return rs;
    }
    return NULL;
}

/* ---- items ---- */

static const struct gen *gen_of(const struct writer *w) {
    assert(w->n_choices == 1);
    return w->choices[0].gen;
}

static bool was_cut(const struct gen *g) {
    return g->state == GEN_DONE && g->finish == FINISH_LENGTH && !g->score_only;
}

/* Returns true if the output of @g is complete. */
static bool responses_is_whole(const struct gen *g) {
    return g->state == GEN_DONE && g->finish == FINISH_STOP;
}

/* Returns the tool that call @run calls; NULL if @run is no call, or calls a function that was not
 * offered. */
static const struct responses_tool *responses_called_tool(const struct writer *w,
                                                          const struct output_run *run) {
    const struct output_parser *s = gen_of(w)->output;

    if (run->kind != OUTPUT_CALL)
        return NULL;
    return responses_find_tool(responses_of(w), s->calls[run->call].name);
}

bool responses_is_custom(const struct writer *w, const struct output_run *run) {
    const struct responses_tool *t = responses_called_tool(w, run);

    return t && t->custom;
}

const char *responses_call_name(const struct writer *w, const struct output_run *run) {
    const struct responses_tool *t = responses_called_tool(w, run);

    if (t && t->ns)
        return t->own;
    return gen_of(w)->output->calls[run->call].name;
}

bool responses_is_native(const struct writer *w, const struct output_run *run) {
    const struct responses_tool *t = responses_called_tool(w, run);

    return t && t->native;
}

/* Names by which a client knows an item: its type, and the prefix of its id. */
struct item_kind {
    const char *type, *prefix;
};

/* Returns the kind of the item that @run is; NULL for the empty message. */
static struct item_kind responses_kind(const struct writer *w, const struct output_run *run) {
    const struct responses_tool *t = run ? responses_called_tool(w, run) : NULL;

    if (!run || run->kind == OUTPUT_CONTENT) {
        if (responses_of(w)->compacts)
            return (struct item_kind){"compaction", "cmp"};
        return (struct item_kind){"message", "msg"};
    }
    if (run->kind == OUTPUT_REASONING)
        return (struct item_kind){"reasoning", "rs"};
    if (t && t->native)
        return (struct item_kind){t->native->call, t->native->prefix};
    if (t && t->custom)
        return (struct item_kind){"custom_tool_call", "ctc"};
    return (struct item_kind){"function_call", "fc"};
}

void responses_item_id(const struct writer *w, const struct output_run *run, uint32_t i, char *out,
                       size_t size) {
    snprintf(out, size, "%s_%s_%u", responses_kind(w, run).prefix,
             w->id + strlen(RESPONSES_ID_PREFIX), i);
}

void responses_put_logprobs(struct json *j, const struct writer *w, const struct output_run *run,
                            size_t len) {
    const struct logprobs *l = &responses_of(w)->logprobs;
    uint32_t from = run ? logprobs_until(l, run->begin) : 0;

    logprobs_put(j, l, from, run ? logprobs_until(l, run->begin + len) : 0);
}

void responses_put_part(struct json *j, const struct writer *w, const struct output_run *run,
                        const char *type, const char *text, size_t len) {
    json_print(j, "{type:%s, text:%.*s", type, (int)len, text);
    if (strcmp(type, "output_text") == 0) {
        json_print(j, "annotations:[]");
        responses_put_logprobs(j, w, run, len);
    }
    json_close(j, '}');
}

/* Writes [part], or [] for an item that begins. */
static void responses_put_parts(struct json *j, const struct writer *w,
                                const struct output_run *run, const char *key, const char *type,
                                const char *text, size_t len, bool any) {
    json_print(j, "%s:[", key);
    if (any)
        responses_put_part(j, w, run, type, text, len);
    json_close(j, ']');
}

/* Writes a text that only this server reads back. */
static void put_sealed(struct json *j, const char *text, size_t len) {
    CLEANUP(buf_deinit) struct buf b = {.max = UINT32_MAX};
    int r = opaque_reasoning_write(&b, text, len);

    json_print(j, "encrypted_content:%.*s", (int)b.len, b.data);
    j->error = j->error < 0 ? j->error : r;
}

static void responses_put_reasoning(struct json *j, const struct writer *w, const char *text,
                                    size_t len, bool finished) {
    const struct responses *rs = responses_of(w);

    responses_put_parts(j, w, NULL, "summary", "summary_text", text, len, finished && rs->summary);
    responses_put_parts(j, w, NULL, "content", "reasoning_text", text, len,
                        finished && !rs->summary);
    if (rs->encrypted && finished)
        put_sealed(j, text, len);
}

static void responses_put_call(struct json *j, const struct writer *w, const struct output_run *run,
                               const char *args, size_t len, bool finished) {
    const struct output_call *c = &gen_of(w)->output->calls[run->call];
    const struct responses_tool *t = responses_called_tool(w, run);
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    bool custom = t && t->custom;

    if (t && t->native) {
        responses_native_put(j, t->native, args, finished ? len : 0);
        json_print(j, "call_id:%s", c->id);
        return;
    }
    if (custom && finished && custom_whole(args, len, &text) < 0)
        j->error = -ENOMEM;
    if (custom)
        json_print(j, "input:%.*s", (int)text.len, text.data);
    else
        json_print(j, "arguments:%.*s", finished ? (int)len : 0, args);
    json_print(j, "call_id:%s, name:%s", c->id, responses_call_name(w, run));
    if (t && t->ns)
        json_print(j, "namespace:%s", t->ns);
}

/* Returns the status of an item: a text that was cut off is incomplete, which only the last item
 * can be. */
static const char *responses_item_status(const struct writer *w, uint32_t run, bool finished) {
    const struct gen *g = gen_of(w);
    const struct output_run *r = &g->output->runs[run];

    if (!finished)
        return "in_progress";
    if (r->kind == OUTPUT_CALL) {
        if (g->output->calls[r->call].complete)
            return "completed";
        return "incomplete";
    }
    if (!responses_is_whole(g) && run + 1 == g->output->n_runs)
        return "incomplete";
    return "completed";
}

void responses_put_item(struct json *j, const struct writer *w, uint32_t run, uint32_t i,
                        bool finished) {
    const struct output_parser *s = gen_of(w)->output;
    assert(run < s->n_runs);
    const struct output_run *r = &s->runs[run];
    const char *text = s->text[r->kind].data ? s->text[r->kind].data + r->begin : "";
    size_t len = r->end - r->begin;
    char id[64];

    responses_item_id(w, r, i, id, sizeof(id));
    json_print(j, "{id:%s, type:%s, status:%s", id, responses_kind(w, r).type,
               responses_item_status(w, run, finished));
    if (responses_of(w)->compacts) {
        put_sealed(j, text, finished ? len : 0);
    } else if (r->kind == OUTPUT_CALL) {
        responses_put_call(j, w, r, text, len, finished);
    } else if (r->kind == OUTPUT_REASONING) {
        responses_put_reasoning(j, w, text, len, finished);
    } else {
        json_print(j, "role:'assistant'");
        responses_put_parts(j, w, r, "content", "output_text", text, len, finished);
    }
    json_close(j, '}');
}

void responses_put_empty(struct json *j, const struct writer *w, uint32_t i, bool finished) {
    char id[64];

    responses_item_id(w, NULL, i, id, sizeof(id));
    json_print(j, "{id:%s, type:%s, status:%s", id,
               responses_of(w)->compacts ? "compaction" : "message",
               finished ? "completed" : "in_progress");
    if (responses_of(w)->compacts) {
        put_sealed(j, "", 0);
    } else {
        json_print(j, "role:'assistant'");
        responses_put_parts(j, w, NULL, "content", "output_text", "", 0, finished);
    }
    json_close(j, '}');
}

/* Returns true if @run is the first text of the output. */
static bool is_first_text(const struct output_parser *s, const struct output_run *run) {
    for (uint32_t i = 0; i < s->n_runs; i++)
        if (s->runs[i].kind == OUTPUT_CONTENT && s->runs[i].end > s->runs[i].begin)
            return run == &s->runs[i];
    return false;
}

bool responses_is_item(const struct writer *w, const struct output_run *run) {
    if (responses_of(w)->compacts)
        return is_first_text(gen_of(w)->output, run);
    return run->kind == OUTPUT_CALL || run->end > run->begin;
}

uint32_t responses_number(const struct writer *w, uint32_t run) {
    uint32_t n = 0;

    assert(run <= gen_of(w)->output->n_runs);
    for (uint32_t i = 0; i < run; i++)
        n += responses_is_item(w, &gen_of(w)->output->runs[i]);
    return n;
}

bool responses_needs_empty(const struct writer *w) {
    const struct gen *g = gen_of(w);

    if (g->score_only)
        return false;
    for (uint32_t i = 0; i < g->output->n_runs; i++)
        if (g->output->runs[i].kind != OUTPUT_REASONING &&
            responses_is_item(w, &g->output->runs[i]))
            return false;
    return !was_cut(g);
}

/* ---- the response ---- */

/* Lists item @i, run @run (NULL: the empty message), which was written from @from on, behind
 * @before bytes. The response begins behind @base bytes. */
static void note_item(struct json *j, const struct writer *w, const struct output_run *run,
                      uint32_t i, size_t before, size_t from, size_t base) {
    char id[64];

    if (j->error < 0)
        return;
    assert(before >= base && from < j->out->len && i == item_list_n(&responses_of(w)->kept.output));
    before += j->out->data[from] == ',';
    responses_item_id(w, run, i, id, sizeof(id));
    struct item_entry e = {.at = before - base,
                           .len = json_length(j) - before,
                           .message = !run || run->kind == OUTPUT_CONTENT};
    j->error = item_list_add(&responses_of(w)->kept.output, e, id, strlen(id));
}

/* Writes the output; the response begins behind @base bytes. */
static void responses_put_output(struct json *j, const struct writer *w,
                                 enum responses_status status, size_t base) {
    const struct output_parser *s = w->n_choices ? gen_of(w)->output : NULL;
    bool ended = status == RESPONSES_DONE || status == RESPONSES_FAILED;
    uint32_t n_runs = ended && s ? s->n_runs : 0, n = 0;

    json_print(j, "output:[");
    item_list_deinit(&responses_of(w)->kept.output);
    for (uint32_t i = 0; i < n_runs; i++) {
        size_t before = json_length(j), from = j->out->len;

        if (!responses_is_item(w, &s->runs[i]))
            continue;
        responses_put_item(j, w, i, n, true);
        note_item(j, w, &s->runs[i], n++, before, from, base);
    }
    if (status == RESPONSES_DONE && responses_needs_empty(w)) {
        size_t before = json_length(j), from = j->out->len;

        responses_put_empty(j, w, n, true);
        note_item(j, w, NULL, n, before, from, base);
    }
    json_close(j, ']');
}

static void responses_put_usage(struct json *j, const struct writer *w) {
    struct writer_usage u = writer_usage(w);

    json_print(j, "usage:{input_tokens:%u, input_tokens_details:{cached_tokens:%u", u.prompt,
               u.cached);
    if (u.pictures)
        json_print(j, "image_tokens:%u", u.pictures);
    json_print(j,
               "cache_write_tokens:0}, output_tokens:%u, "
               "output_tokens_details:{reasoning_tokens:%u}, total_tokens:%ld}",
               u.output, u.reasoning, (int64_t)u.prompt + u.output);
}

/* Writes an error. Clients know few codes; codes that tell them what to do are kept. */
static void responses_put_error(struct json *j, const struct err *err) {
    const char *code = "server_error";

    if (err->status == 429)
        code = "rate_limit_exceeded";
    else if (strcmp(err->code, "context_length_exceeded") == 0)
        code = err->code;
    json_print(j, "error:{code:%s, message:%s}", code, err->message);
}

static const char *status_word(const struct writer *w, enum responses_status status) {
    if (status == RESPONSES_QUEUED)
        return "queued";
    if (status == RESPONSES_IN_PROGRESS)
        return "in_progress";
    if (status == RESPONSES_FAILED) {
        if (responses_of(w)->cancelled)
            return "cancelled";
        return "failed";
    }
    if (was_cut(gen_of(w)))
        return "incomplete";
    return "completed";
}

void responses_put(struct json *j, const struct writer *w, enum responses_status status,
                   const struct err *err, size_t *head) {
    const struct responses *rs = responses_of(w);
    bool done = status == RESPONSES_DONE, failed = status == RESPONSES_FAILED && !rs->cancelled;
    size_t base = json_length(j);

    assert(!j->comma);
    /* access_programs are OpenAI's; its types require the member. */
    json_print(j, "{id:%s, object:'response', created_at:%ld, status:%s, access_programs:null",
               w->id, w->created, status_word(w, status));
    if (done && !was_cut(gen_of(w)))
        json_print(j, "completed_at:%ld", time(NULL));
    else
        json_print(j, "completed_at:null");
    if (failed)
        responses_put_error(j, err);
    else
        json_print(j, "error:null");
    if (done && was_cut(gen_of(w)) && gen_of(w)->repeats)
        json_print(j, "incomplete_details:{reason:'max_output_tokens', loop_ended:true}");
    else if (done && was_cut(gen_of(w)))
        json_print(j, "incomplete_details:{reason:'max_output_tokens'}");
    else
        json_print(j, "incomplete_details:null");
    responses_put_output(j, w, status, base);
    if (done)
        responses_put_usage(j, w);
    else
        json_print(j, "usage:null");
    if (rs->kept.echo)
        json_more(j);
    else
        json_print(j, "model:null");
    *head = j->out->len;
    if (rs->kept.echo)
        json_refer(j, rs->kept.echo, 0, rs->kept.echo->text.len);
    json_close(j, '}');
}

void responses_answer(struct exchange *x, const struct writer *w, enum responses_status status) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    CLEANUP(splices_deinit) struct splices refs = {0};
    struct json j = {.out = &b, .refs = &refs};
    size_t head;

    responses_put(&j, w, status, NULL, &head);
    respond_spliced(x, &b, &refs, j.error);
}

void responses_put_compacted(struct json *j, struct writer *w) {
    json_print(j, "{id:%s, object:'response.compaction', created_at:%ld", w->id, w->created);
    responses_put_output(j, w, RESPONSES_DONE, json_length(j) - 1);
    responses_put_usage(j, w);
    json_close(j, '}');
}
