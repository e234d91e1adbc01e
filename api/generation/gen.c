/*
 * Every way a generation can end passes through gen_end(), which is idempotent, gives its place
 * back, and then tells the owner. The owner frees it, and often its siblings, inside that call:
 * after gen_end(), and after anything that may reach it, neither the generation nor a saved "next"
 * of a list of generations may be touched. Loops that end generations therefore only put them into
 * a list (gens.failed), from which end_failed() takes one after the other.
 *
 * Reasoning that has used its budget is ended here: the tokens of its closing marker are added to
 * the output, and the generation goes to the worker again as if it were resumed, under a new id, so
 * that events of the old one which are under way count for nothing.
 *
 * Resumption needs nothing special: `n_out` tokens are known, the submit carries them, and events
 * are taken from `n_out` on. The text that the client got is a function of the tokens alone, so it
 * does not matter which worker made them, as long as promise 1 holds.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/bill.h"
#include "api/generation/env.h"
#include "api/generation/gen_private.h"
#include "api/generation/gen_request.h"
#include "api/generation/model.h"
#include "api/generation/output_parser.h"
#include "api/generation/prompt.h"
#include "api/http/conn.h"
#include "api/http/exchange.h"
#include "api/limits/session.h"
#include "base/text.h"
#include "base/try.h"
#include "proto/flight.h"

#define TEXT_MAX (256u << 20)
#define FAULTS_MAX 3u
#define SUBMIT_BYTES 512u /* of a submit beside its tokens */
#define ENDS_NS 2000000   /* time in which failed generations are ended in an iteration */

/* Asserts the invariants that gen.h lists. */
static void gen_check(const struct gen *g) {
    assert(g->n_out <= g->cap_out && g->n_out <= g->m.max_new && g->n_counted <= g->n_out);
    assert(g->n_parsed <= g->ready && g->ready <= g->text.len && g->n_cached <= g->n_prompt);
    assert(g->n_out == 0 || g->text_end[g->n_out - 1] == g->text.len);
    assert((!g->thinking.limited || g->output) && (!g->vector || g->n_out == 0));
}

static void set_state(struct gen *g, enum gen_state next) {
    static const uint8_t legal[] = {
        [GEN_WAITING] = 1 << GEN_PENDING | 1 << GEN_DONE,
        [GEN_PENDING] = 1 << GEN_SENT | 1 << GEN_DONE,
        [GEN_SENT] = 1 << GEN_RUNNING | 1 << GEN_PENDING | 1 << GEN_DONE,
        [GEN_RUNNING] = 1 << GEN_PENDING | 1 << GEN_DONE,
        [GEN_DONE] = 0,
    };

    assert(legal[g->state] & 1 << next);
    gen_check(g);
    g->env->gens.n_changes += g->state == GEN_WAITING;
    g->state = next;
}

static bool is_at_worker(const struct gen *g) {
    return g->state == GEN_SENT || g->state == GEN_RUNNING;
}

static struct list *gen_bucket(const struct gen_env *env, uint64_t id) {
    return (struct list *)&env->gens.buckets[id % GEN_BUCKETS];
}

void gens_init(struct gen_env *env) {
    env->gens.next_id = 1;
    list_init(&env->gens.list);
    list_init(&env->gens.failed);
    for (uint32_t i = 0; i < GEN_BUCKETS; i++)
        list_init(&env->gens.buckets[i]);
}

struct gen *gen_find(const struct gen_env *env, uint64_t id) {
    LIST_FOREACH_ENTRY(g, gen_bucket(env, id), struct gen, bucket) {
        if (g->m.id == id)
            return g;
    }
    return NULL;
}

static int set_stops(struct gen *g, const struct gen_request *r) {
    struct stop_string s[SUBMIT_STOPS_MAX];

    for (uint32_t i = 0; i < r->submit.n_stops; i++)
        s[i] = (struct stop_string){r->submit.stops[i].data, r->submit.stops[i].len};
    /* The worker searches stop strings in the text without control tokens. If the request shows
     * control tokens, it would find others: then they are searched here alone. */
    if (r->answer.keep_special)
        g->m.n_stops = 0;
    if (!r->submit.n_stops)
        return 0;
    return stops_new(&g->stops, s, r->submit.n_stops);
}

