/*
 * A small body is worked on here, on the loop: some tens of microseconds, less than the way to a
 * thread. Work that turns out to take longer (a grammar, a stored conversation), and every larger
 * body, goes to the pool. There a job touches only its own or immutable data: the tokenizer, the
 * template, the options.
 */

#include "api/generation/prompt_job.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "api/generation/constrain.h"
#include "api/generation/echo.h"
#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/expected.h"
#include "api/generation/fields.h"
#include "api/generation/model.h"
#include "api/generation/model_wait.h"
#include "api/generation/models.h"
#include "api/generation/picture_parts.h"
#include "api/generation/prompt_steps.h"
#include "api/generation/variants.h"
#include "api/http/conn.h"
#include "api/http/dialect.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/limits/session.h"
#include "base/json_value.h"
#include "base/try.h"

#define INLINE_MAX (8u << 10) /* bytes of a body that are worked on at once */

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

static int prompt_make_tokens(struct prompt_job *job, struct tokens *out) {
    TRY(prompt_find(job));
    TRY(prompt_render(job));
    TRY(prompt_encode(job, 0));
    TRY(picture_parts_expand(job));
    *out = job->prompts[0].tokens;
    memset(&job->prompts[0].tokens, 0, sizeof(*out));
    return 0;
}

int prompt_job_render_again(struct prompt_job *job, yyjson_val *messages, struct tokens *out) {
    yyjson_val *own = job->request.input.messages;

    gen_request_drop_functions(&job->request); /* made anew */
    job->request.input.messages = messages;
    int r = prompt_make_tokens(job, out);
    job->request.input.messages = own;
    return r;
}

static int prompt_read_body(struct prompt_job *job) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;

    TRY(json_read(&doc, job->body.data, job->body.len, &job->err));
    TRY(model_wait_check(job, yyjson_doc_get_root(doc), &job->err));
    return job->endpoint->translate(job, STEAL(doc), &job->err);
}

/* Translates the body to the canonical request. Returns -EAGAIN, and keeps the body, if that must
 * not be done on this thread. */
