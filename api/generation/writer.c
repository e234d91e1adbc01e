/*
 * The life of an answer:
 *
 *      writer_serve ── admit_precheck: 429
 *          ──> work (parse, render, tokenise; perhaps on the pool) ──> on_prepared
 *          ──> create_gens ──> admit_enter ── queued ──> on_admitted ──> gen_start for each
 *          ──> on_changed, each time a generation has news ──> proceed ──> stream or send_whole
 *
 * It ends in exactly one of four ways, each of which takes the answer from its call with detach()
 * and frees it before the call is reported, because exchange_end() may start the connection's next
 * request: end_stream, send_whole, fail (an error before or after the head) and leave (the client
 * left). The one exception is work that still runs on the pool: then the answer stays without a
 * call until writer_on_prepared() finds it so.
 *
 * A generation's news may arrive while nothing can be sent. Nothing is queued for that: what was
 * sent is kept as positions in text and tokens (struct choice), and the next turn sends from there.
 * So a slow client costs its stream buffer and the tokens themselves, never a backlog of JSON.
 */

#include "api/generation/writer.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/generation/bill.h"
#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/loosened.h"
#include "api/generation/model.h"
#include "api/generation/prewarm.h"
#include "api/generation/prompt_steps.h"
#include "api/generation/waits.h"
#include "api/http/conn.h"
#include "api/http/dialect.h"
#include "api/http/respond.h"
#include "base/text.h"
#include "base/try.h"
#include "text/stops.h"

#define ANSWER_MAX API_SEND_MAX
/* tokens, with alternatives, of a whole answer that is written on the loop */
#define INLINE_TOKENS 2000u
#define TOKEN_BYTES 64u /* text that takes as long as an entry of a token */
/* Text of a choice that is written in one iteration. Without a character that is cut off it still
 * counts as INLINE_TOKENS / 2, so that has_sent_enough() says that there is more. */
#define TEXT_AT_ONCE (((size_t)INLINE_TOKENS / 2 + 1) * TOKEN_BYTES)
#define PROMPT_TOP_MAX (1u << 20) /* limit of log probabilities at all positions of a prompt */
#define ROUNDS_MAX 8u             /* generations of one answer in several rounds */

static void free_answer(struct writer *w) {
    assert(!w->writing);
    for (uint32_t i = 0; i < w->n_choices; i++) {
        gen_free(w->choices[i].gen);
        echo_free(w->choices[i].echo);
        buf_deinit(&w->choices[i].custom.text);
    }
    prompt_job_deinit(&w->job);
    buf_deinit(&w->whole);
    splices_deinit(&w->refs);
    free(w->choices);
    free(w);
}

/* Frees the answer after detach(), now or when the pool is done with it. */
static void writer_release(struct writer *w) {
    if (w->writing)
        job_pool_abandon(&w->job.env->pool, &w->task);
    else if (!prompt_job_abandon(&w->job))
        free_answer(w);
}

static struct writer *writer_of(struct prompt_job *job) {
    return CONTAINER_OF(job, struct writer, job);
}

/* ---- figures ---- */

struct writer_usage writer_usage(const struct writer *w) {
    struct writer_usage u = {0};

    for (uint32_t i = 0; i < w->n_choices; i++) {
        const struct gen *g = w->choices[i].gen;

        u.output += g->n_out;
        u.reasoning += g->output ? g->output->n_reasoning : 0;
        u.prompt += g->m.choice == 0 ? g->n_prompt : 0;
        u.cached += g->m.choice == 0 ? g->n_cached : 0;
        for (uint32_t k = 0; g->m.choice == 0 && k < g->m.n_pictures; k++)
            u.pictures += g->m.pictures[k].n_rows;
        u.drafted += g->drafts.n;
        u.accepted += g->drafts.accepted;
        u.predicted += g->drafts.n_predicted;
        u.predicted_accepted += g->drafts.predicted_accepted;
    }
    return u;
}

/* Computes two rates in tokens a second, of all choices together: that of the computed prompt
 * tokens, and that of the output without its first token, which the last step of the prompt
 * makes. */
static void set_rates(const struct writer *w, const struct writer_usage *u, struct exchange *x) {
    int64_t prompt_ns = 0, first = INT64_MAX, last = 0;
    uint32_t n_first = 0;

    for (uint32_t i = 0; i < w->n_choices; i++) {
        const struct gen *g = w->choices[i].gen;

        if (!g->first_token_ns)
            continue;
        n_first++;
        if (g->first_step_ns)
            prompt_ns = MAX(prompt_ns, g->first_token_ns - g->first_step_ns);
        first = MIN(first, g->first_token_ns);
        last = MAX(last, g->last_token_ns);
    }
    if (prompt_ns > 0 && u->prompt > u->cached)
        x->prompt_per_s = (u->prompt - u->cached) * 1e9 / (double)prompt_ns;
    if (last > first && u->output > n_first)
        x->output_per_s = (u->output - n_first) * 1e9 / (double)(last - first);
}