/* Sets the prompt; reserve() makes room for the output. */
static int gen_set_prompt(struct gen *g, struct tokens *prompt, bool take) {
    size_t size = prompt->n * sizeof(*prompt->id);

    g->tokens = take ? prompt->id : malloc(size);
    if (!g->tokens)
        return -ENOMEM;
    g->n_prompt = g->m.n_prompt = (uint32_t)prompt->n;
    if (take)
        *prompt = (struct tokens){0};
    else
        memcpy(g->tokens, prompt->id, size);
    return 0;
}

int gen_new(struct gen **out, struct model *m, const struct gen_request *r, struct tokens *prompt,
            bool take, uint32_t max_new, uint16_t choice) {
    assert(prompt->n > 0 && prompt->n < UINT32_MAX && max_new > 0);
    struct gen_env *env = m->env;
    struct gen *g = calloc(1, sizeof(*g));

    if (!g)
        return -ENOMEM;
    g->env = env;
    g->model = m;
    list_init(&g->link);
    list_init(&g->bucket);
    list_init(&g->failed);
    buf_init(&g->text, TEXT_MAX);
    g->keep_special = r->answer.keep_special;
    g->include_stop = r->answer.include_stop;
    g->score_only = r->input.score_only;
    g->m = r->submit;
    if (gen_set_prompt(g, prompt, take) < 0 || set_stops(g, r) < 0) {
        gen_free(g);
        return -ENOMEM;
    }
    g->m.id = env->gens.next_id++;
    pending_item_init(&g->pending, g->m.id);
    g->m.max_new = max_new;
    g->m.min_new = (uint32_t)MIN(r->submit.sampling.min_tokens, max_new);
    g->m.choice = choice;
    g->m.n_top = (uint8_t)r->answer.n_top;
    g->m.n_prompt_top = (uint8_t)r->answer.n_prompt_top;
    g->m.flags = (uint16_t)((r->answer.logprobs ? SUBMIT_LOGPROBS : 0) |
                            (r->answer.digests ? SUBMIT_DIGESTS : 0) |
                            (r->input.no_speculation ? SUBMIT_NO_SPECULATION : 0) | r->input.pool);
    if (r->submit.grammar.len &&
        (r->input.complete == COMPLETE_UNSET ? env->opts.complete_output
                                             : r->input.complete == COMPLETE_ON))
        g->m.flags |= SUBMIT_COMPLETE;
    if (r->answer.prompt_logprobs || (r->answer.echo && r->answer.logprobs))
        g->m.flags |= SUBMIT_PROMPT_LOGPROBS;
    /* best_of compares the choices by their log probabilities */
    if (gen_request_made(r) > r->input.n)
        g->m.flags |= SUBMIT_LOGPROBS;
    list_push_back(&env->gens.list, &g->link);
    list_push_back(gen_bucket(env, g->m.id), &g->bucket);
    env->gens.n_changes++;
    *out = g;
    return 0;
}

void gen_set_pictures(struct gen *g, const struct prompt *p) {
    assert(g->state == GEN_WAITING && p->n_pictures <= SUBMIT_PICTURES_MAX);
    g->m.n_pictures = p->n_pictures;
    g->m.pictures = p->pictures;
    g->seen = p->seen;
}

void gen_set_tenant(struct gen *g, const struct tenant *t) {
    g->env->gens.n_changes++;
    g->m.tenant = t->number;
    g->m.tenant_name = (struct str){t->conf.name, (uint32_t)strlen(t->conf.name)};
    g->m.weight_milli = (uint32_t)(t->conf.weight * 1000);
    g->m.class = (uint8_t)t->conf.class;
}

/* Returns how many tokens are searched for a loop. The first that says something decides: the
 * request, the tenant's row, the model's option. */
static uint32_t loop_tokens(const struct gen *g, const struct tenant *t,
                            const struct gen_request *r) {
    const struct api_model *m = g->model->info;

    if (r->input.sets_loops)
        return r->input.loop_tokens;
    if (t->conf.loop_tokens)
        return t->conf.loop_tokens;
    /* An output that has a form must come to its end. */
    bool is_free = r->input.is_chat && r->submit.grammar.len == 0 && !r->submit.sampling.ignore_eos;
    if (m->loops_of_chats && !is_free)
        return 0;
    return m->loop_tokens;
}