static int prompt_translate(struct prompt_job *job) {
    assert(!job->translated && !job->prepared);
    int r = prompt_read_body(job);

    if (r == -EBUSY)
        return r;
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

static int prompt_prepare(struct prompt_job *job) {
    if (!job->translated)
        TRY(prompt_translate(job));
    if (job->request.input.tokens)
        return prompt_decode(job);
    if (job->quick && job->request.submit.sampling.dry_multiplier > 0)
        return -EAGAIN; /* to look for its breakers in the vocabulary takes long */
    if (!job->request.made.conversation)
        job->request.made.conversation =
            session_conversation(job->env->secret, job->request.input.messages);
    TRY(picture_parts_resolve(job));
    TRY(prompt_find(job));
    if (job->chat)
        TRY(prompt_render(job));
    if (job->request.made.n_variants)
        TRY(variants_spread(job, PROMPT_INLINE_TEXT));
    if (job->quick && job->chat && job->prompts[0].len > PROMPT_INLINE_TEXT)
        return -EAGAIN;
    for (uint32_t i = 0; i < job->n_prompts; i++)
        if (job->prompts[i].text)
            TRY(prompt_encode(job, i));
    TRY(picture_parts_expand(job));
    if (job->request.submit.sampling.dry_multiplier > 0)
        TRY(fields_find_breakers(&job->request, job->model));
    if (!job->request.input.expected)
        return 0;
    return expected_encode(job);
}

static bool prompt_fits(const struct prompt_job *job) {
    if (job->context == 0)
        return true; /* the context is not known yet */
    for (uint32_t i = 0; i < job->n_prompts; i++)
        if (job->prompts[i].tokens.n >= job->context)
            return false;
    return true;
}

/* Drops the rendering, so that the pool begins again with the translated request. */
static void forget_rendering(struct prompt_job *job) {
    gen_request_drop_functions(&job->request);
    rendered_deinit(&job->rendered);
    memset(&job->err, 0, sizeof(job->err));
}

/* Makes the echoes of prompts that are parts of their answers. */
static int add_echoes(struct prompt_job *job) {
    for (uint32_t i = 0; i < job->n_prompts && job->request.answer.echo; i++) {
        struct prompt *p = &job->prompts[i];

        if (p->tokens.n && !p->echo)
            TRY(echo_new(&p->echo, job->model->info->tokenizer, p->tokens.id, (uint32_t)p->tokens.n,
                         p->text && !prompt_bos_bytes(job, p)));
    }
    return 0;
}

/* Does the work of the job. With job->quick returns -EAGAIN if the rest takes longer. A prompt that
 * will be refused for its length needs no grammar. */
static int prompt_run(struct prompt_job *job) {
    if (!job->prepared) {
        int r = prompt_prepare(job);

        if (r == -EAGAIN)
            forget_rendering(job);
        else
            job->prepared = r != -EBUSY && r != -EINPROGRESS;
        TRY(r);
    }
    if (!prompt_fits(job))
        return 0;
    TRY(add_echoes(job));
    return constrain(job, job->quick);
}

static int run_and_write(struct prompt_job *job) {
    int r = prompt_run(job);

    if (r == 0 && job->write)
        job->write(job);
    return r;
}

static void prompt_on_thread(struct job *j) {
    struct prompt_job *job = CONTAINER_OF(j, struct prompt_job, job);

    job->result = run_and_write(job);
}

/* Refuses a model that the tenant may not use, without telling of models that it may not use. */
static void hide_models(struct prompt_job *job) {
    if (job->result == 0 && !models_are_allowed(job->tenant, job->model))
        job->result = models_hidden(job->wanted, &job->err);
    else if (job->result < 0 && job->tenant->conf.n_models > 0 && job->wanted &&
             strcmp(job->err.code, "model_not_found") == 0)
        models_hidden(job->wanted, &job->err);
}

static void prompt_finish(struct prompt_job *job) {
    check_job(job);
    assert(job->running && !job->waits && job->result != -EBUSY);
    hide_models(job);
    buf_deinit(&job->body);
    quota_charge_set(&job->charge, 0);
    job->running = job->pooled = false;
    if (job->result == 0 && job->request.input.has_keep_alive)
        job->model->keep_alive_s = job->request.input.keep_alive_s;
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

static void on_fetcher(struct job *j);
static void to_pool(struct prompt_job *job, void (*run)(struct job *j));

/* Runs the job here or on the pool. With job->result -EBUSY waits for its model first. */
static void prompt_go_on(struct prompt_job *job) {
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
        to_pool(job, prompt_on_thread);
    else if (job->result == -EINPROGRESS)
        to_pool(job, on_fetcher);
    else if (!job->waits)
        prompt_finish(job);
}

/* Fetches pictures, on a thread that may wait long. */
static void on_fetcher(struct job *j) {
    struct prompt_job *job = CONTAINER_OF(j, struct prompt_job, job);

    job->result = picture_parts_fetch(job);
}

static void prompt_on_ended(struct job *j) {
    struct prompt_job *job = CONTAINER_OF(j, struct prompt_job, job);

    assert(job->running && job->pooled);
    job->pooled = false;
    if (job->abandoned)
        job->result = -ECANCELED;
    if (job->result == -EBUSY)
        prompt_go_on(job);
    else if (job->result == 0 && j->run == on_fetcher)
        to_pool(job, prompt_on_thread);
    else if (job->result == -EINPROGRESS)
        to_pool(job, on_fetcher);
    else
        prompt_finish(job);
}

static void to_pool(struct prompt_job *job, void (*run)(struct job *j)) {
    struct gen_env *env = job->env;

    assert(!job->pooled && !job->abandoned);
    job->quick = false;
    job->pooled = true;
    job->job = (struct job){.run = run, .done = prompt_on_ended};
    int r =
        job_pool_submit(run == on_fetcher ? &env->fetchers : &env->pool, &job->job, job->tenant);

    if (r == 0)
        return; /* from here on it is the thread's */
    job->result = r;
    prompt_finish(job);
}

static void prompt_on_again(struct job *j) {
    struct prompt_job *job = CONTAINER_OF(j, struct prompt_job, job);
    yyjson_val *messages = NULL;
    struct tokens tokens = {0};

    job->result = job->endpoint->again(job, &messages);
    job->goes_on &= messages != NULL;
    if (job->result == 0 && messages) {
        job->result = prompt_job_render_again(job, messages, &tokens);
        job->request.input.messages = messages;
    }
    if (job->result == 0 && messages)
        job->prompts[0].tokens = tokens;
}

void prompt_job_again(struct prompt_job *job, bool further, void (*done)(struct prompt_job *job)) {
    assert(job->goes_on && !job->running && job->endpoint->again && job->request.input.messages);
    memset(&job->err, 0, sizeof(job->err));
    job->done = done;
    job->goes_on = further;
    job->running = true;
    to_pool(job, prompt_on_again);
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
    tenant_isolation_name(job->tenant, job->isolation_name);
    job->endpoint = endpoint;
    job->done = done;
    job->go_on = prompt_go_on;
    job->computes = x->route->generates;
    job->running = true;
    conn_steal_body(x->conn, &job->body, &job->charge);
    job->body_len = job->body.len;
    prompt_go_on(job);
}
