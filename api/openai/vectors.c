/*
 * Each input is a generation that ends with a vector. Thousands of them may come in one request, so
 * they do not all go to the worker at once: a few lanes take one input after the other, and each
 * lane asks anew for its place among the other clients' requests. Only the first lane can be sent
 * away for want of room; the request then has not begun.
 *
 * What a result looks like in the answer is written when it arrives: thousands of numbers take
 * their time, and the other clients of this thread wait meanwhile. Thousands of vectors are put
 * together on the pool.
 */

#include "api/openai/vectors.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "api/generation/bill.h"
#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/gen.h"
#include "api/generation/model.h"
#include "api/generation/prompt_steps.h"
#include "api/http/conn.h"
#include "api/http/dialect.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "base/try.h"

static void free_vectors(struct vectors *e) {
    for (uint32_t i = 0; i < VECTORS_LANES; i++)
        gen_free(e->lane[i].gen);
    for (uint32_t i = 0; i < e->n_inputs && e->text; i++)
        buf_deinit(&e->text[i]);
    free(e->text);
    free(e->score);
    buf_deinit(&e->answer);
    prompt_job_deinit(&e->job);
    quota_charge_set(&e->held, 0);
    free(e);
}

/* Detaches @e from its exchange and frees it; while work still runs, vectors_on_prepared() or
 * vectors_on_written() frees it later. */
static void vectors_detach(struct exchange *x, void *state) {
    struct vectors *e = state;

    e->exchange = NULL;
    x->n_prompt = (uint32_t)e->n_tokens;
    for (uint32_t i = 0; i < VECTORS_LANES; i++)
        if (e->lane[i].of)
            admit_cancel(&env_of(x)->admit, &e->lane[i].waiter);
    if (e->writing)
        job_pool_abandon(&env_of(x)->pool, &e->task);
    else if (!prompt_job_abandon(&e->job))
        free_vectors(e);
}

static void vectors_fail(struct vectors *e, const struct err *err) {
    respond_failure(e->exchange, err);
}

static void vectors_fail_errno(struct vectors *e, int r, struct err *err) {
    if (!err->status)
        respond_explain(r, err);
    vectors_fail(e, err);
}

/* Charges @n bytes more to the client. Returns 0, or -EINVAL with @err. */
static int vectors_hold(struct vectors *e, uint64_t n, struct err *err) {
    if (conn_hold(e->exchange->conn, &e->held, e->held.n + n))
        return 0;
    return err_set_code(err, 503, "overloaded", NULL,
                        "Too many responses are being prepared. Try again later.");
}

static const struct exchange_ops ops = {.abandon = vectors_detach};

static void send_answer(struct vectors *e) {
    CLEANUP(buf_deinit) struct buf b = e->answer;
    struct exchange *x = e->exchange;
    int r = e->written;

    buf_init(&e->answer, VECTORS_ANSWER_MAX);
    x->finish = "stop";
    exchange_abandon(x);
    respond_buf(x, 200, &b, r);
}

static void vectors_on_thread(struct job *j) {
    struct vectors *e = CONTAINER_OF(j, struct vectors, task);

    e->written = e->form->answer(e, &e->answer);
}

static void vectors_on_written(struct job *j) {
    struct vectors *e = CONTAINER_OF(j, struct vectors, task);

    e->writing = false;
    if (e->exchange)
        send_answer(e);
    else
        free_vectors(e);
}

/* Answers when all results are there. Returns 0 or -ENOMEM. */
static int vectors_answer(struct vectors *e) {
    assert(!e->writing && e->n_done == e->n_inputs);
    buf_init(&e->answer, VECTORS_ANSWER_MAX);
    if (e->n_inputs <= VECTORS_INLINE && !e->floats) {
        e->written = e->form->answer(e, &e->answer);
        send_answer(e);
        return 0;
    }
    e->task = (struct job){.run = vectors_on_thread, .done = vectors_on_written};
    int r = job_pool_submit(&e->job.env->pool, &e->task, e->tenant);
    e->writing = r == 0;
    return r;
}

int vectors_finish(const struct vectors *v, struct gen *g) {
    const struct gen_request *request = &v->job.request;
    bool raw = request->input.no_normalize || request->input.pool == SUBMIT_POOL_NONE;
    double sum = 0;

    assert(g->vector && g->n_vector > 0);
    if (request->answer
            .dimensions) /* the model is trained so that the first numbers are a vector, too */
        g->n_vector = MIN(g->n_vector, request->answer.dimensions);
    for (uint32_t i = 0; i < g->n_vector; i++)
        sum += (double)g->vector[i] * (double)g->vector[i];
    if (!isfinite(sum))
        return -EDOM;
    for (uint32_t i = 0; i < g->n_vector && sum > 0 && !raw; i++)
        g->vector[i] = (float)(g->vector[i] / sqrt(sum));
    return 0;
}