void gen_belongs(struct gen *g, struct exchange *const *exchange, const struct gen_request *r) {
    assert(g->state == GEN_WAITING && !g->exchange && *exchange);
    struct exchange *x = *exchange;
    const struct gen_env *env = g->env;
    const struct tenant *t = tenants_get(&env->tenants, x->tenant);
    struct session_names names = {r->input.cache_key, r->input.safety_id, r->input.user,
                                  r->input.metadata_user, r->made.conversation};
    struct session_key s = x->session ? (struct session_key){x->session, x->session_from}
                                      : session_of_body(env->secret, x->tenant, &names);
    char name[AUTH_ISOLATION_NAME];

    snprintf(x->model, sizeof(x->model), "%s", g->model->info->id);
    g->exchange = exchange;
    g->key = x->key;
    g->session_from = s.from;
    g->m.session = s.id;
    gen_set_tenant(g, t);
    g->loop_tokens = loop_tokens(g, t, r);
    g->m.arrived_ns = x->started_ns;
    if (env->opts.request_timeout_ms)
        g->m.deadline_ns = x->started_ns + (int64_t)env->opts.request_timeout_ms * 1000000;
    tenant_isolation_name(t, name);
    auth_isolation_key(env->share_secret, name, r->input.cache_salt.data, r->input.cache_salt.len,
                       g->m.isolation_key);
    if (env->opts.on_salt && r->input.cache_salt.len > 0)
        env->opts.on_salt(env->opts.salt_ctx, g->m.isolation_key, r->input.cache_salt);
}

int gen_parse_output(struct gen *g, const struct toolcall_opts *opts) {
    assert(g->state == GEN_WAITING && !g->output);
    g->m.n_stops = 0; /* stop strings are searched here, not by the worker */
    return output_parser_new(&g->output, opts, TEXT_MAX);
}

/* Returns the prompt tokens to be charged: the prompt of n choices counts once. */
static uint32_t charged_prompt(const struct gen *g) {
    if (g->m.choice == 0)
        return g->n_prompt;
    return 0;
}

void gen_charge(struct gen *g, struct tenant *t, uint32_t n_output) {
    assert(g->state == GEN_WAITING);
    charge_acquire(&g->charge, t, (uint64_t)charged_prompt(g) + n_output,
                   (uint64_t)g->n_prompt + n_output, clock_now(g->env->clock));
}

/* Returns true if @g ended as a turn of its session does: the worker hears of it. */
static bool ended_turn(const struct gen *g) {
    bool ended = g->finish == FINISH_STOP || g->finish == FINISH_LENGTH;

    return ended && g->m.session && !g->vector;
}

static struct tenant *gen_tenant(const struct gen *g) {
    return tenants_get(&g->env->tenants, g->m.tenant);
}

/* Forgets that a part of @g's submit was sent, and lets the worker drop it. */
static void gen_cancel_parts(struct gen *g) {
    if (g->sent == 0)
        return;
    assert(g->model->half == g);
    g->sent = 0;
    g->model->half = NULL;
    if (g->model->worker_up)
        g->model->port->cancel(g->model->port, g->m.id);
}

static void gen_release(struct gen *g) {
    struct tenant *t = gen_tenant(g);
    enum gen_state was = g->state;

    if (is_at_worker(g) && g->model->worker_up && !ended_turn(g))
        g->model->port->cancel(g->model->port, g->m.id);
    gen_cancel_parts(g);
    pending_withdraw(&g->pending);
    list_remove(&g->failed);
    if (g->need_picture) /* otherwise another request may still use the pixels */
        picture_sender_forget(&g->env->sender, g->model, g->m.id);
    if (was != GEN_DONE)
        set_state(g, GEN_DONE);
    uint32_t n_cached = g->m.choice == 0 ? g->n_cached : 0;
    if (g->accepted && g->charge.tenant) {
        const struct usage_sum sum = {0, charged_prompt(g), n_cached, g->n_out};

        bill_tokens(g->model, g->charge.tenant, g->exchange ? &g->key : NULL, &sum);
        charge_settle(&g->charge, charged_prompt(g), n_cached, g->n_out, clock_now(g->env->clock));
    }
    charge_deinit(&g->charge, clock_now(g->env->clock));
    if (was != GEN_WAITING && was != GEN_DONE) {
        assert(g->model->n_running > 0);
        g->model->n_running--;
        g->model->last_used_ns = clock_now(g->env->clock);
        admit_release(&g->env->admit, t, 1);
    }
}

struct gen *gen_free(struct gen *g) {
    if (!g)
        return NULL;
    gen_release(g);
    assert(g->state == GEN_DONE && !g->charge.tenant); /* the charge has been given back */
    list_remove(&g->link);
    list_remove(&g->bucket);
    if (g->stops)
        stops_free(g->stops);
    output_parser_free(g->output);
    buf_deinit(&g->text);
    free(g->tokens);
    free(g->logprobs);
    free(g->top);
    free(g->digests);
    free(g->prompt_lp);
    free(g->prompt_top);
    free(g->vector);
    free(g->text_end);
    free(g->content_end);
    free(g);
    return NULL;
}

