/*
 * The tokens that the model wrote are in the prefix cache. The next request often repeats them in
 * another form: templates leave reasoning out once the user has asked again, print calls in their
 * own way, put the tools before the last question. From the first token that differs on, the prompt
 * would be computed while the client waits. So it is computed before: the conversation goes through
 * the same rendering as any request, with the answer as the client got it and then a made-up
 * message. Two such messages, which have nothing in common, are tried; the tokens that both
 * renderings share are certain. They end with what the template puts before the next message's
 * text.
 *
 * This is done on the pool, after the answer's last byte was sent, and only while no client's
 * request needs the pool: it begins when there is none, and is paused when one comes. If the tokens
 * reach at least a page farther than the cache, they are submitted as a request without a client
 * (SUBMIT_PREWARM): whether and when it runs is the scheduler's decision, and nothing here depends
 * on it.
 *
 * How a client repeats an answer is its endpoint's `repeats`. Whether it sends reasoning back is
 * seen in what it has sent; before that, it is assumed where the protocol asks for it.
 */

#include "api/generation/prewarm.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/gen.h"
#include "api/generation/model.h"
#include "api/generation/model_wait.h"
#include "api/generation/prompt_job.h"
#include "api/http/json.h"
#include "api/http/json_build.h"
#include "base/json_read.h"
#include "base/try.h"

#define BODY_MAX ((size_t)1 << 20) /* limit of a request's body that is kept until its turn ends */
#define BODIES_MAX ((size_t)32 << 20) /* limit of all kept bodies */
#define RUNNING_MAX 16u               /* with more requests the worker will not be idle soon */
#define AT_ONCE 2u                    /* threads of the pool that prewarming may use at once */

/* Parts that were moved out of an answer. From prewarm_start() to prewarm_on_ended() the job counts
 * in api.n_prewarm and belongs to the pool; job.n_kept of its bytes count in api.kept_bytes until
 * it is freed. */
struct prewarm_job {
    /* on the pool */
    struct job task;
    /* the answer's job, from which the conversation is rendered */
    struct prompt_job job;
    /* the turn's message to the worker, without tokens */
    struct submit m;
    struct output_parser *output;
    /* text of the output; without `output` all of it is content */
    struct buf text;
    size_t text_len;
    /* [n_held] tokens whose pages are in the cache */
    int32_t *held;
    uint32_t n_held;
    /* form in which the client repeats texts and calls: enum repeats */
    bool blocks, parts;
    /* the client sends reasoning back */
    bool thoughts;
    /* the result */
    struct tokens tokens;
};

/* ---- taking ---- */

bool prewarm_is_useful(const struct prompt_job *job, const struct gen *g) {
    const struct gen_env *env = job->env;

    return env->opts.prewarm && job->endpoint->repeats != REPEATS_NOTHING &&
           job->request.input.messages && job->request.made.prefill.len == 0 &&
           !job->request.input.no_generation_prompt && job->body_len <= BODY_MAX &&
           g->m.session != 0 && env->prewarm.kept_bytes + job->body_len <= BODIES_MAX;
}

/* Returns true if requests of clients need the pool or the worker, or there is no worker. */
static bool prewarm_is_busy(const struct model *m) {
    const struct gen_env *env = m->env;

    return env->prewarm.n >= AT_ONCE || jobs_n(env->pool.jobs) > env->prewarm.n ||
           env->admit.n_queued > 0 || env->admit.n_running > RUNNING_MAX || !m->worker_up ||
           env->draining || m->info->page_tokens == 0;
}

/* Returns true if a message of the conversation came with its reasoning. Returns @unknown if there
 * is no answer yet that could have had any. */
static bool sends_thoughts(yyjson_val *messages, bool unknown) {
    static const char *const names[] = {"reasoning_content", "reasoning"};
    bool any = false;

    JSON_EACH(m, messages) {
        if (!json_has(m, "role", "assistant"))
            continue;
        any = true;
        for (size_t k = 0; k < ARRAY_SIZE(names); k++)
            if (json_len(yyjson_obj_get(m, names[k])) > 0)
                return true;
    }
    return !any && unknown;
}

static bool all_complete(const struct output_parser *s) {
    for (uint32_t i = 0; s && i < s->n_calls; i++)
        if (!s->calls[i].complete)
            return false;
    return true;
}

struct prewarm_job *prewarm_detach(struct prompt_job *from, struct gen *g) {
    struct prewarm_job *t;

