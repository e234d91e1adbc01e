/*
 * Requests for vectors, on a real engine with a small random model: a vector equals a naive
 * computation from the hidden states, and has the same bits in company, in chunks, behind shared
 * prefixes and after preemptions.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "scheduler/scheduler.h"
#include "tests/support/few.h"
#include "tests/support/tiny_model.h"

#ifdef BACKEND
enum {
    REQUESTS = 4,
    PROMPT = 40,
    COMMON = 32,
    CHUNK = 17,
    CHUNKS = 1,
    LAYERS = 1
}; /* on the emulator */
#else
#define BACKEND "reference"
#define MORE
enum { REQUESTS = 8, PROMPT = 70, COMMON = 48, CHUNK = 7, CHUNKS = FEWER(3, 1), LAYERS = 2 };
#endif
enum { OUT = 40, N_EMBD = 256 };

/* Request i asks for the last state, the mean, all states, or a text beside which the others
 * run. */
static const uint16_t flags_of[] = {SUBMIT_POOL_LAST, SUBMIT_POOL_MEAN, SUBMIT_POOL_NONE, 0};

struct heard {
    uint32_t n_ends, n_vectors, n_cached, n_tokens;
    float vector[PROMPT * N_EMBD];
};

static struct gguf *model;
static struct heard all[REQUESTS], want[REQUESTS];

static void open_model(void) {
    struct err err = {0};
    char path[64];

    tiny_model_temp(&(struct tiny_model){.seed = 5, .n_layer = LAYERS}, path);
    cr_assert_eq(gguf_open(&model, path, &err), 0, "%s", err.message);
    unlink(path);
}

static uint32_t prompt_of(uint32_t i, int32_t tokens[PROMPT]) {
    struct rng common = {1}, own = {100 + i};

    for (uint32_t k = 0; k < PROMPT; k++)
        tokens[k] = (int32_t)rng_below(k < COMMON ? &common : &own, 300);
    return PROMPT - i;
}

static void submit(struct sched *s, uint32_t i, uint32_t max_new) {
    int32_t tokens[PROMPT];
    uint32_t n = prompt_of(i, tokens);
    struct submit m = {
        .id = i + 1,
        .n_prompt = n,
        .n_tokens = n,
        .max_new = max_new,
        .tokens = tokens,
        .flags = flags_of[i % 4],
    };

    params_init(&m.sampling);
    cr_assert_eq(sched_submit(s, &m), 0);
}

static void take(const struct event *e) {
    struct heard *h = &all[e->id - 1];

    h->n_tokens += e->n_tokens;
    h->n_cached = e->n_cached;
    h->n_ends += e->kind == EVENT_FINISH;
    if (e->n_vector == 0)
        return;
    cr_assert(e->kind == EVENT_FINISH && e->finish == FINISH_STOP);
    cr_assert(e->n_vector % N_EMBD == 0 && e->n_vector <= PROMPT * N_EMBD);
    memcpy(h->vector, e->vector, e->n_vector * sizeof(*h->vector));
    h->n_vectors++;
}

static void listen(struct sched *s) {
    struct event_cursor at;
    struct event e;
    struct buf b;

    buf_init(&b, 1 << 20);
    if (sched_events(s, &b) == 0) {
        msg_events_begin(&at, b.data, (uint32_t)b.len);
        while (msg_events_next(&at, &e) == 0)
            take(&e);
        sched_delivered(s);
    }
    buf_deinit(&b);
}

struct world {
    struct engine *engine;
    struct sched *s;
    struct msg_stats stats;
};

static void begin(struct world *w, uint32_t n_pages, uint32_t chunk, uint32_t depth) {
    struct engine_opts o = {
        .file = model,
        .backend = BACKEND,
        .n_threads = 1,
        .n_pages = n_pages,
        .page_tokens = 16,
        .max_context = 128,
        .max_rows = 128,
        .max_seqs = 8,
        .max_wants = 128,
    };
    struct sched_opts so = {
        .max_seqs = 8,
        .max_rows = 128,
        .itl_target_ms = 50,
        .max_step_ms = 200,
        .max_bypass = 4,
        .force_chunk = chunk,
        .check = true,
    };
    struct err err = {0};

    cr_assert_eq(engine_new(&w->engine, &o, &err), 0, "%s", err.message);
    so.depth = MIN(depth, engine_info(w->engine)->depth);
    cr_assert_eq(sched_new(&w->s, &so, w->engine, clock_monotonic()), 0);
    memset(all, 0, sizeof(all));
}

static void run(struct world *w) {
    while (sched_step(w->s) == 0)
        listen(w->s);
    listen(w->s);
    sched_stats(w->s, &w->stats);
    cr_expect_eq(w->stats.n_used, 0);
}

static void end(struct world *w) {
    sched_free(w->s);
    engine_free(w->engine);
}

static void check(const char *how) {
    for (uint32_t i = 0; i < REQUESTS; i++) {
        bool pools = flags_of[i % 4] != 0;

        cr_assert_eq(all[i].n_ends, 1, "%s, request %u", how, i);
        cr_assert_eq(all[i].n_vectors, pools, "%s, request %u", how, i);
        cr_assert_eq(all[i].n_tokens > 0, !pools, "%s, request %u", how, i);
        cr_assert_eq(memcmp(all[i].vector, want[i].vector, sizeof(want[i].vector)), 0,
                     "%s: request %u has another vector", how, i);
    }
}

/* Computes hidden states of a prompt by the engine alone, in one batch, and pools them in the
 * simplest way. */
