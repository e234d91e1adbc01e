#include "api/generation/prompt_job.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "api/generation/echo.h"
#include "api/generation/expected.h"
#include "api/generation/endpoint.h"
#include "api/generation/fields.h"
#include "api/generation/normalize.h"
#include "api/http/exchange.h"
#include "api/http/conn.h"
#include "api/generation/constrain.h"
#include "api/generation/messages.h"
#include "api/generation/model_wait.h"
#include "api/generation/models.h"
#include "api/generation/picture_parts.h"
#include "api/generation/model.h"
#include "api/generation/read_request.h"
#include "api/generation/variants.h"
#include "api/http/json.h"
#include "api/generation/env.h"
#include "api/limits/session.h"
#include "api/http/dialect.h"
#include "base/try.h"

/*
 * A small body is worked on here, on the loop: some tens of microseconds, less than the way to a
 * thread. Work that turns out to take longer (a grammar, a stored conversation), and every larger
 * body, goes to the pool. There a job touches only its own or immutable data: the tokenizer, the
 * template, the options.
 */

#define INLINE_MAX (8u << 10)   /* bytes of a body that are worked on at once */
#define INLINE_TEXT (32u << 10) /* bytes of prompts that are tokenised at once */
#define INLINE_STEPS 10000u     /* steps of a rendering that runs at once: some 500 us */

/* Asserts the invariants that prompt.h lists, on the loop's thread. */
static void check_job(const struct prompt_job *job) {
    assert(!job->pooled || (job->running && !job->waits));
    if (job->pooled)
        return; /* the rest belongs to the thread */
    assert(!job->waits || (job->running && job->env->wait.n > 0));
    assert(!job->translated || job->body.len == 0);
    assert(job->n_kept == 0 || job->env->prewarm.kept_bytes >= job->n_kept);
    assert(!job->running || (job->model && job->model->n_jobs > 0));
}

/* Returns the names that a pair's parts have in the body. */
static const char *const *pair_names(const struct prompt_job *job) {
    static const char *const rerank[] = {"query", "documents"}, *const score[] = {"text_1",
                                                                                  "text_2"};
    static const char *const tei[] = {"query", "texts"};

    return job->request.scores_texts ? score : job->request.reranks_texts ? tei : rerank;
}

struct prompt_place prompt_place(const struct prompt_job *job, uint32_t i) {
    const char *name = job->chat                ? "messages"
                       : job->request.documents ? pair_names(job)[1]
                       : job->request.pool      ? "input"
                                                : "prompt";
    struct prompt_place p;

    snprintf(p.s, sizeof(p.s), job->many ? "%s[%u]" : "%s", name, i);
    return p;
}

static int bad_prompt(const struct prompt_job *job, const char *place, struct err *err) {
    bool embeds = job->request.pool != 0;

    return err_set_code(err, 400, "invalid_value", place,
                        "%s must be a string, an array of strings, an array of token ids or an "
                        "array of such arrays, at most %u.",
                        embeds ? "input" : "prompt",
                        embeds ? REQUEST_INPUTS_MAX : REQUEST_PROMPTS_MAX);
}

static int set_ids(struct prompt_job *job, uint32_t i, yyjson_val *ids, struct err *err) {
    struct prompt *p = &job->prompts[i];
    int32_t *id;
    uint32_t n;
    TRY(gen_request_ids(&job->request, job->model, ids, prompt_place(job, i).s, &id, &n, err));
    p->tokens.id = malloc(n * sizeof(*id));
    if (!p->tokens.id)
        return -ENOMEM;
    memcpy(p->tokens.id, id, n * sizeof(*id));
    p->tokens.n = p->tokens.cap = n;
    return 0;
}

static int set_prompt(struct prompt_job *job, uint32_t i, yyjson_val *v, struct err *err) {
    if (yyjson_is_arr(v))
        return set_ids(job, i, v, err);
    if (!yyjson_is_str(v))
        return bad_prompt(job, prompt_place(job, i).s, err);
    if (job->request.pool && json_len(v) == 0)
        return err_set_code(err, 400, "invalid_value", prompt_place(job, i).s,
                            "%s must not be empty.", prompt_place(job, i).s);
    job->prompts[i].text = json_text(v);
    job->prompts[i].len = json_len(v);
    return 0;
}