/* Detaches the answer from its exchange, which gets the figures for its log line. */
static struct exchange *detach(struct writer *w) {
    struct exchange *x = w->exchange;
    assert(x);
    struct writer_usage u = writer_usage(w);
    uint32_t n_longest = 0;

    x->n_prompt = u.prompt;
    x->n_cached = u.cached;
    x->n_output = u.output;
    x->n_drafted = u.drafted;
    x->n_accepted = u.accepted;
    set_rates(w, &u, x);
    for (uint32_t i = 0; i < w->n_choices; i++)
        n_longest = MAX(n_longest, w->choices[i].gen->n_out);
    for (uint32_t i = 0; i < w->n_choices; i++) {
        const struct gen *g = w->choices[i].gen;

        x->n_resumed += g->n_attempts > 1 + g->n_turns ? g->n_attempts - 1 - g->n_turns : 0;
        x->finish = gen_finish_name(g);
        if (g->state != GEN_DONE || g->finish == FINISH_ERROR)
            x->finish = "-";
        if (g->first_step_ns && !x->queue_ns)
            x->queue_ns = g->first_step_ns - x->started_ns;
        if (g->first_token_ns && !x->ttft_ns)
            x->ttft_ns = g->first_token_ns - x->started_ns;
        if (g->state != GEN_WAITING) {
            struct metrics_gen seen = gen_metrics(g);
            seen.started_ns = x->started_ns;
            seen.n_choices = g->m.choice == 0 ? w->job.request.input.n : 0;
            seen.n_longest = n_longest;
            metrics_gen_done(&w->job.model->metrics, &seen);
        }
        if (g->done_ns && g->first_step_ns)
            admit_took(&env_of(x)->admit, g->done_ns - g->first_step_ns);
    }
    w->exchange = NULL;
    exchange_detach(x);
    admit_cancel(&env_of(x)->admit, &w->waiter);
    return x;
}

/* ---- streams ---- */

/* Returns the entries of log probabilities for each token. */
static size_t entries_of_token(const struct writer *w) {
    const struct gen_request *r = &w->job.request;

    if (!r->answer.logprobs)
        return 0;
    return (size_t)r->answer.n_top + 1;
}

/* Returns the number of tokens whose log probabilities are written in one iteration of the loop. */
static uint32_t tokens_at_once(const struct writer *w) {
    size_t n = entries_of_token(w);

    if (!n)
        return UINT32_MAX;
    return (uint32_t)MAX(INLINE_TOKENS / n, (size_t)1);
}

/* Reports @p, which is @p->choice's first piece if none came before. The part of the echo that
 * was not reported goes before it, unless @p says how much of it does. */
static void writer_send_piece(struct writer *w, struct piece *p) {
    struct choice *c = p->choice;

    assert(!c->finish_sent && p->from <= p->to && p->to <= c->gen->n_out);
    if (c->echo && !p->echo_to) {
        p->echo_from = c->n_echoed;
        p->echo_to = c->echo->n;
    }
    p->first = !c->begun;
    assert(w->endpoint->piece);
    w->endpoint->piece(w, p);
    w->n_told += (size_t)(p->to - p->from + p->echo_to - p->echo_from) * entries_of_token(w);
    w->n_told += p->len / TOKEN_BYTES;
    if (p->part && w->endpoint->parsed) /* whose deltas have the entries of their own text */
        w->n_told += p->len * entries_of_token(w);
    if (p->last && w->endpoint->tells_prompt)
        w->n_told += c->gen->n_prompt;
    c->n_echoed = p->echo_to;
    c->begun = true;
}

/* Returns the number of output tokens up to which the text that is ready reaches. */
static uint32_t ready_tokens(const struct choice *c) {
    const struct gen *g = c->gen;
    uint32_t n = c->n_sent;

    while (n < g->n_out &&
           (g->text_end[n] <= g->ready || (g->stopped && (n ? g->text_end[n - 1] : 0) < g->ready)))
        n++;
    return n;
}

static void writer_advance(struct choice *c, uint32_t to) {
    const struct gen *g = c->gen;
    size_t from = c->n_sent ? g->text_end[c->n_sent - 1] : 0;

    assert(to >= c->n_sent && to <= g->n_out && c->text_sent <= g->ready);
    if (to > c->n_sent && g->logprobs)
        c->n_chars += echo_chars(g->text.data, from, g->text_end[to - 1]);
    c->n_sent = to;
}

/* Sends a part of a long prompt that is echoed with its log probabilities. Returns false if the
 * rest fits into the next piece. */
