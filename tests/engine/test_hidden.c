/*
 * Tests WANT_HIDDEN, the final norm's output of a row. The logits must follow from it, and it must
 * have the same bits for every division of the prompt and in any company.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/backend.h"
#include "engine/engine.h"
#include "engine/formats/quant.h"
#include "tests/support/tiny_model.h"

#ifdef BACKEND
enum { N = 35 }; /* on the emulator */
#else
enum { N = 75 };
#endif
enum { HALF = N / 2, N_EMBD = 256, N_VOCAB = 300, MAX_WANTS = 160 };

struct run {
    char path[64];
    struct gguf *file;
    struct engine *engine;
    uint64_t step;
    /* a vector is asked for at each multiple of it */
    uint32_t every;
    int32_t token[2][N];
    float vector[2][N][N_EMBD];
};

static void open_run(struct run *r, const char *backend, uint32_t n_threads) {
    struct err err = {0};
    struct rng rng = {5};

    memset(r, 0, sizeof(*r));
    r->every = 1;
    tiny_model_temp(&(struct tiny_model){.arch = "qwen3", .type = TENSOR_Q8_0}, r->path);
    cr_assert_eq(gguf_open(&r->file, r->path, &err), 0);
    unlink(r->path);
    struct engine_opts o = {
        .file = r->file,
        .backend = backend,
        .isa = "auto",
        .n_threads = n_threads,
        .n_pages = 16,
        .page_tokens = 16,
        .max_rows = 160,
        .max_seqs = 4,
        .max_wants = MAX_WANTS,
    };
    cr_assert_eq(engine_new(&r->engine, &o, &err), 0, "%s", err.message);
    cr_assert(engine_info(r->engine)->hidden);
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t i = 0; i < N; i++)
            r->token[s][i] = (int32_t)rng_below(&rng, N_VOCAB);
}

static void close_run(struct run *r) {
    engine_free(r->engine);
    gguf_free(r->file);
}

/* Computes rows [from, to) of both prompts, or of the first alone, and keeps their vectors; with
 * @sample, also samples at the last row of each, before or after the vectors. */
static struct engine_result compute(struct run *r, uint32_t n_seqs, uint32_t from, uint32_t to,
                                    bool sample) {
    static const uint32_t page[2][5] = {{3, 9, 0, 11, 6}, {1, 2, 15, 4, 8}};
    static uint32_t start[3], pages[10];
    static struct engine_want want[MAX_WANTS];
    static int32_t token[160];
    static struct engine_seq seq[2];
    static struct engine_param param[2];
    struct engine_batch b = {.step = ++r->step, .n_seqs = n_seqs, .n_params = n_seqs};
    struct engine_result res;

    for (uint32_t s = 0; s < n_seqs; s++) {
        seq[s] = (struct engine_seq){
            .row0 = b.n_rows, .n_rows = to - from, .pos0 = from, .n_prompt = N, .feed = -1};
        param[s] = (struct engine_param){
            .top_p = 1, .repetition = 1, .tokens = r->token[s], .n_prompt = N, .n_tokens = to};
        memcpy(pages + 5 * s, page[s], sizeof(page[s]));
        start[s + 1] = 5 * (s + 1);
        for (uint32_t p = from; p < to; p++) {
            uint32_t row = b.n_rows++;

            token[row] = r->token[s][p];
            if (sample && p + 1 == to && s == 0)
                want[b.n_wants++] = (struct engine_want){.row = row, .param = s};
            if (p % r->every == 0)
                want[b.n_wants++] =
                    (struct engine_want){.row = row, .param = s, .what = WANT_HIDDEN};
            if (sample && p + 1 == to && s == 1)
                want[b.n_wants++] = (struct engine_want){.row = row, .param = s};
        }
    }
    b.token = token;
    b.seq = seq;
    b.want = want;
    b.param = param;
    b.table[KV_GLOBAL].start = start;
    b.table[KV_GLOBAL].page = pages;
    cr_assert_eq(engine_launch(r->engine, &b), 0);
    cr_assert_eq(engine_seal(r->engine, b.step), 0);
    cr_assert_eq(engine_wait(r->engine, b.step, &res), 0);
    for (uint32_t i = 0; i < b.n_wants; i++) {
        uint32_t s = want[i].param, pos = from + want[i].row - seq[s].row0;

        if (want[i].what == WANT_HIDDEN)
            memcpy(r->vector[s][pos], res.out[i].vector, sizeof(r->vector[s][pos]));
        cr_expect_eq(want[i].what == WANT_HIDDEN, res.out[i].vector != NULL);
    }
    return res;
}

/* Computes the logits of the tokens from the vector alone. */
static void check_logits(const struct run *r, const float *v, const float *logits,
                         double tolerance) {
    const struct tensor *t = gguf_find(r->file, "output.weight");
    float row[N_EMBD];

    cr_assert(t != NULL);
    for (uint32_t o = 0; o < N_VOCAB; o++) {
        double sum = 0;

        quant_decode_row(t, o, row);
        for (uint32_t i = 0; i < N_EMBD; i++)
            sum += (double)row[i] * (double)v[i];
        cr_assert_lt(fabs(sum - (double)logits[o]), tolerance, "token %u: %g and %g", o, sum,
                     (double)logits[o]);
    }
}