/* Finds the prompts in the four forms that they may have. */
static int find_prompts(struct prompt_job *job, struct err *err) {
    yyjson_val *v = job->request.prompt, *first = yyjson_arr_get_first(v), *item;
    bool many = yyjson_is_arr(v) && (yyjson_is_str(first) || yyjson_is_arr(first));
    size_t n = many ? yyjson_arr_size(v) : 1, i, max;
    size_t most = job->request.pool ? REQUEST_INPUTS_MAX : REQUEST_PROMPTS_MAX;

    if (yyjson_is_arr(v) && yyjson_arr_size(v) == 0 && job->request.takes_none)
        return 0;
    if (yyjson_is_arr(v) && yyjson_arr_size(v) == 0)
        return bad_prompt(job, prompt_place(job, 0).s, err);
    if (n > most || n * gen_request_made(&job->request) > most)
        return bad_prompt(job, prompt_place(job, 0).s, err);
    if (!(job->prompts = arena_alloc_array(&job->request.arena, n, sizeof(*job->prompts))))
        return -ENOMEM;
    job->n_prompts = (uint32_t)n;
    job->many = many;
    if (!many)
        return set_prompt(job, 0, v, err);
    yyjson_arr_foreach(v, i, max, item) {
        bool same = yyjson_is_str(item) == yyjson_is_str(first);
        TRY(same ? set_prompt(job, (uint32_t)i, item, err)
                 : bad_prompt(job, prompt_place(job, (uint32_t)i).s, err));
    }
    return 0;
}

/* Reads a part of a pair: a text, or an object with one. */
static int pair_part(yyjson_val *v, const char *place, const char **text, size_t *len,
                     struct err *err) {
    yyjson_val *s = yyjson_is_obj(v) ? yyjson_obj_get(v, "text") : v;

    if (!yyjson_is_str(s) || json_len(s) == 0)
        return err_set_code(err, 400, "invalid_value", place,
                            "%s must be a text that is not empty, or an object with one as text.",
                            place);
    *text = json_text(s);
    *len = json_len(s);
    return 0;
}

/* Counts the pairs, or returns an error. */
static int count_pairs(const struct prompt_job *job, struct err *err) {
    yyjson_val *query = job->request.query, *documents = job->request.documents;
    const char *const *name = pair_names(job);
    size_t n = yyjson_is_arr(documents) ? yyjson_arr_size(documents) : 1;

    if (n == 0 || n > REQUEST_INPUTS_MAX)
        return err_set_code(err, 400, "invalid_value", name[1], "%s must have 1 to %u entries.",
                            name[1], REQUEST_INPUTS_MAX);
    if (yyjson_is_arr(query) && (!job->request.scores_texts || yyjson_arr_size(query) != n))
        return err_set_code(err, 400, "invalid_value", name[0], "%s must be one text%s.", name[0],
                            job->request.scores_texts ? ", or as many as text_2 has" : "");
    return (int)n;
}

/* Pairs the query with each document; a score may also pair texts one by one. Returns -EAGAIN when
 * there are too many pairs for the loop. */
static int find_pairs(struct prompt_job *job, struct err *err) {
    yyjson_val *query = job->request.query, *documents = job->request.documents;
    bool lists = yyjson_is_arr(query), many = yyjson_is_arr(documents);
    int n = count_pairs(job, err);
    size_t total = 0;
    char place[32];

    if (n < 0)
        return n;
    if (!(job->prompts = arena_alloc_array(&job->request.arena, (size_t)n, sizeof(*job->prompts))))
        return -ENOMEM;
    job->n_prompts = (uint32_t)n;
    job->many = many;
    yyjson_val *q = lists ? yyjson_arr_get_first(query) : query;
    yyjson_val *d = many ? yyjson_arr_get_first(documents) : documents;
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        struct prompt *p = &job->prompts[i];

        snprintf(place, sizeof(place), lists ? "%s[%u]" : "%s", pair_names(job)[0], i);
        TRY(pair_part(q, place, &p->query, &p->query_len, err));
        if (p->query_len > REQUEST_QUERY_MAX)
            return err_set_code(err, 400, "invalid_value", place, "%s must have at most %u bytes.",
                                place, REQUEST_QUERY_MAX);
        TRY(pair_part(d, prompt_place(job, i).s, &p->text, &p->len, err));
        total += p->query_len + p->len;
        q = lists ? json_next(q) : q;
        d = many ? json_next(d) : d;
    }
    return job->quick && total > INLINE_TEXT ? -EAGAIN : 0;
}