static bool send_echo(struct writer *w, uint32_t i) {
    struct choice *c = &w->choices[i];
    uint32_t most = tokens_at_once(w);

    if (!c->echo || c->echo->n - c->n_echoed <= most)
        return false;
    struct piece p = {.choice = c,
                      .index = i,
                      .text = "",
                      .echo_from = c->n_echoed,
                      .echo_to = c->n_echoed + most};
    writer_send_piece(w, &p);
    return true;
}

/* Returns the end of the text of @c that is sent next, which is all that is ready, or a part of
 * whole characters. */
static size_t end_of_text(const struct choice *c) {
    const struct gen *g = c->gen;
    size_t end = c->text_sent + TEXT_AT_ONCE;

    if (g->ready <= end)
        return g->ready;
    return end - utf8_incomplete_tail(g->text.data + c->text_sent, TEXT_AT_ONCE);
}

/* Sends the new text of choice @i, or its first part when it is long or very many tokens have log
 * probabilities. */
static void writer_send_text(struct writer *w, uint32_t i) {
    struct choice *c = &w->choices[i];
    const struct gen *g = c->gen;
    uint32_t to = ready_tokens(c), most = tokens_at_once(w);
    size_t end = end_of_text(c);

    while (end < g->ready && to > c->n_sent && g->text_end[to - 1] > end)
        to--;
    if (to - c->n_sent > most) {
        to = c->n_sent + most;
        end = MIN(MAX((size_t)g->text_end[to - 1], c->text_sent), end);
    }
    struct piece p = {.choice = c,
                      .index = i,
                      .from = c->n_sent,
                      .to = to,
                      .text = g->text.data + c->text_sent,
                      .len = end - c->text_sent};

    writer_send_piece(w, &p);
    writer_advance(c, p.to);
    c->text_sent = end;
}

/* Returns true if the client has to read first. An answer without a client is never held back. */
static bool writer_is_full(const struct writer *w) {
    return w->exchange->conn && conn_is_full(w->exchange->conn);
}

/* Returns true if the rest of what is ready waits for another turn. */
static bool has_sent_enough(const struct writer *w) {
    return w->n_told >= INLINE_TOKENS / 2;
}

/* Returns true if the client has to read first, or others have their turns. */
static bool holds_back(const struct writer *w) {
    return writer_is_full(w) || (w->exchange->conn && has_sent_enough(w));
}

/* Sends new text that the parser has split: one part for each delta. Tokens go with the first part;
 * tokens whose part is not known yet wait for the next one. */
static void send_parts(struct writer *w, uint32_t i) {
    struct choice *c = &w->choices[i];
    size_t most = MAX(tokens_at_once(w), 4u);
    struct output_piece part;

    while (!holds_back(w) && output_parser_next(c->gen->output, &c->at, most, &part)) {
        struct piece p = {.choice = c,
                          .index = i,
                          .from = c->n_sent,
                          .to = (uint32_t)MIN(ready_tokens(c), c->n_sent + most),
                          .text = part.text,
                          .len = part.len,
                          .part = &part};

        writer_send_piece(w, &p);
        writer_advance(c, p.to);
    }
}

/* Sends tokens whose text was sent, until the rest fits into the last piece or must wait. */
static void send_tokens(struct writer *w, uint32_t i) {
    struct choice *c = &w->choices[i];
    uint32_t most = tokens_at_once(w);

    while (!holds_back(w) && c->gen->n_out - c->n_sent > most) {
        struct piece p = {
            .choice = c, .index = i, .from = c->n_sent, .to = c->n_sent + most, .text = ""};

        writer_send_piece(w, &p);
        writer_advance(c, p.to);
    }
}

/* Sends the news of choice @i: its text, and its end. */
static void send_choice(struct writer *w, uint32_t i) {
    struct choice *c = &w->choices[i];
    const struct gen *g = c->gen;

    if (g->output)
        send_parts(w, i);
    else if ((g->ready > c->text_sent || (g->state == GEN_DONE && !c->finish_sent)) &&
             send_echo(w, i))
        return;
    else if (g->ready > c->text_sent)
        writer_send_text(w, i);
    if (g->state == GEN_DONE && g->output)
        send_tokens(w, i);
    if (g->state == GEN_DONE && !c->finish_sent &&
        (g->output ? !holds_back(w) : c->text_sent == g->ready)) {
        struct piece p = {
            .choice = c, .index = i, .from = c->n_sent, .to = g->n_out, .text = "", .last = true};

        writer_send_piece(w, &p);
        writer_advance(c, p.to);
        c->finish_sent = true;
    }
}

static void writer_send_head(struct writer *w) {
    if (!w->exchange->stream)
        respond_stream(w->exchange);
    w->head_sent = true;
    if (w->endpoint->begin)
        w->endpoint->begin(w);
}