/* ---- lanes ---- */

static void vectors_on_changed(struct gen *g);

static void vectors_on_admitted(struct waiter *w) {
    gen_start(CONTAINER_OF(w, struct vectors_lane, waiter)->gen);
}

static void vectors_on_expired(struct waiter *w) {
    struct err err;

    err_set_code(&err, 503, "queue_timeout", NULL,
                 "The request waited in the queue for longer than its time limit.");
    vectors_fail(CONTAINER_OF(w, struct vectors_lane, waiter)->of, &err);
}

static void vectors_on_refused(struct waiter *w, const struct err *err, uint32_t retry_ms) {
    struct vectors *e = CONTAINER_OF(w, struct vectors_lane, waiter)->of;

    e->exchange->retry_ms = retry_ms;
    vectors_fail(e, err);
}

/* Makes the next input the lane's generation, which is yet to be admitted. */
static int vectors_load(struct vectors *e, struct vectors_lane *l) {
    assert(e->n_next < e->n_inputs && !l->gen);
    struct tokens *t = &e->job.prompts[e->n_next].tokens;
    TRY(gen_new(&l->gen, e->job.model, &e->job.request, t, true, 1, 0));
    l->of = e;
    l->input = e->n_next++;
    l->gen->owner = l;
    l->gen->changed = vectors_on_changed;
    gen_belongs(l->gen, &e->exchange, &e->job.request);
    gen_charge(l->gen, e->tenant, 0);
    /* A late part queues behind requests that arrived meanwhile. */
    l->gen->m.arrived_ns = clock_now(e->job.env->clock);
    l->gen->m.group = l->gen->m.id;
    l->waiter = (struct waiter){
        .tenant = e->tenant,
        .n = 1,
        .n_context = l->gen->n_prompt,
        .deadline_ns = queue_deadline(e->exchange),
        .admitted = vectors_on_admitted,
        .expired = vectors_on_expired,
        .refused = l->input == 0 ? vectors_on_refused : NULL,
    };
    list_init(&l->waiter.link);
    return 0;
}

/* Takes the vector from the lane's generation, and frees the generation. */
static int unload(struct vectors *e, struct vectors_lane *l, struct err *err) {
    struct gen *g = l->gen;

    assert(g && g->state == GEN_DONE && e->exchange);
    struct exchange *x = e->exchange;
    struct metrics_gen seen = gen_metrics(g);
    seen.started_ns = x->started_ns;
    metrics_gen_done(&g->model->metrics, &seen);
    admit_took(&env_of(x)->admit, g->done_ns - g->first_step_ns);
    if (!x->queue_ns)
        x->queue_ns = g->first_step_ns - x->started_ns;
    x->n_cached += g->n_cached;
    x->n_resumed += g->n_attempts > 1 ? g->n_attempts - 1 : 0;
    int r = e->form->finish_input(e, l->input, g);
    l->gen = gen_free(g);
    e->n_done++;
    assert(e->n_done <= e->n_next);
    TRY(r);
    return vectors_hold(e, e->text[l->input].cap, err);
}

static void vectors_on_changed(struct gen *g) {
    struct vectors_lane *l = g->owner;
    struct vectors *e = l->of;
    struct err err = {0};

    assert(l->gen == g && l->input < e->n_next);
    if (g->state != GEN_DONE || !e->exchange)
        return;
    if (g->finish == FINISH_ERROR || !g->vector) {
        if (!g->err.status)
            err_set_code(&g->err, 500, "engine_error", NULL,
                         "The inference worker returned no vector for this input.");
        e->exchange->retry_ms = g->retry_ms;
        vectors_fail(e, &g->err);
        return;
    }
    int r = unload(e, l, &err);
    if (r == -EDOM)
        err_set_code(&err, 500, "engine_error", NULL,
                     "The model computed a vector that is not finite for this input.");
    if (r == 0 && e->n_done == e->n_inputs) {
        if ((r = vectors_answer(e)) < 0)
            vectors_fail_errno(e, r, &err);
        return;
    }
    if (r == 0 && e->n_next < e->n_inputs && (r = vectors_load(e, l)) == 0)
        admit_again(&e->job.env->admit, &l->waiter);
    if (r < 0)
        vectors_fail_errno(e, r, &err);
}

/* ---- beginning ---- */

/* Counts the tokens, and charges their memory; the first input that is empty or too long is refused
 * by its place. */