static int find_chat(struct prompt_job *job, struct err *err) {
    job->chat = true;
    job->prompts = arena_alloc(&job->request.arena, sizeof(*job->prompts));
    if (!job->prompts)
        return -ENOMEM;
    job->n_prompts = 1;
    if (!job->model->info->template)
        return err_set_code(err, 400, "no_chat_template", "messages",
                            "This model has no chat template. Use /v1/completions.");
    return 0;
}

void prompt_job_trim(struct prompt_job *job, bool keep) {
    assert(!job->running && (!keep || job->n_kept == 0));
    for (uint32_t i = 0; i < job->n_prompts; i++) {
        tokens_deinit(&job->prompts[i].tokens);
        echo_free(job->prompts[i].echo);
    }
    job->n_prompts = 0;
    rendered_deinit(&job->rendered);
    memset(&job->rendered, 0, sizeof(job->rendered));
    buf_deinit(&job->text);
    if (keep) {
        job->n_kept = job->body_len;
        job->env->prewarm.kept_bytes += job->n_kept;
    } else if (!job->goes_on) {
        gen_request_drop_body(&job->request);
    }
}

void prompt_job_deinit(struct prompt_job *job) {
    job->goes_on = false;
    prompt_job_trim(job, false);
    check_job(job);
    assert(!job->running && !job->waits);
    if (job->n_kept)
        job->env->prewarm.kept_bytes -= job->n_kept;
    job->n_kept = 0;
    gen_request_deinit(&job->request);
    if (job->state)
        job->endpoint->close(job);
    job->state = NULL;
    free(job->wanted);
    job->wanted = NULL;
    model_wait_assign(job, NULL);
}

/* Sets how the answer to the chat is parsed. */
static void set_parse(struct prompt_job *job) {
    const struct family *f = &job->model->family;

    job->parse = (struct toolcall_opts){
        .format = family_format(f, job->request.functions),
        .reasoning = f->reasoning,
        .tools = yyjson_doc_get_root(job->request.functions),
        .max_calls = job->request.one_call ? 1 : 0,
        .only_calls = job->request.choice.mode == TOOLS_REQUIRED,
    };
    job->parse.in_reasoning =
        toolcall_opens_reasoning(f->reasoning, job->prompts[0].text, job->prompts[0].len);
    job->parses = job->parse.format || job->parse.reasoning;
}

static int out_of_steps(struct prompt_job *job) {
    if (!*job->err.message)
        err_set(&job->err, 400, "messages",
                "The chat template takes too many steps for these messages. Send fewer or shorter "
                "ones.");
    return -EINVAL;
}

/* Returns -EBADMSG when the template refuses these messages; it may accept another form of them. A
 * template that takes too long is not tried again: all renderings of a request share one budget. */
static int render_as(struct prompt_job *job, const struct messages_form *form) {
    uint64_t fuel = TEMPLATE_FUEL - job->steps, steps = 0;
    struct template_opts o = {.now_unix = time(NULL), .steps = &steps};
    yyjson_doc *vars = NULL;

    assert(job->steps <= TEMPLATE_FUEL);
    if (fuel == 0)
        return out_of_steps(job);
    o.fuel = job->quick ? INLINE_STEPS : fuel;
    struct messages_trust trust = {0};
    int r = messages_vars(&job->request, job->model->info, form, &vars, &trust, &job->err);

    if (r < 0) {
        messages_trust_deinit(&trust);
        return r;
    }
    o.trust = trust.v;
    o.n_trust = trust.n;
    rendered_deinit(&job->rendered);
    r = template_render(job->model->info->template, yyjson_doc_get_root(vars), &o, &job->rendered,
                        &job->err);
    yyjson_doc_free(vars);
    if (r == 0)
        r = picture_parts_order(&job->request, trust.pictures, trust.n_pictures);
    messages_trust_deinit(&trust);
    if (r == -EINVAL && job->quick && steps == o.fuel)
        return -EAGAIN;
    job->steps += job->quick ? 0 : steps;
    if (r == -EINVAL && steps == o.fuel)
        return out_of_steps(job);
    return r == -EINVAL && !*job->err.code ? job_pause() < 0 ? -ECANCELED : -EBADMSG : r;
}

