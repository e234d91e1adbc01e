#include "api/generation/answer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "api/http/conn.h"
#include "api/private.h"
#include "api/http/respond.h"
#include "api/generation/prewarm.h"

/*
 * The life of an answer:
 *
 *      answer_serve ── admit_glance: 429
 *          ──> work (parse, render, tokenise; perhaps on the pool) ──> on_prepared
 *          ──> create_gens ──> admit_enter ── queued ──> on_admitted ──> gen_start for each
 *          ──> on_changed, each time a generation has news ──> proceed ──> stream or send_whole
 *
 * It ends in exactly one of four ways, each of which takes the answer from its call with detach() and
 * frees it before the call is told, because exchange_end() may start the connection's next request:
 * end_stream, send_whole, fail (an error before or after the head) and on_gone (the client left). The one exception is work that still runs on the pool: then the answer
 * stays without a call until on_prepared() finds it so.
 *
 * A generation's news may arrive while nothing can be sent. Nothing is queued for that: what was sent is
 * kept as positions in text and tokens (struct choice), and the next turn sends from there. So a slow
 * client costs its stream buffer and the tokens themselves, never a backlog of JSON.
 */

#define ANSWER_MAX API_SEND_MAX
#define PROMPT_TOP_MAX (1u << 20) /* best tokens at the positions of a prompt, in all */

static void free_answer(struct answer *a) {
    for (uint32_t i = 0; i < a->n_choices; i++) {
        gen_free(a->choices[i].gen);
        echo_free(a->choices[i].echo);
        buf_deinit(&a->choices[i].custom.text);
    }
    work_deinit(&a->work);
    free(a->choices);
    free(a);
}

static struct answer *of_work(struct work *w) {
    return CONTAINER_OF(w, struct answer, work);
}

/* ---- figures ---- */

struct answer_usage answer_usage(const struct answer *a) {
    struct answer_usage u = {0};

    for (uint32_t i = 0; i < a->n_choices; i++) {
        const struct gen *g = a->choices[i].gen;

        u.output += g->n_out;
        u.reasoning += g->split ? g->split->n_reasoning : 0;
        u.prompt += g->m.choice == 0 ? g->n_prompt : 0;
        u.cached += g->m.choice == 0 ? g->n_cached : 0;
        u.predicted += g->n_predicted;
        u.predicted_accepted += g->n_predicted_accepted;
    }
    return u;
}

static void put_output_details(struct json *j, const struct answer *a,
                               const struct answer_usage *u) {
    bool reasons = a->work.parses && a->work.api->family.reasons;

    if (!reasons && !a->work.r.prediction.len)
        return;
    json_key(j, "completion_tokens_details");
    json_open(j, '{');
    if (reasons)
        json_put_int(j, "reasoning_tokens", u->reasoning);
    if (a->work.r.prediction.len) {
        json_put_int(j, "accepted_prediction_tokens", u->predicted_accepted);
        json_put_int(j, "rejected_prediction_tokens",
                     (int64_t)u->predicted - MIN(u->predicted_accepted, u->predicted));
    }
    json_close(j, '}');
}

static void put_usage(struct json *j, const struct answer *a) {
    struct answer_usage u = answer_usage(a);

    json_open(j, '{');
    json_put_int(j, "prompt_tokens", u.prompt);
    json_put_int(j, "completion_tokens", u.output);
    json_put_int(j, "total_tokens", (int64_t)u.prompt + u.output);
    json_key(j, "prompt_tokens_details");
    json_open(j, '{');
    json_put_int(j, "cached_tokens", u.cached);
    json_close(j, '}');
    put_output_details(j, a, &u);
    json_close(j, '}');
}

/* Takes the answer from its call, with everything that the log line says of it. */
static struct exchange *detach(struct answer *a) {
    struct exchange *x = a->exchange;
    struct answer_usage u = answer_usage(a);