static int vectors_measure(struct vectors *e, struct err *err) {
    uint32_t own = e->tenant->conf.max_context, context = e->job.model->info->max_context;
    uint64_t n_bytes = e->job.request.answer.return_documents ? e->job.body_len : 0;

    uint32_t most = e->job.request.input.most_tokens;

    context = own > 0 ? MIN(own, context) : context;
    for (uint32_t i = 0; i < e->job.n_prompts; i++) {
        size_t n = e->job.prompts[i].tokens.n;
        struct prompt_place p = prompt_place(&e->job, i);

        if (n == 0)
            return json_refuse(err, p.s, "must not be empty");
        if (n >= context) {
            err_set_code(err, 400, "context_length_exceeded", p.s,
                         "This model's maximum context length is %u tokens, so an input has up to "
                         "%u. However, %s has %zu.",
                         context, context - 1, p.s, n);
            return err_add_lengths(err, n, context);
        }
        if (most && n > most)
            return err_set_code(err, 400, "unsupported_parameter", e->job.request.input.most_name,
                                "%s would cut %s, which has %zu tokens. Nothing is cut here.",
                                e->job.request.input.most_name, p.s, n);
        e->n_tokens += n;
        n_bytes += e->job.prompts[i].tokens.cap * sizeof(*e->job.prompts[i].tokens.id);
    }
    return vectors_hold(e, n_bytes, err);
}

/* Returns true if the next input would be admitted at once. */
static bool may_enter(const struct vectors *e) {
    const struct waiter w = {
        .tenant = e->tenant, .n = 1, .n_context = e->job.prompts[e->n_next].tokens.n};

    return admit_is_free(&e->job.env->admit, &w);
}

/* Begins when the inputs are tokens: charges them and gives the first to the lanes. */
static int vectors_begin(struct vectors *e, struct err *err) {
    assert(e->exchange && !e->text && e->n_inputs == 0);
    if (e->job.n_prompts == 0)
        return vectors_answer(e);
    e->tenant = tenants_get(&e->job.env->tenants, e->exchange->tenant);
    TRY(vectors_measure(e, err));
    TRY(bill_request(e->exchange, e->job.model, e->n_tokens, err));
    e->text = calloc(e->job.n_prompts, sizeof(*e->text));
    e->score = calloc(e->job.n_prompts, sizeof(*e->score));
    if (!e->text || !e->score)
        return -ENOMEM;
    e->n_inputs = e->job.n_prompts;
    for (uint32_t i = 0; i < e->n_inputs; i++)
        buf_init(&e->text[i], VECTORS_ANSWER_MAX);
    if (!e->job.request.answer.return_documents)
        gen_request_drop_body(&e->job.request);
    respond_wait(e->exchange, false);
    uint32_t n = MIN(MAX(e->job.env->opts.max_running / 4, 1u), VECTORS_LANES);
    for (uint32_t i = 0; i < MIN(n, e->n_inputs); i++) {
        struct vectors_lane *l = &e->lane[i];

        if (i > 0 && !may_enter(e))
            break; /* fewer lanes do, too */
        TRY(vectors_load(e, l));
        TRY(admit_enter(&e->job.env->admit, &l->waiter, &e->exchange->retry_ms, err));
    }
    return 0;
}

static int vectors_continue(struct vectors *e, struct err *err) {
    TRY(e->job.result);
    return vectors_begin(e, err);
}

static void vectors_on_prepared(struct prompt_job *job) {
    struct vectors *e = CONTAINER_OF(job, struct vectors, job);
    struct err err = job->err;

    if (!e->exchange) { /* the client left meanwhile */
        free_vectors(e);
        return;
    }
    e->exchange->retry_ms = job->retry_ms;
    prompt_job_name_model(job, e->exchange);
    int r = vectors_continue(e, &err);
    if (r < 0)
        vectors_fail_errno(e, r, &err);
}

/* The callback prompt_job.on_wait. */
static void vectors_on_wait(struct prompt_job *job) {
    struct exchange *x = CONTAINER_OF(job, struct vectors, job)->exchange;

    if (!x->waits)
        respond_wait(x, false);
}

void vectors_serve(struct exchange *x, struct http *h) {
    const struct endpoint *endpoint = x->route->endpoint;
    struct err err = {0};

    if (admit_precheck(&env_of(x)->admit, tenants_get(&env_of(x)->tenants, x->tenant), &x->retry_ms,
                       &err) < 0) {
        respond_error(x, &err);
        return;
    }
    struct vectors *e = calloc(1, sizeof(*e));
    if (!e) {
        respond_errno(x, -ENOMEM);
        return;
    }
    e->exchange = x;
    e->form = endpoint->form;
    snprintf(e->id, sizeof(e->id), "%s", x->id);
    e->started_ns = x->started_ns;
    exchange_attach(x, &ops, e);
    conn_hold_init(x->conn, &e->held);
    e->job.on_wait = vectors_on_wait;
    prompt_job_start(&e->job, x, endpoint, vectors_on_prepared);
}
