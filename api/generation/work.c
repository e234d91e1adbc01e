#include "api/generation/work.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "api/anthropic/input.h"
#include "api/generation/bend.h"
#include "api/http/exchange.h"
#include "api/http/conn.h"
#include "api/generation/constrain.h"
#include "api/generation/messages.h"
#include "api/private.h"
#include "api/responses/responses.h"
#include "api/limits/session.h"

/*
 * Why not always on the pool: handing over and back costs more than parsing a short chat, and lets the
 * pool's few threads, busy with one client's long prompts, delay everyone's short ones. Bodies up to
 * INLINE_MAX take some tens of microseconds here; a grammar that takes longer is huge. Huge ones
 * never have all threads: they queue among themselves, so that a few clients with books to read do not
 * hold up those with pages. Everything that a work touches on the pool is its own, or immutable: the
 * tokenizer, the template, the options.
 */

#define INLINE_MAX (8u << 10) /* bytes of a body that are worked on at once */
#define HUGE_MIN (512u << 10) /* bytes of a body that may keep a thread for long */
#define HUGE_AT_ONCE 2u       /* of libuv's four threads */

struct work_place work_place(const struct work *w, uint32_t i) {
    const char *name = w->chat ? "messages" : w->kind == REQUEST_EMBEDDING ? "input" : "prompt";
    struct work_place p;

    snprintf(p.s, sizeof(p.s), w->many ? "%s[%u]" : "%s", name, i);
    return p;
}

static int bad_prompt(const struct work *w, const char *place, struct err *err) {
    bool embeds = w->kind == REQUEST_EMBEDDING;

    return err_set_code(err, 400, "invalid_value", place,
                        "%s must be a string, an array of strings, an array of token ids or an "
                        "array of such arrays, at most %u.",
                        embeds ? "input" : "prompt",
                        embeds ? REQUEST_INPUTS_MAX : REQUEST_PROMPTS_MAX);
}

static int set_ids(struct work *w, uint32_t i, yyjson_val *ids, struct err *err) {
    struct prompt *p = &w->prompts[i];
    int32_t *id;
    uint32_t n;
    int r = request_ids(&w->r, w->api, ids, work_place(w, i).s, &id, &n, err);

    if (r < 0)
        return r;
    p->tokens.id = malloc(n * sizeof(*id));
    if (!p->tokens.id)
        return -ENOMEM;
    memcpy(p->tokens.id, id, n * sizeof(*id));
    p->tokens.n = p->tokens.cap = n;
    return 0;
}

static int set_prompt(struct work *w, uint32_t i, yyjson_val *v, struct err *err) {
    if (yyjson_is_arr(v))
        return set_ids(w, i, v, err);
    if (!yyjson_is_str(v))
        return bad_prompt(w, work_place(w, i).s, err);
    if (w->kind == REQUEST_EMBEDDING && yyjson_get_len(v) == 0)
        return err_set_code(err, 400, "invalid_value", work_place(w, i).s, "%s must not be empty.",
                            work_place(w, i).s);
    w->prompts[i].text = yyjson_get_str(v);
    w->prompts[i].len = yyjson_get_len(v);
    return 0;
}

/* The four forms that a prompt may have. */
static int find_prompts(struct work *w, struct err *err) {
    yyjson_val *v = w->r.prompt, *first = yyjson_arr_get_first(v), *item;
    bool many = yyjson_is_arr(v) && (yyjson_is_str(first) || yyjson_is_arr(first));
    size_t n = many ? yyjson_arr_size(v) : 1, i, max;
    size_t most = w->kind == REQUEST_EMBEDDING ? REQUEST_INPUTS_MAX : REQUEST_PROMPTS_MAX;

    if (yyjson_is_arr(v) && yyjson_arr_size(v) == 0)
        return bad_prompt(w, work_place(w, 0).s, err);
    if (n > most || n * request_made(&w->r) > most)
        return bad_prompt(w, work_place(w, 0).s, err);
    if (!(w->prompts = arena_alloc_array(&w->r.arena, n, sizeof(*w->prompts))))
        return -ENOMEM;
    w->n_prompts = (uint32_t)n;
    w->many = many;
    if (!many)
        return set_prompt(w, 0, v, err);
    yyjson_arr_foreach(v, i, max, item) {
        bool same = yyjson_is_str(item) == yyjson_is_str(first);
        int r = same ? set_prompt(w, (uint32_t)i, item, err)
                     : bad_prompt(w, work_place(w, (uint32_t)i).s, err);

        if (r < 0)
            return r;
    }
    return 0;
}

