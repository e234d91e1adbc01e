/* ---- requests ---- */

#include "tests/front_sim/ask.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "tests/front_sim/client.h"
#include "tests/front_sim/sim.h"

static const char *const paths[ASK_DIALECTS] = {
    [ASK_CHAT] = "/v1/chat/completions",     [ASK_COMPLETIONS] = "/v1/completions",
    [ASK_MESSAGES] = "/v1/messages",         [ASK_OLLAMA_CHAT] = "/api/chat",
    [ASK_OLLAMA_GENERATE] = "/api/generate", [ASK_LLAMACPP] = "/completion",
    [ASK_RESPONSES] = "/v1/responses",
};

/* Makes a prompt of words; many prompts begin alike, so that prefixes are shared. */
static char *make_prompt(uint32_t number) {
    static const char *const words[] = {"time ", "and ", "tide ", "wait ", "for ", "no "};
    struct buf b = {.max = 1 << 20};
    uint32_t n = sim_one_in(4) ? sim_between(20, 120) : sim_between(0, 20);

    if (sim_one_in(2))
        buf_add_str(&b, "You are the one who knows how long it takes. ");
    for (uint32_t i = 0; i < n; i++)
        buf_add_str(&b, words[sim_below(ARRAY_SIZE(words))]);
    buf_printf(&b, "number %u?", number);
    return b.data;
}

/* Returns true if the prompt has not the form of a chat. */
static bool is_raw(const struct ask *a) {
    return a->kind == ASK_COMPLETIONS || a->kind == ASK_OLLAMA_GENERATE || a->kind == ASK_LLAMACPP;
}

/* Takes two letters of the right answer as the stop string, which ends the answer where it occurs
 * first. Each token is a letter. */
static void draw_stop(struct ask *a) {
    struct buf *text = &a->right.text;

    if (a->kind == ASK_RESPONSES || text->len < 4 || !sim_one_in(3))
        return;
    memcpy(a->stop, text->data + sim_below((uint32_t)text->len - 2), 2);
    text->len = (size_t)((char *)memmem(text->data, text->len, a->stop, 2) - text->data);
    text->data[text->len] = 0;
    a->right.n_out = (uint32_t)text->len + 2;
    a->right.ended = true;
}

void ask_make(struct ask *a, uint32_t number, uint32_t n_models, const char *key) {
    static const char *const pages[] = {"/health",      "/v1/models", "/api/tags",
                                        "/api/version", "/metrics",   "/props"};
    struct buf chat = {.max = 1 << 20};

    *a = (struct ask){.number = number, .key = key};
    a->kind = sim_one_in(10) ? ASK_PAGE : sim_below(ASK_DIALECTS);
    a->model = sim_below(n_models);
    a->stream = sim_one_in(2);
    a->chunked = sim_one_in(6);
    a->closes = sim_one_in(6);
    a->max_tokens = sim_one_in(5) ? sim_between(60, 200) : sim_between(1, 40);
    if (a->kind == ASK_PAGE) {
        a->method = "GET";
        a->path = pages[sim_below(ARRAY_SIZE(pages))];
        a->stream = false;
        return;
    }
    a->prompt = make_prompt(number);
    if (!is_raw(a))
        model_chat_prompt(a->prompt, &chat);
    model_expect(a->model, is_raw(a) ? a->prompt : chat.data, a->max_tokens, &a->right);
    buf_deinit(&chat);
    draw_stop(a);
}

void ask_free(struct ask *a) {
    free(a->prompt);
    buf_deinit(&a->right.text);
}

static void write_body(const struct ask *a, struct buf *b) {
    const char *stream = a->stream ? "true" : "false";

    buf_printf(b, R"({"model":"m%u","stream":%s,)", a->model, stream);
    switch (a->kind) {
    case ASK_CHAT:
    case ASK_MESSAGES:
        buf_printf(b,
                   R"("max_tokens":%u,"temperature":0,"messages":[{"role":"user",)"
                   R"("content":"%s"}])",
                   a->max_tokens, a->prompt);
        break;
    case ASK_COMPLETIONS:
        buf_printf(b, R"("max_tokens":%u,"temperature":0,"prompt":"%s")", a->max_tokens, a->prompt);
        break;
    case ASK_OLLAMA_CHAT:
        buf_printf(b, R"("messages":[{"role":"user","content":"%s"}],)", a->prompt);
        break;
    case ASK_OLLAMA_GENERATE:
        buf_printf(b, R"("raw":true,"prompt":"%s",)", a->prompt);
        break;
    case ASK_LLAMACPP:
        buf_printf(b, R"("prompt":"%s","n_predict":%u,"temperature":0,"repeat_penalty":1)",
                   a->prompt, a->max_tokens);
        break;
    default:
        buf_printf(b, R"("input":"%s","max_output_tokens":%u,"temperature":0,"store":%s)",
                   a->prompt, a->max_tokens, a->number % 2 ? "true" : "false");
    }
    if (*a->stop && a->kind <= ASK_MESSAGES)
        buf_printf(b, R"(,"%s":["%s"])", a->kind == ASK_MESSAGES ? "stop_sequences" : "stop",
                   a->stop);
    if (*a->stop && a->kind == ASK_LLAMACPP)
        buf_printf(b, R"(,"stop":["%s"])", a->stop);
    if (a->kind == ASK_OLLAMA_CHAT || a->kind == ASK_OLLAMA_GENERATE)
        buf_printf(b,
                   R"("options":{"temperature":0,"num_predict":%u,"repeat_penalty":1,)"
                   R"("top_k":0,"top_p":1%s%s%s})",
                   a->max_tokens, *a->stop ? R"(,"stop":[")" : "", a->stop,
                   *a->stop ? R"("])" : "");
    buf_add_char(b, '}');
}