    x->n_prompt = u.prompt;
    x->n_cached = u.cached;
    x->n_output = u.output;
    for (uint32_t i = 0; i < a->n_choices; i++) {
        const struct gen *g = a->choices[i].gen;

        x->n_resumed += g->n_lives > 1 + g->n_turns ? g->n_lives - 1 - g->n_turns : 0;
        x->finish = gen_finish_name(g);
        if (g->state != GEN_DONE || g->finish == FINISH_ERROR)
            x->finish = "-";
        if (g->first_step_ns && !x->queue_ns)
            x->queue_ns = g->first_step_ns - x->started_ns;
        if (g->first_token_ns && !x->ttft_ns)
            x->ttft_ns = g->first_token_ns - x->started_ns;
        if (g->state != GEN_WAITING)
            metrics_gen_done(&x->api->metrics, g, x, a->work.r.n);
        if (g->done_ns && g->first_step_ns)
            admit_took(x->api, g->done_ns - g->first_step_ns);
    }
    a->exchange = NULL;
    x->ops = NULL;
    admit_cancel(x->api, &a->waiter);
    return x;
}

/* ---- writing ---- */

static void begin(struct json *j, struct buf *b, const struct answer *a, const char *object) {
    json_begin(j, b);
    json_open(j, '{');
    json_put_string(j, "id", a->id);
    json_put_string(j, "object", object);
    json_put_int(j, "created", a->created);
    json_put_string(j, "model", a->work.api->model->id);
    json_key(j, "choices");
    json_open(j, '[');
}

static void put_ids(struct json *j, const char *key, const int32_t *ids, uint32_t n) {
    json_key(j, key);
    json_open(j, '[');
    for (uint32_t i = 0; i < n; i++)
        json_int(j, ids[i]);
    json_close(j, ']');
}

/* Our extensions: the tokens themselves and the digests of their logits. */
static void put_extras(struct json *j, const struct answer *a, const struct piece *p) {
    const struct gen *g = p->choice->gen;
    char hex[20];

    if (a->work.r.return_token_ids) {
        if (p->first)
            put_ids(j, "prompt_token_ids", g->tokens, g->n_prompt);
        put_ids(j, "token_ids", g->tokens + g->n_prompt + p->from, p->to - p->from);
    }
    if (a->work.r.prompt_logprobs && a->form->kind == REQUEST_COMPLETION) {
        json_key(j, "prompt_logprobs");
        answer_put_prompt(j, a, g);
    }
    if (!a->work.r.digests)
        return;
    json_key(j, "digests");
    json_open(j, '[');
    for (uint32_t i = p->from; i < p->to; i++) {
        snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)g->digests[i]);
        json_cstring(j, hex);
    }
    json_close(j, ']');
}

static bool has_text_token(const struct piece *p) {
    for (uint32_t i = p->from; i < p->to; i++)
        if (gen_is_text(p->choice->gen, i))
            return true;
    return p->first && p->choice->echo;
}

static void put_choice(struct json *j, const struct answer *a, const struct piece *p, bool stream) {
    json_open(j, '{');
    json_put_int(j, "index", p->index);
    a->form->content(j, a, p, stream);
    json_key(j, "logprobs");
    if (a->work.r.logprobs && (!stream || has_text_token(p)))
        a->form->logprobs(j, a, p);
    else
        json_null(j);
    json_put_string(j, "finish_reason", p->last ? gen_finish_name(p->choice->gen) : NULL);
    put_extras(j, a, p);
    json_close(j, '}');
}

const char *answer_token(const struct answer *a, int32_t id, size_t *len) {
    *len = 0;
    return id < 0 ? "" : tokenizer_piece(a->work.api->model->tokenizer, id, true, len);
}

static void send_chunk(struct answer *a, struct json *j, bool usage) {
    const struct request *r = &a->work.r;

    json_close(j, ']');
    if (r->include_usage || r->continuous_usage) {
        json_key(j, "usage");
        if (usage || r->continuous_usage)
            put_usage(j, a);
        else
            json_null(j);
    }
    json_close(j, '}');
    if (j->error < 0)
        conn_break(a->exchange->conn);
    else
        respond_event(a->exchange, j->out->data, j->out->len);
}

static void send_piece(struct answer *a, const struct piece *p) {
    CLEANUP(buf_deinit) struct buf b = {.max = ANSWER_MAX};
    struct json j;

    if (a->form->events) {
        a->form->events->piece(a, p);
        return;
    }
    begin(&j, &b, a, a->form->chunk_object);
    put_choice(&j, a, p, true);
    send_chunk(a, &j, false);
}