static int render_normalized(struct prompt_job *job, const struct messages_form *form,
                             unsigned how) {
    yyjson_val *own = job->request.messages;
    yyjson_doc *doc = NULL;

    if (normalize_messages(own, how, &doc) < 0)
        return -ENOMEM;
    job->request.messages = yyjson_doc_get_root(doc);
    int r = render_as(job, form);
    job->request.messages = own;
    yyjson_doc_free(doc);
    return r;
}

/* Renders the messages. If the template refuses them, tries once more with an order, and then with
 * past calls, that strict templates accept. The client gets the first error, which is about its own
 * messages. */
static int render_with_fallbacks(struct prompt_job *job, const struct messages_form *form) {
    static const unsigned turns = NORMALIZE_SYSTEM | NORMALIZE_TURNS;
    static const unsigned orders[] = {0, turns, turns | NORMALIZE_NO_SYSTEM,
                                      turns | NORMALIZE_MISSING,
                                      turns | NORMALIZE_MISSING | NORMALIZE_NO_SYSTEM};
    size_t n = ARRAY_SIZE(orders);
    bool drops =
        job->model->family.drops_system && normalize_has_late_system(job->request.messages);
    int r = drops ? render_normalized(job, form, NORMALIZE_SYSTEM) : render_as(job, form);
    struct err err = job->err;

    for (size_t i = 1; i < 2 * n && r == -EBADMSG; i++) {
        if (i >= n && !normalize_has_calls(job->request.messages))
            break;
        memset(&job->err, 0, sizeof(job->err));
        r = render_normalized(job, form, orders[i % n] | (i < n ? 0 : NORMALIZE_CALLS));
    }
    if (r == -EBADMSG)
        job->err = err;
    return r;
}

/* Adds the beginning of the answer (prefill) to the prompt. A prefill is no reasoning: reasoning
 * that the template has opened is closed first, also where the request turns reasoning off. */
static int add_prefill(struct prompt_job *job) {
    const struct toolcall_reasoning *reasoning = job->model->family.reasoning;
    struct rendered *out = &job->rendered;
    const char *text = out->text.data ? out->text.data : "";
    bool opens = toolcall_opens_reasoning(reasoning, text, out->text.len);
    bool closes = opens && (job->request.prefill.len || gen_request_thinks_not(&job->request));

    if (closes && buf_add_str(&out->text, reasoning->close) < 0)
        return -ENOMEM;
    if (job->request.prefill.len == 0)
        return 0;
    if (closes && buf_add_str(&out->text, "\n\n") < 0)
        return -ENOMEM;
    if (!array_resize(&out->user, out->n_user + 1, sizeof(*out->user)))
        return -ENOMEM;
    out->user[out->n_user++] =
        (struct text_range){out->text.len, out->text.len + job->request.prefill.len};
    return buf_add(&out->text, job->request.prefill.data, job->request.prefill.len);
}