static void write_chunks(const struct buf *body, struct buf *out) {
    for (size_t at = 0; at < body->len;) {
        size_t most = sim_between(1, 200), n = MIN(body->len - at, most);

        buf_printf(out, "%zx\r\n", n);
        buf_add(out, body->data + at, n);
        buf_add_str(out, "\r\n");
        at += n;
    }
    buf_add_str(out, "0\r\n\r\n");
}

void ask_write(const struct ask *a, struct buf *out) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    bool page = a->kind == ASK_PAGE;

    if (!page)
        write_body(a, &body);
    buf_printf(out, "%s %s HTTP/1.1\r\nHost: localhost\r\n", page ? a->method : "POST",
               page ? a->path : paths[a->kind]);
    if (a->key)
        buf_printf(out, "Authorization: Bearer %s\r\n", a->key);
    if (a->closes)
        buf_add_str(out, "Connection: close\r\n");
    if (page) {
        buf_add_str(out, "\r\n");
        return;
    }
    buf_add_str(out, "Content-Type: application/json\r\n");
    if (a->chunked) {
        buf_add_str(out, "Transfer-Encoding: chunked\r\n\r\n");
        write_chunks(&body, out);
    } else {
        buf_printf(out, "Content-Length: %zu\r\n\r\n", body.len);
        buf_add(out, body.data, body.len);
    }
}

/* ---- answers ---- */

/* The parts of an answer that were read so far. */
struct reading {
    const struct ask *a;
    struct buf text;
    /* the end was read */
    bool done;
    /* reason: "stop", "length"; NULL: not given */
    const char *finish;
    char why[32];
    /* counts of the usage; -1: not given */
    int64_t n_prompt, n_out;
    bool failed;
    /* status of the error */
    int status;
};

static void add_text(struct reading *r, yyjson_val *v) {
    if (yyjson_is_str(v))
        buf_add(&r->text, yyjson_get_str(v), yyjson_get_len(v));
}

static void set_finish(struct reading *r, yyjson_val *v) {
    if (!yyjson_is_str(v))
        return;
    snprintf(r->why, sizeof(r->why), "%s", yyjson_get_str(v));
    r->finish = r->why;
}

static void set_usage(struct reading *r, yyjson_val *usage, const char *in, const char *out) {
    if (yyjson_is_int(yyjson_obj_get(usage, in)))
        r->n_prompt = yyjson_get_sint(yyjson_obj_get(usage, in));
    if (yyjson_is_int(yyjson_obj_get(usage, out)))
        r->n_out = yyjson_get_sint(yyjson_obj_get(usage, out));
}

static void read_openai(struct reading *r, yyjson_val *v) {
    yyjson_val *c = yyjson_arr_get_first(yyjson_obj_get(v, "choices"));

    add_text(r, yyjson_obj_get(c, "text"));
    add_text(r, yyjson_obj_get(yyjson_obj_get(c, "message"), "content"));
    add_text(r, yyjson_obj_get(yyjson_obj_get(c, "delta"), "content"));
    set_finish(r, yyjson_obj_get(c, "finish_reason"));
    set_usage(r, yyjson_obj_get(v, "usage"), "prompt_tokens", "completion_tokens");
}

