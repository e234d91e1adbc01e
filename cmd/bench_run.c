#include "cmd/bench_run.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/result.h"
#include "base/try.h"
#include "checkpoint/checkpoint.h"

#define PAGE_TOKENS 32u

static const struct engine_param greedy = {.top_p = 1, .repetition = 1};

/* Allocates room for the largest batch of @r. Returns 0 or -ENOMEM; run_close() frees it in either
 * case. */
static int alloc_batch(struct run_batch *b, const struct run *r) {
    const struct run_opts *o = &r->opts;

    b->token = calloc(o->max_rows, sizeof(*b->token));
    b->seq = calloc(o->max_seqs, sizeof(*b->seq));
    b->want = calloc(o->max_seqs, sizeof(*b->want));
    b->start = calloc(o->max_seqs + 1, sizeof(*b->start));
    b->page = calloc((size_t)o->max_seqs * r->pages_per_seq, sizeof(*b->page));
    return enomem_unless(b->token && b->seq && b->want && b->start && b->page);
}

static void free_batch(struct run_batch *b) {
    free(b->token);
    free(b->seq);
    free(b->want);
    free(b->start);
    free(b->page);
}

/* Counts the bytes of weights that one token reads: one row of an embedding table that is not tied,
 * and only the experts that the router picks. */
static uint64_t count_bytes(const struct run *r) {
    const struct tensor *embd = gguf_find(r->file, "token_embd.weight");
    bool tied = !gguf_find(r->file, "output.weight");

    uint64_t n = r->info->weight_bytes - (embd && !tied ? embd->n_bytes - embd->row_bytes : 0);
    char key[64];
    uint32_t used;

    snprintf(key, sizeof(key), "%s.expert_used_count", r->info->arch);
    for (uint64_t i = 0; i < gguf_n_tensors(r->file); i++) {
        const struct tensor *t = gguf_tensor(r->file, i);

        if (t->ne[2] > 1 && gguf_u32(r->file, key, &used) == 0 && used < t->ne[2])
            n -= t->n_bytes / t->ne[2] * (t->ne[2] - used);
    }
    return n;
}

