#include "tests/support/sched_sim.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/buf.h"
#include "scheduler/draft/draft.h"
#include "tests/support/gguf_writer.h"

#define NEED(s, c, cond)                                                                           \
    do {                                                                                           \
        if (!(cond))                                                                               \
            fail(s, c, #cond, __LINE__);                                                           \
    } while (0)

static _Noreturn void fail(const struct sim *s, const struct sim_client *c, const char *what,
                           int line) {
    fprintf(stderr, "sched_sim:%d: must be: %s\n", line, what);
    if (s)
        fprintf(stderr,
                "  step %llu, depth %u, %u pages of %u, %u rows, %u sequences, chunk %u, "
                "running %u, waiting %u\n",
                (unsigned long long)s->n_steps, s->opts.sched.depth, s->opts.n_pages,
                s->opts.page_tokens, s->opts.sched.max_rows, s->opts.sched.max_seqs,
                s->opts.sched.force_chunk, s->stats.n_running, s->stats.n_waiting);
    if (c)
        fprintf(stderr, "  request %llu: prompt %u, got %u of %u, ends %u, finish %d (%d due)\n",
                (unsigned long long)c->m.id, c->m.n_prompt, c->n_got, c->n_expect, c->n_ends,
                c->finish, c->expect);
    abort();
}

/* ---- the vocabulary ---- */

/* One to three letters of a small alphabet, so that stop strings are met, also across tokens. */
const char *sim_piece(int32_t token) {
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    static char piece[SIM_VOCAB][4];

    if (token < 3)
        return special[token];
    char *p = piece[token];
    int n = token < 7 ? 1 : token < 23 ? 2 : 3;
    int32_t k = token < 7 ? token - 3 : token < 23 ? token - 7 : token - 23;
    for (int i = 0; i < n; i++, k /= 4)
        p[i] = (char)('a' + k % 4);
    return p;
}

static struct tokenizer *make_tokenizer(void) {
    const char *text[SIM_VOCAB];
    float score[SIM_VOCAB] = {0};
    int32_t type[SIM_VOCAB];
    char path[] = "/tmp/sched_sim_XXXXXX";
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct gguf_writer w;
    struct err err = {0};
    int fd = mkstemp(path);

    for (int32_t i = 0; i < SIM_VOCAB; i++) {
        text[i] = sim_piece(i);
        type[i] = i == 0 ? 2 : i < 3 ? 3 : 1; /* unknown, control, normal */
    }
    gw_init(&w);
    gw_string(&w, "general.architecture", "llama");
    gw_string(&w, "tokenizer.ggml.model", "llama");
    gw_strings(&w, "tokenizer.ggml.tokens", SIM_VOCAB, text);
    gw_array(&w, "tokenizer.ggml.scores", GGUF_F32, SIM_VOCAB, score, sizeof(score));
    gw_array(&w, "tokenizer.ggml.token_type", GGUF_I32, SIM_VOCAB, type, sizeof(type));
    gw_u32(&w, "tokenizer.ggml.bos_token_id", 1);
    gw_u32(&w, "tokenizer.ggml.eos_token_id", SIM_END);
    gw_save(&w, path);
    gw_deinit(&w);
    if (fd < 0 || gguf_open(&g, path, &err) < 0 || tokenizer_new(&t, g, &err) < 0) {
        fprintf(stderr, "sched_sim: %s\n", err.message);
        abort();
    }
    close(fd);
    unlink(path);
    return t;
}

/* ---- drafts ---- */

/* The simulation that is stepped: a source of drafts is told the tokens of a sequence only. */
static _Thread_local const struct sim *stepped;

/* A client whose prompt and first outputs these are and that gets @more tokens, or NULL. */
static const struct sim_client *client_of(const struct draft_text *t, uint32_t more) {
    for (uint32_t i = 0; i < stepped->n_clients; i++) {
        const struct sim_client *c = &stepped->client[i];

        if (c->submitted && c->m.n_prompt == t->n_prompt &&
            t->n_tokens + more <= c->m.n_prompt + c->m.max_new &&
            memcmp(c->tokens, t->tokens, t->n_tokens * sizeof(*t->tokens)) == 0)
            return c;
    }
    return NULL;
}

static bool draft_is_right(enum sim_drafts kind, struct rng *r, uint32_t n_out) {
    switch (kind) {
    case SIM_DRAFTS_RIGHT:
        return true;
    case SIM_DRAFTS_FLAPPING:
        return n_out / 8 % 2;
    case SIM_DRAFTS_PARTLY:
        return rng_below(r, 4) > 0;
    default:
        return false;
    }
}

static int begin_draft(void **state, void *common, const struct draft_text *t) {
    *state = malloc(sizeof(struct rng));
    NEED(stepped, NULL, *state && !common);
    *(struct rng *)*state = (struct rng){t->n_prompt};
    return 0;
}

static uint32_t propose_draft(void *state, const struct draft_text *t, int32_t *out, uint32_t max,
                              uint32_t *strength) {
    const struct sim_client *c = client_of(t, max);
    uint32_t n_out = t->n_tokens - t->n_prompt, n;
    struct rng *r = state;

    NEED(stepped, c, max > 0);
    if (!c)
        return 0;
    n = stepped->opts.drafts == SIM_DRAFTS_RIGHT ? max : rng_below(r, max + 1);
    for (uint32_t i = 0; i < n; i++) {
        int32_t right = c->tokens[t->n_tokens + i];

        out[i] = draft_is_right(stepped->opts.drafts, r, n_out)
                     ? right
                     : (right + 1 + (int32_t)rng_below(r, SIM_VOCAB - 1)) % SIM_VOCAB;
    }
    *strength = rng_below(r, 40);
    return n;
}

static const struct draft_source sim_source = {
    .name = "sim",
    .prior = 0.5F,
    .begin = begin_draft,
    .end = free,
    .propose = propose_draft,
};

static const struct draft_source *const sim_table[] = {&sim_source, NULL};

/* ---- life ---- */

/* Who must be alone is under way with nobody else. */
static void check_suspects(const struct sim *s) {
    for (uint32_t i = 0; i < s->suspects.n; i++) {
        const struct sim_client *c = &s->client[s->suspects.ids[i] - 1];

        if (c->m.n_faults >= 2)
            for (uint32_t k = 0; k < s->suspects.n; k++)
                NEED(s, c, s->suspects.ids[k] == c->m.id);
    }
}

static int64_t watch(struct clock *c) {
    struct sim *s = CONTAINER_OF(c, struct sim, watch);

    check_suspects(s);
    return clock_now(&s->clock.clock);
}

static void new_worker(struct sim *s) {
    const struct sim_opts *o = &s->opts;
    struct telltale t = {
        .n_vocab = SIM_VOCAB,
        .depth = 2,
        .first = 3,
        .last = SIM_VOCAB - 1,
        .end = SIM_END,
        .end_per_1024 = o->end_per_1024,
        .strict = true,
        .poison = 99,
        .clock = &s->clock,
        .step_ns = o->step_ns,
        .row_ns = o->row_ns,
        .key_ns = (double)o->key_ns,
    };
    struct engine_opts e = {
        .n_pages = o->n_pages,
        .page_tokens = o->page_tokens,
        .max_context = o->max_context,
        .max_rows = o->sched.max_rows,
        .max_seqs = o->sched.max_seqs,
        .max_wants = o->sched.max_rows,
        .digest = true,
    };
    struct err err = {0};

    if (s->n_restarts == 0) {
        t.fail_launch = o->fail_launch;
        t.fail_wait = o->fail_wait;
    }
    telltale_set(&t);
    NEED(s, NULL, engine_new(&s->engine, &e, &err) == 0);
    NEED(s, NULL, sched_new(&s->sched, &o->sched, s->engine, &s->watch) == 0);
}

static void set_default(uint32_t *v, uint32_t value) {
    *v = *v ? *v : value;
}

void sim_init(struct sim *s, const struct sim_opts *opts) {
    *s = (struct sim){.opts = *opts};
    struct sim_opts *o = &s->opts;

    set_default(&o->sched.max_seqs, 8);
    set_default(&o->sched.max_rows, 64);
    set_default(&o->sched.itl_target_ms, 50);
    set_default(&o->sched.max_step_ms, 200);
    set_default(&o->sched.depth, 1);
    set_default(&o->sched.max_bypass, 4);
    set_default(&o->n_pages, 64);
    set_default(&o->page_tokens, 16);
    set_default(&o->max_context, 4096);
    o->step_ns = o->step_ns ? o->step_ns : 5000000;
    o->row_ns = o->row_ns ? o->row_ns : 100000;
    s->tokenizer = make_tokenizer();
    o->sched.drafts = o->drafts == SIM_DRAFTS_REAL ? NULL : sim_table;
    o->sched.check = true;
    o->sched.tokenizer = s->tokenizer;
    o->sched.suspects = &s->suspects;
    clock_virtual_init(&s->clock, 1000000000);
    s->watch.now_ns = watch;
    buf_init(&s->events, 64u << 20);
    s->client = calloc(SIM_CLIENTS, sizeof(*s->client));
    NEED(s, NULL, s->client);
    new_worker(s);
}

bool sim_all_ended(const struct sim *s) {
    for (uint32_t i = 0; i < s->n_clients; i++)
        if (s->client[i].submitted && s->client[i].n_ends == 0)
            return false;
    return true;
}

void sim_deinit(struct sim *s) {
    if (s->sched && sim_all_ended(s)) {
        sched_stats(s->sched, &s->stats);
        NEED(s, NULL, s->stats.n_used == 0);
        NEED(s, NULL, s->stats.n_free + s->stats.n_cached == s->stats.n_pages);
        NEED(s, NULL, s->stats.n_running + s->stats.n_waiting == 0);
        NEED(s, NULL, s->suspects.n == 0 && s->suspects.started_ns == 0);
    }
    sched_free(s->sched);
    engine_free(s->engine);
    tokenizer_free(s->tokenizer);
    buf_deinit(&s->events);
    free(s->client);
}

/* ---- clients ---- */

struct sim_client *sim_client(struct sim *s, uint32_t n_prompt, uint32_t family, uint32_t n_family,
                              uint32_t max_new) {
    NEED(s, NULL, s->n_clients < SIM_CLIENTS && n_prompt <= SIM_PROMPT_MAX);
    NEED(s, NULL, max_new <= SIM_OUT_MAX);
    struct sim_client *c = &s->client[s->n_clients++];
    struct rng common = {family + 1000}, own = {s->n_clients};

    for (uint32_t i = 0; i < n_prompt; i++)
        c->tokens[i] = 3 + (int32_t)rng_below(i < n_family ? &common : &own, SIM_VOCAB - 3);
    c->m = (struct submit){
        .id = s->n_clients,
        .seed = s->n_clients * 77,
        .arrived_ns = s->clock.ns,
        .n_prompt = n_prompt,
        .max_new = max_new,
        .tokens = c->tokens,
        .flags = SUBMIT_LOGPROBS | SUBMIT_DIGESTS,
    };
    params_init(&c->m.sampling);
    c->m.sampling.temperature = 0;
    return c;
}

static bool ends_with_stop(const struct submit *m, const char *text, size_t len, size_t piece) {
    for (uint32_t i = 0; i < m->n_stops; i++) {
        const struct str *st = &m->stops[i];

        for (size_t end = len - piece + 1; end <= len; end++)
            if (end >= st->len && memcmp(text + end - st->len, st->data, st->len) == 0)
                return true;
    }
    return false;
}

/* Where the request ends, found by looking at the whole text. */
static void cut_expected(const struct sim *s, struct sim_client *c, uint32_t n) {
    static _Thread_local char text[SIM_OUT_MAX * 4];
    const struct submit *m = &c->m;
    uint64_t slots = (uint64_t)s->opts.n_pages * s->opts.page_tokens + 1;
    uint32_t room = (uint32_t)MIN(slots, s->opts.max_context) - m->n_prompt;
    size_t len = 0;

    c->n_expect = MIN(n, room);
    c->expect = FINISH_LENGTH;
    for (uint32_t i = 0; i < c->n_expect; i++) {
        int32_t token = c->tokens[m->n_prompt + i];
        const char *piece = token < 3 ? "" : sim_piece(token);
        bool stop = !m->sampling.ignore_eos && token == SIM_END;

        memcpy(text + len, piece, strlen(piece));
        len += strlen(piece);
        for (uint32_t k = 0; k < m->n_stop_ids; k++)
            stop |= token == m->stop_ids[k];
        if (stop || ends_with_stop(m, text, len, strlen(piece))) {
            c->n_expect = i + 1;
            c->expect = FINISH_STOP;
        }
    }
}

static void expect(const struct sim *s, struct sim_client *c) {
    const struct submit *m = &c->m;
    const struct sampling *p = &m->sampling;
    int32_t bans[64];
    uint32_t n_bans = 0;

    for (uint32_t i = 0; i < m->n_stop_ids; i++)
        bans[n_bans++] = m->stop_ids[i];
    if (!p->ignore_eos)
        bans[n_bans++] = SIM_END;
    struct telltale_ask ask = {
        .prompt = c->tokens,
        .n_prompt = m->n_prompt,
        .n_out = m->max_new,
        .n_ban = m->min_new,
        .ignore_end = true,
        .param = {.temperature = (float)p->temperature,
                  .top_p = (float)p->top_p,
                  .min_p = (float)p->min_p,
                  .repetition = (float)p->repetition_penalty,
                  .presence = (float)p->presence_penalty,
                  .frequency = (float)p->frequency_penalty,
                  .top_k = p->top_k > 0 ? (uint32_t)p->top_k : 0,
                  .seed = m->seed,
                  .choice = m->choice,
                  .n_bias = m->n_bias,
                  .bias = (const struct engine_bias *)m->bias,
                  .n_bans = n_bans,
                  .bans = bans},
    };
    uint32_t n = telltale_expect(&ask, c->tokens + m->n_prompt, c->digest, c->logprob);
    NEED(s, c, n == m->max_new);
    telltale_expect_prompt(c->tokens, m->n_prompt, c->prompt_lp);
    cut_expected(s, c, n);
}

/* What it must get and what would come behind, with changes: tokens replaced, left out, put in. */
static void predict(struct sim_client *c) {
    struct rng r = {c->m.id};
    uint32_t n = 0;

    if (c->edit_every == 0)
        return;
    for (uint32_t i = 0; i < c->m.max_new && n < SIM_OUT_MAX; i++) {
        uint32_t edit = rng_below(&r, 3 * c->edit_every);

        if (edit < 2)
            c->prediction[n++] = (int32_t)rng_below(&r, SIM_VOCAB);
        if (edit > 1 && n < SIM_OUT_MAX)
            c->prediction[n++] = c->tokens[c->m.n_prompt + i];
        if (edit == 0)
            i--;
    }
    c->m.prediction = (struct str){(const char *)c->prediction, n * (uint32_t)sizeof(int32_t)};
}

void sim_submit(struct sim *s, struct sim_client *c, uint32_t n_out) {
    if (!c->submitted &&
        c->m.n_prompt < MIN(s->opts.max_context, s->opts.n_pages * s->opts.page_tokens + 1)) {
        expect(s, c);
        predict(c);
    }
    if (!c->submitted)
        c->n_got = n_out;
    c->submitted = true;
    c->m.tokens = c->tokens;
    c->m.n_tokens = c->m.n_prompt + n_out;
    NEED(s, c, sched_submit(s->sched, &c->m) == 0);
}

void sim_cancel(struct sim *s, struct sim_client *c) {
    c->cancelled = true;
    sched_cancel(s->sched, c->m.id);
}

/* ---- what is sent ---- */

static void check_top(const struct sim *s, const struct sim_client *c, const struct event *e) {
    struct engine_top top[ENGINE_TOP_MAX];

    for (uint32_t i = 0; i < e->n_tokens; i++) {
        telltale_expect_top(c->tokens, c->m.n_prompt + e->from + i, e->n_top, top);
        for (uint32_t k = 0; k < e->n_top; k++) {
            const struct event_top *got = &e->top[i * e->n_top + k];
            NEED(s, c, got->token == top[k].token && got->logprob == top[k].logprob);
        }
    }
}

static void check_tokens(struct sim *s, struct sim_client *c, const struct event *e) {
    NEED(s, c, e->from <= c->n_got); /* no gap */
    NEED(s, c, s->deaf || s->n_restarts > 0 || e->from == c->n_got);
    NEED(s, c, e->from + e->n_tokens <= c->n_expect);
    NEED(s, c, e->from + e->n_tokens >= c->n_got);
    for (uint32_t i = 0; i < e->n_tokens; i++) {
        uint32_t k = e->from + i;

        NEED(s, c, e->tokens[i] == c->tokens[c->m.n_prompt + k]);
        if (c->m.flags & SUBMIT_LOGPROBS)
            NEED(s, c, e->logprobs && e->logprobs[i] == c->logprob[k]);
        if (c->m.flags & SUBMIT_DIGESTS)
            NEED(s, c, e->digests && e->digests[i] == c->digest[k]);
    }
    if (e->n_tokens > 0 && c->m.n_top > 0) {
        NEED(s, c, e->n_top == c->m.n_top && e->top);
        check_top(s, c, e);
    }
    if (e->n_prompt_lp > 0) {
        NEED(s, c, e->n_prompt_lp == c->m.n_prompt - 1);
        for (uint32_t i = 0; i < e->n_prompt_lp; i++)
            NEED(s, c, e->prompt_lp[i] == c->prompt_lp[i]);
        c->got_prompt_lp = true;
    }
    if (c->n_got == 0 && e->n_tokens > 0)
        c->first_ns = s->clock.ns;
    c->n_got = e->from + e->n_tokens;
}

static void check_end(struct sim *s, struct sim_client *c, const struct event *e) {
    c->n_ends++;
    c->end = (enum event_kind)e->kind;
    c->finish = (enum finish_reason)e->finish;
    c->end_ns = s->clock.ns;
    snprintf(c->text, sizeof(c->text), "%.*s", (int)e->text.len, e->text.data);
    NEED(s, c, c->n_ends == 1);
    switch (c->finish) {
    case FINISH_STOP:
    case FINISH_LENGTH:
        NEED(s, c, c->finish == c->expect && c->n_got == c->n_expect);
        NEED(s, c, c->got_prompt_lp || !(c->m.flags & SUBMIT_PROMPT_LOGPROBS) || c->m.n_prompt < 2);
        break;
    case FINISH_CANCELLED:
        NEED(s, c, c->cancelled);
        break;
    case FINISH_DEADLINE:
        NEED(s, c, c->m.deadline_ns > 0 && c->m.deadline_ns <= s->clock.ns);
        break;
    default:
        NEED(s, c, e->kind == EVENT_REJECTED && e->status == 400 && e->text.len > 0);
    }
}

static void hear(struct sim *s, const struct event *e) {
    NEED(s, NULL, e->id >= 1 && e->id <= s->n_clients);
    struct sim_client *c = &s->client[e->id - 1];

    NEED(s, c, c->submitted && c->n_ends == 0);
    if (e->kind == EVENT_ACCEPTED) {
        NEED(s, c, s->n_restarts > 0 || !c->accepted);
        c->accepted = true;
        return;
    }
    NEED(s, c, c->accepted || e->kind == EVENT_REJECTED);
    check_tokens(s, c, e);
    c->n_cached = e->n_cached;
    NEED(s, c, e->n_accepted <= e->n_drafted);
    NEED(s, c, e->n_accepted <= e->from + e->n_tokens && e->n_drafted >= c->n_drafted);
    c->n_drafted = e->n_drafted;
    c->n_accepted = e->n_accepted;
    if (e->kind != EVENT_TOKENS)
        check_end(s, c, e);
}

static void deliver(struct sim *s) {
    struct event_cursor at;
    struct event e;
    int r;

    buf_clear(&s->events);
    r = sched_events(s->sched, &s->events);
    NEED(s, NULL, r == 0 || (r == 1 && s->events.len == 0));
    if (s->deaf || r == 1)
        return;
    msg_events_begin(&at, s->events.data, (uint32_t)s->events.len);
    while ((r = msg_events_next(&at, &e)) == 0)
        hear(s, &e);
    NEED(s, NULL, r == 1);
    sched_delivered(s->sched);
    buf_clear(&s->events);
    NEED(s, NULL, sched_events(s->sched, &s->events) == 1);
}

int sim_step(struct sim *s) {
    uint64_t before = s->stats.step_ns_total;
    stepped = s;
    int r = sched_step(s->sched);

    if (r < 0)
        return r;
    deliver(s);
    sched_stats(s->sched, &s->stats);
    telltale_seen(s->engine, &s->seen);
    s->n_steps += r == 0;
    s->max_step_ns = MAX(s->max_step_ns, (int64_t)(s->stats.step_ns_total - before));
    s->max_rows_seen = MAX(s->max_rows_seen, s->stats.last_rows);
    NEED(s, NULL, s->stats.n_running <= s->opts.sched.max_seqs);
    NEED(s, NULL, s->stats.n_used + s->stats.n_free + s->stats.n_cached == s->stats.n_pages);
    return r;
}

void sim_run(struct sim *s, uint32_t max_steps) {
    for (uint32_t i = 0; i < max_steps; i++) {
        int r = sim_step(s);

        NEED(s, NULL, r >= 0);
        if (r == SCHED_IDLE && sim_all_ended(s))
            return;
        if (r == SCHED_IDLE)
            NEED(s, NULL, s->deaf);
    }
    for (uint32_t i = 0; i < s->n_clients; i++)
        NEED(s, &s->client[i], !s->client[i].submitted || s->client[i].n_ends == 1);
    fail(s, NULL, "it comes to an end", __LINE__);
}

void sim_restart(struct sim *s) {
    s->sched = sched_free(s->sched);
    s->engine = engine_free(s->engine);
    s->n_restarts++;
    memset(&s->stats, 0, sizeof(s->stats));
    memset(&s->suspects, 0, sizeof(s->suspects));
    new_worker(s);
    for (uint32_t i = 0; i < s->n_clients; i++) {
        struct sim_client *c = &s->client[i];

        if (!c->submitted || c->n_ends > 0)
            continue;
        c->m.n_faults++;
        c->n_drafted = c->n_accepted = 0;
        if (c->cancelled)
            c->cancelled = false;
        sim_submit(s, c, c->n_got);
    }
}

/* ---- random scenarios ---- */

static void random_opts(struct rng *r, struct sim_opts *o, bool hungry) {
    static const uint32_t pages[] = {4, 8, 16, 32};

    *o = (struct sim_opts){
        .sched = {.max_seqs = 1 + rng_below(r, 8),
                  .max_rows = 1 + rng_below(r, rng_below(r, 2) ? 80 : 12),
                  .itl_target_ms = 5 + rng_below(r, 50),
                  .max_step_ms = 20 + rng_below(r, 200),
                  .depth = 1 + rng_below(r, 2),
                  .max_bypass = rng_below(r, 5),
                  .force_chunk = rng_below(r, 3) ? 0 : 1 + rng_below(r, 40),
                  .no_prefix_sharing = rng_below(r, 8) == 0},
        .page_tokens = pages[rng_below(r, 4)],
        .end_per_1024 = rng_below(r, 2) ? rng_below(r, 60) : 0,
        .step_ns = 1000000 + rng_below(r, 20000000),
        .row_ns = 10000 + rng_below(r, 1000000),
        .key_ns = rng_below(r, 2000),
    };
    o->drafts = (enum sim_drafts)rng_below(r, SIM_DRAFTS_KINDS);
    o->sched.no_speculation = rng_below(r, 6) == 0;
    o->sched.max_draft = rng_below(r, 40);
    o->sched.force_draft = rng_below(r, 2) ? 1 + rng_below(r, 32) : 0;
    o->n_pages = (hungry ? 40 + rng_below(r, 200) : 100 + rng_below(r, 400)) / o->page_tokens + 1;
    o->max_context = 60 + rng_below(r, 300);
    if (rng_below(r, 6) == 0)
        o->fail_launch = 1 + rng_below(r, 60);
    if (rng_below(r, 6) == 0)
        o->fail_wait = 1 + rng_below(r, 60);
}

/* @hungry: the first answers are short, the later ones long: the estimate of what a request will need is
 * wrong, and pages run out. */
static void random_client(struct sim *s, struct rng *r, bool hungry) {
    static const int32_t stop_ids[] = {7, 20, 33};
    static const char *const stops[] = {"abcd", "ddd", "adb", "cab", "bcabc"};
    static const struct submit_bias bias[] = {{5, 1.5f}, {9, -100.0f}};
    uint32_t n_prompt = 1 + rng_below(r, rng_below(r, 20) ? 90 : 300);
    uint32_t max_new = 1 + rng_below(r, rng_below(r, 4) ? 30 : 150);
    if (hungry)
        n_prompt = 1 + n_prompt / 3,
        max_new = s->n_clients < 6 ? 1 + s->n_clients % 2 : 20 + rng_below(r, 150);
    struct sim_client *c =
        sim_client(s, n_prompt, rng_below(r, 3), rng_below(r, n_prompt + 20), max_new);
    struct submit *m = &c->m;

    m->priority = (int16_t)rng_below(r, 3);
    m->share_key[0] = rng_below(r, 4) == 0;
    m->program = hungry ? 1 : rng_below(r, 3);
    m->choice = (uint16_t)rng_below(r, 2);
    m->n_faults = rng_below(r, 20) ? 0 : 2;
    m->min_new = rng_below(r, 3) ? 0 : rng_below(r, m->max_new + 1);
    m->sampling.temperature = rng_below(r, 2) ? 0.8 : 0;
    m->sampling.repetition_penalty = rng_below(r, 3) ? 1 : 1.1;
    m->sampling.presence_penalty = rng_below(r, 3) ? 0 : 0.5;
    m->sampling.ignore_eos = rng_below(r, 3) == 0;
    m->flags = rng_below(r, 4) ? (uint16_t)rng_below(r, 8) : 0;
    m->n_top = rng_below(r, 6) ? 0 : (uint8_t)(1 + rng_below(r, 5));
    m->flags |= m->n_top ? SUBMIT_LOGPROBS : 0;
    m->flags |= rng_below(r, 8) ? 0 : SUBMIT_NO_SPECULATION;
    c->edit_every = rng_below(r, 2) ? 0 : 1 + rng_below(r, 12);
    if (rng_below(r, 3) == 0)
        m->stop_ids = stop_ids, m->n_stop_ids = 1 + rng_below(r, 3);
    if (rng_below(r, 4) == 0)
        m->bias = bias, m->n_bias = 2;
    if (rng_below(r, 3) == 0) {
        m->n_stops = 1 + rng_below(r, 5);
        for (uint32_t i = 0; i < m->n_stops; i++)
            m->stops[i] = (struct str){stops[i], (uint32_t)strlen(stops[i])};
    }
    if (rng_below(r, hungry ? 40 : 6) == 0)
        m->deadline_ns = s->clock.ns + rng_below(r, 1000) * INT64_C(3000000);
    sim_submit(s, c, 0);
}

/* Anything may happen between two steps. */
static void disturb(struct sim *s, struct rng *r, uint32_t n_clients, bool hungry) {
    while (s->n_clients < n_clients && rng_below(r, 3) == 0)
        random_client(s, r, hungry);
    if (s->n_clients > 0 && rng_below(r, hungry ? 300 : 30) == 0)
        sim_cancel(s, &s->client[rng_below(r, s->n_clients)]);
    s->deaf = rng_below(r, 5) == 0;
}

void sim_random(uint64_t seed, struct sim_total *total) {
    struct rng r = {seed};
    struct sim_opts o;
    struct sim s;
    bool hungry = rng_below(&r, 2) == 0;
    uint32_t n_clients = 1 + rng_below(&r, hungry ? 50 : 24);

    random_opts(&r, &o, hungry);
    sim_init(&s, &o);
    for (uint32_t i = 0; i < 20000; i++) {
        disturb(&s, &r, n_clients, hungry);
        int e = sim_step(&s);
        if (e < 0) {
            NEED(&s, NULL, e == -EIO && s.n_restarts == 0);
            NEED(&s, NULL, sched_step(s.sched) == -EIO);
            total->n_preemptions += s.stats.n_preemptions;
            sim_restart(&s);
        } else if (e == SCHED_IDLE && s.n_clients == n_clients && sim_all_ended(&s)) {
            break;
        }
    }
    for (uint32_t i = 0; i < s.n_clients; i++) {
        NEED(&s, &s.client[i], s.client[i].n_ends == 1);
        total->n_end[s.client[i].finish]++;
        total->n_cached += s.client[i].n_cached;
        total->n_drafted += s.client[i].n_drafted;
        total->n_accepted += s.client[i].n_accepted;
        NEED(&s, &s.client[i],
             s.client[i].n_drafted == 0 ||
                 !(o.sched.no_speculation || s.client[i].m.flags & SUBMIT_NO_SPECULATION));
    }
    total->n_runs++;
    total->n_steps += s.n_steps;
    total->n_requests += s.n_clients;
    total->n_preemptions += s.stats.n_preemptions;
    total->n_restarts += s.n_restarts;
    sim_deinit(&s);
}
