#include "tests/support/serving.h"

#include <criterion/criterion.h>
#include <string.h>

static void hear(struct heard *h, const struct event *e) {
    cr_assert(e->kind != EVENT_REJECTED && e->finish != FINISH_ERROR, "request %lu: %.*s", e->id,
              (int)e->text.len, e->text.data);
    cr_assert_eq(e->from, e->kind == EVENT_ACCEPTED ? 0 : h->n, "request %lu", e->id);
    cr_assert_leq(h->n + e->n_tokens, HEARD_MAX);
    for (uint32_t k = 0; k < e->n_tokens; k++, h->n++) {
        h->token[h->n] = e->tokens[k];
        h->digest[h->n] = e->digests[k];
        h->logprob[h->n] = e->logprobs ? e->logprobs[k] : 0;
    }
    for (size_t k = 0; k < e->n_vector * sizeof(*e->vector); k++)
        h->vector = (h->vector ^ ((const uint8_t *)e->vector)[k]) * 0x100000001B3u;
    h->n_vector += e->n_vector;
    h->n_ends += e->kind == EVENT_FINISH;
    h->finish = e->finish;
    h->n_accepted = e->n_accepted;
}

void heard_listen(struct heard *all, struct sched *s) {
    struct event_cursor at;
    struct event e;
    struct buf b;

    buf_init(&b, 1 << 20);
    if (sched_events(s, &b) == 0) {
        msg_events_begin(&at, b.data, (uint32_t)b.len);
        while (msg_events_next(&at, &e) == 0)
            hear(&all[e.id - 1], &e);
        sched_delivered(s);
    }
    buf_deinit(&b);
}

void heard_compare(const struct heard *a, const struct heard *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(a[i].n_ends, 1, "request %u", i);
        cr_assert_eq(b[i].n_ends, 1, "request %u", i);
        cr_assert_eq(a[i].finish, b[i].finish, "request %u", i);
        cr_assert_eq(a[i].n, b[i].n, "request %u", i);
        cr_assert_eq(a[i].n_vector, b[i].n_vector, "request %u", i);
        cr_assert_eq(a[i].vector, b[i].vector, "request %u, vector", i);
        for (uint32_t k = 0; k < a[i].n; k++) {
            cr_assert_eq(a[i].token[k], b[i].token[k], "request %u, token %u", i, k);
            cr_assert_eq(a[i].digest[k], b[i].digest[k], "request %u, digest %u", i, k);
            cr_assert_eq(a[i].logprob[k], b[i].logprob[k], "request %u, logprob %u", i, k);
        }
    }
}

void heard_predict(const struct heard *h, uint64_t seed, uint32_t n_vocab, int32_t out[HEARD_MAX],
                   struct submit *m) {
    struct rng r = {seed};
    uint32_t n = 0;

    for (uint32_t k = 0; k < h->n; k++) {
        uint32_t mistake = rng_below(&r, 20);

        if (mistake != 0)
            out[n++] = mistake == 1 ? (int32_t)rng_below(&r, n_vocab) : h->token[k];
    }
    m->prediction = (struct str){(const char *)out, n * (uint32_t)sizeof(int32_t)};
}

void serving_draw(struct rng *r, struct sampling *s) {
    params_init(s);
    s->temperature = rng_below(r, 3) ? 0.2 * rng_below(r, 7) : 0;
    s->top_p = rng_below(r, 3) ? 1 : 0.8;
    s->repetition_penalty = rng_below(r, 3) ? 1 : 1.2;
    s->presence_penalty = rng_below(r, 3) ? 0 : 0.4;
    s->frequency_penalty = rng_below(r, 3) ? 0 : -0.3;
    s->typical_p = rng_below(r, 6) ? 1 : 0.7;
    s->top_n_sigma = rng_below(r, 6) ? -1 : 1.5;
    s->xtc_probability = rng_below(r, 6) ? 0 : 0.5;
    s->dry_multiplier = rng_below(r, 6) ? 0 : 0.8;
}

static void open_engine(const struct serving *w, bool draft, bool block, struct engine **out) {
    struct engine_opts o = {
        .file = draft ? w->draft : w->model,
        .backend = w->backend,
        .devices = w->devices,
        .n_threads = 1,
        .isa = "auto",
        .n_pages = draft ? w->draft_pages : w->n_pages,
        .page_tokens = draft ? w->draft_page_tokens : 16,
        .max_context = w->max_context ? w->max_context : 128,
        .max_rows = 64,
        .max_seqs = w->max_seqs,
        .max_wants = 64,
        .n_snapshots = w->n_snapshots,
        .n_host_pages = draft ? 0 : w->n_host_pages,
        .host_kv_bytes = draft ? 0 : w->host_kv_bytes,
        .windows = w->windows && !draft,
        .digest = true,
        .drafts = block,
        .block = block ? w->apart : NULL,
    };
    struct err err = {0};

    cr_assert_eq(engine_new(out, &o, &err), 0, "%s", err.message);
    cr_assert_eq(engine_info(*out)->n_windows > 0, o.windows);
    cr_assert_eq(engine_info(*out)->n_slots > 0, block);
}

/* Clears the results of each request, except for the tokens that it was given. */
static void forget(const struct serving *w, struct heard *all) {
    for (uint32_t i = w->first; i < w->first + w->n_requests; i++)
        all[i] = (struct heard){.n = w->n_given};
}

void serving_run(const struct serving *w, const struct sched_opts *opts, struct heard *all,
                 struct msg_stats *stats) {
    CLEANUP(engine_freep) struct engine *engine = NULL, *draft = NULL;
    CLEANUP(sched_freep) struct sched *s = NULL;
    struct sched_opts so = *opts;

    forget(w, all);
    open_engine(w, false, w->block && !opts->no_speculation, &engine);
    if (w->draft)
        open_engine(w, true, false, &draft);
    so.draft_engine = draft;
    so.max_seqs = so.max_seqs ? so.max_seqs : w->max_seqs;
    so.max_rows = 64;
    so.itl_target_ms = so.max_step_ms = 1000;
    so.max_bypass = 4;
    so.depth = MIN(so.depth, engine_info(engine)->depth);
    cr_assert_eq(sched_new(&s, &so, engine, clock_monotonic()), 0);
    if (w->before) {
        w->before(s);
        while (sched_step(s) == 0)
            heard_listen(all, s);
        forget(w, all);
    }
    for (uint32_t i = 0; i < w->n_requests; i++) {
        w->submit(s, w->first + i, !so.no_speculation);
        while (w->at_once && (i + 1) % w->at_once == 0 && sched_step(s) == 0)
            heard_listen(all, s);
    }
    while (sched_step(s) == 0)
        heard_listen(all, s);
    heard_listen(all, s);
    sched_stats(s, stats);
    cr_expect_eq(stats->n_used, 0);
}