static void read_anthropic(struct reading *r, yyjson_val *v) {
    const char *type = yyjson_get_str(yyjson_obj_get(v, "type"));
    yyjson_val *block, *delta = yyjson_obj_get(v, "delta");
    size_t i, n;

    yyjson_arr_foreach(yyjson_obj_get(v, "content"), i, n, block)
        add_text(r, yyjson_obj_get(block, "text"));
    add_text(r, yyjson_obj_get(delta, "text"));
    set_finish(r, yyjson_obj_get(v, "stop_reason"));
    set_finish(r, yyjson_obj_get(delta, "stop_reason"));
    set_usage(r, yyjson_obj_get(v, "usage"), "input_tokens", "output_tokens");
    if (type && strcmp(type, "message_stop") == 0)
        r->done = true;
}

static void read_ollama(struct reading *r, yyjson_val *v) {
    add_text(r, yyjson_obj_get(v, "response"));
    add_text(r, yyjson_obj_get(yyjson_obj_get(v, "message"), "content"));
    set_finish(r, yyjson_obj_get(v, "done_reason"));
    set_usage(r, v, "prompt_eval_count", "eval_count");
    if (yyjson_is_true(yyjson_obj_get(v, "done")))
        r->done = true;
}

static void read_llamacpp(struct reading *r, yyjson_val *v) {
    add_text(r, yyjson_obj_get(v, "content"));
    set_usage(r, v, "tokens_evaluated", "tokens_predicted");
    if (yyjson_is_true(yyjson_obj_get(v, "stop")))
        r->done = true;
}

static void read_responses(struct reading *r, yyjson_val *v) {
    const char *type = yyjson_get_str(yyjson_obj_get(v, "type"));
    yyjson_val *whole = r->a->stream ? yyjson_obj_get(v, "response") : v, *item, *part;
    size_t i, n, k, m;

    if (type && strcmp(type, "response.output_text.delta") == 0)
        add_text(r, yyjson_obj_get(v, "delta"));
    if (type &&
        (strcmp(type, "response.completed") == 0 || strcmp(type, "response.incomplete") == 0))
        r->done = true;
    if (type && strcmp(type, "response.failed") == 0)
        r->failed = true;
    if (!r->a->stream) {
        yyjson_arr_foreach(yyjson_obj_get(whole, "output"), i, n, item) {
            yyjson_arr_foreach(yyjson_obj_get(item, "content"), k, m, part)
                add_text(r, yyjson_obj_get(part, "text"));
        }
    }
    set_usage(r, yyjson_obj_get(whole, "usage"), "input_tokens", "output_tokens");
}

/* Returns the status of an error inside a stream; 0: it is not given. */
static int status_of(yyjson_val *error) {
    static const struct {
        const char *name;
        int status;
    } names[] = {
        {"rate_limit_exceeded", 429}, {"rate_limit_error", 429},  {"overloaded_error", 503},
        {"model_loading", 503},       {"model_unavailable", 503}, {"shutting_down", 503},
    };
    static const char *const fields[] = {"code", "type"};

    for (size_t f = 0; f < ARRAY_SIZE(fields); f++) {
        const char *name = yyjson_get_str(yyjson_obj_get(error, fields[f]));

        for (size_t i = 0; name && i < ARRAY_SIZE(names); i++)
            if (strcmp(name, names[i].name) == 0)
                return names[i].status;
    }
    return 0;
}

/* Reads one document of the answer. */
static void read_json(struct reading *r, const char *json, size_t len) {
    yyjson_doc *doc = yyjson_read(json, len, 0);
    yyjson_val *v = yyjson_doc_get_root(doc), *error = yyjson_obj_get(v, "error");

    if (!yyjson_is_obj(v))
        sim_fail("FORM", "request %u: no JSON object: %.*s", r->a->number, (int)len, json);
    if (error && !yyjson_is_null(error)) {
        yyjson_val *code = yyjson_obj_get(error, "code");

        r->failed = true;
        r->status = yyjson_is_int(code) ? (int)yyjson_get_int(code) : status_of(error);
        if (!yyjson_is_str(error) && !yyjson_is_str(yyjson_obj_get(error, "message")))
            sim_fail("FORM", "request %u: an error without a message: %.*s", r->a->number, (int)len,
                     json);
    } else if (r->a->kind <= ASK_COMPLETIONS) {
        read_openai(r, v);
    } else if (r->a->kind == ASK_MESSAGES) {
        read_anthropic(r, v);
    } else if (r->a->kind <= ASK_OLLAMA_GENERATE) {
        read_ollama(r, v);
    } else if (r->a->kind == ASK_LLAMACPP) {
        read_llamacpp(r, v);
    } else {
        read_responses(r, v);
    }
    yyjson_doc_free(doc);
}