static int find_chat(struct work *w, struct err *err) {
    w->chat = true;
    w->prompts = arena_alloc(&w->r.arena, sizeof(*w->prompts));
    if (!w->prompts)
        return -ENOMEM;
    w->n_prompts = 1;
    if (!w->api->model->template)
        return err_set_code(err, 400, "no_chat_template", "messages",
                            "This model has no chat template: use /v1/completions.");
    return 0;
}

void work_trim(struct work *w, bool keep) {
    for (uint32_t i = 0; i < w->n_prompts; i++)
        tokens_deinit(&w->prompts[i].tokens);
    w->n_prompts = 0;
    rendered_deinit(&w->rendered);
    memset(&w->rendered, 0, sizeof(w->rendered));
    buf_deinit(&w->text);
    if (keep) {
        w->n_kept = w->body_len;
        w->api->kept_bytes += w->n_kept;
    } else {
        request_drop_body(&w->r);
    }
}

void work_deinit(struct work *w) {
    work_trim(w, false);
    if (w->n_kept)
        w->api->kept_bytes -= w->n_kept;
    w->n_kept = 0;
    request_deinit(&w->r);
    w->responses = responses_free(w->responses);
}

/* How the answer to the chat is read. */
static void set_parse(struct work *w) {
    const struct family *f = &w->api->family;

    w->parse = (struct toolcall_opts){
        .format = family_format(f, w->r.functions),
        .reasoning = f->reasoning,
        .tools = yyjson_doc_get_root(w->r.functions),
        .max_calls = w->r.one_call ? 1 : 0,
        .only_calls = w->r.choice.mode == TOOLS_REQUIRED,
    };
    w->parse.in_reasoning =
        toolcall_opens_reasoning(f->reasoning, w->prompts[0].text, w->prompts[0].len);
    w->parses = w->parse.format || w->parse.reasoning;
}

static int render_as(struct work *w, const struct messages_form *form) {
    struct template_opts o = {.now_unix = time(NULL)};
    yyjson_doc *vars = NULL;
    int r = messages_vars(&w->r, w->api->model, form, &vars, &w->err);

    if (r < 0)
        return r;
    rendered_deinit(&w->rendered);
    memset(&w->rendered, 0, sizeof(w->rendered));
    r = template_render(w->api->model->template, yyjson_doc_get_root(vars), &o, &w->rendered,
                        &w->err);
    yyjson_doc_free(vars);
    return r == -EINVAL && !*w->err.code ? -EBADMSG : r;
}

static int render_bent(struct work *w, const struct messages_form *form, unsigned how) {
    yyjson_val *own = w->r.messages;
    yyjson_doc *doc = NULL;

    if (bend_messages(own, how, &doc) < 0)
        return -ENOMEM;
    w->r.messages = yyjson_doc_get_root(doc);
    int r = render_as(w, form);
    w->r.messages = own;
    yyjson_doc_free(doc);
    return r;
}

/* Of a template that refuses the order of the messages, once more in one that strict ones take. What the
 * client is told in the end is what was wrong with its own. */
static int render_somehow(struct work *w, const struct messages_form *form) {
    static const unsigned ways[] = {BEND_SYSTEM | BEND_TURNS,
                                    BEND_SYSTEM | BEND_TURNS | BEND_NO_SYSTEM};
    bool drops = w->api->family.drops_system && bend_has_late_system(w->r.messages);
    int r = drops ? render_bent(w, form, BEND_SYSTEM) : render_as(w, form);
    struct err err = w->err;

    for (size_t i = 0; i < ARRAY_SIZE(ways) && r == -EBADMSG; i++) {
        memset(&w->err, 0, sizeof(w->err));
        r = render_bent(w, form, ways[i]);
    }
    if (r == -EBADMSG)
        w->err = err;
    return r;
}

/* The prompt goes on with what the answer shall begin with, which is no reasoning. */
static int add_prefill(struct work *w) {
    const struct toolcall_reasoning *reasoning = w->api->family.reasoning;
    struct rendered *out = &w->rendered;
    const char *text = out->text.data ? out->text.data : "";

    if (w->r.prefill.len == 0)
        return 0;
    if (toolcall_opens_reasoning(reasoning, text, out->text.len) &&
        (buf_add_str(&out->text, reasoning->close) < 0 || buf_add_str(&out->text, "\n\n") < 0))
        return -ENOMEM;
    struct text_range *user = reallocarray(out->user, out->n_user + 1, sizeof(*user));
    if (!user)
        return -ENOMEM;
    out->user = user;
    user[out->n_user++] = (struct text_range){out->text.len, out->text.len + w->r.prefill.len};
    return buf_add(&out->text, w->r.prefill.data, w->r.prefill.len);
}

