#include "tests/sim/swarm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { ARRIVE, CANCEL, DEAF, DIE, HANG, WARM, ELSEWHERE, KINDS };

static const char *const kind_names[KINDS] = {"request", "cancel",       "channel full", "death",
                                              "hang",    "warm request", "elsewhere"};

struct action {
    /* step in which the action is performed */
    uint32_t at;
    enum kind kind;
    uint64_t seed;
};

struct run {
    const struct swarm_case *c;
    struct swarm w;
    struct sim sim;
    struct action action[SWARM_ACTIONS];
    uint32_t n_actions, next, n_skipped;
    uint32_t deaf_until;
};

const char *const swarm_names[SWARM_N] = {
#define X(name, draw) #name,
    SWARM_FIELDS(X)
#undef X
};

uint32_t swarm_field(const char *name, size_t len) {
    uint32_t i = 0;

    while (i < SWARM_N && (strncmp(swarm_names[i], name, len) != 0 || swarm_names[i][len] != '\0'))
        i++;
    return i;
}

bool swarm_allows(uint32_t field, uint32_t value) {
    static const struct {
        const char *name;
        uint32_t min, max;
    } range[] = {
        {"page_tokens", 1, 256},
        {"pages", 1, 1u << 16},
        {"context", 2, 1u << 16},
        {"seqs", 1, 1000},
        {"rows", 1, 1u << 16},
        {"depth", 1, 2},
        {"itl_ms", 1, 60000},
        {"step_ms", 1, 60000},
        {"hash_bits", 0, 64},
        {"drafts", 0, 4},
        {"tenants", 1, UINT32_MAX},
        {"sessions", 1, UINT32_MAX},
        {"keys", 1, 256},
        {"families", 1, UINT32_MAX},
        {"every", 1, UINT32_MAX},
        {"live", 1, 4096},
        {"prompt", 1, 1u << 14},
        {"output", 1, 1u << 14},
        {"priorities", 1, 10},
        {"draft_pages", 0, 1u << 16},
        {"draft_page_tokens", 1, 256},
        {"host_pages", 0, 1u << 16},
        {"disk_pages", 0, 1u << 16},
        {"states", 0, 1000},
        {"snapshots", 0, 1u << 16},
        {"window", 0, 1u << 16},
        {"spare_windows", 0, 1u << 16},
        {"max_draft", 0, 1024},
        {"slower", 1, 1000},
        {"pictures", 0, SIM_PICTURES},
    };

    for (uint32_t i = 0; i < ARRAY_SIZE(range); i++)
        if (strcmp(swarm_names[field], range[i].name) == 0)
            return value >= range[i].min && value <= range[i].max;
    return true;
}

static bool one_in(struct rng *r, uint32_t n) {
    return rng_below(r, n) == 0;
}

/* Draws the pages of a pool for some hundred tokens; a hungry pool is too small for all running
 * requests. */
static uint32_t draw_pages(struct rng *r, const struct swarm *w) {
    uint32_t tokens = w->hungry ? 80 + rng_below(r, 240) : 100 + rng_below(r, 400);

    return MIN(tokens / w->page_tokens + 1, 128);
}

void swarm_draw(struct swarm *w, const struct swarm_case *c) {
    struct rng rng = {c->seed}, *r = &rng;
    uint32_t i = 0;

    *w = (struct swarm){0};
    /* Set values replace the drawn ones only after the drawing, so that the other values stay the
     * same. */
#define X(name, draw)                                                                              \
    w->name = (uint32_t)(draw);                                                                    \
    w->name = c->is_set[i] ? c->set.name : w->name;                                                \
    i++;
    SWARM_FIELDS(X)
#undef X
}

/* ---- actions ---- */

static uint32_t count_until(struct rng *r, uint32_t mean) {
    return 1 + rng_below(r, 2 * mean);
}

static int by_step(const void *a, const void *b) {
    const struct action *x = a, *y = b;

    return x->at != y->at ? (x->at < y->at ? -1 : 1) : (x->seed < y->seed ? -1 : x->seed > y->seed);
}