static void expect(struct engine *e, uint64_t step, uint32_t i) {
    static const uint32_t page[] = {4, 2, 7, 0, 5}, start[] = {0, 5};
    static struct engine_want ask[PROMPT];
    int32_t tokens[PROMPT];
    uint32_t n = prompt_of(i, tokens);
    struct engine_seq seq = {.n_rows = n, .n_prompt = n, .feed = -1};
    struct engine_param param = {.tokens = tokens, .n_prompt = n, .n_tokens = n};
    struct engine_batch b = {
        .step = step,
        .n_rows = n,
        .n_seqs = 1,
        .n_wants = n,
        .n_params = 1,
        .token = tokens,
        .seq = &seq,
        .want = ask,
        .param = &param,
        .table[KV_GLOBAL] = {start, page},
    };
    struct engine_result res;

    for (uint32_t k = 0; k < n; k++)
        ask[k] = (struct engine_want){.row = k, .what = WANT_HIDDEN};
    cr_assert(engine_launch(e, &b) == 0 && engine_seal(e, step) == 0 &&
              engine_wait(e, step, &res) == 0);
    for (uint32_t d = 0; d < N_EMBD; d++) {
        double sum = 0;

        for (uint32_t k = 0; k < n; k++)
            sum += (double)res.out[k].vector[d];
        for (uint32_t k = 0; k < n && flags_of[i % 4] & SUBMIT_POOL_NONE; k++)
            want[i].vector[k * N_EMBD + d] = res.out[k].vector[d];
        if (flags_of[i % 4] & SUBMIT_POOL_MEAN)
            want[i].vector[d] = (float)(sum / n);
        else if (flags_of[i % 4] & SUBMIT_POOL_LAST)
            want[i].vector[d] = res.out[n - 1].vector[d];
    }
}

static void expect_all(void) {
    struct world w;

    open_model();
    begin(&w, 16, 0, 1);
    for (uint32_t i = 0; i < REQUESTS; i++)
        expect(w.engine, i + 1, i);
    end(&w);
    cr_assert_neq(memcmp(want[0].vector, want[REQUESTS / 2].vector, sizeof(want[0].vector)), 0);
}

TestSuite(pool, .init = expect_all);

Test(pool, vectors_are_those_of_a_naive_computation_alone_and_in_company) {
    struct world w;

    begin(&w, 64, 0, 1);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        submit(w.s, i, 4);
        run(&w);
    }
    check("one by one");
    end(&w);
    for (uint32_t chunk = CHUNK; chunk < CHUNK + 19 * CHUNKS; chunk += 19)
        for (uint32_t depth = 1; depth <= 2; depth++) {
            char how[64];

            snprintf(how, sizeof(how), "chunks of %u, depth %u", chunk, depth);
            begin(&w, 64, chunk, depth);
            for (uint32_t i = 0; i < REQUESTS; i++)
                submit(w.s, i, 4);
            run(&w);
            check(how);
            end(&w);
        }
}

Test(pool, a_prefix_is_shared_only_by_those_that_need_not_see_all_of_it) {
    struct world w;

    begin(&w, 64, 0, 1);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        submit(w.s, i, 4);
        run(&w);
    }
    for (uint32_t i = 1; i < REQUESTS; i++)
        cr_expect_eq(all[i].n_cached,
                     flags_of[i % 4] & (SUBMIT_POOL_MEAN | SUBMIT_POOL_NONE) ? 0u : COMMON,
                     "request %u", i);
    end(&w);
}

#ifdef MORE
/* Serves texts and vectors in a pool that holds two of them, in both orders. */
static uint64_t press(uint32_t chunk, bool reversed) {
    struct world w;

    begin(&w, 9, chunk, 2);
    /* short answers, so that more requests are admitted than will fit */
    for (uint32_t i = 0; i < 6; i++) {
        submit(w.s, 3, 1);
        run(&w);
    }
    memset(all, 0, sizeof(all));
    for (uint32_t i = 0; i < REQUESTS; i++)
        submit(w.s, reversed ? REQUESTS - 1 - i : i, OUT);
    run(&w);
    check("preempted");
    end(&w);
    return w.stats.n_preemptions;
}

Test(pool, preemption_changes_no_vector) {
    uint64_t n = 0;

    for (uint32_t chunk = 3; chunk < FEWER(20, 4); chunk += 8)
        n += press(chunk, false) + press(chunk, true);
    cr_expect_gt(n, 0u);
}

Test(pool, a_vector_teaches_nothing_about_the_length_of_answers) {
    struct world w;

    begin(&w, 64, 0, 1);
    for (uint32_t i = 0; i < 20; i++) {
        submit(w.s, i % 2, 1);
        run(&w);
    }
    cr_expect_eq(w.stats.n_output_tokens, 0u);
    end(&w);
}

Test(pool, what_makes_no_sense_is_refused) {
    int32_t tokens[] = {1, 2, 3};
    struct submit m = {.id = 1, .n_prompt = 2, .n_tokens = 3, .max_new = 1, .tokens = tokens};
    struct event_cursor at;
    struct world w;
    struct event e;
    struct buf b;

    params_init(&m.sampling);
    begin(&w, 64, 0, 1);
    buf_init(&b, 1 << 20);
    m.flags = SUBMIT_POOL_NONE; /* resumed with an output */
    cr_assert_eq(sched_submit(w.s, &m), 0);
    m.id = 2;
    m.n_tokens = 2;
    m.flags = SUBMIT_POOL_MEAN | SUBMIT_POOL_LAST;
    cr_assert_eq(sched_submit(w.s, &m), 0);
    cr_assert_eq(sched_events(w.s, &b), 0);
    msg_events_begin(&at, b.data, (uint32_t)b.len);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(msg_events_next(&at, &e), 0);
        cr_expect_eq(e.kind, EVENT_REJECTED);
        cr_expect_eq(e.status, 400);
    }
    sched_delivered(w.s);
    buf_deinit(&b);
    end(&w);
}
#endif
