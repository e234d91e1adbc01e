#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include "api/generation/read_request.h"
#include "api/limits/admit.h"
#include "api/generation/endpoint.h"
#include "api/http/exchange.h"
#include "api/generation/gen.h"
#include "api/http/json.h"
#include "api/openai/openai.h"
#include "api/model.h"
#include "api/private.h"
#include "api/http/respond.h"
#include "api/generation/prompt_job.h"

/*
 * /v1/embeddings: each input is a generation that ends with a vector. Thousands of them may come in
 * one request, so they do not all go to the worker at once: a few lanes take one input after the
 * other, and each lane asks anew for its place among the other clients' requests. Only the first
 * lane can be sent away for want of room; the request then has not begun.
 *
 * What a vector looks like in the answer is written when it arrives: thousands of numbers take
 * their time, and the other clients of this thread wait meanwhile. Thousands of vectors are put
 * together on the pool.
 */

#define LANES 16u /* at most, and a quarter of what may run */
#define ANSWER_MAX API_SEND_MAX
#define INLINE_INPUTS 64u /* of an answer that is put together on the loop: some 3 MB */

struct embedding;

/* One place of a request's inputs at the worker. */
struct lane {
    struct waiter waiter;
    struct embedding *of;
    struct gen *gen;
    uint32_t input;
};

/* A request. Invariant: n_done <= n_next <= n_inputs; n_next is the next that a lane takes. */
struct embedding {
    struct exchange *exchange; /* NULL: the client is gone, or was answered */
    struct prompt_job job;
    struct tenant *tenant;
    struct lane lane[LANES];
    struct buf *vector; /* [work.n_prompts] as they are in the answer */
    uint32_t n_inputs, n_next, n_done;
    uint64_t n_tokens;
    struct job task;   /* puts them together */
    struct buf answer; /* by that */
    int written;       /* its result */
    bool writing;      /* the pool has it */
};

static void free_embedding(struct embedding *e) {
    for (uint32_t i = 0; i < LANES; i++)
        gen_free(e->lane[i].gen);
    for (uint32_t i = 0; i < e->n_inputs && e->vector; i++)
        buf_deinit(&e->vector[i]);
    free(e->vector);
    buf_deinit(&e->answer);
    prompt_job_deinit(&e->job);
    free(e);
}

/* Takes it from its exchange; work that still runs keeps it until on_prepared() or on_written(). */
static struct exchange *detach(struct embedding *e) {
    struct exchange *x = e->exchange;

    e->exchange = NULL;
    x->ops = NULL;
    x->n_prompt = (uint32_t)e->n_tokens;
    for (uint32_t i = 0; i < LANES; i++)
        if (e->lane[i].of)
            admit_cancel(&api_of(x)->admit, &e->lane[i].waiter);
    if (e->writing)
        job_pool_abandon(&api_of(x)->pool, &e->task);
    else if (!prompt_job_abandon(&e->job))
        free_embedding(e);
    return x;
}

static void fail(struct embedding *e, const struct err *err) {
    struct err copy = *err;

    respond_error(detach(e), &copy);
}

static void fail_errno(struct embedding *e, int r, struct err *err) {
    if (!err->status)
        err_set_code(err, r == -ENOMEM ? 503 : 500, r == -ENOMEM ? "out_of_memory" : "", NULL,
                     "The request could not be served.");
    fail(e, err);
}

static void on_fail(struct exchange *x, const struct err *err) {
    fail(x->state, err);
}

static void on_gone(struct exchange *x) {
    exchange_end(detach(x->state));
}

static const struct exchange_ops ops = {.gone = on_gone, .fail = on_fail};

/* ---- vectors ---- */

/* To length 1, of the dimensions that are left. -EDOM: there are numbers in it that are none. */
static int normalise(float *v, uint32_t n, bool keep_length) {
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    if (!isfinite(sum))
        return -EDOM;
    for (uint32_t i = 0; i < n && sum > 0 && !keep_length; i++)
        v[i] = (float)(v[i] / sqrt(sum));
    return 0;
}