/* Renders the chat. The first @n_own messages are the service's, not the client's. */
static int render_messages(struct prompt_job *job, uint32_t n_own) {
    const struct family *f = &job->model->family;
    struct messages_form form = {.n_own = n_own,
                                 .plain = !f->takes_tools,
                                 .text_args = !f->takes_tools || f->text_args,
                                 .calls = f->drops_calls ? f->format : NULL,
                                 .thoughts = f->thoughts,
                                 .sight = job->model->sight.text};
    int r = messages_functions(&job->request, &job->err);

    if (r == 0)
        r = render_with_fallbacks(job, &form);
    /* Perhaps the template knows no system message, or only simple tools. */
    if (r == -EBADMSG && job->request.functions) {
        form.no_system = form.plain;
        form.simple_tools = !form.plain;
        memset(&job->err, 0, sizeof(job->err));
        r = render_with_fallbacks(job, &form);
    }
    r = r == -EBADMSG ? -EINVAL : r;
    if (r == -EMSGSIZE)
        return err_set_code(&job->err, 400, "context_length_exceeded", "messages",
                            "The messages are far longer than the model's maximum context length. "
                            "Send fewer or shorter ones.");
    if (r == -EINVAL && !*job->err.code) {
        struct err e = job->err;

        return err_set_code(
            &job->err, e.status ? e.status : 400, "template_error", "messages", "%s",
            *e.message ? e.message : "The model's chat template cannot render these messages.");
    }
    if (r == 0)
        r = add_prefill(job);
    if (r < 0)
        return r;
    job->prompts[0].text = job->rendered.text.data ? job->rendered.text.data : "";
    job->prompts[0].len = job->rendered.text.len;
    job->prompts[0].user = job->rendered.user;
    job->prompts[0].n_user = job->rendered.n_user;
    if (!job->request.tokens_only)
        set_parse(job);
    return 0;
}

/* Sets *out to the chat's messages behind the model's own system message; NULL if they begin with
 * one. */
static int add_system(const struct prompt_job *job, yyjson_doc **out) {
    yyjson_val *own = job->request.messages;
    yyjson_val *role = yyjson_obj_get(yyjson_arr_get_first(own), "role");

    *out = NULL;
    if (!yyjson_is_arr(own) || yyjson_equals_str(role, "system") ||
        yyjson_equals_str(role, "developer"))
        return 0;
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *list = d ? yyjson_val_mut_copy(d, own) : NULL;
    yyjson_mut_val *first = list ? yyjson_mut_obj(d) : NULL;
    bool ok = first && yyjson_mut_obj_add_str(d, first, "role", "system") &&
              yyjson_mut_obj_add_str(d, first, "content", job->model->info->system) &&
              yyjson_mut_arr_prepend(list, first);
    yyjson_mut_doc_set_root(d, list);
    *out = ok ? yyjson_mut_doc_imut_copy(d, NULL) : NULL;
    yyjson_mut_doc_free(d);
    return *out ? 0 : -ENOMEM;
}

static int render(struct prompt_job *job) {
    yyjson_val *own = job->request.messages;
    yyjson_doc *doc = NULL;

    TRY(job->model->info->system ? add_system(job, &doc) : 0);
    if (doc)
        job->request.messages = yyjson_doc_get_root(doc);
    int r = render_messages(job, doc != NULL);
    job->request.messages = own;
    yyjson_doc_free(doc);
    return r;
}

/* Encodes pair @i. Each pair contains the query, so the first pair that is too long ends the
 * request. */
static int encode_pair(struct prompt_job *job, uint32_t i) {
    const struct api_model *m = job->model->info;
    CLEANUP(buf_deinit) struct buf b = {.max = SIZE_MAX / 2};
    struct prompt *p = &job->prompts[i];
    struct text_range user[2];
    int r = buf_add_str(&b, m->pair.before);

    user[0].begin = b.len;
    user[0].end = b.len + p->query_len;
    if (r < 0 || (r = buf_add(&b, p->query, p->query_len)) < 0 ||
        (r = buf_add_str(&b, m->pair.between)) < 0)
        return r;
    user[1].begin = b.len;
    user[1].end = b.len + p->len;
    if ((r = buf_add(&b, p->text, p->len)) < 0 || (r = buf_add_str(&b, m->pair.behind)) < 0)
        return r;
    p->tokens.max = job->context ? job->context : job->max_tokens;
    r = tokenizer_encode(m->tokenizer, b.data, b.len,
                         TOKENIZE_SPECIAL | (m->encoder ? TOKENIZE_BOS : 0), user, 2, &p->tokens);
    if (r == -EMSGSIZE)
        return err_set_code(
            &job->err, 400, "context_length_exceeded", prompt_place(job, i).s,
            "%s has more than %zu tokens together with its query and the model's special tokens.",
            prompt_place(job, i).s, p->tokens.max - 1);
    return r;
}

/* Tokenizes a prompt. A template has written the special tokens at the beginning; for a plain
 * prompt the tokenizer adds them. Text to be embedded is data and never gives special tokens. */