static struct prewarm_job *writer_detach_prewarm(struct writer *w) {
    if (w->n_choices != 1)
        return NULL;
    return prewarm_detach(&w->job, w->choices[0].gen);
}

static void on_round(struct prompt_job *job);

/* Called when all output of the model so far has been taken: asks the endpoint, on the pool,
 * whether the conversation goes on before the answer ends. Returns false if the answer is
 * complete. */
static bool writer_go_on(struct writer *w) {
    const struct gen *g = w->choices[w->n_choices - 1].gen;

    if (!w->job.goes_on || g->finish != FINISH_STOP || !w->endpoint->asks(w))
        return false;
    prompt_job_again(&w->job, w->n_choices < ROUNDS_MAX && g->n_out < g->m.max_new, on_round);
    return true;
}

static void writer_end_stream(struct writer *w) {
    assert(w->head_sent);
    for (uint32_t i = 0; i < w->n_choices; i++)
        assert(w->choices[i].finish_sent);
    if (w->endpoint->end)
        w->endpoint->end(w);
    struct exchange *x = detach(w);
    struct prewarm_job *t = writer_detach_prewarm(w);
    free_answer(w);
    respond_stream_end(x);
    prewarm_start(t);
}

static void stream(struct writer *w) {
    struct conn *conn = w->exchange->conn; /* NULL: no client waits for it */
    bool all = true;

    assert(!w->writing && w->n_choices > 0);
    if (!w->head_sent)
        writer_send_head(w);
    w->n_told = 0;
    for (uint32_t i = 0; i < w->n_choices; i++) {
        if (holds_back(w)) {
            conn_want_room(conn);
            conn_flush(conn);
            return;
        }
        send_choice(w, i);
        all &= w->choices[i].finish_sent;
    }
    if (all && !writer_go_on(w)) {
        writer_end_stream(w);
        return;
    }
    if (!conn)
        return;
    if (conn_unsent(conn) > 0) /* the keep-alive timer runs on if nothing was written */
        conn_start_keepalive(conn);
    if (has_sent_enough(w))
        conn_want_room(conn);
    conn_flush(conn);
}

/* ---- whole answers ---- */

/* Counts the tokens that the answer lists, each with its most likely alternatives, and its text. */
static size_t sent_tokens(const struct writer *w) {
    const struct gen_request *r = &w->job.request;
    size_t n = 0;

    for (uint32_t i = 0; i < w->n_choices; i++) {
        const struct gen *g = w->choices[i].gen;
        size_t prompt = w->choices[i].echo && r->answer.logprobs ? (size_t)r->answer.n_top + 1 : 0;

        if (r->answer.logprobs)
            n += (size_t)g->n_out * (r->answer.n_top + 1);
        if (r->answer.prompt_logprobs)
            prompt += (size_t)r->answer.n_prompt_top + 1;
        n += g->n_prompt * prompt;
        n += r->answer.return_token_ids ? g->n_prompt + g->n_out : 0;
        n += w->endpoint->tells_prompt || r->answer.verbose ? g->n_prompt : 0;
        n += g->text.len / TOKEN_BYTES;
        if (w->choices[i].echo)
            n += w->choices[i].echo->text.len / TOKEN_BYTES;
    }
    return n;
}

/* Writes the whole answer, on the loop or on the pool. The generations do not change any more. */
static void write_whole(struct writer *w) {
    struct json j = {.out = &w->whole, .refs = &w->refs};

    for (uint32_t i = 0; i < w->n_choices; i++)
        assert(w->choices[i].gen->state == GEN_DONE);
    w->endpoint->whole(&j, w);
    w->whole_error = j.error;
}

struct piece writer_whole_piece(struct choice *c, uint32_t index) {
    const struct gen *g = c->gen;

    assert(g->state == GEN_DONE);
    return (struct piece){.choice = c,
                          .index = index,
                          .to = g->n_out,
                          .echo_to = c->echo ? c->echo->n : 0,
                          .text = text_or(g->text.data, ""),
                          .len = g->ready,
                          .first = true,
                          .last = true};
}

/* Sends a whole answer as the only event of a stream, whose head was sent while it waited. */
static void answer_line(struct exchange *x, const struct buf *b, int error) {
    struct err err = {0};

    if (error < 0) {
        respond_explain(error, &err);
        respond_stream_error(x, &err);
        return;
    }
    respond_event(x, b->data, b->len);
    respond_stream_end(x);
}

static void answer_whole(struct writer *w) {
    assert(!w->writing && !w->head_sent);
    CLEANUP(buf_deinit) struct buf b = w->whole;
    CLEANUP(splices_deinit) struct splices refs = w->refs;
    struct exchange *x = detach(w);
    struct prewarm_job *t = writer_detach_prewarm(w);
    int error = w->whole_error;

    buf_init(&w->whole, ANSWER_MAX);
    w->refs = (struct splices){0};
    free_answer(w);
    if (x->stream) /* the request only loaded its model */
        answer_line(x, &b, error);
    else if (refs.n > 0)
        respond_spliced(x, &b, &refs, error);
    else
        respond_buf(x, 200, &b, error);
    prewarm_start(t);
}