static void add_actions(struct run *u, enum kind kind, uint32_t every, uint32_t burst) {
    struct rng r = {u->c->seed * 8 + kind};
    uint32_t at = kind == ARRIVE ? 0 : every;

    while (every > 0 && at < u->c->n_steps && u->n_actions < SWARM_ACTIONS) {
        uint32_t n = burst > 1 ? 1 + rng_below(&r, burst) : 1;

        for (uint32_t i = 0; i < n && u->n_actions < SWARM_ACTIONS; i++)
            u->action[u->n_actions++] = (struct action){at, kind, rng_next(&r)};
        at += count_until(&r, every * burst);
    }
}

/* Actions keep their numbers when a field that does not concern arrivals is set. */
static void make_actions(struct run *u) {
    const struct swarm *w = &u->w;

    add_actions(u, DIE, w->deaths, 1);
    add_actions(u, HANG, w->hangs, 1);
    add_actions(u, CANCEL, w->cancels, 1);
    add_actions(u, DEAF, w->deaf, 1);
    add_actions(u, WARM, w->warm, 1);
    add_actions(u, ELSEWHERE, w->elsewhere, 1);
    add_actions(u, ARRIVE, w->every, w->burst);
    qsort(u->action, u->n_actions, sizeof(*u->action), by_step);
}

/* ---- requests ---- */

/* Draws the sampling of a request and its end. */
static void draw_text(const struct swarm *w, struct rng *r, struct sim_client *c) {
    static const int32_t stop_ids[] = {7, 20, 33, 12, 26, 41, 50, 58};
    static const char *const stops[] = {"abcd", "ddd", "adb", "cab", "bcabc"};
    static const struct submit_bias bias[] = {{5, 1.5f}, {9, -100.0f}};
    struct submit *m = &c->m;

    if (w->sampling) {
        m->sampling.temperature = one_in(r, 2) ? 0.8 : 0;
        m->sampling.repetition_penalty = one_in(r, 3) ? 1.1 : 1;
        m->sampling.presence_penalty = one_in(r, 3) ? 0.5 : 0;
        m->choice = (uint16_t)rng_below(r, 2);
        if (one_in(r, 4))
            m->bias = bias, m->n_bias = 2;
    }
    if (w->stops) {
        m->min_new = one_in(r, 3) ? rng_below(r, m->max_new + 1) : 0;
        m->sampling.ignore_eos = one_in(r, 3);
        if (one_in(r, 3))
            m->stop_ids = stop_ids, m->n_stop_ids = 1 + rng_below(r, m->min_new > 0 ? 8 : 3);
        m->n_stops = one_in(r, 3) ? 1 + rng_below(r, 5) : 0;
        for (uint32_t i = 0; i < m->n_stops; i++)
            m->stops[i] = (struct str){stops[i], (uint32_t)strlen(stops[i])};
    }
    m->flags = (uint16_t)rng_below(r, 4);
    if (w->extras) {
        m->flags |= one_in(r, 4) ? SUBMIT_PROMPT_LOGPROBS : 0;
        m->n_prompt_top = m->flags & SUBMIT_PROMPT_LOGPROBS ? m->n_prompt % 3 : 0;
        m->n_top = one_in(r, 6) ? (uint8_t)(1 + rng_below(r, 5)) : 0;
    }
    m->flags |= m->n_top ? SUBMIT_LOGPROBS : 0;
    m->flags |= one_in(r, 8) ? SUBMIT_NO_SPECULATION : 0;
    c->edit_every = one_in(r, 2) ? 1 + rng_below(r, 12) : 0;
    if (w->extras && m->n_prompt % 8 == 5) { /* wants a vector and not a text */
        m->flags = m->n_prompt & 16 ? SUBMIT_POOL_LAST : SUBMIT_POOL_MEAN;
        m->n_prompt_top = m->n_top = 0;
        m->max_new = 1;
    }
}

static uint32_t output_length(const struct run *u, struct rng *r) {
    /* After many short answers the scheduler expects short ones; then pages become scarce. */
    if (u->w.hungry && u->sim.n_clients / 8 % 3 < 2)
        return 1 + rng_below(r, 2);
    if (u->w.hungry)
        return 40 + rng_below(r, 120);
    return 1 + rng_below(r, one_in(r, 8) ? 3 * u->w.output : u->w.output);
}

/* Makes another request of a conversation: mostly its last prompt with the outputs so far and more;
 * a sibling may still run. */