    assert(!from->running && g->state == GEN_DONE);

    if (from->n_kept == 0 || g->finish != FINISH_STOP || prewarm_is_busy(from->model) ||
        !all_complete(g->output) || !(t = calloc(1, sizeof(*t))))
        return NULL;
    t->blocks = from->endpoint->repeats == REPEATS_BLOCKS;
    t->parts = from->endpoint->repeats != REPEATS_TEXT;
    t->thoughts = sends_thoughts(from->request.input.messages, t->parts);
    t->job = (struct prompt_job){.env = from->env,
                                 .tenant = from->tenant,
                                 .endpoint = from->endpoint,
                                 .request = from->request,
                                 .max_tokens = from->max_tokens};
    t->job.request.input.no_generation_prompt = true; /* the model did not write what follows */
    model_wait_assign(&t->job, from->model);
    t->job.n_kept = from->n_kept;
    memset(&from->request, 0, sizeof(from->request));
    from->n_kept = 0;
    t->m = g->m;
    t->n_held = g->n_prompt + g->n_out - 1; /* the last token is in no page */
    t->held = STEAL(g->tokens);
    t->output = STEAL(g->output);
    t->text = g->text;
    t->text_len = g->ready;
    memset(&g->text, 0, sizeof(g->text));
    return t;
}

static void prewarm_free(struct prewarm_job *t) {
    prompt_job_deinit(&t->job);
    output_parser_free(t->output);
    buf_deinit(&t->text);
    tokens_deinit(&t->tokens);
    free(t->held);
    free(t);
}

/* ---- the answer as a message, on the pool ---- */

static void prewarm_put_calls(struct json *j, const struct prewarm_job *t) {
    const struct output_parser *s = t->output;
    const char *args = s->text[OUTPUT_CALL].data;

    json_print(j, "tool_calls:[");
    for (uint32_t i = 0; i < s->n_calls; i++) {
        const struct output_call *c = &s->calls[i];

        json_print(j, "{id:%s, type:'function', function:{name:%s, arguments:", c->id, c->name);
        (t->blocks ? json_raw : json_string)(j, args + c->begin, c->end - c->begin);
        json_print(j, "}}");
    }
    json_close(j, ']');
}

/* Writes the content; each text between calls or reasoning is a part of its own. */
static void prewarm_put_parts(struct json *j, const struct output_parser *s) {
    json_open(j, '[');
    for (uint32_t i = 0; i < s->n_runs; i++) {
        const struct output_run *r = &s->runs[i];

        if (r->kind != OUTPUT_CONTENT || r->begin == r->end)
            continue;
        json_print(j, "{type:'text', text:%.*s}", (int)(r->end - r->begin),
                   s->text[OUTPUT_CONTENT].data + r->begin);
    }
    json_close(j, ']');
}

static void put_answer(struct json *j, const struct prewarm_job *t) {
    const struct output_parser *s = t->output;

    json_print(j, "{role:'assistant', content:");
    if (!s)
        json_print(j, "%.*s", (int)t->text_len, t->text.data);
    else if (t->parts)
        prewarm_put_parts(j, s);
    else if (s->n_calls && !s->text[OUTPUT_CONTENT].len)
        json_print(j, "null");
    else
        json_print(j, "%.*s", (int)s->text[OUTPUT_CONTENT].len, s->text[OUTPUT_CONTENT].data);
    if (s && t->thoughts && s->text[OUTPUT_REASONING].len)
        json_print(j, "reasoning_content:%.*s", (int)s->text[OUTPUT_REASONING].len,
                   s->text[OUTPUT_REASONING].data);
    if (s && s->n_calls)
        prewarm_put_calls(j, t);
    json_close(j, '}');
}

/* Writes a message that may come next: the result of the first call, or a question. */
static void put_next(struct json *j, const struct prewarm_job *t, const char *text) {
    const struct output_call *c = t->output && t->output->n_calls ? t->output->calls : NULL;

    json_print(j, "{role:%s", c ? "tool" : "user");
    if (c)
        json_print(j, "tool_call_id:%s", c->id);
    if (c && t->blocks)
        json_print(j, "name:%s", c->name);
    json_print(j, "content:%s}", text);
}