static void writer_on_thread(struct job *j) {
    write_whole(CONTAINER_OF(j, struct writer, task));
}

static void writer_on_written(struct job *j) {
    struct writer *w = CONTAINER_OF(j, struct writer, task);

    assert(w->writing);
    w->writing = false;
    if (w->exchange)
        answer_whole(w);
    else
        free_answer(w);
}

/* Sends the whole answer once all generations are done and none of them changes any more. */
static void send_whole(struct writer *w) {
    assert(!w->head_sent && !w->writing);
    buf_init(&w->whole, ANSWER_MAX);
    if (gen_request_made(&w->job.request) > w->job.request.input.n)
        writer_sort(w);
    if (sent_tokens(w) <= INLINE_TOKENS) {
        write_whole(w);
        answer_whole(w);
        return;
    }
    w->task = (struct job){.run = writer_on_thread, .done = writer_on_written};
    w->writing = true;
    int r = job_pool_submit(&w->job.env->pool, &w->task, w->job.tenant);
    if (r < 0) {
        w->writing = false;
        w->whole_error = r;
        answer_whole(w);
    }
}

/* ---- progress ---- */

static void writer_fail(struct writer *w, const struct err *err) {
    const struct endpoint *endpoint = w->endpoint;
    struct err e = *err;

    assert(w->exchange && err->status >= 400);
    bool stream = w->exchange->stream;

    if (endpoint->rename)
        endpoint->rename(&e);
    bool answered = (w->head_sent || !stream) && endpoint->fail && endpoint->fail(w, &e);
    struct exchange *x = detach(w);

    writer_release(w);
    if (answered)
        respond_stream_failed(x, &e);
    else if (stream)
        respond_stream_error(x, &e);
    else
        respond_error(x, &e);
}

static void on_fail(struct exchange *x, const struct err *err) {
    writer_fail(x->state, err);
}

/* Sends the part of the answer that is ready, after one generation has reported something new. */
static void proceed(struct writer *w) {
    bool all_accepted = true, all_done = true;

    if (!w->exchange || w->writing || w->job.running)
        return;
    assert(w->exchange->state == w);
    for (uint32_t i = 0; i < w->n_choices; i++) {
        const struct gen *g = w->choices[i].gen;

        if (g->state == GEN_DONE && g->finish == FINISH_ERROR) {
            w->exchange->retry_ms = g->retry_ms;
            writer_fail(w, &g->err);
            return;
        }
        all_accepted &= g->accepted;
        all_done &= g->state == GEN_DONE;
    }
    if (w->job.request.answer.stream && (all_accepted || all_done)) {
        stream(w);
    } else if (!w->job.request.answer.stream && all_done) {
        if (!writer_go_on(w))
            send_whole(w);
    }
}

static void writer_changed(struct gen *g) {
    proceed(g->owner);
}

/* ---- generations of an answer ---- */

/* Computes the room that a prompt of @n tokens leaves for the output, or returns
 * context_length_exceeded. */
static int room_for(const struct writer *w, size_t n, uint32_t *max_new, struct err *err) {
    const struct gen_request *r = &w->job.request;
    const struct gen_env *env = w->job.env;
    uint32_t own = tenants_get(&env->tenants, w->exchange->tenant)->conf.max_context;
    uint32_t all = w->job.model->info->max_context;
    uint32_t context = own > 0 ? MIN(own, all) : all;
    uint32_t seen = w->job.context; /* a prompt longer than this has no grammar */
    uint32_t given = w->endpoint->default_tokens;
    const char *field = w->job.chat ? "messages" : "prompt";

    if (r->input.max_new)
        given = r->input.max_new;
    else if (!given)
        given = env->opts.default_max_tokens;
    if (n == 0)
        return json_refuse(err, field, "must not be empty");
    context = seen > 0 ? MIN(context, seen) : context;
    if (n >= context)
        return prompt_exceeds(&w->job, field, n, false, context, err);
    *max_new = context - (uint32_t)n;
    if (given && given < *max_new)
        *max_new = given;
    return 0;
}

/* Returns true if the client says how long the output may be. */
static bool has_limit(const struct gen_request *r) {
    return r->input.max_new && r->input.max_new != GEN_REQUEST_NO_LIMIT;
}

/* Charges the tenant for the most that each generation may use. Returns 0, or -EINVAL with @err
 * (429): the tenant's limit per minute is used up. */