static int put_base64(struct buf *b, const void *data, size_t len) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = data;
    int r = 0;

    for (size_t i = 0; i < len && r == 0; i += 3) {
        size_t n = MIN(len - i, 3u);
        uint32_t v =
            (uint32_t)p[i] << 16 | (n > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (n > 2 ? p[i + 2] : 0u);
        char four[4] = {digit[v >> 18], digit[v >> 12 & 63], digit[v >> 6 & 63], digit[v & 63]};

        memset(four + 1 + n, '=', 3 - n);
        r = buf_add(b, four, 4);
    }
    return r;
}

/* base64: of 32-bit floats, little-endian, as on every machine that this runs on. */
static int write_vector(struct embedding *e, uint32_t input, const struct gen *g) {
    struct buf *b = &e->vector[input];
    struct json j;

    assert(input < e->n_inputs && !b->data && g->vector);
    buf_init(b, ANSWER_MAX);
    if (e->job.request.base64) {
        int r = buf_printf(b, "{\"object\":\"embedding\",\"index\":%u,\"embedding\":\"", input);

        r = r < 0 ? r : put_base64(b, g->vector, g->n_vector * sizeof(*g->vector));
        return r < 0 ? r : buf_add(b, "\"}", 2);
    }
    json_begin(&j, b);
    json_open(&j, '{');
    json_put_string(&j, "object", "embedding");
    json_put_int(&j, "index", input);
    json_key(&j, "embedding");
    json_open(&j, '[');
    for (uint32_t i = 0; i < g->n_vector; i++)
        json_double(&j, (double)g->vector[i]);
    json_close(&j, ']');
    json_close(&j, '}');
    return j.error;
}

/* The vectors, each freed when it is copied, and the usage. -ECANCELED: no client waits for it. */
static int write_answer(const struct embedding *e, struct buf *b) {
    struct json j;

    assert(e->n_done == e->n_inputs);
    int r = buf_printf(b, "{\"object\":\"list\",\"data\":[");

    for (uint32_t i = 0; i < e->n_inputs && r == 0; i++) {
        r = i ? buf_add(b, ",", 1) : 0;
        r = r < 0 ? r : buf_add(b, e->vector[i].data, e->vector[i].len);
        buf_deinit(&e->vector[i]);
        r = r < 0 ? r : job_pause();
    }
    r = r < 0 ? r : buf_printf(b, "],\"model\":");
    json_begin(&j, b);
    json_cstring(&j, e->job.model->info->id);
    json_key(&j, "usage");
    json_open(&j, '{');
    json_put_int(&j, "prompt_tokens", (int64_t)e->n_tokens);
    json_put_int(&j, "total_tokens", (int64_t)e->n_tokens);
    json_close(&j, '}');
    json_close(&j, '}');
    return r < 0 ? r : j.error;
}

static void send_answer(struct embedding *e) {
    CLEANUP(buf_deinit) struct buf b = e->answer;
    int r = e->written;

    buf_init(&e->answer, ANSWER_MAX);
    e->exchange->finish = "stop";
    respond_buf(detach(e), 200, &b, r);
}

static void on_thread(struct job *j) {
    struct embedding *e = CONTAINER_OF(j, struct embedding, task);

    e->written = write_answer(e, &e->answer);
}

static void on_written(struct job *j) {
    struct embedding *e = CONTAINER_OF(j, struct embedding, task);

    e->writing = false;
    if (e->exchange)
        send_answer(e);
    else
        free_embedding(e);
}

/* All vectors are there. 0 or -ENOMEM. */
static int answer(struct embedding *e) {
    assert(!e->writing);
    buf_init(&e->answer, ANSWER_MAX);
    if (e->n_inputs <= INLINE_INPUTS) {
        e->written = write_answer(e, &e->answer);
        send_answer(e);
        return 0;
    }
    e->task = (struct job){.run = on_thread, .done = on_written};
    int r = job_pool_put(&e->job.api->pool, &e->task, e->tenant);
    e->writing = r == 0;
    return r;
}