static struct sim_client *next_turn(struct run *u, struct rng *r) {
    struct sim *s = &u->sim;
    const struct sim_client *before = &s->client[rng_below(r, s->n_clients)];
    uint32_t n_more = 1 + rng_below(r, 20);

    if (before->m.n_prompt + before->n_got + n_more >= u->w.context)
        return NULL;
    struct sim_client *c = sim_client_after(s, before, n_more, output_length(u, r));
    sim_add_pictures(s, c, c->m.n_prompt - n_more, c->m.n_prompt, s->n_clients);
    memcpy(c->m.isolation_key, before->m.isolation_key, sizeof(c->m.isolation_key));
    c->m.session = before->m.session;
    c->m.tenant = before->m.tenant;
    return c;
}

static struct sim_client *new_prompt(struct run *u, struct rng *r) {
    uint32_t n = 1 + rng_below(r, one_in(r, 20) ? 3 * u->w.prompt : u->w.prompt);

    if (u->w.hungry) /* many requests fit as long as they are short */
        n = 1 + n / 4;
    uint32_t n_family = rng_below(r, n + n / 4 + 2);

    if (u->w.hungry && !one_in(r, 4)) /* preempted requests share most of their pages */
        n_family = n;
    uint32_t family = rng_below(r, u->w.hungry ? 1 : u->w.families);
    struct sim_client *c = sim_client(&u->sim, n, family, n_family, output_length(u, r));

    sim_add_pictures(&u->sim, c, 0, MIN(n_family, n), family + 50);
    sim_add_pictures(&u->sim, c, MIN(n_family, n), n, u->sim.n_clients);
    c->m.isolation_key[15] = (uint8_t)rng_below(r, u->w.keys);
    c->m.session = u->w.hungry ? 0 : rng_below(r, u->w.sessions);
    c->m.tenant = rng_below(r, u->w.tenants);
    return c;
}

static void arrive(struct run *u, struct rng *r) {
    struct sim *s = &u->sim;
    const struct swarm *w = &u->w;
    struct sim_client *c = NULL;

    if (s->n_live >= w->live || s->n_clients >= s->opts.max_clients) {
        u->n_skipped++;
        return;
    }
    if (s->n_clients > 0 && rng_below(r, 4) < w->turns)
        c = next_turn(u, r);
    if (!c)
        c = new_prompt(u, r);
    draw_text(w, r, c);
    if (w->classes) {
        c->m.class = (uint8_t)(c->m.tenant % 3);
        c->m.weight_milli = 500 * (c->m.tenant + 1);
    }
    if (rng_below(r, 4) < w->constrained && !(c->m.flags & (SUBMIT_POOL_LAST | SUBMIT_POOL_MEAN)))
        sim_constrain_randomly(s, c, r);
    c->m.priority = (int16_t)rng_below(r, w->priorities);
    c->m.n_faults = w->lonely && one_in(r, w->lonely) ? 2 : 0;
    if (w->deadlines && one_in(r, w->deadlines))
        c->m.deadline_ns = s->clock.ns + 1 + rng_below(r, 1000) * INT64_C(3000000);
    sim_submit(s, c, 0);
}

/* Reports the end of a turn and computes the next one ahead, as the front does. It may be any turn,
 * also one after which its session has returned. */
static void warm(struct run *u, struct rng *r) {
    struct sim *s = &u->sim;
    uint32_t n_more = 1 + rng_below(r, 40), n_late = MIN(s->n_clients, 20u);
    struct sim_client *c, *before;
    bool any = one_in(r, 4);

    if (s->n_clients == 0 || s->n_clients >= s->opts.max_clients || s->n_live >= u->w.live)
        return;
    before = &s->client[s->n_clients - 1 - rng_below(r, n_late)];
    for (uint32_t i = 1; i <= n_late && !any; i++) {
        c = &s->client[s->n_clients - i];
        if (pin_expects(&s->sched->pins, c->m.session, c->m.id))
            before = c;
    }
    uint32_t n_same = rng_below(r, before->n_got + 1);
    struct turn_end end = {before->m.id, before->m.session, rng_below(r, 2), 0};
    if (before->n_ends == 0 || before->m.n_prompt + n_same + n_more >= u->w.context)
        return;
    if (!one_in(r, 4))
        sched_turn_end(s->sched, &end);
    c = sim_client_prewarm(s, before, n_same, n_more);
    c->invalid = c->m.session == 0;
    sim_submit(s, c, 0);
}