static int render(struct work *w) {
    const struct family *f = &w->api->family;
    struct messages_form form = {.plain = !f->takes_tools,
                                 .text_args = !f->takes_tools || f->text_args,
                                 .thoughts = f->thoughts};
    int r = messages_functions(&w->r, &w->err);

    if (r == 0)
        r = render_somehow(w, &form);
    /* Perhaps it knows no system message, or no tool without a description. */
    if (r == -EBADMSG && w->r.functions) {
        form.no_system = form.plain;
        form.describes = !form.plain;
        memset(&w->err, 0, sizeof(w->err));
        r = render_somehow(w, &form);
    }
    r = r == -EBADMSG ? -EINVAL : r;
    if (r == -EMSGSIZE)
        return err_set_code(&w->err, 400, "context_length_exceeded", "messages",
                            "The messages are far longer than the model's maximum context length.");
    if (r < 0 && r != -ENOMEM && !*w->err.code) {
        struct err e = w->err;

        return err_set_code(&w->err, e.status ? e.status : 400, "template_error", "messages", "%s",
                            *e.message ? e.message : "The chat template cannot render this.");
    }
    if (r == 0)
        r = add_prefill(w);
    if (r < 0)
        return r;
    w->prompts[0].text = w->rendered.text.data ? w->rendered.text.data : "";
    w->prompts[0].len = w->rendered.text.len;
    w->prompts[0].user = w->rendered.user;
    w->prompts[0].n_user = w->rendered.n_user;
    if (w->r.kind == REQUEST_CHAT)
        set_parse(w);
    return 0;
}

/* A template writes what it wants at the beginning; a plain prompt gets it from the tokenizer. What is to be
 * embedded is data, and never a special token. */
static int tokenise(struct work *w, uint32_t i) {
    struct prompt *p = &w->prompts[i];
    unsigned flags = w->kind == REQUEST_EMBEDDING ? 0 : TOKENIZE_SPECIAL;

    if (!w->chat && !w->r.no_special_tokens)
        flags |= TOKENIZE_BOS;
    p->tokens.max = w->max_tokens;
    int r = w->r.suffix
                ? fim_encode(&w->api->fim, w->api->model->tokenizer, p->text, p->len,
                             yyjson_get_str(w->r.suffix), yyjson_get_len(w->r.suffix), &p->tokens)
                : tokenizer_encode(w->api->model->tokenizer, p->text, p->len, flags, p->user,
                                   p->n_user, &p->tokens);
    if (r == -EMSGSIZE)
        return err_set_code(&w->err, 400, "context_length_exceeded", work_place(w, i).s,
                            "The prompt has more than %u tokens, far more than the model's maximum "
                            "context length.",
                            w->max_tokens);
    return r;
}

int work_again(struct work *w, yyjson_val *messages, struct tokens *out) {
    yyjson_val *own = w->r.messages;

    yyjson_doc_free(w->r.functions); /* made anew */
    yyjson_doc_free(w->r.shown);
    w->r.functions = w->r.shown = NULL;
    w->r.messages = messages;
    w->r.no_generation_prompt = true;
    int r = find_chat(w, &w->err);
    if (r == 0)
        r = render(w);
    if (r == 0)
        r = tokenise(w, 0);
    if (r == 0) {
        *out = w->prompts[0].tokens;
        memset(&w->prompts[0].tokens, 0, sizeof(*out));
    }
    w->r.messages = own;
    return r;
}

static int add_parts(yyjson_val *content, struct buf *out) {
    size_t i, n;
    yyjson_val *part;
    int r = 0;

    yyjson_arr_foreach(content, i, n, part) {
        yyjson_val *text = yyjson_obj_get(part, "text");

        if (r == 0)
            r = buf_add(out, yyjson_get_str(text), yyjson_get_len(text));
    }
    return r;
}

/* What the client expects, as tokens. One that no output can be as long as is of no use. */
static int expect(struct work *w) {
    CLEANUP(buf_deinit) struct buf all = {.max = REQUEST_PREDICTION_MAX};
    struct tokens t = {.max = w->api->model->max_context};
    yyjson_val *v = w->r.expected;
    bool plain = yyjson_is_str(v);
    int r = plain ? 0 : add_parts(v, &all);

    if (r == 0)
        r = tokenizer_encode(w->api->model->tokenizer, plain ? yyjson_get_str(v) : all.data,
                             plain ? yyjson_get_len(v) : all.len, 0, NULL, 0, &t);
    if (r == 0 && t.n) {
        size_t size = t.n * sizeof(*t.id);
        void *kept = arena_alloc(&w->r.arena, size);

        if (kept)
            memcpy(kept, t.id, size);
        w->r.prediction = (struct str){kept, kept ? (uint32_t)size : 0};
        r = kept ? 0 : -ENOMEM;
    }
    tokens_deinit(&t);
    return r == -EMSGSIZE ? 0 : r;
}

