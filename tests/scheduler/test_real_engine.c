/*
 * The scheduler with a real engine and a small random model: what a request gets in company, with shared
 * prefixes, in chunks, preempted, is bit for bit what it gets alone. The logits' digests are compared.
 */

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>
#include "base/rng.h"
#include "scheduler/scheduler.h"
#include "tests/support/tiny_model.h"

enum { REQUESTS = 6, PROMPT = 70, COMMON = 48, OUT = 40 };

struct heard {
    uint32_t n, n_ends;
    int32_t token[OUT];
    uint64_t digest[OUT];
};

static struct gguf *model;
static uint64_t n_preemptions, n_cached;

static void open_model(void) {
    struct err err = {0};
    char path[64];

    tiny_model_temp(&(struct tiny_model){.seed = 5}, path);
    cr_assert_eq(gguf_open(&model, path, &err), 0, "%s", err.message);
    unlink(path);
}

static void submit(struct sched *s, uint32_t i, uint32_t max_new) {
    struct rng common = {1}, own = {100 + i};
    int32_t tokens[PROMPT];
    struct submit m = {
        .id = i + 1,
        .seed = 50 + i,
        .n_prompt = PROMPT - i,
        .n_tokens = PROMPT - i,
        .max_new = max_new,
        .tokens = tokens,
        .flags = SUBMIT_DIGESTS,
    };

    for (uint32_t k = 0; k < PROMPT; k++)
        tokens[k] = (int32_t)rng_below(k < COMMON ? &common : &own, 300);
    params_init(&m.sampling);
    m.sampling.temperature = i % 2 ? 1 : 0;
    m.sampling.repetition_penalty = i % 3 ? 1 : 1.2;
    cr_assert_eq(sched_submit(s, &m), 0);
}

static void listen(struct sched *s, struct heard *all) {
    struct event_cursor at;
    struct event e;
    struct buf b;

    buf_init(&b, 1 << 20);
    if (sched_events(s, &b) == 0) {
        msg_events_begin(&at, b.data, (uint32_t)b.len);
        while (msg_events_next(&at, &e) == 0) {
            struct heard *h = &all[e.id - 1];

            cr_assert_eq(e.from, e.kind == EVENT_ACCEPTED ? 0 : h->n,
                         "kind %u, request %lu, from %u, has %u", e.kind, e.id, e.from, h->n);
            for (uint32_t k = 0; k < e.n_tokens; k++) {
                h->token[h->n] = e.tokens[k];
                h->digest[h->n++] = e.digests[k];
            }
            h->n_ends += e.kind == EVENT_FINISH;
        }
        sched_delivered(s);
    }
    buf_deinit(&b);
}

/* Serves requests [from, to) together. */
static void serve(uint32_t from, uint32_t to, uint32_t n_pages, uint32_t chunk, uint32_t depth,
                  struct heard *all) {
    CLEANUP(engine_freep) struct engine *engine = NULL;
    CLEANUP(sched_freep) struct sched *s = NULL;
    struct engine_opts o = {
        .file = model,
        .backend = "reference",
        .n_threads = 1,
        .n_pages = n_pages,
        .page_tokens = 16,
        .max_context = 128,
        .max_rows = 64,
        .max_seqs = 8,
        .max_wants = 64,
        .digest = true,
    };
    struct sched_opts so = {
        .max_seqs = 8,
        .max_rows = 64,
        .itl_target_ms = 50,
        .max_step_ms = 200,
        .max_bypass = 4,
        .force_chunk = chunk,
        .check = true,
    };
    struct err err = {0};
    struct msg_stats stats;

    cr_assert_eq(engine_new(&engine, &o, &err), 0, "%s", err.message);
    so.depth = MIN(depth, engine_info(engine)->depth);
    cr_assert_eq(sched_new(&s, &so, engine, clock_monotonic()), 0);
    if (to - from > 1) { /* a short answer, so that more is admitted than will fit */
        memset(all, 0, REQUESTS * sizeof(*all));
        submit(s, 0, 1);
        while (sched_step(s) == 0)
            listen(s, all);
        memset(all, 0, REQUESTS * sizeof(*all));
    }
    for (uint32_t i = from; i < to; i++)
        submit(s, i, OUT);
    while (sched_step(s) == 0)
        listen(s, all);
    listen(s, all);
    sched_stats(s, &stats);
    n_preemptions += stats.n_preemptions;
    n_cached += stats.n_cached_tokens;
    cr_expect_eq(stats.n_used, 0);
}

static void compare(const struct heard *a, const struct heard *b) {
    for (uint32_t i = 0; i < REQUESTS; i++) {
        cr_assert_eq(a[i].n_ends, 1);
        cr_assert_eq(b[i].n_ends, 1);
        cr_assert_eq(a[i].n, OUT);
        cr_assert_eq(b[i].n, OUT);
        for (uint32_t k = 0; k < OUT; k++) {
            cr_assert_eq(a[i].token[k], b[i].token[k], "request %u, token %u", i, k);
            cr_assert_eq(a[i].digest[k], b[i].digest[k], "request %u, digest %u", i, k);
        }
    }
}

Test(real_engine, company_changes_no_bit) {
    static struct heard alone[REQUESTS], together[REQUESTS];

    open_model();
    for (uint32_t i = 0; i < REQUESTS; i++)
        serve(i, i + 1, 64, 0, 1, alone);
    for (uint32_t depth = 1; depth <= 2; depth++) {
        serve(0, REQUESTS, 64, 0, depth, together);
        compare(alone, together);
        serve(0, REQUESTS, 14, 7, depth, together);
        compare(alone, together);
    }
    cr_expect_gt(n_preemptions, 0);
    cr_expect_gt(n_cached, 100);
    gguf_free(model);
}
