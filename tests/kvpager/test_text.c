/*
 * The pager under the tell-tale engine: whatever is shared, evicted, preempted or refused, each
 * request gets the same text as alone. Steps are drawn at random; only the text is compared.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "kvpager/kvpager.h"
#include "tests/support/telltale.h"

enum { SEQS = 6, TOKENS = 96, ROWS = 128, DRAFTS = 3, REQUESTS = 60, TABLE = TOKENS };

struct request {
    /* NULL: no request */
    struct kv_seq *seq;
    struct engine_param param;
    /* prompt, then output */
    int32_t token[TOKENS];
    uint32_t n_prompt, n_tokens, n_out;
    struct kv_isolation share;
    /* State of the step. */
    uint32_t row0, n_rows, n_draft, want0;
};

struct world {
    struct rng rng;
    struct kv_pager *pager;
    struct engine *engine;
    struct request r[SEQS];
    int32_t program[3][TOKENS];
    uint32_t page_tokens, n_started, n_ended, n_preempted, n_accepted;
    uint64_t step;
    /* The batch. */
    int32_t token[ROWS];
    struct engine_seq seq[SEQS];
    uint32_t start[SEQS + 1], page[SEQS * TABLE], owner[SEQS];
    struct engine_want want[SEQS * (DRAFTS + 1)];
    struct engine_param param[SEQS];
    struct engine_batch b;
};

static void begin_request(struct world *w, struct request *r) {
    const int32_t *program = w->program[rng_below(&w->rng, 3)];
    uint32_t same = rng_below(&w->rng, TOKENS);

    *r = (struct request){
        .n_prompt = 1 + rng_below(&w->rng, TOKENS / 2),
        .n_out = 1 + rng_below(&w->rng, TOKENS / 2),
        .param = {.temperature = (float)rng_below(&w->rng, 2), .top_p = 1.0f, .repetition = 1.0f},
        .share.key[0] = (uint8_t)rng_below(&w->rng, 2),
    };
    r->param.seed = rng_below(&w->rng, 3);
    r->n_tokens = r->n_prompt;
    for (uint32_t i = 0; i < r->n_prompt; i++)
        r->token[i] = i < same ? program[i] : (int32_t)rng_below(&w->rng, 256);
    cr_assert_eq(kv_seq_new(&r->seq, w->pager, &r->share), 0);
    w->n_started++;
}

static void preempt(struct world *w, struct request *r) {
    kv_seq_truncate(r->seq, 0);
    w->n_preempted++;
}

/* Makes room for @n_tokens by preempting requests that are not in the batch yet. */
static bool make_room(struct world *w, struct request *r, uint32_t n_tokens) {
    while (kv_seq_grow(r->seq, n_tokens) == KV_FULL) {
        struct request *victim = NULL;

        for (uint32_t i = 0; i < SEQS; i++) {
            struct request *v = &w->r[i];
            uint32_t n = 0;

            if (v == r || !v->seq || v->n_rows > 0)
                continue;
            kv_seq_pages(v->seq, &n);
            if (n > 0)
                victim = v;
        }
        if (!victim)
            return false;
        preempt(w, victim);
    }
    return true;
}

/* Adds drafts, which are sometimes right and mostly wrong. */
static void add_drafts(struct world *w, struct request *r) {
    struct telltale_ask ask = {.prompt = r->token, .n_prompt = r->n_tokens, .n_out = DRAFTS};
    int32_t right[DRAFTS];

    ask.param = r->param;
    /* right at temperature 0, where out_pos does not count */
    telltale_expect(&ask, right, NULL, NULL);
    for (uint32_t i = 0; i < r->n_draft; i++)
        w->token[w->b.n_rows + r->n_rows + i] =
            rng_below(&w->rng, 4) ? right[i] : (int32_t)rng_below(&w->rng, 256);
    r->n_rows += r->n_draft;
}

static void add_to_batch(struct world *w, struct request *r) {
    struct engine_batch *b = &w->b;
    uint32_t from = kv_seq_committed(r->seq), n, left;
    uint32_t chunk = 1 + rng_below(&w->rng, 24), n_draft = rng_below(&w->rng, DRAFTS + 1);

    if (from % w->page_tokens == 0) {
        kv_seq_truncate(r->seq, from);
        from = kv_seq_attach(r->seq, r->token, r->n_tokens - 1);
    }
    left = r->n_tokens - from;
    chunk = MIN(chunk, ROWS - b->n_rows - DRAFTS);
    r->n_rows = MIN(left, chunk);
    r->n_draft = 0;
    if (r->n_rows == left)
        r->n_draft = MIN(n_draft, r->n_prompt + r->n_out - r->n_tokens - 1);
    if (!make_room(w, r, from + r->n_rows + r->n_draft)) {
        r->n_rows = 0;
        return;
    }
    r->row0 = b->n_rows;
    memcpy(w->token + r->row0, r->token + from, r->n_rows * sizeof(int32_t));
    r->want0 = b->n_wants;
    for (uint32_t i = 0; r->n_rows == left && i <= r->n_draft; i++)
        w->want[b->n_wants++] = (struct engine_want){.row = r->row0 + left - 1 + i,
                                                     .param = b->n_params,
                                                     .out_pos = r->n_tokens - r->n_prompt + i,
                                                     .what = WANT_SAMPLE};
    w->param[b->n_params++] = r->param;
    if (r->n_draft > 0)
        add_drafts(w, r);
    w->seq[b->n_seqs] = (struct engine_seq){.row0 = r->row0,
                                            .n_rows = r->n_rows,
                                            .pos0 = from,
                                            .n_prompt = r->n_prompt,
                                            .n_draft = (uint16_t)r->n_draft,
                                            .feed = -1};
    const kv_page *page = kv_seq_pages(r->seq, &n);
    memcpy(w->page + w->start[b->n_seqs], page, n * sizeof(*page));
    w->start[b->n_seqs + 1] = w->start[b->n_seqs] + n;
    w->owner[b->n_seqs++] = (uint32_t)(r - w->r);
    b->n_rows += r->n_rows;
}