/* ---- ends ---- */

/* Tells the worker how the turn ended: it has kept the pages for the session's next turn, and
 * cannot know itself when to expect that. If the end was found here (a stop string, repetition),
 * this also ends its request. */
static void notify_turn_end(const struct gen *g) {
    bool calls = g->output && g->finish == FINISH_STOP && output_parser_has_call(g->output);
    struct turn_end m = {.id = g->m.id, .session = g->m.session, .calls = calls};

    if (ended_turn(g) && g->model->worker_up)
        g->model->port->turn_end(g->model->port, &m);
}

/* Ends the generation, once: frees its place and tells the owner, after which @g may be gone. */
static void gen_end(struct gen *g, enum finish_reason why) {
    if (g->state == GEN_DONE)
        return;
    assert(why != FINISH_NONE && (why != FINISH_ERROR || g->err.status >= 400));
    g->finish = why;
    g->done_ns = clock_now(g->env->clock);
    gen_ids_end(&g->env->ids, g->m.id, g->done_ns);
    g->ready = g->stopped ? g->ready : g->text.len;
    bool cut = why != FINISH_STOP || g->stopped;

    if (g->output && why != FINISH_ERROR &&
        (gen_feed_output(g) < 0 || output_parser_finish(g->output, cut) < 0)) {
        err_set_code(&g->err, 503, "out_of_memory", NULL, "Out of memory.");
        g->finish = FINISH_ERROR;
    }
    gen_release(g);
    notify_turn_end(g);
    g->changed(g);
}

void gen_fail(struct gen *g, int status, const char *code, const char *message) {
    err_set_code(&g->err, status, code, NULL, "%s", message);
    gen_end(g, FINISH_ERROR);
}

/* ---- what the worker says ---- */

static void count_prompt(struct gen *g, uint32_t n, uint32_t n_cached) {
    g->env->stats.n_prompt_tokens += n;
    g->model->n_prompt_tokens += n;
    g->env->stats.n_cached_tokens += n_cached;
    g->model->n_cached_tokens += n_cached;
}

static void note_token_times(struct gen *g, uint32_t n_new) {
    int64_t now = clock_now(g->env->clock);

    if (!n_new)
        return;
    if (g->first_token_ns) {
        metrics_between_tokens(&g->model->metrics, now - g->last_token_ns, n_new);
    } else {
        g->first_token_ns = now;
        struct metrics_gen seen = gen_metrics(g);
        metrics_first_token(&g->model->metrics, &seen);
        count_prompt(g, g->m.choice == 0 ? g->n_prompt : 0, g->m.choice == 0 ? g->n_cached : 0);
    }
    g->last_token_ns = now;
    g->env->stats.n_output_tokens += n_new;
    g->model->n_output_tokens += n_new;
    g->model->n_tokens_max = MAX(g->model->n_tokens_max, g->n_prompt + g->n_out);
}

static void note_counts(struct gen *g, const struct event *e) {
    const struct gen_drafts *b = &g->drafts_before;

    g->drafts = (struct gen_drafts){b->n + e->n_drafted, b->accepted + e->n_accepted,
                                    b->n_predicted + e->n_predicted,
                                    b->predicted_accepted + e->n_predicted_accepted};
    if (e->first_step_ns && !g->first_step_ns)
        g->first_step_ns = e->first_step_ns;
    if (!g->prompt_end_ns)
        g->prompt_end_ns = e->prompt_end_ns;
    g->computed_ns = MAX(g->computed_ns, e->computed_ns);
    /* The client is not told of the cache in which a resumed prompt is found. */
    if (g->n_attempts <= 1)
        g->n_cached = MIN(MAX(g->n_cached, e->n_cached), g->n_prompt);
}

/* Copies as much of @s as fits. */
static void gen_copy(char *out, size_t size, struct str s) {
    snprintf(out, size, "%.*s", (int)MIN(s.len, size - 1), text_or(s.data, ""));
}