/* Reads a line of a stream. */
static void read_line(struct reading *r, const char *line, size_t len) {
    bool lines_of_json = r->a->kind == ASK_OLLAMA_CHAT || r->a->kind == ASK_OLLAMA_GENERATE;

    if (len > 0 && line[len - 1] == '\r')
        len--;
    if (len == 0 || line[0] == ':' || (len > 6 && memcmp(line, "event:", 6) == 0))
        return;
    if (r->done && !lines_of_json && !(len > 5 && memcmp(line, "data: [DONE]", 12) == 0))
        sim_fail("ONE_ANSWER", "request %u: behind the end: %.*s", r->a->number, (int)len, line);
    if (lines_of_json)
        read_json(r, line, len);
    else if (len == 12 && memcmp(line, "data: [DONE]", 12) == 0)
        r->done = true;
    else if (len > 6 && memcmp(line, "data: ", 6) == 0)
        read_json(r, line + 6, len - 6);
    else
        sim_fail("FORM", "request %u: a line of a stream: %.*s", r->a->number, (int)len, line);
}

static void read_stream(struct reading *r, const struct answer *x) {
    const char *at = x->body, *end = x->body + x->len, *line_end;

    for (; at < end && (line_end = memchr(at, '\n', (size_t)(end - at))); at = line_end + 1)
        read_line(r, at, (size_t)(line_end - at));
    if (at < end && !x->cut)
        sim_fail("FORM", "request %u: a stream ends inside of a line", r->a->number);
}

/* Checks that the answer has ended and gives its reason. */
static void check_end(const struct reading *r) {
    const struct ask *a = r->a;
    const char *end_of_messages = *a->stop ? "stop_sequence" : "end_turn";
    const char *want = a->right.ended ? a->kind == ASK_MESSAGES ? end_of_messages : "stop"
                       : a->kind == ASK_MESSAGES ? "max_tokens"
                                                 : "length";

    if (a->stream && !r->done)
        sim_fail("ENDS", "request %u (kind %u): its stream has no end", a->number, a->kind);
    if (tolerance.damage)
        return;
    if (r->finish && strcmp(r->finish, want) != 0)
        sim_fail("FINISH", R"(request %u (kind %u): "%s", not "%s")", a->number, a->kind, r->finish,
                 want);
    if (!r->finish && a->kind <= ASK_OLLAMA_GENERATE)
        sim_fail("FINISH", "request %u (kind %u) does not say why it ended", a->number, a->kind);
    if (r->n_prompt >= 0 && r->n_prompt != a->right.n_prompt && a->kind != ASK_MESSAGES)
        sim_fail("USAGE", "request %u (kind %u): %lld prompt tokens, not %u", a->number, a->kind,
                 (long long)r->n_prompt, a->right.n_prompt);
    if (r->n_out >= 0 && r->n_out != a->right.n_out)
        sim_fail("USAGE", "request %u (kind %u): %lld tokens, not %u", a->number, a->kind,
                 (long long)r->n_out, a->right.n_out);
}

static enum verdict judge(const struct reading *r, const struct answer *x) {
    const struct buf *right = &r->a->right.text;
    bool whole = !x->cut && !r->failed;

    bool wrong = r->text.len > right->len || (whole && r->text.len != right->len) ||
                 (r->text.len > 0 && memcmp(r->text.data, right->data, r->text.len) != 0);

    if (wrong && !tolerance.damage)
        sim_fail("TOKENS", R"(request %u (kind %u, stream %d): "%.*s", not "%s")", r->a->number,
                 r->a->kind, r->a->stream, (int)r->text.len, r->text.data, right->data);
    if (r->failed)
        return ANSWER_ERROR;
    if (x->cut)
        return ANSWER_CUT;
    check_end(r);
    return ANSWER_RIGHT;
}

enum verdict ask_check(const struct ask *a, const struct answer *x, int *status) {
    struct reading r = {.a = a, .text = {.max = 1 << 20}, .n_prompt = -1, .n_out = -1};
    enum verdict v;

    *status = x->status;
    if (x->cut && x->status == 0)
        return ANSWER_CUT;
    if ((x->status == 429 || x->status == 503 || x->status == 529) && !x->retry_after)
        sim_fail("RETRY_AFTER", "request %u: status %d without Retry-After", a->number, x->status);
    if (a->kind == ASK_PAGE)
        return x->cut ? ANSWER_CUT : x->status == 200 ? ANSWER_RIGHT : ANSWER_ERROR;
    if (x->status != 200 || !a->stream) {
        if (x->cut)
            return ANSWER_CUT;
        read_json(&r, x->body, x->len);
    } else {
        read_stream(&r, x);
    }
    if (x->status != 200 && !r.failed)
        sim_fail("FORM", "request %u: status %d and no error: %s", a->number, x->status, x->body);
    v = judge(&r, x);
    if (v == ANSWER_ERROR && x->status == 200)
        *status = r.status ? r.status : 500;
    buf_deinit(&r.text);
    return v;
}