static int tokenise(struct prompt_job *job, uint32_t i) {
    struct prompt *p = &job->prompts[i];
    unsigned flags = job->request.pool ? 0 : TOKENIZE_SPECIAL;

    if (!job->chat && !job->request.no_special_tokens)
        flags |= TOKENIZE_BOS;
    p->tokens.max = job->max_tokens;
    int r = job->request.suffix ? fim_encode(&job->model->fim, job->model->info->tokenizer, p->text,
                                             p->len, json_text(job->request.suffix),
                                             json_len(job->request.suffix), &p->tokens)
                                : tokenizer_encode(job->model->info->tokenizer, p->text, p->len,
                                                   flags, p->user, p->n_user, &p->tokens);
    if (r == -EMSGSIZE) {
        err_set_code(&job->err, 400, "context_length_exceeded", prompt_place(job, i).s,
                     "The prompt has more than %u tokens, far more than the model's maximum "
                     "context length.",
                     job->max_tokens);
        return err_add_lengths(&job->err, job->max_tokens, job->model->info->max_context);
    }
    return r;
}

int prompt_job_render_again(struct prompt_job *job, yyjson_val *messages, struct tokens *out) {
    yyjson_val *own = job->request.messages;

    yyjson_doc_free(job->request.functions); /* made anew */
    yyjson_doc_free(job->request.shown);
    job->request.functions = job->request.shown = NULL;
    job->request.messages = messages;
    int r = find_chat(job, &job->err);
    if (r == 0)
        r = render(job);
    if (r == 0)
        r = tokenise(job, 0);
    if (r == 0)
        r = picture_parts_expand(job);
    if (r == 0) {
        *out = job->prompts[0].tokens;
        memset(&job->prompts[0].tokens, 0, sizeof(*out));
    }
    job->request.messages = own;
    return r;
}

static int detokenise(struct prompt_job *job) {
    int32_t *ids = NULL;
    uint32_t n = 0;

    buf_init(&job->text, API_SEND_MAX);
    if (yyjson_arr_size(job->request.tokens) > job->max_tokens)
        return err_set_code(&job->err, 400, "invalid_value", "tokens",
                            "tokens must have at most %u entries.", job->max_tokens);
    if (yyjson_arr_size(job->request.tokens))
        TRY(gen_request_ids(&job->request, job->model, job->request.tokens, "tokens", &ids, &n,
                            &job->err));
    return tokenizer_decode(job->model->info->tokenizer, ids, n, true, &job->text);
}

/* Translates the body to the canonical request. Returns -EAGAIN, and keeps the body, if that must
 * not be done on this thread. */
static int translate(struct prompt_job *job) {
    assert(!job->translated && !job->prepared);
    yyjson_doc *doc = NULL;
    int r = json_read(&doc, job->body.data, job->body.len, &job->err);

    if (r == 0 && (r = model_wait_check(job, yyjson_doc_get_root(doc), &job->err)) < 0)
        yyjson_doc_free(doc);
    if (r == -EBUSY)
        return r;
    if (r == 0)
        r = job->endpoint->translate(job, doc, &job->err);
    if (r == -EAGAIN) {
        assert(job->quick);
        gen_request_deinit(&job->request);
        memset(&job->request, 0, sizeof(job->request));
        return r;
    }
    buf_deinit(&job->body);
    job->translated = true;
    return r;
}

static int prepare(struct prompt_job *job) {
    TRY(job->translated ? 0 : translate(job));
    if (job->request.tokens)
        return detokenise(job);
    if (job->quick && job->request.sampling.dry_multiplier > 0)
        return -EAGAIN; /* to look for its breakers in the vocabulary takes long */
    if (!job->request.conversation)
        job->request.conversation = session_conversation(job->env->secret, job->request.messages);
    TRY(picture_parts_take(job));
    TRY(job->request.messages    ? find_chat(job, &job->err)
        : job->request.documents ? find_pairs(job, &job->err)
                                 : find_prompts(job, &job->err));
    if (job->chat)
        TRY(render(job));
    if (job->request.n_variants)
        TRY(variants_spread(job, INLINE_TEXT));
    if (job->quick && job->chat && job->prompts[0].len > INLINE_TEXT)
        return -EAGAIN;
    for (uint32_t i = 0; i < job->n_prompts; i++)
        if (job->prompts[i].text)
            TRY(job->prompts[i].query ? encode_pair(job, i) : tokenise(job, i));
    TRY(picture_parts_expand(job));
    if (job->request.sampling.dry_multiplier > 0)
        TRY(fields_find_breakers(&job->request, job->model));
    return job->request.expected ? expected_take(job) : 0;
}