static void gen_refuse(struct gen *g, const struct event *e) {
    int status = e->status >= 400 && e->status < 600 ? e->status : 500;
    char text[300], code[sizeof(g->err.code)], param[sizeof(g->err.param)];

    g->retry_ms = e->retry_ms;
    gen_copy(text, sizeof(text), e->text);
    gen_copy(code, sizeof(code), e->code);
    gen_copy(param, sizeof(param), e->param);
    err_set_code(
        &g->err, status, status == 500 || (status > 500 && !*code) ? "engine_error" : code, param,
        "%s", text_filled_or(text, "The inference worker refused the request without a reason."));
    gen_end(g, FINISH_ERROR);
}

/* Takes the values of the prompt, which arrive once. */
static int copy_prompt_values(struct gen *g, const struct event *e) {
    size_t n = e->n_prompt_lp, n_top = g->m.n_prompt_top;

    if (n == 0 || g->prompt_lp)
        return 0;
    if (!(g->m.flags & SUBMIT_PROMPT_LOGPROBS) || n != g->n_prompt - 1 ||
        e->n_prompt_top != n_top || (n_top && !e->prompt_top))
        return -EPROTO;
    g->prompt_lp = malloc(n * sizeof(*g->prompt_lp));
    g->prompt_top = malloc((n * n_top + 1) * sizeof(*g->prompt_top));
    if (!g->prompt_lp || !g->prompt_top)
        return -ENOMEM;
    memcpy(g->prompt_lp, e->prompt_lp, n * sizeof(*g->prompt_lp));
    if (n_top)
        memcpy(g->prompt_top, e->prompt_top, n * n_top * sizeof(*g->prompt_top));
    return 0;
}

/* A result has a vector if and only if the request asked for one. */
static int copy_vector(struct gen *g, const struct event *e) {
    bool wanted = g->m.flags & SUBMIT_POOLS && e->kind == EVENT_FINISH && e->finish == FINISH_STOP;

    if (wanted != (e->n_vector > 0) || (wanted && g->n_out > 0))
        return -EPROTO;
    if (!wanted)
        return 0;
    assert(!g->vector); /* a generation has one FINISH */
    g->vector = malloc(e->n_vector * sizeof(*g->vector));
    if (!g->vector)
        return -ENOMEM;
    memcpy(g->vector, e->vector, e->n_vector * sizeof(*g->vector));
    g->n_vector = e->n_vector;
    count_prompt(g, g->n_prompt, 0);
    return 0;
}

static void on_finish(struct gen *g, const struct event *e) {
    switch ((enum finish_reason)e->finish) {
    case FINISH_STOP:
    case FINISH_LENGTH:
        gen_end(g, g->stopped ? FINISH_STOP : (enum finish_reason)e->finish);
        break;
    case FINISH_DEADLINE:
        gen_fail(g, 504, "request_timeout", GEN_TOO_LATE);
        break;
    case FINISH_CANCELLED:
        gen_fail(g, 503, "cancelled", "The server has cancelled the request. Send it again.");
        break;
    case FINISH_NONE:
    case FINISH_ERROR:
        gen_refuse(g, e);
        break;
    }
}

static void gen_offer(struct gen *g);

/* Ends the reasoning of a generation at the worker: its request there is cancelled, unless it has
 * ended already (@ended), and one that begins behind the marker is submitted in its place. */
static void force_end_reasoning(struct gen *g, bool ended) {
    struct gen_env *env = g->env;

    assert(is_at_worker(g) && list_empty(&g->failed));
    if (!ended && g->model->worker_up)
        g->model->port->cancel(g->model->port, g->m.id);
    list_remove(&g->bucket);
    g->m.id = env->gens.next_id++;
    list_push_back(gen_bucket(env, g->m.id), &g->bucket);
    set_state(g, GEN_PENDING);
    if (gen_end_reasoning(g) < 0) {
        gen_fail(g, 503, "out_of_memory", "Out of memory.");
        return;
    }
    g->n_turns++;
    gen_offer(g);
    g->changed(g);
}

/* Takes the output of @e: values of the prompt, tokens, a vector. */
static int handle_output(struct gen *g, const struct event *e) {
    TRY(copy_prompt_values(g, e));
    TRY(gen_add_tokens(g, e));
    return copy_vector(g, e);
}