/* ---- streams ---- */

uint64_t answer_chars(const char *s, size_t len) {
    uint64_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

/* Output tokens up to which the text that is ready reaches. */
static uint32_t ready_tokens(const struct choice *c) {
    const struct gen *g = c->gen;
    uint32_t n = c->n_sent;

    while (n < g->n_out &&
           (g->text_end[n] <= g->ready || (g->stopped && (n ? g->text_end[n - 1] : 0) < g->ready)))
        n++;
    return n;
}

static void advance(struct choice *c, uint32_t to) {
    const struct gen *g = c->gen;
    size_t from = c->n_sent ? g->text_end[c->n_sent - 1] : 0;

    if (to > c->n_sent && g->logprobs)
        c->n_chars += answer_chars(g->text.data + from, g->text_end[to - 1] - from);
    c->n_sent = to;
}

/* What is new of the text of choice @i. */
static void send_text(struct answer *a, uint32_t i) {
    struct choice *c = &a->choices[i];
    const struct gen *g = c->gen;
    struct piece p = {.choice = c,
                      .index = i,
                      .from = c->n_sent,
                      .to = ready_tokens(c),
                      .text = g->text.data + c->text_sent,
                      .len = g->ready - c->text_sent,
                      .first = c->text_sent == 0 && !a->form->has_role};

    send_piece(a, &p);
    advance(c, p.to);
    c->text_sent = g->ready;
}

/* The same where it is taken apart: one part for each delta. Tokens go with the first of them; those of
 * which nothing can be told yet wait for the next. */
static void send_parts(struct answer *a, uint32_t i) {
    struct choice *c = &a->choices[i];
    struct split_piece part;

    while (!conn_is_full(a->exchange->conn) && split_next(c->gen->split, &c->at, &part)) {
        struct piece p = {.choice = c,
                          .index = i,
                          .from = c->n_sent,
                          .to = ready_tokens(c),
                          .text = part.text,
                          .len = part.len,
                          .part = &part};

        send_piece(a, &p);
        advance(c, p.to);
    }
}

/* What is new of choice @i: its text, and its end. */
static void send_choice(struct answer *a, uint32_t i) {
    struct choice *c = &a->choices[i];
    const struct gen *g = c->gen;

    if (g->split)
        send_parts(a, i);
    else if (g->ready > c->text_sent)
        send_text(a, i);
    if (g->state == GEN_DONE && !c->finish_sent && !(g->split && conn_is_full(a->exchange->conn))) {
        struct piece p = {.choice = c,
                          .index = i,
                          .from = c->n_sent,
                          .to = g->n_out,
                          .text = "",
                          .first = c->text_sent == 0 && !a->form->has_role,
                          .last = true};

        send_piece(a, &p);
        advance(c, p.to);
        c->finish_sent = true;
    }
}

static void send_head(struct answer *a) {
    respond_stream(a->exchange);
    a->head_sent = true;
    if (a->form->events)
        a->form->events->begin(a);
    for (uint32_t i = 0; i < a->n_choices && a->form->has_role; i++) {
        struct piece p = {.choice = &a->choices[i], .index = i, .text = "", .first = true};

        send_piece(a, &p);
    }
}

static void end_stream(struct answer *a) {
    if (a->form->events)
        a->form->events->end(a);
    if (a->work.r.include_usage) {
        CLEANUP(buf_deinit) struct buf b = {.max = ANSWER_MAX};
        struct json j;

        begin(&j, &b, a, a->form->chunk_object);
        send_chunk(a, &j, true);
    }
    struct exchange *x = detach(a);
    struct prewarm_job *w = prewarm_take(a);
    free_answer(a);
    respond_stream_end(x);
    prewarm_start(w);
}

static void stream(struct answer *a) {
    struct conn *conn = a->exchange->conn;
    bool all = true;

    if (!a->head_sent)
        send_head(a);
    for (uint32_t i = 0; i < a->n_choices; i++) {
        if (conn_is_full(conn)) {
            conn_flush(conn); /* drained() comes back */
            return;
        }
        send_choice(a, i);
        all &= a->choices[i].finish_sent;
    }
    if (all) {
        end_stream(a);
        return;
    }
    conn_flush(conn);
    conn_start_keepalive(conn);
}

/* ---- whole answers ---- */

static void put_whole(struct json *j, struct buf *b, struct answer *a) {
    uint32_t n = a->work.r.n, made = request_made(&a->work.r);

    begin(j, b, a, a->form->object);
    if (made > n)
        answer_sort(a);
    for (uint32_t i = 0; i < a->n_choices / made * n; i++) {
        struct choice *c = &a->choices[i / n * made + i % n];
        struct gen *g = c->gen;
        struct piece p = {.choice = c,
                          .index = i,
                          .to = g->n_out,
                          .text = g->text.data ? g->text.data : "",
                          .len = g->ready,
                          .first = true,
                          .last = true};

        put_choice(j, a, &p, false);
    }
    json_close(j, ']');
    json_key(j, "usage");
    put_usage(j, a);
    if (a->work.r.prompt_logprobs && a->form->kind == REQUEST_CHAT) {
        json_key(j, "prompt_logprobs");
        answer_put_prompt(j, a, a->choices[0].gen);
    }
    json_close(j, '}');
}

static void send_whole(struct answer *a) {
    CLEANUP(buf_deinit) struct buf b = {.max = ANSWER_MAX};
    struct json j;

    json_begin(&j, &b);
    if (a->form->events)
        a->form->events->whole(&j, a);
    else
        put_whole(&j, &b, a);
    struct exchange *x = detach(a);
    struct prewarm_job *w = prewarm_take(a);
    free_answer(a);
    respond_buf(x, 200, &b, j.error);
    prewarm_start(w);
}

/* ---- progress ---- */

static void fail(struct answer *a, const struct err *err) {
    const struct answer_events *events = a->form->events;
    bool head_sent = a->head_sent;
    struct err e = *err;
    bool told = events && events->fail && events->fail(a, &e);
    struct exchange *x = detach(a);

    if (!work_abandon(&a->work))
        free_answer(a);
    if (told)
        respond_stream_failed(x, &e);
    else if (head_sent)
        respond_stream_error(x, &e);
    else
        respond_error(x, &e);
}

static void on_fail(struct exchange *x, const struct err *err) {
    fail(x->state, err);
}

/* One generation has something new: what of the answer can be sent now? */
static void proceed(struct answer *a) {
    bool all_accepted = true, all_done = true;

    if (!a->exchange)
        return;
    for (uint32_t i = 0; i < a->n_choices; i++) {
        const struct gen *g = a->choices[i].gen;

        if (g->state == GEN_DONE && g->finish == FINISH_ERROR) {
            a->exchange->retry_ms = g->retry_ms;
            fail(a, &g->err);
            return;
        }
        all_accepted &= g->accepted;
        all_done &= g->state == GEN_DONE;
    }
    if (a->work.r.stream ? all_accepted || all_done : all_done)
        (a->work.r.stream ? stream : send_whole)(a);
}

static void on_changed(struct gen *g) {
    proceed(g->owner);
}

static void on_drained(struct exchange *x) {
    struct answer *a = x->state;

    if (a->head_sent)
        proceed(a);
}

static void on_gone(struct exchange *x) {
    struct answer *a = x->state;

    detach(a);
    if (!work_abandon(&a->work))
        free_answer(a);
    exchange_end(x);
}

static bool on_alive(struct exchange *x) {
    struct answer *a = x->state;

    if (!a->form->events || !a->form->events->alive)
        return false;
    a->form->events->alive(a);
    return true;
}

static const struct exchange_ops ops = {on_gone, on_drained, on_fail, on_alive};

/* ---- beginning ---- */

static void on_admitted(struct waiter *w) {
    struct answer *a = CONTAINER_OF(w, struct answer, waiter);

    for (uint32_t i = 0; i < a->n_choices; i++)
        gen_start(a->choices[i].gen);
}

static void on_refused(struct waiter *w, const struct err *err, uint32_t retry_ms) {
    struct answer *a = CONTAINER_OF(w, struct answer, waiter);

    a->exchange->retry_ms = retry_ms;
    fail(a, err);
}

static void on_expired(struct waiter *w) {
    struct err err;

    err_set_code(&err, 503, "queue_timeout", NULL, "The request has waited longer than it may.");
    fail(CONTAINER_OF(w, struct answer, waiter), &err);
}

/* What a prompt of @n tokens leaves for the output, or context_length_exceeded. */
static int room_for(const struct answer *a, size_t n, uint32_t *max_new, struct err *err) {
    const struct request *r = &a->work.r;
    const struct api *api = a->work.api;
    uint32_t own = tenants_get(&api->tenants, a->exchange->tenant)->conf.max_context;
    uint32_t context = own > 0 ? MIN(own, api->model->max_context) : api->model->max_context;
    uint32_t given = r->max_new                ? r->max_new
                     : a->form->default_tokens ? a->form->default_tokens
                                               : api->opts.default_max_tokens;
    const char *field = a->work.chat ? "messages" : "prompt";

    if (n == 0)
        return err_set_code(err, 400, "invalid_value", field, "%s must not be empty.", field);
    if (n >= context && a->form->events && a->form->events->too_long)
        return a->form->events->too_long(field, n, context, err);
    if (n >= context)
        return err_set_code(err, 400, "context_length_exceeded", field,
                            "This model's maximum context length is %u tokens. However, your %s "
                            "resulted in %zu tokens. Please reduce the length of the %s.",
                            context, field, n, field);
    *max_new = context - (uint32_t)n;
    if (given && given < *max_new)
        *max_new = given;
    return 0;
}

/* Who pays, and how much each generation may come to. 429 when the tenant's minute is used up. */
static int charge(struct answer *a, struct err *err) {
    struct api *api = a->work.api;
    struct tenant *t = tenants_get(&api->tenants, a->exchange->tenant);
    const struct request *r = &a->work.r;
    uint64_t n_tokens = 0;

    a->waiter.tenant = t;
    for (uint32_t i = 0; i < a->n_choices; i++) {
        const struct gen *g = a->choices[i].gen;
        uint32_t n_out = r->max_new ? g->m.max_new : tenant_expects(t, g->m.max_new);

        n_tokens += (g->m.choice == 0 ? g->n_prompt : 0) + n_out;
        a->waiter.n_context += g->n_prompt + n_out;
    }
    int e = tenant_request(t, n_tokens, clock_now(api->clock), &a->exchange->retry_ms, err);
    for (uint32_t i = 0; i < a->n_choices && e == 0; i++) {
        struct gen *g = a->choices[i].gen;

        gen_charge(g, t, r->max_new ? g->m.max_new : tenant_expects(t, g->m.max_new));
    }
    return e;
}

static void fill_submit(struct answer *a, struct gen *g, uint64_t group, uint64_t seed) {
    g->owner = a;
    g->changed = on_changed;
    g->m.group = group;
    g->m.seed = seed;
    gen_belongs(g, &a->exchange, &a->work.r);
}

static int set_split(struct answer *a, struct gen *g) {
    struct toolcall_opts opts = a->work.parse;

    opts.seed =
        rng_next(&a->work.api->rng); /* ids of calls must not come again in a conversation */
    if (!a->work.parses && !a->form->events)
        return 0;
    int r = gen_split(g, &opts);
    return r == 0 && a->work.r.has_budget ? gen_limit_thinking(g, a->work.r.thinking_budget) : r;
}

/* Of the choice made last, of prompt @p. */
static int set_echo(struct answer *a, uint32_t p) {
    struct choice *c = &a->choices[a->n_choices - 1];
    const struct prompt *from = &a->work.prompts[p];

    if (!a->work.r.echo)
        return 0;
    c->echo = echo_new(a->work.api->model->tokenizer, c->gen->tokens, c->gen->n_prompt,
                       from->text != NULL);
    if (!c->echo)
        return -ENOMEM;
    c->n_chars = answer_chars(c->echo->text.data, c->echo->text.len);
    return 0;
}

/* Tokens are there: one generation for each prompt and choice. */
static int create_gens(struct answer *a, struct err *err) {
    const struct request *r = &a->work.r;
    struct api *api = a->work.api;
    uint64_t seed = r->has_seed ? r->seed : rng_next(&api->rng);

    a->choices = calloc((size_t)a->work.n_prompts * request_made(r), sizeof(*a->choices));
    if (!a->choices)
        return -ENOMEM;
    for (uint32_t p = 0; p < a->work.n_prompts; p++) {
        const struct tokens *t = &a->work.prompts[p].tokens;
        uint64_t group = api->next_gen;
        uint32_t max_new = 0;
        int result = room_for(a, t->n, &max_new, err);

        if (result == 0 && t->n * r->n_prompt_top > PROMPT_TOP_MAX)
            result = err_set_code(err, 400, "invalid_value", "logprobs",
                                  "The prompt has too many tokens for so many log probabilities: "
                                  "at most %u in all.",
                                  PROMPT_TOP_MAX);
        for (uint32_t i = 0; i < request_made(r) && result == 0; i++) {
            struct gen *g = NULL;

            result = gen_new(&g, api, r, t->id, (uint32_t)t->n, max_new, (uint16_t)i);
            if (result == 0) {
                a->choices[a->n_choices].custom.text.max = UINT32_MAX;
                a->choices[a->n_choices++].gen = g;
                fill_submit(a, g, group, seed);
                result = set_split(a, g);
                result = result < 0 ? result : set_echo(a, p);
            }
        }
        if (result < 0)
            return result;
    }
    return 0;
}

/* The earliest moment after which nobody waits for the answer any more. */
static int64_t deadline_of(const struct exchange *x) {
    int64_t ms = x->api->opts.request_timeout_ms;

    if (x->timeout_ms && (!ms || x->timeout_ms < ms))
        ms = x->timeout_ms;
    return ms ? x->started_ns + ms * 1000000 : 0;
}

static void on_prepared(struct work *w) {
    struct answer *a = of_work(w);
    struct err err = {0};

    if (!a->exchange) { /* the client left meanwhile */
        free_answer(a);
        return;
    }
    int r = w->result;
    if (r == 0 && w->r.load_only) {
        send_whole(a);
        return;
    }
    if (r < 0)
        err = w->err;
    else if ((r = create_gens(a, &err)) == 0) {
        work_trim(w, prewarm_keeps(a));
        port_note_request(w->api, a->exchange->id, a->choices[0].gen->m.id);
        a->waiter.n = a->n_choices;
        a->waiter.deadline_ns = deadline_of(a->exchange);
        r = charge(a, &err);
    }
    if (r == 0) {
        r = admit_enter(a->work.api, &a->waiter, &a->exchange->retry_ms, &err);
    }
    if (r == 0)
        return;
    if (!err.status)
        err_set_code(&err, r == -ENOMEM ? 503 : 500, r == -ENOMEM ? "out_of_memory" : "", NULL,
                     "The request could not be served.");
    fail(a, &err);
}

void answer_serve(struct exchange *x, const struct answer_form *form) {
    struct err err = {0};

    if (admit_glance(x->api, tenants_get(&x->api->tenants, x->tenant), &x->retry_ms, &err) < 0) {
        respond_error(x, &err);
        return;
    }
    struct answer *a = calloc(1, sizeof(*a));
    if (!a) {
        respond_errno(x, -ENOMEM);
        return;
    }
    a->form = form;
    a->exchange = x;
    a->created = time(NULL);
    list_init(&a->waiter.link);
    a->waiter.admitted = on_admitted;
    a->waiter.expired = on_expired;
    a->waiter.refused = on_refused;
    snprintf(a->id, sizeof(a->id), "%s%016llx%08llx", form->id_prefix,
             (unsigned long long)rng_next(&x->api->rng),
             (unsigned long long)rng_next(&x->api->rng) >> 32);
    x->ops = &ops;
    x->state = a;
    if (form->events && form->events->prepare && form->events->prepare(a) < 0) {
        x->ops = NULL;
        free_answer(a);
        respond_errno(x, -ENOMEM);
        return;
    }
    work_start(&a->work, x, form->kind, on_prepared);
}