static bool fits(const struct prompt_job *job) {
    if (job->context == 0)
        return true; /* the context is not known yet */
    for (uint32_t i = 0; i < job->n_prompts; i++)
        if (job->prompts[i].tokens.n >= job->context)
            return false;
    return true;
}

/* Drops the rendering, so that the pool begins again with the translated request. */
static void forget_rendering(struct prompt_job *job) {
    yyjson_doc_free(job->request.functions);
    yyjson_doc_free(job->request.shown);
    job->request.functions = job->request.shown = NULL;
    rendered_deinit(&job->rendered);
    memset(&job->err, 0, sizeof(job->err));
}

/* Makes the echoes of prompts that are parts of their answers. */
static int add_echoes(struct prompt_job *job) {
    for (uint32_t i = 0; i < job->n_prompts && job->request.echo; i++) {
        struct prompt *p = &job->prompts[i];

        if (p->tokens.n && !p->echo)
            TRY(echo_new(&p->echo, job->model->info->tokenizer, p->tokens.id, (uint32_t)p->tokens.n,
                         p->text != NULL));
    }
    return 0;
}

/* Does the work of the job. With job->quick returns -EAGAIN if the rest takes longer. A prompt that
 * will be refused for its length needs no grammar. */
static int run(struct prompt_job *job) {
    int r = job->prepared ? 0 : prepare(job);

    if (r == -EAGAIN)
        forget_rendering(job);
    else
        job->prepared = r != -EBUSY && r != -EINPROGRESS;
    if (r == 0 && fits(job))
        r = add_echoes(job);
    return r < 0 || !fits(job) ? r : constrain(job, job->quick);
}

static int run_and_write(struct prompt_job *job) {
    int r = run(job);

    if (r == 0 && job->write)
        job->write(job);
    return r;
}

static void on_thread(struct job *j) {
    struct prompt_job *job = CONTAINER_OF(j, struct prompt_job, job);

    job->result = run_and_write(job);
}

/* Refuses a model that the tenant may not use, without telling of models that it may not use. */
static void hide_models(struct prompt_job *job) {
    if (job->result == 0 && !models_are_allowed(job->tenant, job->model))
        job->result = models_hidden(job->model->info->id, &job->err);
    else if (job->result < 0 && job->tenant->conf.n_models > 0 && job->wanted &&
             strcmp(job->err.code, "model_not_found") == 0)
        models_hidden(job->wanted, &job->err);
}

static void finish(struct prompt_job *job) {
    check_job(job);
    assert(job->running && !job->waits && job->result != -EBUSY);
    hide_models(job);
    buf_deinit(&job->body);
    quota_charge_set(&job->charge, 0);
    job->running = job->pooled = false;
    if (job->result == 0 && job->request.has_keep_alive)
        job->model->keep_alive_s = job->request.keep_alive_s;
    if (job->endpoint->rename)
        job->endpoint->rename(&job->err);
    job->done(job);
}

/* Sets the limits of the job's model. */
static void set_limits(struct prompt_job *job) {
    uint32_t own = job->tenant->conf.max_context, all = job->model->info->max_context;

    job->context = own > 0 ? MIN(own, all) : all;
    /* Tokenising stops at a length that is far beyond the context. */
    job->max_tokens = MIN(all, 1u << 28) * 2 + 65536;
}

static void to_pool(struct prompt_job *job, struct job_pool *pool);