void gen_on_event(struct model *m, const struct event *e) {
    struct gen *g = gen_find(m->env, e->id);

    if (!g || g->model != m || !is_at_worker(g))
        return; /* the generation has ended here already */
    uint32_t was = g->n_out;
    note_counts(g, e);
    int r = handle_output(g, e);
    note_token_times(g, g->n_out - was);
    if (r < 0) {
        gen_fail(g, r == -ENOMEM ? 503 : 500, r == -ENOMEM ? "out_of_memory" : "engine_error",
                 r == -ENOMEM
                     ? "Out of memory."
                     : "The inference worker returned an invalid result. Send the request again.");
        return;
    }
    if (e->kind == EVENT_REJECTED) {
        set_state(g, GEN_PENDING); /* the worker has forgotten it: nothing is to be cancelled */
        gen_refuse(g, e);
        return;
    }
    if (g->state == GEN_SENT)
        set_state(g, GEN_RUNNING);
    g->accepted = true;
    bool finished = e->kind == EVENT_FINISH;
    bool made = !finished || e->finish == FINISH_STOP || e->finish == FINISH_LENGTH;
    m->env->stats.n_loops += g->repeats && made;
    if (gen_closes_reasoning(g) && made) {
        force_end_reasoning(g, finished);
    } else if (g->repeats && made) {
        if (finished)
            set_state(g, GEN_PENDING); /* the worker is done: nothing is to be cancelled */
        gen_end(g, FINISH_LENGTH);
    } else if (finished) {
        set_state(g, GEN_PENDING); /* the worker is done: nothing is to be cancelled */
        on_finish(g, e);
    } else if (g->stopped) {
        gen_end(g, FINISH_STOP); /* the worker finds the same and reports it in the next event */
    } else {
        g->changed(g);
    }
}

/* ---- the worker comes and goes ---- */

/* Returns true if the last token ended the generation and only the worker's FINISH is missing. */
static bool is_stopped(const struct gen *g) {
    return g->n_out > 0 && gen_is_end(g, g->tokens[g->n_prompt + g->n_out - 1]);
}

static bool gen_is_complete(const struct gen *g) {
    return g->n_out >= g->m.max_new || is_stopped(g);
}

/* Lets end_failed() end @g. */
static void gen_set_failed(struct gen *g) {
    pending_withdraw(&g->pending);
    if (list_empty(&g->failed))
        list_push_back(&g->env->gens.failed, &g->failed);
    admit_tick_later(&g->env->admit);
}

/* Fails a generation without a worker, because none will come. A complete output stays complete. */
static void fail_without_worker(struct gen *g) {
    if (!gen_is_complete(g))
        model_unavailable(g->model, NULL, &g->err);
    g->retry_ms = g->model->failure_retry_ms;
    gen_set_failed(g);
}

/* Charges the tenant for @bytes of a submit, which take their time on the way to the worker whether
 * its client stays or not. */
static void charge_submit(const struct gen *g, size_t bytes) {
    struct tenant *t = gen_tenant(g);
    double begins = pending_begins(&t->submits, g->env->gens.submitted);

    g->env->gens.submitted = begins;
    t->submits.virtual_bytes = begins + (SUBMIT_BYTES + bytes) / tenant_weight(t);
}

/* Sends what is next of the submit of @g. Returns as api_port.submit. */
static int gen_send(struct gen *g) {
    struct model *m = g->model;
    uint32_t before = g->sent;

    g->m.tokens = g->tokens;
    g->m.n_tokens = g->n_prompt + g->n_out;
    int r = m->port->submit(m->port, &g->m, &g->sent);
    if (r == 1) {
        m->half = g;
        charge_submit(g, g->sent - before);
    } else if (r == 0) {
        m->half = before > 0 ? NULL : m->half;
        g->sent = 0;
        charge_submit(g, before > 0 ? 0 : g->m.n_tokens * sizeof(*g->tokens));
    }
    if (r >= 0)
        pending_withdraw(&g->pending);
    return r;
}

static void gen_submit(struct gen *g) {
    struct gen_env *env = g->env;
    struct model *m = g->model;

    assert(g->state == GEN_PENDING);
    if (!m->worker_up && *m->failure)
        fail_without_worker(g);
    if (!m->worker_up && model_on_demand(m) && m->state == API_MODEL_ABSENT)
        m->port->want(m->port); /* the model was unloaded while the prompt was prepared */
    if (!m->worker_up)
        return;
    int r = gen_send(g);
    if (r == 1)
        return;
    if (r == 0) {
        g->n_attempts++;
        g->drafts_before = g->drafts;
        set_state(g, GEN_SENT);
    } else if (r == -EAGAIN) {
        m->crowded = true;
        admit_tick_later(&env->admit);
    } else {
        if (r == -ENOMEM && !gen_is_complete(g))
            err_set_code(&g->err, 503, "out_of_memory", NULL, "Out of memory.");
        gen_set_failed(g);
    }
}