static int open_run(struct run *r, const struct run_opts *opts, struct err *err) {
    assert(opts->max_seqs > 0 && opts->max_tokens > 0);
    *r = (struct run){.opts = *opts};
    r->opts.max_rows = MAX(r->opts.max_rows, r->opts.max_seqs);
    r->pages_per_seq = (opts->max_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
    TRY(checkpoint_open_model(&r->file, opts->model, err));
    const struct engine_opts o = {
        .file = r->file,
        .backend = opts->backend,
        .isa = opts->isa,
        .n_threads = opts->n_threads,
        .n_pages = opts->max_seqs * r->pages_per_seq,
        .page_tokens = PAGE_TOKENS,
        .max_context = opts->max_tokens,
        .max_rows = r->opts.max_rows,
        .max_seqs = opts->max_seqs,
        .max_wants = opts->max_seqs,
        .kv_type = opts->kv_type,
    };
    TRY(engine_new(&r->engine, &o, err));
    r->info = engine_info(r->engine);
    if (r->info->max_context < opts->max_tokens)
        return err_set(err, 0, NULL,
                       "sequences of %u tokens are longer than the %u that the model supports",
                       opts->max_tokens, r->info->max_context);
    r->n_prompt = calloc(opts->max_seqs, sizeof(*r->n_prompt));
    if (!r->n_prompt)
        return -ENOMEM;
    for (int i = 0; i < 2; i++)
        TRY(alloc_batch(&r->batch[i], r));
    r->bytes_per_token = count_bytes(r);
    return 0;
}

int run_open(struct run *r, const struct run_opts *opts, struct err *err) {
    int e = open_run(r, opts, err);

    if (e < 0)
        run_close(r);
    return e;
}

void run_close(struct run *r) {
    engine_free(r->engine);
    gguf_free(r->file);
    free(r->n_prompt);
    for (int i = 0; i < 2; i++)
        free_batch(&r->batch[i]);
    *r = (struct run){0};
}

/* Returns an empty batch for the next step; the other batch may still be under way. */
static struct run_batch *run_begin(struct run *r) {
    struct run_batch *b = &r->batch[(r->step + 1) % 2];

    b->b = (struct engine_batch){
        .step = r->step + 1,
        .n_params = 1,
        .token = b->token,
        .seq = b->seq,
        .want = b->want,
        .param = &greedy,
        .table = {[KV_GLOBAL] = {b->start, b->page}},
    };
    return b;
}

/* Adds rows [pos0, pos0 + n) of a slot. With @want the token after the last row is sampled. */
static void run_add(struct run *r, struct run_batch *b, uint32_t slot, uint32_t pos0,
                    const int32_t *tokens, uint32_t n, int32_t feed, bool want) {
    /* the token of a row is either given, or the one sampled a step before */
    assert(!tokens == (feed >= 0));
    uint32_t i = b->b.n_seqs++, row0 = b->b.n_rows;
    uint32_t n_pages = (pos0 + n + PAGE_TOKENS - 1) / PAGE_TOKENS, first = b->start[i];

    assert(i < r->opts.max_seqs && row0 + n <= r->opts.max_rows && n_pages <= r->pages_per_seq);
    b->seq[i] = (struct engine_seq){
        .row0 = row0,
        .n_rows = n,
        .pos0 = pos0,
        .n_prompt = r->n_prompt[slot],
        .state_slot = r->info->n_states > 0 ? slot : 0,
        .feed = feed,
    };
    for (uint32_t k = 0; k < n; k++)
        b->token[row0 + k] = tokens ? tokens[k] : 0;
    for (uint32_t k = 0; k < n_pages; k++)
        b->page[first + k] = slot * r->pages_per_seq + k;
    b->start[i + 1] = first + n_pages;
    b->b.n_rows += n;
    if (want)
        b->want[b->b.n_wants++] = (struct engine_want){
            .row = row0 + n - 1, .out_pos = pos0 + n - r->n_prompt[slot], .what = WANT_SAMPLE};
}

/* Launches @b as the next step. Returns 0 or -EIO. */
static int run_launch(struct run *r, struct run_batch *b) {
    assert(b->b.n_rows > 0 && b->b.step == r->step + 1);
    int e = engine_launch(r->engine, &b->b);

    r->step++;
    TRY(e);
    return engine_seal(r->engine, r->step);
}

int run_prefill(struct run *r, uint32_t slot, uint32_t pos0, const int32_t *tokens, uint32_t n,
                int32_t *next) {
    struct engine_result result;

    assert(slot < r->opts.max_seqs && pos0 + n <= r->pages_per_seq * PAGE_TOKENS);
    r->n_prompt[slot] = pos0 + n;
    for (uint32_t at = 0; at < n;) {
        struct run_batch *b = run_begin(r);
        uint32_t rows = MIN(n - at, r->opts.max_rows);

        run_add(r, b, slot, pos0 + at, tokens + at, rows, -1, at + rows == n);
        TRY(run_launch(r, b));
        TRY(engine_wait(r->engine, r->step, &result));
        at += rows;
    }
    if (next && n)
        *next = result.out[0].token;
    return 0;
}

int run_decode(struct run *r, uint32_t n, const uint32_t *slots, const uint32_t *pos,
               const int32_t *tokens, int32_t *next) {
    struct run_batch *b = run_begin(r);
    struct engine_result result;

    assert(n > 0 && n <= r->opts.max_seqs);
    for (uint32_t i = 0; i < n; i++)
        run_add(r, b, slots[i], pos[i], &tokens[i], 1, -1, true);
    TRY(run_launch(r, b));
    TRY(engine_wait(r->engine, r->step, &result));
    for (uint32_t i = 0; i < n; i++)
        next[i] = result.out[i].token;
    return 0;
}

/* Launches step k + 1 before it waits for step k; the rows of k + 1 get their tokens on the
 * device. */
int run_generate(struct run *r, uint32_t n_seqs, uint32_t pos0, uint32_t n_tokens,
                 const int32_t *first, int32_t *last) {
    uint32_t depth = r->info->depth, launched = 0;
    struct engine_result result;

    assert(n_seqs > 0 && n_seqs <= r->opts.max_seqs && depth > 0);
    for (uint32_t i = 0; i < n_seqs; i++)
        r->n_prompt[i] = MAX(pos0, 1u); /* without a context, the first token is the prompt */
    for (uint32_t waited = 0; waited < n_tokens; waited++) {
        while (launched < n_tokens && launched < waited + depth) {
            struct run_batch *b = run_begin(r);

            for (uint32_t i = 0; i < n_seqs; i++)
                run_add(r, b, i, pos0 + launched, launched ? NULL : &first[i], 1,
                        launched ? (int32_t)i : -1, true);
            TRY(run_launch(r, b));
            launched++;
        }
        TRY(engine_wait(r->engine, r->step - (launched - waited - 1), &result));
    }
    for (uint32_t i = 0; last && n_tokens && i < n_seqs; i++)
        last[i] = result.out[i].token;
    return 0;
}