/* ---- lanes ---- */

static void on_changed(struct gen *g);

static void on_admitted(struct waiter *w) {
    gen_start(CONTAINER_OF(w, struct lane, waiter)->gen);
}

static void on_expired(struct waiter *w) {
    struct err err;

    err_set_code(&err, 503, "queue_timeout", NULL, "The request has waited longer than it may.");
    fail(CONTAINER_OF(w, struct lane, waiter)->of, &err);
}

static void on_refused(struct waiter *w, const struct err *err, uint32_t retry_ms) {
    struct embedding *e = CONTAINER_OF(w, struct lane, waiter)->of;

    e->exchange->retry_ms = retry_ms;
    fail(e, err);
}

/* The next input becomes the lane's generation, which is yet to be admitted. */
static int load(struct embedding *e, struct lane *l) {
    assert(e->n_next < e->n_inputs && !l->gen);
    const struct tokens *t = &e->job.prompts[e->n_next].tokens;
    int r = gen_new(&l->gen, e->job.model, &e->job.request, t->id, (uint32_t)t->n, 1, 0);

    if (r < 0)
        return r;
    l->of = e;
    l->input = e->n_next++;
    l->gen->owner = l;
    l->gen->changed = on_changed;
    gen_belongs(l->gen, &e->exchange, &e->job.request);
    gen_charge(l->gen, e->tenant, 0);
    /* What comes late stands behind what others have asked meanwhile. */
    l->gen->m.arrived_ns = clock_now(e->job.api->clock);
    l->gen->m.group = l->gen->m.id;
    l->waiter = (struct waiter){
        .tenant = e->tenant,
        .n = 1,
        .n_context = l->gen->n_prompt,
        .deadline_ns = l->gen->m.deadline_ns,
        .admitted = on_admitted,
        .expired = on_expired,
        .refused = l->input == 0 ? on_refused : NULL,
    };
    list_init(&l->waiter.link);
    return 0;
}

/* The lane's vector has come. */
static int unload(struct embedding *e, struct lane *l) {
    struct gen *g = l->gen;

    assert(g && g->state == GEN_DONE && e->exchange);
    struct exchange *x = e->exchange;
    if (e->job.request.dimensions) /* trained so that the first ones are a vector too */
        g->n_vector = MIN(g->n_vector, e->job.request.dimensions);
    int r = normalise(g->vector, g->n_vector, e->job.request.no_normalize);

    struct metrics_gen seen = gen_metrics(g);
    seen.started_ns = x->started_ns;
    metrics_gen_done(&g->model->metrics, &seen);
    admit_took(&api_of(x)->admit, g->done_ns - g->first_step_ns);
    if (!x->queue_ns)
        x->queue_ns = g->first_step_ns - x->started_ns;
    x->n_cached += g->n_cached;
    x->n_resumed += g->n_attempts > 1 ? g->n_attempts - 1 : 0;
    r = r < 0 ? r : write_vector(e, l->input, g);
    l->gen = gen_free(g);
    e->n_done++;
    assert(e->n_done <= e->n_next);
    return r;
}

static void on_changed(struct gen *g) {
    struct lane *l = g->owner;
    struct embedding *e = l->of;
    struct err err = {0};

    if (g->state != GEN_DONE || !e->exchange)
        return;
    if (g->finish == FINISH_ERROR || !g->vector) {
        if (!g->err.status)
            err_set_code(&g->err, 500, "engine_error", NULL, "The engine gave no vector.");
        e->exchange->retry_ms = g->retry_ms;
        fail(e, &g->err);
        return;
    }
    int r = unload(e, l);
    if (r == -EDOM)
        err_set_code(&err, 500, "engine_error", NULL, "The engine's vector is not finite.");
    if (r == 0 && e->n_done == e->n_inputs) {
        if ((r = answer(e)) < 0)
            fail_errno(e, r, &err);
        return;
    }
    if (r == 0 && e->n_next < e->n_inputs && (r = load(e, l)) == 0)
        admit_again(&e->job.api->admit, &l->waiter);
    if (r < 0)
        fail_errno(e, r, &err);
}