static int detokenise(struct work *w) {
    int32_t *ids = NULL;
    uint32_t n = 0;
    int r = 0;

    buf_init(&w->text, API_SEND_MAX);
    if (yyjson_arr_size(w->r.tokens) > w->max_tokens)
        return err_set_code(&w->err, 400, "invalid_value", "tokens",
                            "tokens must have at most %u entries.", w->max_tokens);
    if (yyjson_arr_size(w->r.tokens))
        r = request_ids(&w->r, w->api, w->r.tokens, "tokens", &ids, &n, &w->err);
    return r < 0 ? r : tokenizer_decode(w->api->model->tokenizer, ids, n, true, &w->text);
}

static int prepare(struct work *w) {
    int r = w->kind == REQUEST_RESPONSES
                ? responses_parse(w->responses, &w->r, w->body.data, w->body.len, &w->err)
                : request_parse(&w->r, w->api, w->kind, w->body.data, w->body.len, &w->err);

    buf_deinit(&w->body);
    if (r < 0)
        return r;
    if (w->kind == REQUEST_DETOKENIZE)
        return detokenise(w);
    w->r.conversation = session_conversation(w->api, w->r.messages);
    r = w->r.messages ? find_chat(w, &w->err) : find_prompts(w, &w->err);
    if (r == 0 && w->chat)
        r = render(w);
    for (uint32_t i = 0; i < w->n_prompts && r == 0; i++)
        if (w->prompts[i].text)
            r = tokenise(w, i);
    return r == 0 && w->r.expected ? expect(w) : r;
}

/* @quick: -EAGAIN says that the rest of it takes longer. */
static int run(struct work *w, bool quick) {
    int r = w->prepared ? 0 : prepare(w);

    w->prepared = true;
    return r < 0 ? r : constrain(w, quick);
}

static void on_work(uv_work_t *uv) {
    struct work *w = CONTAINER_OF(uv, struct work, uv);

    w->result = run(w, !w->huge);
}

static void finish(struct work *w) {
    buf_deinit(&w->body);
    w->api->body_bytes -= w->n_charged;
    w->n_charged = 0;
    w->running = false;
    if (w->kind & (REQUEST_ANTHROPIC | REQUEST_ANTHROPIC_COUNT))
        anthropic_rename(&w->err);
    if (w->kind == REQUEST_RESPONSES)
        responses_rename(&w->err);
    w->done(w);
}

static void on_done(uv_work_t *uv, int status);

/* To the pool; where that fails, here. */
static void begin(struct work *w) {
    w->api->n_huge += w->huge;
    if (uv_queue_work(w->api->loop, &w->uv, on_work, on_done) == 0)
        return;
    w->api->n_huge -= w->huge;
    w->result = run(w, false);
    finish(w);
}

/* The next huge one; those that nobody waits for any more are not begun. */
static void begin_next(struct api *a) {
    while (a->n_huge < HUGE_AT_ONCE && !list_empty(&a->huge)) {
        struct work *w = LIST_ENTRY(list_pop_front(&a->huge), struct work, link);

        if (!w->abandoned) {
            begin(w);
            continue;
        }
        w->result = -ECANCELED;
        finish(w);
    }
}

/* What takes long waits for its turn. */
static void enqueue(struct work *w) {
    w->huge = true;
    list_push_back(&w->api->huge, &w->link);
}

static void on_done(uv_work_t *uv, int status) {
    struct work *w = CONTAINER_OF(uv, struct work, uv);
    struct api *a = w->api;

    (void)status;
    a->n_huge -= w->huge;
    if (w->result == -EAGAIN)
        enqueue(w);
    else
        finish(w); /* may free it */
    begin_next(a);
}

bool work_abandon(struct work *w) {
    w->abandoned = true;
    return w->running;
}

void work_start(struct work *w, struct exchange *x, enum request_kind kind,
                void (*done)(struct work *w)) {
    w->api = x->api;
    w->kind = kind;
    w->done = done;
    w->running = true;
    w->n_charged = conn_take_body(x->conn, &w->body);
    w->body_len = w->body.len;
    w->huge = w->body.len >= HUGE_MIN;
    /* What is far more than fits is not tokenised to its end. */
    w->max_tokens = MIN(x->api->model->max_context, 1u << 28) * 2 + 65536;
    if (w->huge) {
        enqueue(w);
        begin_next(w->api);
    } else if (w->body.len > INLINE_MAX) {
        begin(w);
    } else {
        w->result = run(w, true);
        if (w->result == -EAGAIN) {
            enqueue(w);
            begin_next(w->api);
            return;
        }
        finish(w);
    }
}