/* Returns the connection whose end ends @g, or NULL. */
static const struct conn *conn_of(const struct gen *g) {
    const struct exchange *x = g->exchange ? *g->exchange : NULL;

    if (!x)
        return NULL;
    return x->conn;
}

/* Lets @g, which is PENDING, wait in the queue of its size. */
static void gen_queue(struct gen *g) {
    struct model *m = g->model;

    g->left = false;
    g->m.tokens = g->tokens;
    g->m.n_tokens = g->n_prompt + g->n_out;
    bool is_large = msg_submit_len(&g->m) > msg_submit_whole;
    pending_add(is_large ? &m->large : &m->whole, &g->pending, &gen_tenant(g)->submits);
}

/* Returns the next large generation of @m. While one is half sent, the others wait. */
static struct pending_item *next_large(const struct model *m, double now) {
    if (!m->half)
        return pending_next(&m->large, now);
    if (m->half->left || !list_empty(&m->half->failed))
        return NULL;
    return &m->half->pending;
}

/* Returns the pending generation of @m that is submitted next. NULL: none waits. */
static struct gen *next_pending(const struct model *m) {
    double now = m->env->gens.submitted;
    struct pending_item *whole = pending_next(&m->whole, now);
    struct pending_item *large = next_large(m, now);

    if (!whole && !large)
        return NULL;
    if (!whole || (large && pending_before(large, whole, now)))
        return CONTAINER_OF(large, struct gen, pending);
    return CONTAINER_OF(whole, struct gen, pending);
}

/* Submits pending generations while there is room. A new one does not overtake those that wait, and
 * those of a tenant that submits much wait behind the others'. One whose client has left is not
 * worth a step of the worker: the turn in which its connection reads that ends it. */
static void submit_pending(struct model *m) {
    struct gen *g;

    while (m->worker_up && !m->crowded && (g = next_pending(m))) {
        const struct conn *c = conn_of(g);

        g->left = c && conn_has_left(c);
        if (g->left) {
            pending_withdraw(&g->pending);
            admit_tick_later(&m->env->admit);
        } else {
            gen_submit(g);
        }
    }
}

/* Submits @g, which is PENDING, when it is its turn. */
static void gen_offer(struct gen *g) {
    gen_queue(g);
    if (g->model->worker_up)
        submit_pending(g->model);
    else
        gen_submit(g);
}

void gen_room(struct model *m) {
    m->crowded = false;
    submit_pending(m);
}

void gen_start(struct gen *g) {
    assert(g->changed && g->n_attempts == 0);
    set_state(g, GEN_PENDING);
    gen_ids_start(&g->env->ids, g->m.id, clock_now(g->env->clock));
    g->model->n_running++;
    charge_run(&g->charge);
    if (gen_closes_reasoning(g) && gen_end_reasoning(g) < 0) {
        gen_set_failed(g);
        return;
    }
    gen_offer(g);
}

bool gen_any_pending(const struct gen_env *env) {
    LIST_FOREACH_ENTRY(g, &env->gens.list, const struct gen, link) {
        if (g->state == GEN_PENDING)
            return true;
    }
    return false;
}

static void end_one_failed(struct gen *g) {
    if (!g->err.status && gen_is_complete(g))
        gen_end(g, is_stopped(g) ? FINISH_STOP : FINISH_LENGTH);
    else if (!g->err.status)
        gen_fail(g, 500, "internal_error",
                 "The request could not be sent to the inference worker. Send it again.");
    else
        gen_end(g, FINISH_ERROR);
}

/* Ends failed generations for a while; the timer of admit.h continues. Each end may free any other
 * generation and make further ones fail. */
static void end_failed(struct gen_env *env) {
    int64_t began = clock_now(env->clock);
    struct list *node;

    while (clock_now(env->clock) - began < ENDS_NS && (node = list_pop_front(&env->gens.failed)))
        end_one_failed(LIST_ENTRY(node, struct gen, failed));
    if (!list_empty(&env->gens.failed))
        admit_tick_later(&env->admit);
}

/* Does for @g, which is PENDING, what no event does. */
static void gen_tick(struct gen *g, int64_t now) {
    if (g->m.deadline_ns && now > g->m.deadline_ns) {
        err_set_code(&g->err, 504, "request_timeout", NULL, GEN_TOO_LATE);
        gen_set_failed(g);
    } else if (!g->model->worker_up) {
        gen_submit(g);
    }
}