static int writer_charge(struct writer *w, struct err *err) {
    struct gen_env *env = w->job.env;
    struct tenant *t = tenants_get(&env->tenants, w->exchange->tenant);
    const struct gen_request *r = &w->job.request;
    uint64_t n_tokens = 0;

    assert(w->waiter.n == w->n_choices && w->waiter.n_context == 0);
    w->waiter.tenant = t;
    for (uint32_t i = 0; i < w->n_choices; i++) {
        const struct gen *g = w->choices[i].gen;
        uint32_t n_out = has_limit(r) ? g->m.max_new : tenant_expects(t, g->m.max_new);

        n_tokens += (g->m.choice == 0 ? g->n_prompt : 0) + n_out;
        w->waiter.n_context += g->n_prompt + n_out;
    }
    TRY(bill_request(w->exchange, w->job.model, n_tokens, err));
    for (uint32_t i = 0; i < w->n_choices; i++) {
        struct gen *g = w->choices[i].gen;

        gen_charge(g, t, has_limit(r) ? g->m.max_new : tenant_expects(t, g->m.max_new));
    }
    return 0;
}

static void fill_submit(struct writer *w, struct gen *g, uint64_t group, uint64_t seed) {
    g->owner = w;
    g->changed = writer_changed;
    g->m.group = group;
    g->m.seed = seed;
    gen_belongs(g, &w->exchange, &w->job.request);
}

static int set_output(struct writer *w, struct gen *g) {
    struct toolcall_opts opts = w->job.parse;

    opts.seed = rng_next(&w->job.env->rng); /* ids of calls must be unique in a conversation */
    /* A call that no grammar holds may break when half of it has been sent. */
    opts.whole_calls = w->endpoint->whole_calls || w->job.request.submit.grammar.len == 0;
    opts.inline_reasoning =
        w->job.request.answer.inline_reasoning && w->endpoint->inlines_reasoning;
    opts.joined = w->endpoint->repeats < REPEATS_PARTS;
    if (!w->job.parses && !w->endpoint->parsed)
        return 0;
    TRY(gen_parse_output(g, &opts));
    if (w->job.request.input.has_budget)
        return gen_limit_reasoning(g, w->job.request.input.thinking_budget);
    if (!g->loop_tokens)
        return 0;
    return gen_limit_reasoning(g, UINT32_MAX);
}

/* Adds choice @i of prompt @p to the answer, of at most @max_new tokens. The @last choice takes
 * over the tokens of the prompt instead of copying them. */
static int writer_add_choice(struct writer *w, struct prompt *p, uint32_t i, bool last,
                             uint32_t max_new, uint64_t group, uint64_t seed) {
    struct choice *c = &w->choices[w->n_choices];
    struct gen *g = NULL;

    TRY(gen_new(&g, w->job.model, &w->job.request, &p->tokens, last, max_new, (uint16_t)i));
    *c = (struct choice){.gen = g,
                         .custom.text.max = UINT32_MAX,
                         .echo = echo_use(p->echo),
                         .n_chars = p->echo ? p->echo->n_chars : 0};
    w->n_choices++;
    gen_set_pictures(g, p);
    fill_submit(w, g, group, seed);
    return set_output(w, g);
}

/* Makes one generation for each prompt and choice; the prompts are tokens now. Returns 0, -ENOMEM,
 * or -EINVAL with @err. */
static int writer_create_gens(struct writer *w, struct err *err) {
    const struct gen_request *r = &w->job.request;
    struct gen_env *env = w->job.env;
    uint64_t seed = r->input.has_seed ? r->input.seed : rng_next(&env->rng);
    uint32_t n = gen_request_made(r);

    assert(!w->choices && w->n_choices == 0);
    w->choices = calloc((size_t)w->job.n_prompts * n, sizeof(*w->choices));
    if (!w->choices)
        return -ENOMEM;
    for (uint32_t k = 0; k < w->job.n_prompts; k++) {
        struct prompt *p = &w->job.prompts[k];
        uint64_t group = env->gens.next_id;
        uint32_t max_new = 0;

        TRY(room_for(w, p->tokens.n, &max_new, err));
        if (p->tokens.n * r->answer.n_prompt_top > PROMPT_TOP_MAX)
            return err_set_code(err, 400, "invalid_value", "logprobs",
                                "The request asks for more than %u log probabilities of its "
                                "prompt: shorten the prompt or ask for fewer.",
                                PROMPT_TOP_MAX);
        for (uint32_t i = 0; i < n; i++)
            TRY(writer_add_choice(w, p, i, i + 1 == n, max_new, group, seed));
    }
    return 0;
}

/* Notes which generation the request's story is that of, and what was @left_out of its tools'
 * schemas. The story begins at @since_ns: the receipt, or a further round of the answer. */
