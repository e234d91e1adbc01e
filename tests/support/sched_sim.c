/* ---- the vocabulary ---- */

#include "tests/support/sched_sim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/buf.h"
#include "scheduler/draft/draft.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/sim_drafts.h"
#include "tests/support/sim_expect.h"
#include "tests/support/sim_flight.h"

/* Returns one to three letters of a small alphabet, so that stop strings occur, also across
 * tokens. */
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

/* Returns the tokenizer, which is made once and never changes. */
static const struct tokenizer *shared_tokenizer(void) {
    static struct tokenizer *t;
    const char *text[SIM_VOCAB];
    float score[SIM_VOCAB] = {0};
    int32_t type[SIM_VOCAB];
    char path[] = "/tmp/sched_sim_XXXXXX";
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct gguf_writer w;
    struct err err = {0};

    if (t)
        return t;
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

/* ---- life ---- */

/* Checks that a quarantined request is alone in flight, and that the crash page was written before
 * every launch. */
static void check_alone(const struct sim *s) {
    for (uint32_t i = 0; i < s->crash_page.n; i++) {
        const struct sim_client *c = &s->client[s->crash_page.ids[i] - 1];

        if (c->m.n_faults >= 2 || sim_is_prewarm(c))
            for (uint32_t k = 0; k < s->crash_page.n; k++)
                HOLD(s, c, ALONE, s->crash_page.ids[k] == c->m.id);
    }
}

static int64_t watch(struct clock *c) {
    struct sim *s = CONTAINER_OF(c, struct sim, watch);

    check_alone(s);
    return clock_now(&s->clock.clock);
}

static _Noreturn void cannot(const char *what, int e) {
    fprintf(stderr, "sched_sim: %s: %s\n", what, strerror(-e));
    abort();
}

/* Makes the draft engine: its drafts are the tokens of the large model, except those that are wrong
 * on purpose. */
static int new_draft_engine(struct sim *s, struct telltale t, struct engine_opts e) {
    const struct sim_opts *o = &s->opts;
    struct err err = {0};

    if (o->n_draft_pages == 0)
        return 0;
    e.n_pages = o->n_draft_pages;
    e.n_host_pages = e.n_states = e.n_snapshots = 0;
    e.drafts = false;
    e.windows = false;
    e.page_tokens = o->draft_page_tokens;
    e.max_wants = o->sched.max_seqs;
    t.depth = 1;
    t.wrong_per_1024 = o->draft_wrong;
    t.fail_launch = t.fail_wait = 0;
    t.step_ns = o->draft_step_ns;
    t.row_ns /= 8;
    t.key_ns /= 8;
    telltale_set(&t);
    return engine_new(&s->draft_engine, &e, &err);
}

static void new_worker(struct sim *s) {
    const struct sim_opts *o = &s->opts;
    struct telltale t = o->machine;
    struct engine_opts e = {
        .n_pages = o->n_pages,
        .n_host_pages = o->window > 0 && o->n_states == 0 ? 0 : o->n_host_pages,
        .windows = o->window > 0 && o->n_states == 0,
        .n_states = o->n_states,
        .n_snapshots = o->n_snapshots,
        .page_tokens = o->page_tokens,
        .max_context = o->max_context,
        .max_rows = o->sched.max_rows,
        .max_seqs = o->sched.max_seqs,
        .max_wants = o->sched.max_rows,
        .digest = true,
        .drafts = o->block && o->n_draft_pages == 0 && (o->window == 0 || o->borrows),
    };
    struct err err = {0};

    t.borrows = o->borrows;
    t.picture_width = o->n_pictures > 0 ? SIM_PICTURE_WIDTH : 0;
    t.picture_piece = o->piece ? o->piece : 8;
    t.pixel_ns = o->pixel_ns;
    t.two_way = o->two_way;
    t.window = o->window;
    t.n_windows = o->sched.max_seqs * ((o->window + o->page_tokens - 1) / o->page_tokens + 3) +
                  2 * (o->sched.max_rows / o->page_tokens + 1) + o->n_spare_windows;
    t.n_vocab = SIM_VOCAB;
    t.max_context = o->max_context;
    t.depth = 2;
    t.first = 3;
    t.last = SIM_VOCAB - 1;
    t.end = SIM_END;
    t.end_per_1024 = o->end_per_1024;
    t.strict = true;
    t.poison = 99;
    t.clock = &s->clock;
    t.step_ns = o->step_ns;
    t.row_ns = o->row_ns;
    t.key_ns = (double)o->key_ns;
    t.block_wrong = o->draft_wrong;
    t.block_ns = o->draft_step_ns;
    t.fail_launch = s->n_restarts == 0 ? o->fail_launch : 0;
    t.fail_wait = s->n_restarts == 0 ? o->fail_wait : 0;
    int r = new_draft_engine(s, t, e);
    if (!o->unwatched) {
        t.launched = rules_launched;
        t.drew = rules_drew;
        t.of = s;
    }
    telltale_set(&t);
    if (r == 0)
        r = engine_new(&s->engine, &e, &err);
    s->opts.sched.draft_engine = s->draft_engine;
    /* the front clears the page before it starts a worker */
    memset(&s->crash_page, 0, sizeof(s->crash_page));
    if (r == 0)
        r = sched_new(&s->sched, &o->sched, s->engine, &s->watch);
    if (r < 0)
        cannot("no worker", r);
    for (uint32_t i = 0; i < COST_FEATURES && o->wrong; i++)
        s->sched->cost.a[i] *= (s->n_restarts + i) * 7 % 3 ? 30 : 1.0 / 30;
    memset(&s->stats, 0, sizeof(s->stats));
    memset(&s->was, 0, sizeof(s->was));
    s->n_needs = 0;
    s->was.at_step = s->n_steps;
    s->was.n_told_steps = s->flight ? s->flight->n_steps : 0;
}

/* ---- the flight recorder ---- */

#define TAPE_BYTES 32768u /* small, so that the ring wraps around */

uint32_t sim_tape_bytes(const struct sim *s) {
    return s->opts.flight_file ? FLIGHT_TAPE_BYTES : TAPE_BYTES;
}

/* Makes the flight recorder, which outlives workers. */
static void new_flight(struct sim *s) {
    struct flight *f = malloc(sizeof(*f) + sizeof(struct flight_tape) + sim_tape_bytes(s));

    if (!f)
        cannot("no flight recorder", -ENOMEM);
    f->n_records = f->n_steps = 0;
    flight_tape_of(f)->n_begun = flight_tape_of(f)->n_bytes = 0;
    s->flight = s->opts.sched.flight = f;
    s->opts.sched.tape = flight_tape_of(f);
    s->opts.sched.tape_bytes = sim_tape_bytes(s);
}

void sim_write_flight(const struct sim *s) {
    CLEANUP(buf_deinit) struct buf out = {.max = FLIGHT_FILE_MAX};
    FILE *f = s->opts.flight_file ? fopen(s->opts.flight_file, "wbe") : NULL;

    if (!f)
        return;
    if (flight_file_write(&out, s->flight, sim_tape_bytes(s), "simulated", s->clock.ns) < 0 ||
        fwrite(out.data, 1, out.len, f) != out.len)
        perror(s->opts.flight_file);
    fclose(f);
}

static void on_note(void *ctx, const char *what, int error) {
    ((struct sim *)ctx)->n_notes++;
}

/* Opens a file that outlives workers, as that of the front does. */
static void open_disk(struct sim *s) {
    int fd = memfd_create("sched_sim", MFD_CLOEXEC);

    if (fd < 0)
        cannot("no file", -errno);
    s->opts.sched.disk = (struct sched_disk){.fd = fd,
                                             .n_bytes = s->opts.disk_bytes,
                                             .daily_bytes = s->opts.sched.disk.daily_bytes,
                                             .in_step = !s->opts.disk_thread,
                                             .ctx = s,
                                             .note = on_note};
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
    set_default(&o->max_clients, SIM_CLIENTS);
    o->step_ns = o->step_ns ? o->step_ns : 5000000;
    o->row_ns = o->row_ns ? o->row_ns : 100000;
    s->tokenizer = shared_tokenizer();
    o->sched.drafts = sim_draft_table(o);
    o->sched.tokenizer = s->tokenizer;
    o->sched.crash_page = &s->crash_page;
    o->sched.constraints = &s->constraints;
    sim_constraints_init(s);
    clock_virtual_init(&s->clock, 1000000000);
    s->watch.now_ns = watch;
    buf_init(&s->events, 64u << 20);
    s->client = calloc(o->max_clients, sizeof(*s->client));
    s->live = calloc(o->max_clients, sizeof(*s->live));
    if (!s->client || !s->live)
        cannot("no clients", -ENOMEM);
    if (o->disk_bytes > 0)
        open_disk(s);
    if (!o->unwatched)
        new_flight(s);
    new_worker(s);
}

bool sim_all_ended(const struct sim *s) {
    for (uint32_t i = 0; i < s->n_live; i++)
        if (s->client[s->live[i]].n_ends == 0)
            return false;
    return true;
}

void sim_deinit(struct sim *s) {
    if (s->sched && sim_all_ended(s)) {
        sched_stats(s->sched, &s->stats);
        HOLD(s, NULL, ALL_BACK, s->stats.n_used == 0);
        HOLD(s, NULL, ALL_BACK, s->stats.n_free + s->stats.n_cached == s->stats.n_pages);
        HOLD(s, NULL, ALL_BACK, s->stats.n_running + s->stats.n_waiting == 0);
        HOLD(s, NULL, ALL_BACK, s->crash_page.n == 0 && s->crash_page.started_ns == 0);
        rules_at_end(s);
    }
    sched_free(s->sched);
    engine_free(s->engine);
    engine_free(s->draft_engine);
    if (s->opts.disk_bytes > 0)
        close(s->opts.sched.disk.fd);
    buf_deinit(&s->events);
    sim_constraints_reset(s);
    for (uint32_t i = 0; i < s->n_clients; i++) {
        free(s->client[i].memory);
        sim_free_pictures(&s->client[i]);
        sim_constraint_free(s->client[i].constraint);
    }
    sim_constraints_deinit(s);
    free(s->client);
    free(s->live);
    free(s->flight);
}

/* ---- clients ---- */

/* Allocates all arrays of a client in one piece. */
static void give_memory(struct sim_client *c, uint32_t n_prompt, uint32_t max_new) {
    size_t n = (size_t)n_prompt + max_new, size = max_new * sizeof(*c->digest);

    size += n * sizeof(*c->tokens) + max_new * sizeof(*c->logprob);
    size += n_prompt * sizeof(*c->prompt_lp) + max_new * sizeof(*c->prediction);
    c->memory = malloc(size);
    if (!c->memory)
        cannot("no client", -ENOMEM);
    c->digest = c->memory;
    c->tokens = (int32_t *)(c->digest + max_new);
    c->prediction = c->tokens + n;
    c->logprob = (float *)(c->prediction + max_new);
    c->prompt_lp = c->logprob + max_new;
}

static struct sim_client *new_client(struct sim *s, uint32_t n_prompt, uint32_t max_new) {
    if (s->n_clients >= s->opts.max_clients || max_new == 0)
        cannot("a client", -EINVAL);
    struct sim_client *c = &s->client[s->n_clients++];

    give_memory(c, n_prompt, max_new);
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

static int32_t draw_token(const struct sim *s, struct rng *r) {
    if (s->opts.ends > 0 && rng_below(r, s->opts.ends) == 0)
        return 1;
    return 3 + (int32_t)rng_below(r, SIM_VOCAB - 3);
}

/* Draws the client's own tokens [from, n_prompt). */
static void draw_tokens(struct sim *s, struct sim_client *c, uint32_t from) {
    struct rng own = {s->n_clients};

    for (uint32_t i = from; i < c->m.n_prompt; i++)
        c->tokens[i] = draw_token(s, &own);
}

struct sim_client *sim_client(struct sim *s, uint32_t n_prompt, uint32_t family, uint32_t n_family,
                              uint32_t max_new) {
    struct sim_client *c = new_client(s, n_prompt, max_new);
    struct rng common = {family + 1000};

    for (uint32_t i = 0; i < MIN(n_family, n_prompt); i++)
        c->tokens[i] = draw_token(s, &common);
    draw_tokens(s, c, MIN(n_family, n_prompt));
    return c;
}

struct sim_client *sim_ask(struct sim *s, uint32_t n_prompt, uint32_t max_new, uint64_t session) {
    struct sim_client *c = sim_client(s, n_prompt, s->n_clients + 1, n_prompt, max_new);

    c->m.session = session;
    c->m.arrived_ns = s->clock.ns;
    sim_submit(s, c, 0);
    return c;
}

struct sim_client *sim_client_after(struct sim *s, const struct sim_client *before, uint32_t n_more,
                                    uint32_t max_new) {
    uint32_t n = before->m.n_prompt + before->n_got;
    struct sim_client *c = new_client(s, n + n_more, max_new);

    memcpy(c->tokens, before->tokens, n * sizeof(*c->tokens));
    draw_tokens(s, c, n);
    sim_copy_pictures(c, before, n);
    return c;
}

struct sim_client *sim_client_prewarm(struct sim *s, const struct sim_client *before,
                                      uint32_t n_same, uint32_t n_more) {
    uint32_t n = before->m.n_prompt + n_same;
    struct sim_client *c = new_client(s, n + n_more, 1);

    memcpy(c->tokens, before->tokens, n * sizeof(*c->tokens));
    draw_tokens(s, c, n);
    sim_copy_pictures(c, before, n);
    c->m.flags = SUBMIT_PREWARM;
    c->m.session = before->m.session;
    c->m.tenant = before->m.tenant;
    c->m.class = before->m.class;
    c->m.weight_milli = before->m.weight_milli;
    c->m.group = before->m.id;
    memcpy(c->m.isolation_key, before->m.isolation_key, sizeof(c->m.isolation_key));
    return c;
}

static bool is_short_enough(const struct sim *s, const struct sim_client *c) {
    return c->m.n_prompt < s->opts.max_context &&
           c->m.n_prompt <= (uint64_t)s->opts.n_pages * s->opts.page_tokens;
}

void sim_submit(struct sim *s, struct sim_client *c, uint32_t n_out) {
    if (!c->submitted) {
        /* Sources of drafts may read predictions where no token is expected. */
        for (uint32_t i = 0; i < c->m.max_new; i++)
            c->tokens[c->m.n_prompt + i] = SIM_END;
        if (sim_wants_vector(c)) {
            c->expect = FINISH_STOP;
        } else if (is_short_enough(s, c) && !c->invalid) {
            sim_expect(s, c);
            sim_predict(c);
        }
        c->n_got = n_out;
        c->at_live = s->n_live;
        s->live[s->n_live++] = (uint32_t)(c - s->client);
    }
    c->submitted = true;
    c->n_given = n_out;
    c->n_preempted = c->n_rowless = 0;
    c->head_start_ns = 0;
    c->m.tokens = c->tokens;
    c->m.n_tokens = c->m.n_prompt + n_out;
    int e = sched_submit(s->sched, &c->m);
    if (e < 0)
        cannot("submit", e);
}

void sim_cancel(struct sim *s, struct sim_client *c) {
    c->cancelled = true;
    sched_cancel(s->sched, c->m.id);
    rules_cancelled(s, c);
}

static void note_end(struct sim *s, struct sim_client *c) {
    uint32_t last = s->live[--s->n_live];

    s->live[c->at_live] = last;
    s->client[last].at_live = c->at_live;
    s->was.n_outputs += c->n_got - c->n_given;
    s->was.n_finished += c->end == EVENT_FINISH && !sim_is_prewarm(c);
    if (s->ended)
        s->ended(s, c);
}

/* ---- events ---- */

/* Compares @got with the best @n_top of each of @n tokens from @from on. */
static void check_top(const struct sim *s, const struct sim_client *c, const struct event_top *got,
                      uint32_t from, uint32_t n, uint32_t n_top) {
    struct engine_top top[ENGINE_TOP_MAX];

    for (uint32_t i = 0; i < n; i++) {
        telltale_expect_top(sim_seen(c), from + i, n_top, top);
        for (uint32_t k = 0; k < n_top; k++, got++)
            HOLD(s, c, NUMBERS, got->token == top[k].token && got->logprob == top[k].logprob);
    }
}

static void check_numbers(const struct sim *s, struct sim_client *c, const struct event *e) {
    const struct submit *m = &c->m;
    size_t n = e->n_tokens;

    if (n > 0 && m->flags & SUBMIT_LOGPROBS)
        HOLD(s, c, NUMBERS,
             e->logprobs && memcmp(e->logprobs, c->logprob + e->from, n * sizeof(float)) == 0);
    if (n > 0 && m->flags & SUBMIT_DIGESTS)
        HOLD(s, c, NUMBERS,
             e->digests && memcmp(e->digests, c->digest + e->from, n * sizeof(uint64_t)) == 0);
    if (n > 0 && m->n_top > 0) {
        HOLD(s, c, NUMBERS, e->n_top == m->n_top && e->top);
        check_top(s, c, e->top, m->n_prompt + e->from, e->n_tokens, e->n_top);
    }
    if (e->n_prompt_lp > 0) {
        HOLD(s, c, NUMBERS,
             e->n_prompt_top == m->n_prompt_top && !e->prompt_top == !m->n_prompt_top);
        check_top(s, c, e->prompt_top, 1, e->n_prompt_lp, e->n_prompt_top);
        HOLD(s, c, NUMBERS, e->n_prompt_lp == m->n_prompt - 1);
        HOLD(s, c, NUMBERS,
             memcmp(e->prompt_lp, c->prompt_lp, e->n_prompt_lp * sizeof(float)) == 0);
        c->got_prompt_lp = true;
    }
}

static void check_tokens(struct sim *s, struct sim_client *c, const struct event *e) {
    HOLD(s, c, NO_GAP, e->from == c->n_got);
    HOLD(s, c, STREAM, e->from + e->n_tokens <= c->n_expect);
    if (e->n_tokens > 0)
        HOLD(s, c, STREAM,
             memcmp(e->tokens, c->tokens + c->m.n_prompt + e->from,
                    e->n_tokens * sizeof(*e->tokens)) == 0);
    check_numbers(s, c, e);
    if (e->n_tokens == 0)
        return;
    c->prompt_ns = e->prompt_end_ns - e->first_step_ns;
    c->output_ns = e->computed_ns - e->prompt_end_ns;
    int64_t since = c->n_got > 0 ? s->clock.ns - c->last_ns : 0;
    if (c->n_got == 0)
        c->first_ns = s->clock.ns;
    c->worst_ns = MAX(c->worst_ns, since);
    if (s->heard)
        s->heard(s, c, since);
    c->last_ns = s->clock.ns;
    c->n_got = e->from + e->n_tokens;
}

/* Checks the vector, which comes with the end, and only if it was requested. */
static void check_vector(const struct sim *s, const struct sim_client *c, const struct event *e) {
    bool due = sim_wants_vector(c) && e->kind == EVENT_FINISH && e->finish == FINISH_STOP;
    float vector[SIM_EMBD];

    HOLD(s, c, RIGHT_END, e->n_vector == (due ? SIM_EMBD : 0));
    if (!due)
        return;
    sim_expect_vector(c, vector);
    HOLD(s, c, NUMBERS, memcmp(e->vector, vector, sizeof(vector)) == 0);
}

static void check_end(struct sim *s, struct sim_client *c, const struct event *e) {
    c->n_ends++;
    c->end = (enum event_kind)e->kind;
    c->finish = (enum finish_reason)e->finish;
    c->end_ns = s->clock.ns;
    snprintf(c->text, sizeof(c->text), "%.*s", (int)e->text.len, e->text.data);
    switch (c->finish) {
    case FINISH_STOP:
    case FINISH_LENGTH:
        HOLD(s, c, RIGHT_END, !c->broken);
        HOLD(s, c, RIGHT_END, c->finish == c->expect);
        HOLD(s, c, RIGHT_END, c->n_got == (sim_is_prewarm(c) ? 0 : c->n_expect));
        HOLD(s, c, RIGHT_END,
             c->got_prompt_lp || !(c->m.flags & SUBMIT_PROMPT_LOGPROBS) || c->m.n_prompt < 2);
        break;
    case FINISH_CANCELLED:
        HOLD(s, c, RIGHT_END, c->cancelled || sim_is_prewarm(c));
        break;
    case FINISH_DEADLINE:
        HOLD(s, c, RIGHT_END, c->m.deadline_ns > 0 && c->m.deadline_ns <= s->clock.ns);
        break;
    default:
        if (c->broken && e->kind == EVENT_FINISH) {
            HOLD(s, c, RIGHT_END, e->status == 400 && strcmp(c->text, "broken picture") == 0);
            break;
        }
        HOLD(s, c, ACCEPTED, e->kind == EVENT_REJECTED && e->status == 400 && e->text.len > 0);
        HOLD(s, c, ACCEPTED, !is_short_enough(s, c) || c->invalid);
    }
    note_end(s, c);
}

static void check_usage(const struct sim *s, struct sim_client *c, const struct event *e) {
    uint32_t n_out = e->from + e->n_tokens - c->n_given;

    HOLD(s, c, USAGE, e->n_cached >= c->n_cached && e->n_cached <= c->m.n_prompt);
    /* A resumed request may also find the last page of its prompt. */
    HOLD(s, c, USAGE, c->n_given > 0 || e->n_cached % s->opts.page_tokens == 0);
    HOLD(s, c, USAGE, c->n_given > 0 || e->n_cached < c->m.n_prompt);
    HOLD(s, c, USAGE, e->n_accepted <= e->n_drafted && e->n_drafted >= c->n_drafted);
    HOLD(s, c, USAGE, e->n_predicted <= e->n_drafted && e->n_predicted_accepted <= e->n_predicted);
    HOLD(s, c, USAGE, e->n_accepted >= c->n_accepted && e->n_accepted <= n_out);
    c->n_cached = e->n_cached;
    c->n_drafted = e->n_drafted;
    c->n_accepted = e->n_accepted;
}

static void hear(struct sim *s, const struct event *e) {
    HOLD(s, NULL, NO_STRANGER, e->id >= 1 && e->id <= s->n_clients);
    struct sim_client *c = &s->client[e->id - 1];

    HOLD(s, c, ONE_END, c->submitted && c->n_ends == 0);
    if (e->kind == EVENT_ACCEPTED) {
        HOLD(s, c, ACCEPTED, !c->accepted);
        c->accepted = true;
        return;
    }
    HOLD(s, c, ACCEPTED, c->accepted == (e->kind != EVENT_REJECTED && !sim_is_prewarm(c)));
    HOLD(s, c, ACCEPTED, e->kind != EVENT_TOKENS || !sim_is_prewarm(c));
    if (e->kind != EVENT_REJECTED) {
        check_tokens(s, c, e);
        check_usage(s, c, e);
    }
    check_vector(s, c, e);
    if (e->kind != EVENT_TOKENS)
        check_end(s, c, e);
}

/* Delivers one message; events that did not fit come with the next one. */
static void deliver_some(struct sim *s) {
    struct event_cursor at;
    struct event e;
    int r;

    buf_clear(&s->events);
    r = sched_events(s->sched, &s->events);
    HOLD(s, NULL, NO_ECHO, r == 0 || (r == 1 && s->events.len == 0));
    if (s->deaf || r == 1)
        return;
    s->hash = XXH3_64bits_withSeed(s->events.data, s->events.len, s->hash);
    msg_events_begin(&at, s->events.data, (uint32_t)s->events.len);
    while ((r = msg_events_next(&at, &e)) == 0)
        hear(s, &e);
    HOLD(s, NULL, STREAM, r == 1);
    sched_delivered(s->sched);
}

static void deliver(struct sim *s) {
    deliver_some(s);
    while (s->sched->unsent && !s->deaf)
        deliver_some(s);
    if (s->deaf)
        return;
    buf_clear(&s->events);
    HOLD(s, NULL, NO_ECHO, sched_events(s->sched, &s->events) == 1);
}

void sim_served_elsewhere(struct sim *s, uint32_t tenant, uint64_t ns) {
    struct msg_served m = {.tenant = tenant, .ns = ns};

    s->elsewhere_ns[tenant % SIM_TENANTS] += (double)ns;
    sched_served_elsewhere(s->sched, &m, 1);
}

int sim_step(struct sim *s) {
    uint64_t before = s->stats.step_ns_total;
    sim_drafts_of(s);
    if (!s->opts.unwatched)
        rules_before(s);
    sim_constraints_turn(s);
    sim_answer_pictures(s);
    int r = sched_step(s->sched);

    HOLD(s, NULL, PROGRESS, r >= 0 || r == -EIO);
    if (r < 0)
        return r;
    sched_stats(s->sched, &s->stats);
    if (!s->opts.unwatched)
        rules_after(s, r);
    if (s->stepped)
        s->stepped(s);
    sim_take_needs(s);
    deliver(s);
    telltale_seen(s->engine, &s->seen);
    s->n_steps += r == 0;
    s->max_step_ns = MAX(s->max_step_ns, (int64_t)(s->stats.step_ns_total - before));
    s->max_rows_seen = MAX(s->max_rows_seen, s->stats.last_rows);
    return r;
}

void sim_run(struct sim *s, uint32_t max_steps) {
    for (uint32_t i = 0; i < max_steps; i++) {
        int r = sim_step(s);

        HOLD(s, NULL, ALL_END, r >= 0);
        if (r == SCHED_NO_STEP && sim_all_ended(s))
            return;
        if (r == SCHED_NO_STEP)
            HOLD(s, NULL, ALL_END,
                 s->deaf || sim_constraints_pending(s) || sim_pictures_pending(s));
    }
    HOLD(s, s->n_live > 0 ? &s->client[s->live[0]] : NULL, ALL_END, sim_all_ended(s));
}

/* Counts a death for the request, which fails after too many deaths, as in the front. */
static void count_death(struct sim *s, struct sim_client *c, const struct crash_page *page) {
    for (uint32_t k = 0; k < page->n; k++)
        c->m.n_faults += page->ids[k] == c->m.id;
    if (c->m.n_faults < SIM_DEATHS)
        return;
    c->n_ends++;
    c->given_up = true;
    c->end = EVENT_FINISH;
    c->finish = FINISH_ERROR;
    c->end_ns = s->clock.ns;
    note_end(s, c);
}

/* Checks the requests in the page of a worker that has died: those of the steps under way or, while
 * the draft model ran, those for which it ran. */
static void check_blame(const struct sim *s, const struct crash_page *page) {
    bool drafting =
        s->draft_engine ? telltale_is_lost(s->draft_engine) : telltale_is_lost_drafting(s->engine);

    HOLD(s, NULL, CRASH_PAGE, page->n == 0 || page->started_ns > 0);
    for (uint32_t i = 0; i < page->n; i++) {
        HOLD(s, NULL, CRASH_PAGE, page->ids[i] >= 1 && page->ids[i] <= s->n_clients);
        const struct sim_client *c = &s->client[page->ids[i] - 1];
        const struct request *r = *sched_slot(s->sched, c->m.id);

        HOLD(s, c, CRASH_PAGE,
             r &&
                 (drafting ? r->state == REQUEST_RUNNING && r->draft.drafter : r->n_in_flight > 0));
    }
    for (uint32_t i = 0; i < s->n_live; i++) {
        const struct sim_client *c = &s->client[s->live[i]];
        const struct request *r = *sched_slot(s->sched, c->m.id);
        bool asked =
            r && r->state == REQUEST_RUNNING && r->draft.drafter && r->draft.drafter->n_asked > 0;
        bool blamed = false;
        bool under_way = r && r->n_in_flight > 0;

        for (uint32_t k = 0; k < page->n; k++)
            blamed |= page->ids[k] == c->m.id;
        HOLD(s, c, CRASH_PAGE, blamed || !(drafting ? asked : under_way));
    }
}

void sim_restart(struct sim *s) {
    struct crash_page page = s->crash_page;

    if (s->opts.recorder) {
        sim_flight_at_death(s);
        check_blame(s, &page);
    }
    s->sched = sched_free(s->sched);
    s->engine = engine_free(s->engine);
    s->draft_engine = engine_free(s->draft_engine);
    sim_constraints_reset(s);
    s->n_restarts++;
    memset(s->elsewhere_ns, 0, sizeof(s->elsewhere_ns));
    for (uint32_t i = s->n_live; i-- > 0;)
        count_death(s, &s->client[s->live[i]], &page);
    new_worker(s);
    for (uint32_t i = 0; i < s->n_live; i++) {
        struct sim_client *c = &s->client[s->live[i]];

        c->accepted = c->cancelled = false;
        c->n_drafted = c->n_accepted = c->n_cached = 0;
        sim_submit(s, c, c->n_got);
    }
}