void gen_retry(struct gen_env *env) {
    int64_t now = clock_now(env->clock);

    LIST_FOREACH_ENTRY(g, &env->gens.list, struct gen, link) {
        if (g->state == GEN_PENDING && list_empty(&g->failed))
            gen_tick(g, now);
    }
    LIST_FOREACH_ENTRY(m, &env->models.list, struct model, link) {
        gen_room(m);
    }
    end_failed(env);
}

void gen_worker_down(struct model *m) {
    LIST_FOREACH_ENTRY(g, &m->env->gens.list, struct gen, link) {
        if (g->model == m && is_at_worker(g))
            set_state(g, GEN_PENDING);
        else if (g->model == m)
            gen_cancel_parts(g);
        if (g->model != m || g->state != GEN_PENDING || !list_empty(&g->failed))
            continue;
        pending_withdraw(&g->pending); /* all wait anew, the oldest first */
        gen_queue(g);
    }
    picture_sender_forget(&m->env->sender, m, 0);
    admit_tick_later(&m->env->admit);
}

void gen_worker_failed(struct model *m) {
    LIST_FOREACH_ENTRY(g, &m->env->gens.list, struct gen, link) {
        if (g->model == m && g->state == GEN_PENDING)
            fail_without_worker(g);
    }
    end_failed(m->env);
}

void gen_worker_up(struct model *m, uint32_t (*n_faults)(struct api_port *p, uint64_t id)) {
    struct gen_env *env = m->env;

    LIST_FOREACH_ENTRY(g, &env->gens.list, struct gen, link) {
        if (g->model != m || g->state != GEN_PENDING)
            continue;
        uint32_t faults = g->n_faults + (n_faults ? n_faults(m->port, g->m.id) : 0);
        g->m.n_faults = (uint16_t)MIN(faults, 1000u);
        if (g->m.n_faults >= FAULTS_MAX) {
            err_set_code(&g->err, 500, "engine_fault", NULL,
                         "The inference worker failed each time it ran this request. Do not send "
                         "it again unchanged.");
            gen_set_failed(g);
            continue;
        }
        if (g->n_attempts)
            env->stats.n_resumed++;
        if (gen_is_complete(g))
            gen_set_failed(g);
    }
    gen_room(m);
    end_failed(env);
}

/* ---- figures that are reported beside the text ---- */

#define STORY_MAX 256u /* decisions of the scheduler about a request that are read */

/* Returns the finish reason. Complete tool calls are a reason of their own, but not in an output
 * that was cut off. */
const char *gen_finish_name(const struct gen *g) {
    if (g->output && g->finish == FINISH_STOP && output_parser_has_call(g->output))
        return "tool_calls";
    if (g->finish == FINISH_LENGTH && g->repeats)
        return "repetition";
    if (g->score_only || g->finish == FINISH_LENGTH)
        return "length";
    return "stop";
}

static enum metrics_outcome figures_outcome(const struct gen *g) {
    if (g->finish != FINISH_STOP && g->finish != FINISH_LENGTH)
        return METRICS_ABORT;
    if (g->repeats)
        return METRICS_REPETITION;
    if (g->finish == FINISH_LENGTH)
        return METRICS_LENGTH;
    if (*gen_finish_name(g) == 't')
        return METRICS_TOOL_CALLS;
    return METRICS_STOP;
}

struct metrics_gen gen_metrics(const struct gen *g) {
    struct metrics_gen m = {
        .arrived_ns = g->m.arrived_ns,
        .first_step_ns = g->first_step_ns,
        .first_token_ns = g->first_token_ns,
        .last_token_ns = g->last_token_ns,
        .done_ns = g->done_ns,
        .n_prompt = g->n_prompt,
        .n_output = g->n_out,
        .max_new = g->m.max_new,
        .outcome = figures_outcome(g),
        .embeds = g->vector != NULL,
    };

    return m;
}

uint32_t gen_prompt_done(const struct gen *g) {
    struct flight_record r[STORY_MAX];
    const struct api_port *p = g->model->port;
    uint64_t done = 0;

    if (g->n_out > 0)
        return g->n_prompt;
    uint32_t n = p->story ? p->story(g->model->port, g->m.id, r, STORY_MAX) : 0;
    for (uint32_t i = 0; i < n; i++)
        if (r[i].why == WHY_ADMITTED)
            done = r[i].detail;
        else if (r[i].why == WHY_PREEMPTED)
            done = 0;
        else if (r[i].why == WHY_PROMPT)
            done += r[i].n_rows;
    return (uint32_t)MIN(done, g->n_prompt);
}