/* Runs the job here or on the pool. With job->result -EBUSY waits for its model first. */
static void go_on(struct prompt_job *job) {
    check_job(job);
    assert(job->running && !job->pooled && !job->waits);
    /* At most nine iterations: each but the first begins with a model_wait_begin(). */
    while (job->result == -EBUSY || job->result == 0) {
        if (job->result == -EBUSY && (job->result = model_wait_begin(job)) != 0)
            break;
        set_limits(job);
        job->quick = job->body.len <= INLINE_MAX;
        job->result = job->quick ? run_and_write(job) : -EAGAIN;
        if (job->result == 0)
            break;
    }
    if (job->result == -EAGAIN)
        to_pool(job, &job->env->pool);
    else if (job->result == -EINPROGRESS)
        to_pool(job, &job->env->fetchers);
    else if (!job->waits)
        finish(job);
}

/* Fetches pictures, on a thread that may wait long. */
static void on_fetcher(struct job *j) {
    struct prompt_job *job = CONTAINER_OF(j, struct prompt_job, job);

    job->result = picture_parts_fetch(job);
}

static void on_ended(struct job *j) {
    struct prompt_job *job = CONTAINER_OF(j, struct prompt_job, job);

    assert(job->running && job->pooled);
    job->pooled = false;
    if (job->abandoned)
        job->result = -ECANCELED;
    if (job->result == -EBUSY)
        go_on(job);
    else if (job->result == 0 && j->run == on_fetcher)
        to_pool(job, &job->env->pool);
    else if (job->result == -EINPROGRESS)
        to_pool(job, &job->env->fetchers);
    else
        finish(job);
}

static void to_pool(struct prompt_job *job, struct job_pool *pool) {
    assert(!job->pooled && !job->abandoned);
    job->quick = false;
    job->pooled = true;
    job->job.run = pool == &job->env->fetchers ? on_fetcher : on_thread;
    job->job.done = on_ended;
    int r = job_pool_put(pool, &job->job, job->tenant);

    if (r == 0)
        return; /* from here on it is the thread's */
    job->result = r;
    finish(job);
}

static void on_again(struct job *j) {
    struct prompt_job *job = CONTAINER_OF(j, struct prompt_job, job);
    yyjson_val *messages = NULL;
    struct tokens tokens = {0};

    job->result = job->endpoint->again(job, &messages);
    job->goes_on &= messages != NULL;
    if (job->result == 0 && messages) {
        job->result = prompt_job_render_again(job, messages, &tokens);
        job->request.messages = messages;
    }
    if (job->result == 0 && messages)
        job->prompts[0].tokens = tokens;
}

void prompt_job_again(struct prompt_job *job, bool further, void (*done)(struct prompt_job *job)) {
    assert(job->goes_on && !job->running && job->endpoint->again && job->request.messages);
    memset(&job->err, 0, sizeof(job->err));
    job->done = done;
    job->goes_on = further;
    job->running = true;
    job->pooled = true;
    job->job = (struct job){.run = on_again, .done = on_ended};
    int r = job_pool_put(&job->env->pool, &job->job, job->tenant);

    if (r == 0)
        return; /* from here on it is the thread's */
    job->result = r;
    finish(job);
}

void prompt_job_name_model(const struct prompt_job *job, struct exchange *x) {
    const char *own = job->model ? job->model->info->id : "";

    snprintf(x->model, sizeof(x->model), "%s", job->result < 0 && job->wanted ? job->wanted : own);
}

bool prompt_job_abandon(struct prompt_job *job) {
    check_job(job);
    if (job->waits) {
        model_wait_cancel(job);
        buf_deinit(&job->body);
        quota_charge_set(&job->charge, 0);
        job->running = false;
    }
    if (job->pooled && !job->abandoned)
        jobs_abandon(job->job.jobs, &job->job);
    job->abandoned = true;
    return job->running;
}

void prompt_job_start(struct prompt_job *job, struct exchange *x, const struct endpoint *endpoint,
                      void (*done)(struct prompt_job *job)) {
    assert(!job->running && !job->state == !endpoint->open);
    job->env = env_of(x);
    model_wait_assign(job, model_first(job->env));
    job->tenant = tenants_get(&job->env->tenants, x->tenant);
    job->endpoint = endpoint;
    job->done = done;
    job->go_on = go_on;
    job->computes = x->route->generates;
    job->running = true;
    conn_take_body(x->conn, &job->body, &job->charge);
    job->body_len = job->body.len;
    go_on(job);
}