/* ---- beginning ---- */

/* Counts the tokens; the first input that is empty or too long is refused by its place. */
static int measure(struct embedding *e, struct err *err) {
    uint32_t own = e->tenant->conf.max_context, context = e->job.model->info->max_context;

    context = own > 0 ? MIN(own, context) : context;
    for (uint32_t i = 0; i < e->job.n_prompts; i++) {
        size_t n = e->job.prompts[i].tokens.n;
        struct prompt_place p = prompt_place(&e->job, i);

        if (n == 0)
            return err_set_code(err, 400, "invalid_value", p.s, "%s must not be empty.", p.s);
        if (n >= context)
            return err_set_code(err, 400, "context_length_exceeded", p.s,
                                "This model takes inputs of up to %u tokens. However, %s has %zu.",
                                context - 1, p.s, n);
        e->n_tokens += n;
    }
    return 0;
}

/* The inputs are tokens: charges them and gives the first to the lanes. */
static int begin(struct embedding *e, struct err *err) {
    e->tenant = tenants_get(&e->job.api->tenants, e->exchange->tenant);
    int r = measure(e, err);
    if (r == 0)
        r = tenant_request(e->tenant, e->n_tokens, clock_now(e->job.api->clock),
                           &e->exchange->retry_ms, err);
    if (r < 0)
        return r;
    e->vector = calloc(e->job.n_prompts, sizeof(*e->vector));
    if (!e->vector)
        return -ENOMEM;
    e->n_inputs = e->job.n_prompts;
    gen_request_drop_body(&e->job.request);
    uint32_t n = MIN(MAX(e->job.api->opts.max_running / 4, 1u), LANES);
    for (uint32_t i = 0; i < MIN(n, e->n_inputs) && r == 0; i++) {
        struct lane *l = &e->lane[i];

        r = load(e, l);
        if (r == 0 && i > 0 && !admit_is_free(&e->job.api->admit, &l->waiter)) {
            l->gen = gen_free(l->gen); /* fewer lanes do it too */
            e->n_next--;
            break;
        }
        if (r == 0)
            r = admit_enter(&e->job.api->admit, &l->waiter, &e->exchange->retry_ms, err);
    }
    return r;
}

static void on_prepared(struct prompt_job *job) {
    struct embedding *e = CONTAINER_OF(job, struct embedding, job);
    struct err err = job->err;
    int r = job->result;

    if (!e->exchange) { /* the client left meanwhile */
        free_embedding(e);
        return;
    }
    e->exchange->retry_ms = job->retry_ms;
    if (r == 0)
        r = begin(e, &err);
    if (r < 0)
        fail_errno(e, r, &err);
}

static int translate(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    int r = gen_request_read(&job->request, job->model, FIELDS_EMBEDDING, body, err);

    if (r == 0 && !job->request.pool)
        job->request.pool = job->model->info->pool ? job->model->info->pool : SUBMIT_POOL_LAST;
    return r;
}

static const struct endpoint endpoint = {.translate = translate};

void embeddings_serve(struct exchange *x, struct http *h) {
    struct err err = {0};

    (void)h;
    if (admit_precheck(&api_of(x)->admit, tenants_get(&api_of(x)->tenants, x->tenant), &x->retry_ms,
                       &err) < 0) {
        respond_error(x, &err);
        return;
    }
    struct embedding *e = calloc(1, sizeof(*e));
    if (!e) {
        respond_errno(x, -ENOMEM);
        return;
    }
    e->exchange = x;
    x->ops = &ops;
    x->state = e;
    prompt_job_start(&e->job, x, &endpoint, on_prepared);
}