/* Charges a tenant for a part of the last second at another worker, or for more. */
static void serve_elsewhere(struct run *u, struct rng *r) {
    uint64_t ns = rng_below(r, 1000) * UINT64_C(1000000) * (one_in(r, 10) ? 20 : 1);

    sim_served_elsewhere(&u->sim, rng_below(r, u->w.tenants), ns);
}

static void act(struct run *u, const struct action *a) {
    struct rng r = {a->seed};
    struct sim *s = &u->sim;

    switch (a->kind) {
    case ARRIVE:
        arrive(u, &r);
        break;
    case CANCEL:
        if (s->n_live > 0)
            sim_cancel(s, &s->client[s->live[rng_below(&r, s->n_live)]]);
        break;
    case DEAF:
        u->deaf_until = a->at + 1 + rng_below(&r, 8);
        break;
    case WARM:
        warm(u, &r);
        break;
    case ELSEWHERE:
        serve_elsewhere(u, &r);
        break;
    case DIE:
        telltale_fail(s->draft_engine && a->seed % 4 == 0 ? s->draft_engine : s->engine,
                      one_in(&r, 2));
        break;
    default:
        telltale_hang(s->draft_engine && a->seed % 4 == 0 ? s->draft_engine : s->engine,
                      rng_below(&r, 400) * INT64_C(1000000));
    }
}

/* ---- the run ---- */

static void options(const struct swarm *w, uint32_t n_requests, struct sim_opts *o) {
    *o = (struct sim_opts){
        .drafts = (enum sim_drafts)w->drafts,
        .sched = {.max_seqs = w->seqs,
                  .max_rows = w->rows,
                  .itl_target_ms = w->itl_ms,
                  .max_step_ms = w->step_ms,
                  .depth = w->depth,
                  .max_bypass = w->bypass,
                  .force_chunk = w->chunk,
                  .no_prefix_sharing = w->no_sharing,
                  .hash_bits = w->hash_bits,
                  .hash_seed = 77,
                  .no_speculation = w->no_speculation,
                  .no_pins = w->no_pins,
                  .picture_bytes = w->picture_bytes,
                  .max_draft = w->max_draft,
                  .force_draft = w->force_draft},
        .n_pages = w->pages,
        .n_host_pages = w->host_pages,
        .n_states = w->states,
        .n_snapshots = w->states > 0 ? w->snapshots : 0,
        .n_pictures = w->pictures,
        .broken_picture = w->broken,
        .two_way = w->two_way && w->states == 0 && w->rows >= w->seqs + SIM_PICTURE_ROWS,
        .pixel_ns = (int64_t)w->pixel_ns * w->slower,
        .ends = w->states > 0 ? 24 : 0,
        .n_draft_pages = w->draft_pages,
        .draft_page_tokens = w->draft_page_tokens,
        .draft_wrong = w->draft_wrong,
        .draft_step_ns = (int64_t)w->draft_us * 1000,
        .block = w->block,
        .borrows = w->borrows,
        .window = w->states == 0 ? w->window : 0,
        .n_spare_windows = w->spare_windows,
        .disk_bytes = w->host_pages > 0 && w->disk_pages > 0 && (w->states > 0 || w->window == 0)
                          ? 4096 + w->disk_pages * (w->states > 0 ? 16384ull : 8192ull)
                          : 0,
        .page_tokens = w->page_tokens,
        .max_context = w->context,
        .max_clients = MAX(n_requests, 1),
        .end_per_1024 = w->end,
        .step_ns = (int64_t)w->fixed_us * 1000 * w->slower,
        .row_ns = (int64_t)w->row_us * 1000 * w->slower,
        .key_ns = (int64_t)w->key_ns * w->slower,
        .machine = {.noise = w->noise / 100.0, .busy = w->busy},
        .wrong = w->wrong,
        .short_chunks = w->buggify >> BUGGIFY_plan_chunk_short & 1,
        .repeats = w->buggify == 0 && w->hash_bits == 0,
    };
}

static void restart(struct run *u, struct swarm_total *total) {
    struct sim *s = &u->sim;

    HOLD(s, NULL, PROGRESS, sched_step(s->sched) == -EIO);
    total->n_preemptions += s->stats.n_preemptions;
    sim_restart(s);
}