static void note_generation(const struct writer *w, const struct gen *g, const char *left_out,
                            int64_t since_ns) {
    struct exchange *x = w->exchange;
    struct gen_times t = {since_ns, since_ns, since_ns, clock_now(w->job.env->clock), 0, 0};

    x->gen = g->m.id;
    if (since_ns == x->started_ns && w->job.waits_until_ns) {
        t.load_from_ns = w->job.waits_since_ns;
        t.load_until_ns = w->job.waits_until_ns;
    }
    gen_ids_note(&w->job.env->ids, x->tenant, x->id, x->gen, &t, left_out);
}

/* Adds a generation for the current prompt of the job, which continues the last generation, and
 * queues it. It may use the tokens that the last one has not used. Returns as writer_charge(). */
static int writer_add_round(struct writer *w, struct err *err) {
    const struct gen *before = w->choices[w->n_choices - 1].gen;
    struct prompt *p = &w->job.prompts[0];
    struct tenant *t = tenants_get(&w->job.env->tenants, w->exchange->tenant);
    uint32_t left = before->m.max_new - before->n_out, max_new = 0;

    TRY(room_for(w, p->tokens.n, &max_new, err));
    assert(left > 0 && before->state == GEN_DONE);
    if (!array_resize(&w->choices, w->n_choices + 1, sizeof(*w->choices)))
        return -ENOMEM;
    TRY(writer_add_choice(w, p, 0, true, MIN(max_new, left), before->m.group, before->m.seed));
    struct gen *g = w->choices[w->n_choices - 1].gen;
    gen_charge(g, t, g->m.max_new);
    w->waiter.n = 1;
    w->waiter.n_context = (uint64_t)g->n_prompt + g->m.max_new;
    w->waiter.refused = NULL;
    note_generation(w, g, "", clock_now(w->job.env->clock)); /* which admission may start at once */
    admit_again(&w->job.env->admit, &w->waiter);
    return 0;
}

static void writer_on_drained(struct exchange *x) {
    struct writer *w = x->state;

    if (w->head_sent)
        proceed(w);
}

static void writer_detach(struct exchange *x, void *state) {
    detach(state);
    writer_release(state);
}

bool writer_send_wait(struct writer *w) {
    struct exchange *x = w->exchange;
    struct gen_wait wait;
    char text[300];

    if (strcmp(text_or(x->dialect->keepalive, ""), SSE_COMMENT) != 0)
        return false;
    for (uint32_t i = 0; i < w->n_choices; i++) {
        const struct gen *g = w->choices[i].gen;

        if (!g || g->n_out > 0 || g->state == GEN_DONE)
            continue;
        gen_waits(g, &wait);
        gen_wait_text(g, &wait, text, sizeof(text));
        respond_comment(x, text);
        return true;
    }
    return false;
}

static bool on_alive(struct exchange *x) {
    struct writer *w = x->state;

    /* the head alone may have been sent, so far */
    if (!w->endpoint->alive || !w->head_sent)
        return writer_send_wait(w);
    w->endpoint->alive(w);
    return true;
}

static const struct exchange_ops ops = {writer_detach, writer_on_drained, on_fail, on_alive};

/* ---- beginning ---- */

static void writer_on_admitted(struct waiter *w) {
    struct writer *a = CONTAINER_OF(w, struct writer, waiter);

    assert(a->exchange && a->n_choices > 0);
    for (uint32_t i = 0; i < a->n_choices; i++)
        if (a->choices[i].gen->state == GEN_WAITING)
            gen_start(a->choices[i].gen);
}

static void writer_on_refused(struct waiter *w, const struct err *err, uint32_t retry_ms) {
    struct writer *a = CONTAINER_OF(w, struct writer, waiter);

    a->exchange->retry_ms = retry_ms;
    writer_fail(a, err);
}

static void writer_on_expired(struct waiter *w) {
    struct err err;

    err_set_code(&err, 503, "queue_timeout", NULL,
                 "The request waited in the queue for longer than its time limit.");
    writer_fail(CONTAINER_OF(w, struct writer, waiter), &err);
}

/* Notes the request, and tells client, log and operator what was left out of its tools' schemas. */
static void report_loosened(struct writer *w) {
    struct prompt_job *job = &w->job;
    char text[GEN_LEFT_OUT_MAX] = "";

    if (job->request.made.loosened.n) {
        loosened_text(&job->request.made.loosened, text, sizeof(text));
        loosened_report(w->exchange, &job->request.made.loosened, text);
    }
    note_generation(w, w->choices[0].gen, text, w->exchange->started_ns);
}

/* Makes the generations of the prepared request and puts them into the queue. Returns 0 or -errno
 * with @err. */