/* Builds the conversation with the answer and a further message that has @text. */
static int conversation(const struct prewarm_job *t, const char *text, yyjson_doc **out) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = json_doc_new(&failed);
    yyjson_mut_val *list = yyjson_val_mut_copy(doc, t->job.request.input.messages);
    CLEANUP(json_doc_freep) yyjson_doc *more = NULL;
    struct json j = {.out = &b};

    json_open(&j, '[');
    put_answer(&j, t);
    put_next(&j, t, text);
    json_close(&j, ']');
    if (j.error < 0 || !(more = yyjson_read(b.data, b.len, 0)))
        return -ENOMEM;
    JSON_EACH(m, yyjson_doc_get_root(more)) {
        yyjson_mut_arr_append(list, yyjson_val_mut_copy(doc, m));
    }
    return json_doc_seal(doc, list, out);
}

static int prewarm_render(struct prewarm_job *t, const char *text, struct tokens *out) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;

    TRY(conversation(t, text, &doc));
    return prompt_job_render_again(&t->job, yyjson_doc_get_root(doc), out);
}

static size_t prewarm_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    size_t i = 0;

    while (i < MIN(n_a, n_b) && a[i] == b[i])
        i++;
    return i;
}

static void prewarm_on_thread(struct job *j) {
    struct prewarm_job *t = CONTAINER_OF(j, struct prewarm_job, task);
    struct tokens other = {0};
    size_t n = 0;

    /* Skips turns that return everything that was written: there is nothing to compute. */
    if (prewarm_render(t, "A", &t->tokens) == 0 &&
        prewarm_common(t->tokens.id, t->tokens.n, t->held, t->n_held) < t->n_held &&
        prewarm_render(t, "7", &other) == 0)
        n = prewarm_common(t->tokens.id, t->tokens.n, other.id, other.n);
    t->tokens.n = n;
    tokens_deinit(&other);
}

/* ---- back on the loop ---- */

/* Submits @m, unless a request is half sent. What the worker refuses is not tried again. */
static void prewarm_send(struct model *model, const struct submit *m) {
    uint32_t sent = 0;
    int r = model->half ? -EAGAIN : 1;

    while (r == 1)
        r = model->port->submit(model->port, m, &sent);
    if (r < 0 && sent > 0)
        model->port->cancel(model->port, m->id);
}

static void prewarm_submit_prompt(struct prewarm_job *t) {
    struct gen_env *env = t->job.env;
    struct model *model = t->job.model;
    const struct prompt *p = t->job.prompts;
    uint32_t page = model->info->page_tokens, n = (uint32_t)t->tokens.n;
    uint32_t held = (uint32_t)prewarm_common(t->tokens.id, n, t->held, t->n_held);
    uint32_t n_pictures = p->n_pictures;

    for (; n_pictures > 0; n_pictures--) { /* ends before a picture, never inside one */
        const struct submit_picture *last = &p->pictures[n_pictures - 1];

        if (last->at + last->n_rows <= MIN(n, n / page * page + 1))
            break;
        n = MIN(n, last->at);
    }
    if (n / page <= held / page || n >= model->info->max_context)
        return;
    struct submit m = {
        .id = env->gens.next_id++,
        .group = t->m.id,
        .session = t->m.session,
        .tenant = t->m.tenant,
        .weight_milli = t->m.weight_milli,
        .class = t->m.class,
        .arrived_ns = clock_now(env->clock),
        .n_prompt =
            MIN(n, n / page * page + 1), /* whole pages; and one token must be computed anew */
        .max_new = 1,
        .flags = SUBMIT_PREWARM,
        .tokens = t->tokens.id,
        .pictures = p->pictures,
        .n_pictures = n_pictures,
    };
    m.n_tokens = m.n_prompt;
    memcpy(m.isolation_key, t->m.isolation_key, sizeof(m.isolation_key));
    params_init(&m.sampling);
    prewarm_send(model, &m);
}

static void prewarm_on_ended(struct job *j) {
    struct prewarm_job *t = CONTAINER_OF(j, struct prewarm_job, task);
    struct gen_env *env = t->job.env;

    assert(env->prewarm.n > 0 && t->job.n_kept > 0);
    env->prewarm.n--;
    if (t->tokens.n > 0 && !prewarm_is_busy(t->job.model))
        prewarm_submit_prompt(t);
    prewarm_free(t);
}

void prewarm_start(struct prewarm_job *t) {
    if (!t)
        return;
    struct gen_env *env = t->job.env;

    t->task = (struct job){.run = prewarm_on_thread, .done = prewarm_on_ended, .background = true};
    if (job_pool_submit(&env->pool, &t->task, t->job.tenant) < 0)
        prewarm_free(t);
    else
        env->prewarm.n++;
}