static void end_request(struct world *w, struct request *r) {
    struct telltale_ask ask = {
        .prompt = r->token, .n_prompt = r->n_prompt, .n_out = r->n_out, .param = r->param};
    int32_t right[TOKENS];

    telltale_expect(&ask, right, NULL, NULL);
    cr_assert_eq(memcmp(right, r->token + r->n_prompt, r->n_out * sizeof(*right)), 0,
                 "request %u has another text than alone", w->n_ended);
    r->seq = kv_seq_free(r->seq);
    w->n_ended++;
}

/* Takes the samples as long as the drafts agree, and truncates the sequence behind them. */
static void advance(struct world *w, struct request *r, const struct engine_out *out) {
    uint32_t from = kv_seq_committed(r->seq), computed = from + r->n_rows - r->n_draft, i = 0;

    if (computed == r->n_tokens) {
        r->token[r->n_tokens++] = out[r->want0].token;
        for (; i < r->n_draft; i++) {
            if (w->token[r->row0 + r->n_rows - r->n_draft + i] != out[r->want0 + i].token)
                break;
            r->token[r->n_tokens++] = out[r->want0 + i + 1].token;
        }
        w->n_accepted += i;
    }
    kv_seq_commit(r->seq, r->token, computed + i);
    kv_seq_truncate(r->seq, computed + i);
    r->n_rows = 0;
    if (r->n_tokens == r->n_prompt + r->n_out)
        end_request(w, r);
}

static void step(struct world *w) {
    uint32_t first = rng_below(&w->rng, SEQS);
    struct engine_result result;

    w->b = (struct engine_batch){
        .step = w->step + 1, .token = w->token, .seq = w->seq, .want = w->want, .param = w->param};
    w->b.table[KV_GLOBAL].start = w->start;
    w->b.table[KV_GLOBAL].page = w->page;
    for (uint32_t i = 0; i < SEQS; i++) {
        struct request *r = &w->r[(first + i) % SEQS];

        if (!r->seq && w->n_started < REQUESTS)
            begin_request(w, r);
        if (r->seq && (w->b.n_seqs == 0 || rng_below(&w->rng, 3) > 0) &&
            w->b.n_rows + DRAFTS + 1 < ROWS)
            add_to_batch(w, r);
    }
    cr_assert_gt(w->b.n_seqs, 0, "nothing can run: pages are lost");
    cr_assert_eq(engine_launch(w->engine, &w->b), 0);
    cr_assert_eq(engine_seal(w->engine, ++w->step), 0);
    cr_assert_eq(engine_wait(w->engine, w->step, &result), 0);
    for (uint32_t i = 0; i < w->b.n_seqs; i++)
        advance(w, &w->r[w->owner[i]], result.out);
    if (rng_below(&w->rng, 50) == 0)
        kv_pager_drop_cached(w->pager);
}

static void run(uint64_t seed, struct world *w) {
    struct telltale t = {.poison = seed};
    struct err err;

    memset(w, 0, sizeof(*w));
    w->rng.state = seed;
    w->page_tokens = 1u << rng_below(&w->rng, 5);
    struct kv_opts o = {
        .n_pages = TOKENS / w->page_tokens * (1 + rng_below(&w->rng, 4)) + 1,
        .page_tokens = w->page_tokens,
        .max_seqs = SEQS,
        .max_seq_tokens = TOKENS,
        .hash_bits = rng_below(&w->rng, 2) ? 2 : 0,
    };
    struct engine_opts e = {.n_pages = o.n_pages,
                            .page_tokens = w->page_tokens,
                            .max_rows = ROWS,
                            .max_seqs = SEQS,
                            .max_wants = SEQS * (DRAFTS + 1)};
    telltale_set(&t);
    for (uint32_t i = 0; i < 3 * TOKENS; i++)
        w->program[i / TOKENS][i % TOKENS] = (int32_t)rng_below(&w->rng, 3);
    cr_assert_eq(kv_pager_new(&w->pager, &o), 0);
    cr_assert_eq(engine_new(&w->engine, &e, &err), 0);
    while (w->n_ended < REQUESTS)
        step(w);
    engine_free(w->engine);
}

Test(kv_pager, shared_and_preempted_requests_get_the_text_they_get_alone) {
    static struct world w;
    uint64_t preempted = 0, accepted = 0, evicted = 0, shared = 0, deduplicated = 0;

    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct kv_stats s;

        run(seed, &w);
        kv_pager_stats(w.pager, &s);
        kv_pager_free(w.pager);
        preempted += w.n_preempted;
        accepted += w.n_accepted;
        evicted += s.n_evicted;
        shared += s.n_hit_tokens;
        deduplicated += s.n_deduplicated;
    }
    printf("# %llu preempted, %llu drafts kept, %llu pages evicted, %llu deduplicated, %llu tokens "
           "shared\n",
           (unsigned long long)preempted, (unsigned long long)accepted, (unsigned long long)evicted,
           (unsigned long long)deduplicated, (unsigned long long)shared);
    cr_assert(preempted > 1000 && accepted > 1000 && evicted > 1000 && shared > 1000 &&
              deduplicated > 100);
}