static int writer_enter(struct writer *w, struct err *err) {
    struct prompt_job *job = &w->job;

    TRY(writer_create_gens(w, err));
    bool one = w->n_choices == 1 && !job->goes_on;
    prompt_job_trim(job, one && prewarm_is_useful(job, w->choices[0].gen));
    report_loosened(w);
    w->waiter.n = w->n_choices;
    TRY(writer_charge(w, err));
    if (w->endpoint->prepared)
        TRY(w->endpoint->prepared(w, err));
    w->waiter.deadline_ns = queue_deadline(w->exchange);
    respond_wait(w->exchange, job->request.answer.stream);
    return admit_enter(&job->env->admit, &w->waiter, &w->exchange->retry_ms, err);
}

static void writer_on_prepared(struct prompt_job *job) {
    struct writer *w = writer_of(job);
    struct err err = {0};

    if (!w->exchange) { /* the client left meanwhile */
        free_answer(w);
        return;
    }
    int r = job->result;
    w->exchange->retry_ms = job->retry_ms;
    prompt_job_name_model(job, w->exchange);
    assert(!w->exchange->stream || r < 0 || job->request.answer.stream);
    if (r == 0 && job->request.input.load_only) {
        send_whole(w);
        return;
    }
    if (r < 0)
        err = job->err;
    else
        r = writer_enter(w, &err);
    if (r == 0)
        return;
    if (!err.status)
        respond_explain(r, &err);
    writer_fail(w, &err);
}

static int writer_begin_round(struct writer *w, struct err *err) {
    struct prompt_job *job = &w->job;

    TRY(job->result);
    if (w->head_sent)
        w->endpoint->round(w);
    if (!job->goes_on)
        return 0;
    int r = writer_add_round(w, err);

    prompt_job_trim(job, false);
    return r;
}

/* Goes on when a further round of the answer is prepared, or ends the answer. */
static void on_round(struct prompt_job *job) {
    struct writer *w = writer_of(job);
    struct err err = job->err;

    if (!w->exchange) { /* the client left meanwhile */
        free_answer(w);
        return;
    }
    int r = writer_begin_round(w, &err);
    if (r < 0 && !err.status)
        err_set_code(&err, 503, "out_of_memory", NULL, "The answer could not be continued.");
    if (r < 0)
        writer_fail(w, &err);
    else if (!job->goes_on)
        proceed(w);
    else if (w->head_sent && w->exchange->conn)
        conn_flush(w->exchange->conn);
}

/* The callback prompt_job.on_wait, called while the model is being loaded. A load that is quick or
 * fails at once is answered with its own status. Only events have comments; another answer gets its
 * head when it would also get it in the queue. */
static void on_wait(struct prompt_job *job) {
    struct writer *w = writer_of(job);
    const struct model *m = job->model;
    struct exchange *x = w->exchange;
    int64_t waited_ns = clock_now(job->env->clock) - job->waits_since_ns;
    bool streams = job->streams || x->framed;
    bool comments = streams && strcmp(x->dialect->stream_type, SSE_TYPE) == 0;
    char text[300];

    assert(x && !w->head_sent);
    if (!x->waits)
        respond_wait(x, streams);
    if (!comments || (!x->stream && waited_ns < (int64_t)job->env->opts.keepalive_ms * 1000000))
        return;
    if (!x->stream)
        respond_stream(x);
    model_wait_text(m, waited_ns, text, sizeof(text));
    respond_comment(x, text);
}

void writer_serve(struct exchange *x, struct http *h) {
    const struct endpoint *endpoint = x->route->endpoint;
    struct err err = {0};

    assert(endpoint->translate && endpoint->whole && endpoint->id_prefix);
    assert(!endpoint->open == !endpoint->close);

    if (admit_precheck(&env_of(x)->admit, tenants_get(&env_of(x)->tenants, x->tenant), &x->retry_ms,
                       &err) < 0) {
        respond_error(x, &err);
        return;
    }
    struct writer *w = calloc(1, sizeof(*w));
    if (!w) {
        respond_errno(x, -ENOMEM);
        return;
    }
    w->endpoint = endpoint;
    w->exchange = x;
    w->route = x->route;
    w->started_ns = x->started_ns;
    w->created = time(NULL);
    list_init(&w->waiter.link);
    w->waiter.admitted = writer_on_admitted;
    w->waiter.expired = writer_on_expired;
    w->waiter.refused = writer_on_refused;
    snprintf(w->id, sizeof(w->id), "%s%016llx%08llx", endpoint->id_prefix,
             (unsigned long long)rng_next(&env_of(x)->rng),
             (unsigned long long)rng_next(&env_of(x)->rng) >> 32);
    exchange_attach(x, &ops, w);
    w->job.on_wait = on_wait;
    if (endpoint->open && endpoint->open(&w->job, x, w) < 0) {
        exchange_detach(x);
        free_answer(w);
        respond_errno(x, -ENOMEM);
        return;
    }
    prompt_job_start(&w->job, x, endpoint, writer_on_prepared);
}
