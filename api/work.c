#include "api/work.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "api/messages.h"
#include "api/private.h"

#define INLINE_MAX (8u << 10) /* bytes of a body that are worked on at once */

static int bad_prompt(struct err *err) {
    return err_set_code(err, 400, "invalid_value", "prompt",
                        "prompt must be a string, an array of strings, an array of token ids or an "
                        "array of such arrays, at most %u.",
                        REQUEST_PROMPTS_MAX);
}

static int set_ids(struct work *w, struct prompt *p, yyjson_val *ids, struct err *err) {
    int32_t *id;
    uint32_t n;
    int r = request_ids(&w->r, w->api, ids, "prompt", &id, &n, err);

    if (r < 0)
        return r;
    p->tokens.id = malloc(n * sizeof(*id));
    if (!p->tokens.id)
        return -ENOMEM;
    memcpy(p->tokens.id, id, n * sizeof(*id));
    p->tokens.n = p->tokens.cap = n;
    return 0;
}

static int set_prompt(struct work *w, struct prompt *p, yyjson_val *v, struct err *err) {
    if (yyjson_is_arr(v))
        return set_ids(w, p, v, err);
    if (!yyjson_is_str(v))
        return bad_prompt(err);
    p->text = yyjson_get_str(v);
    p->len = yyjson_get_len(v);
    return 0;
}

/* The four forms that a prompt may have. */
static int find_prompts(struct work *w, struct err *err) {
    yyjson_val *v = w->r.prompt, *first = yyjson_arr_get_first(v), *item;
    bool many = yyjson_is_arr(v) && (yyjson_is_str(first) || yyjson_is_arr(first));
    size_t n = many ? yyjson_arr_size(v) : 1, i, max;

    if (yyjson_is_arr(v) && yyjson_arr_size(v) == 0)
        return bad_prompt(err);
    if (n > REQUEST_PROMPTS_MAX || n * w->r.n > REQUEST_PROMPTS_MAX)
        return bad_prompt(err);
    if (!(w->prompts = arena_alloc_array(&w->r.arena, n, sizeof(*w->prompts))))
        return -ENOMEM;
    w->n_prompts = (uint32_t)n;
    if (!many)
        return set_prompt(w, &w->prompts[0], v, err);
    yyjson_arr_foreach(v, i, max, item) {
        bool same = yyjson_is_str(item) == yyjson_is_str(first);
        int r = same ? set_prompt(w, &w->prompts[i], item, err) : bad_prompt(err);

        if (r < 0)
            return r;
    }
    return 0;
}

int work_init(struct work *w, struct api *a, enum request_kind kind, const char *body, size_t len,
              struct err *err) {
    memset(w, 0, sizeof(*w));
    w->api = a;
    int r = request_parse(&w->r, a, kind, body, len, err);
    if (r < 0)
        return r;
    if (w->r.messages) {
        w->n_prompts = 1;
        w->prompts = arena_alloc(&w->r.arena, sizeof(*w->prompts));
        r = w->prompts ? 0 : -ENOMEM;
        if (!a->model->template)
            r = err_set_code(err, 400, "no_chat_template", "messages",
                             "This model has no chat template: use /v1/completions.");
    } else if (w->r.prompt) {
        r = find_prompts(w, err);
    }
    /* Far more than fits is not tokenised to its end. */
    w->max_tokens = kind & (REQUEST_CHAT | REQUEST_COMPLETION)
                        ? MIN(a->model->max_context, 1u << 28) * 2 + 65536
                        : 0;
    if (r < 0)
        work_deinit(w);
    return r;
}

void work_deinit(struct work *w) {
    for (uint32_t i = 0; i < w->n_prompts && w->prompts; i++)
        tokens_deinit(&w->prompts[i].tokens);
    w->n_prompts = 0;
    rendered_deinit(&w->rendered);
    request_deinit(&w->r);
}

static int render(struct work *w) {
    struct template_opts o = {.now_unix = time(NULL)};
    yyjson_doc *vars = NULL;
    int r = messages_vars(&w->r, w->api->model, &vars, &w->err);

    if (r < 0)
        return r;
    r = template_render(w->api->model->template, yyjson_doc_get_root(vars), &o, &w->rendered,
                        &w->err);
    yyjson_doc_free(vars);
    if (r == -EMSGSIZE)
        return err_set_code(&w->err, 400, "context_length_exceeded", "messages",
                            "The messages are far longer than the model's maximum context length.");
    if (r < 0 && r != -ENOMEM && !*w->err.code) {
        struct err e = w->err;

        return err_set_code(&w->err, e.status ? e.status : 400, "template_error", "messages", "%s",
                            *e.message ? e.message : "The chat template cannot render this.");
    }
    if (r < 0)
        return r;
    w->prompts[0].text = w->rendered.text.data ? w->rendered.text.data : "";
    w->prompts[0].len = w->rendered.text.len;
    w->prompts[0].user = w->rendered.user;
    w->prompts[0].n_user = w->rendered.n_user;
    return 0;
}

/* A template writes what it wants at the beginning; a plain prompt gets it from the tokenizer. */
static int tokenise(struct work *w, struct prompt *p) {
    unsigned flags = TOKENIZE_SPECIAL;

    if (!w->r.messages && !w->r.no_special_tokens)
        flags |= TOKENIZE_BOS;
    p->tokens.max = w->max_tokens;
    int r = tokenizer_encode(w->api->model->tokenizer, p->text, p->len, flags, p->user, p->n_user,
                             &p->tokens);
    if (r == -EMSGSIZE)
        return err_set_code(&w->err, 400, "context_length_exceeded",
                            w->r.messages ? "messages" : "prompt",
                            "The prompt has more than %u tokens, far more than the model's maximum "
                            "context length.",
                            w->max_tokens);
    return r;
}

static int run(struct work *w) {
    int r = w->r.messages ? render(w) : 0;

    for (uint32_t i = 0; i < w->n_prompts && r == 0; i++)
        if (w->prompts[i].text)
            r = tokenise(w, &w->prompts[i]);
    return r;
}

static void on_work(uv_work_t *uv) {
    struct work *w = CONTAINER_OF(uv, struct work, uv);

    w->result = run(w);
}

static void on_done(uv_work_t *uv, int status) {
    struct work *w = CONTAINER_OF(uv, struct work, uv);

    (void)status;
    w->running = false;
    w->done(w);
}

void work_start(struct work *w, void (*done)(struct work *w)) {
    w->done = done;
    w->running = true;
    if (yyjson_doc_get_read_size(w->r.doc) > INLINE_MAX &&
        uv_queue_work(w->api->loop, &w->uv, on_work, on_done) == 0)
        return;
    w->result = run(w);
    w->running = false;
    done(w);
}