/* Computes one more row of both prompts after the samples of the last step, and keeps its vectors.
 * The wants of that step were sample, vector, vector, sample. */
static void follow(struct run *r, bool fed, const int32_t sampled[2], float vector[2][N_EMBD]) {
    static uint32_t start[] = {0, 5, 10}, pages[] = {3, 9, 0, 11, 6, 1, 2, 15, 4, 8};
    int32_t token[2] = {fed ? 0 : sampled[0], fed ? 0 : sampled[1]};
    struct engine_seq seq[2] = {
        {.n_rows = 1, .pos0 = N, .n_prompt = N, .feed = fed ? 0 : -1},
        {.row0 = 1, .n_rows = 1, .pos0 = N, .n_prompt = N, .feed = fed ? 3 : -1}};
    struct engine_want want[2] = {{.row = 1, .what = WANT_HIDDEN}, {.row = 0, .what = WANT_HIDDEN}};
    struct engine_param param = {0};
    struct engine_batch batch = {.step = ++r->step,
                                 .n_rows = 2,
                                 .n_seqs = 2,
                                 .n_wants = 2,
                                 .n_params = 1,
                                 .token = token,
                                 .seq = seq,
                                 .want = want,
                                 .param = &param,
                                 .table[KV_GLOBAL] = {start, pages}};
    struct engine_result res;

    cr_assert_eq(engine_launch(r->engine, &batch), 0);
    cr_assert_eq(engine_seal(r->engine, batch.step), 0);
    cr_assert_eq(engine_wait(r->engine, batch.step, &res), 0);
    for (uint32_t i = 0; i < 2; i++)
        memcpy(vector[want[i].row], res.out[i].vector, sizeof(vector[0]));
}

static struct run a, b;

static void check_backend(const char *backend, uint32_t n_threads, double tolerance) {
    float fed[2][N_EMBD], told[2][N_EMBD];
    float logits[2][N_VOCAB];
    int32_t sampled[2];

    open_run(&a, backend, 1);
    open_run(&b, backend, n_threads);
    compute(&a, 1, 0, N, false); /* alone, whole */
    struct engine_result res = compute(&b, 2, 0, HALF, true);
    cr_expect(res.out[HALF - 1].token >= 0 && !res.out[HALF - 1].vector);
    compute(&b, 2, HALF, HALF + 1, false);
    compute(&b, 2, HALF + 1, N - 1, true);
    res = compute(&b, 2, N - 1, N, true);
    sampled[0] = res.out[0].token;
    sampled[1] = res.out[3].token;
    cr_expect_eq(memcmp(a.vector[0], b.vector[0], sizeof(a.vector[0])), 0, "%s", backend);
    cr_expect_neq(memcmp(a.vector[0], b.vector[1], sizeof(a.vector[0])), 0);
    for (uint32_t i = 0; i < 2; i++) {
        const float *peeked = engine_peek(b.engine, i ? 3 : 0);

        cr_assert(peeked != NULL);
        memcpy(logits[i], peeked, sizeof(logits[i]));
        check_logits(&b, b.vector[i][N - 1], logits[i], tolerance);
    }
    follow(&b, true, sampled, fed);
    follow(&b, false, sampled, told);
    cr_expect_eq(memcmp(fed, told, sizeof(fed)), 0, "%s: another token was fed", backend);
    cr_expect_neq(memcmp(fed[0], fed[1], sizeof(fed[0])), 0);
    close_run(&a);
    close_run(&b);
}

#ifdef BACKEND
Test(hidden, is_what_the_logits_are_made_of_and_depends_on_nothing_else) {
    check_backend(BACKEND, 1, 0.05);
}
#else
Test(hidden, is_what_the_logits_are_made_of_and_depends_on_nothing_else) {
    check_backend("reference", 1, 1e-4);
    check_backend("cpu", 3, 0.3); /* matrices take activations of 8 bits */
}

/* Steps have more rows than wants, and none at all in one of them. */
Test(hidden, of_some_rows_are_those_of_all_rows) {
    open_run(&a, "cpu", 1);
    open_run(&b, "cpu", 3);
    b.every = 7;
    compute(&a, 1, 0, N, false);
    compute(&b, 1, 0, HALF + 6, false);
    compute(&b, 1, HALF + 6, HALF + 10, false);
    compute(&b, 1, HALF + 10, N, false);
    for (uint32_t p = 0; p < N; p += b.every)
        cr_expect_eq(memcmp(a.vector[0][p], b.vector[0][p], sizeof(a.vector[0][p])), 0, "%u", p);
    close_run(&a);
    close_run(&b);
}
#endif