/* Advances time until something happens, because nothing runs. */
static uint32_t pass_time(struct run *u, uint32_t step) {
    u->sim.clock.ns += 1000000;
    if (u->sim.deaf || u->next == u->n_actions)
        return step + 1;
    return MAX(step + 1, u->action[u->next].at);
}

static void run_with_faults(struct run *u, struct swarm_total *total, volatile uint64_t *at) {
    struct sim *s = &u->sim;

    for (uint32_t step = 0; step < u->c->n_steps;) {
        while (u->next < u->n_actions && u->action[u->next].at <= step) {
            if (!u->c->some || u->c->keep[u->next])
                act(u, &u->action[u->next]);
            u->next++;
        }
        s->deaf = step < u->deaf_until;
        int e = sim_step(s);
        if (e < 0)
            restart(u, total);
        step = e == SCHED_NO_STEP ? pass_time(u, step) : step + 1;
        if (at)
            *at = step;
    }
}

/* Returns the most steps that the first request in order can be delayed by prefill, output and
 * requests that must run alone. */
static uint64_t patience(const struct sim *s) {
    uint64_t n = 200;

    for (uint32_t i = 0; i < s->n_live; i++) {
        const struct sim_client *c = &s->client[s->live[i]];

        n += 8 * ((uint64_t)c->m.n_prompt + c->m.max_new) + 64 * c->m.n_pictures;
    }
    return n;
}

static void run_to_the_end(struct run *u, struct swarm_total *total) {
    struct sim *s = &u->sim;
    uint64_t steps = patience(s);

    s->deaf = false;
    for (uint64_t i = 0;; i++) {
        int e = sim_step(s);

        if (e < 0) /* it would have happened anyway */
            restart(u, total);
        if (e == SCHED_NO_STEP && sim_all_ended(s))
            return;
        bool idle = e == SCHED_NO_STEP && !sim_constraints_pending(s) && !sim_pictures_pending(s);
        HOLD(s, &s->client[s->live[0]], ALL_END, !idle && i < steps);
    }
}

static void add_up(const struct run *u, struct swarm_total *t) {
    const struct sim *s = &u->sim;

    for (uint32_t i = 0; i < s->n_clients; i++) {
        const struct sim_client *c = &s->client[i];

        HOLD(s, c, ONE_END, c->n_ends == 1);
        t->n_end[c->finish]++;
        t->n_given_up += c->given_up;
        t->n_cached += c->n_cached;
        t->n_drafted += c->n_drafted;
        t->n_accepted += c->n_accepted;
    }
    for (uint32_t i = 0; i < BUGGIFY_N; i++) {
        t->n_taken[i] += buggify_sites[i]->n_taken;
        buggify_sites[i]->n_taken = 0;
    }
    t->n_runs++;
    t->n_steps += s->n_steps;
    t->n_requests += s->n_clients;
    t->n_preemptions += s->stats.n_preemptions;
    t->n_deaths += s->n_restarts;
    t->n_skipped += u->n_skipped;
    t->hash = s->hash;
    t->sum += s->hash;
}

static struct run *prepare(const struct swarm_case *c) {
    static struct run u;

    u.c = c;
    u.n_actions = u.next = u.n_skipped = u.deaf_until = 0;
    swarm_draw(&u.w, c);
    make_actions(&u);
    return &u;
}

void swarm_run(const struct swarm_case *c, struct swarm_total *total, volatile uint64_t *at) {
    struct run *u = prepare(c);
    uint32_t n_requests = 0;
    struct sim_opts o;

    for (uint32_t i = 0; i < u->n_actions; i++)
        n_requests += u->action[i].kind == ARRIVE;
    options(&u->w, n_requests, &o);
    o.flight_file = c->flight_file;
    o.recorder = c->recorder;
    buggify_begin(c->seed, u->w.buggify);
    sim_init(&u->sim, &o);
    run_with_faults(u, total, at);
    run_to_the_end(u, total);
    add_up(u, total);
    sim_deinit(&u->sim);
}

uint32_t swarm_actions(const struct swarm_case *c) {
    return prepare(c)->n_actions;
}

void swarm_tell(const struct swarm_case *c, uint32_t action, char *out, size_t size) {
    const struct action *a = &prepare(c)->action[action];

    snprintf(out, size, "step %u: %s", a->at, kind_names[a->kind]);
}
