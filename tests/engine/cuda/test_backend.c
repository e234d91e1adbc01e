/*
 * Tests the whole CUDA backend without a device: its host code over a fake runtime, its kernels on
 * the CPU (simt.h). The reference backend gives the expected logits (tests/gpu/models.c covers
 * every format); promises about equal bits are checked exactly.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/backend.h"
#include "engine/cuda/kernels.h"
#include "engine/ops/attention/kernels_attention.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/support/engine_driver.h"
#include "tests/support/few.h"
#include "tests/support/tiny_model.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_disable() ((void)0)
#define __lsan_enable() ((void)0)
#endif

static void random_tokens(int32_t *t, uint32_t n, uint32_t n_vocab, uint64_t seed) {
    struct rng r = {seed};

    for (uint32_t i = 0; i < n; i++)
        t[i] = (int32_t)rng_below(&r, n_vocab);
}

/* Logits of every row, in the order of positions. */
struct rows {
    float *logits;
    struct driver_out *out;
    uint32_t n_vocab;
};

static void keep_logits(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                        const float *logits) {
    struct rows *r = ctx;

    cr_assert(logits != NULL);
    memcpy(r->logits + (size_t)pos * r->n_vocab, logits, r->n_vocab * sizeof(float));
    r->out[pos] = (struct driver_out){out->token, out->logprob, out->digest};
}

static void keep_out(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                     const float *logits) {
    struct rows *r = ctx;

    r->out[pos] = (struct driver_out){out->token, out->logprob, out->digest};
}

struct subject {
    struct tiny_model model;
    struct kv_formats kv;
    uint32_t n_prompt, n_max, chunk, page_tokens;
};

static void run_subject(const struct subject *s, const char *backend, struct rows *rows) {
    uint32_t n = s->n_prompt + s->n_max;
    struct driver_opts o = {.backend = backend,
                            .n_pages = 64,
                            .page_tokens = s->page_tokens,
                            .kv_type = s->kv,
                            .on_out = keep_logits,
                            .ctx = rows,
                            .max_wants = 128,
                            .max_rows = 128,
                            .max_seqs = 4,
                            .shuffle = 5};
    int32_t prompt[1024], forced[64];
    struct driver d;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&s->model, path);
    o.path = path;
    int r = driver_open(&d, &o, &err);
    cr_assert(r == 0, "%s", err.message);
    unlink(path);
    rows->n_vocab = d.info->n_vocab;
    rows->logits = calloc((size_t)n * rows->n_vocab, sizeof(float));
    rows->out = calloc(n, sizeof(*rows->out));
    random_tokens(prompt, s->n_prompt, d.info->n_vocab, 1);
    random_tokens(forced, 64, d.info->n_vocab, 2);
    struct driver_seq *q = driver_add(&d, prompt, s->n_prompt, s->n_max, NULL);
    cr_assert(q != NULL);
    q->every_row = true;
    q->forced = forced;
    driver_prefill(&d, q, s->chunk);
    driver_decode(&d, &q, 1, s->n_max - 1, false);
    driver_drop(&d, q);
    driver_close(&d);
}

static void free_rows(struct rows *r) {
    free(r->logits);
    free(r->out);
}

/* Mean over the rows of |a - b| / |b|, and whether the best token is equal where it leads
 * clearly. */
static double distance(const struct rows *a, const struct rows *b, uint32_t n) {
    double worst = 0;

    for (uint32_t r = 0; r < n; r++) {
        const float *x = a->logits + (size_t)r * a->n_vocab,
                    *y = b->logits + (size_t)r * a->n_vocab;
        double d = 0, norm = 0;

        for (uint32_t i = 0; i < a->n_vocab; i++) {
            d += pow((double)x[i] - (double)y[i], 2);
            norm += pow((double)y[i], 2);
        }
        d = sqrt(d / norm);
        worst = d >= worst ? d : isnan(d) ? INFINITY : worst;
    }
    return worst;
}

/* Returns the distance of the logits of @backend from those of the reference. */
static double judge_backend(const struct subject *s, const char *backend) {
    struct rows expect = {0}, got = {0};

    run_subject(s, "reference", &expect);
    run_subject(s, backend, &got);
    double d = distance(&got, &expect, s->n_prompt + s->n_max - 1);
    free_rows(&expect);
    free_rows(&got);
    return d;
}

static double judge(const struct subject *s) {
    return judge_backend(s, "cuda");
}

/* Selects the first of each kind of case that takes the same code paths. */
#define FEW(all) FEWER(all, 1)

Test(cuda, every_architecture_is_near_the_reference) {
    static const struct {
        const char *arch;
        struct kv_formats kv;
        double limit;
    } cases[] = {{"qwen3", {ENGINE_KV_Q8_0, ENGINE_KV_Q8_0}, 1e-2},
                 {"llama", {ENGINE_KV_F16, ENGINE_KV_F16}, 4e-3},
                 {"qwen2", {ENGINE_KV_Q8_0, ENGINE_KV_Q8_0}, 1e-2},
                 {"qwen3", {ENGINE_KV_Q4_0, ENGINE_KV_Q4_0}, 4e-2},
                 {"llama", {ENGINE_KV_Q8_0, ENGINE_KV_Q4_0}, 4e-2}};

    for (size_t i = 0; i < FEW(ARRAY_SIZE(cases)); i++) {
        struct subject s = {.model = {.arch = cases[i].arch,
                                      .type = TENSOR_Q8_0,
                                      .head_dim = 96,
                                      .n_head = 6,
                                      .n_head_kv = 2,
                                      .n_ff = 64,
                                      .seed = i},
                            .kv = cases[i].kv,
                            .n_prompt = 40,
                            .n_max = 3,
                            .chunk = 23,
                            .page_tokens = 32};
        double d = judge(&s);

        /* Rounding differences move some codes of a q8_0 page by one, 1/127, and a few of a q4_0
         * page by 1/8. */
        cr_expect(d < cases[i].limit, "%s, kv %s and %s: %g", s.model.arch,
                  kv_types[cases[i].kv.k].name, kv_types[cases[i].kv.v].name, d);
    }
}

/* A launch that computes a gate and its up together must not read one in the format of the
 * other. */
Test(cuda, an_up_may_have_another_format_than_its_gate) {
    static const enum tensor_type formats[][2] = {
        {TENSOR_Q4_K, TENSOR_Q6_K}, {TENSOR_Q8_0, TENSOR_Q4_0}, {TENSOR_F16, TENSOR_Q5_K}};
    static const char *const backends[] = {"cpu", "cuda"};

    for (size_t i = 0; i < ARRAY_SIZE(formats) * 2; i++) {
        struct subject s = {.model = {.arch = "qwen3",
                                      .type = formats[i / 2][0],
                                      .up = formats[i / 2][1],
                                      .n_layer = 1,
                                      .seed = i / 2},
                            .n_prompt = 40,
                            .n_max = 3,
                            .chunk = 23,
                            .page_tokens = 32};
        double d = judge_backend(&s, backends[i % 2]);

        cr_expect(d < 2e-2, "%s, gates in %s: %g", backends[i % 2],
                  tensor_format((uint32_t)s.model.type)->name, d);
    }
}

Test(cuda, without_a_device_it_is_refused_with_the_reason) {
    struct err err = {0};

    fake_find()->n_devices = 0;
    cr_expect(backend_find("cuda", NULL, &err) == NULL);
    cr_expect(strstr(err.message, "no CUDA device") != NULL, "%s", err.message);
    fake_find()->n_devices = 1;
    fake_find()->major = 7;
    cr_expect(backend_find("cuda", NULL, &err) == NULL);
    cr_expect(strstr(err.message, "compute capability 7.0") != NULL, "%s", err.message);
    fake_find()->major = 9;
    fake_find()->no_code = 1;
    cr_expect(backend_find("cuda", NULL, &err) == NULL);
    cr_expect(strstr(err.message, "no code for") != NULL, "%s", err.message);
}

/* -- equal bits -------------------------------------------------------------------------------- */

struct way {
    const char *name;
    uint32_t chunk, page_tokens, n_neighbours, n_multiprocessors;
    bool overlap, graphs;
    uint64_t order;
    /* WEFT_CUDA_FUSE, _WIDE, _WGMMA */
    const char *fuse, *wide, *wgmma;
};

enum { PROMPT = 300, OUTPUTS = 6, NEIGHBOURS = 19 };

struct trace {
    struct driver_out at[PROMPT + OUTPUTS];
    bool seen[PROMPT + OUTPUTS];
    const struct driver_seq *subject;
};

static void keep_trace(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                       const float *logits) {
    struct trace *t = ctx;

    if (s != t->subject)
        return;
    t->at[pos] = (struct driver_out){out->token, out->logprob, out->digest};
    t->seen[pos] = true;
}

static struct driver_seq *add_neighbour(struct driver *d, uint64_t seed) {
    static const struct engine_param hot = {.temperature = 1.2f, .top_p = 1, .repetition = 1};
    int32_t tokens[40];

    random_tokens(tokens, 40, d->info->n_vocab, seed);
    struct driver_seq *s = driver_add(d, tokens, 1 + (uint32_t)seed % 40, OUTPUTS, &hot);
    cr_assert(s != NULL);
    return s;
}

/* The subject's prompt in chunks beside a neighbour that is prefilled, then all decode. */
static void run_way(const struct way *w, const char *path, struct trace *t) {
    struct driver_opts o = {.backend = "cuda",
                            .path = path,
                            .n_pages = 200,
                            .page_tokens = w->page_tokens,
                            .on_out = keep_trace,
                            .ctx = t,
                            .max_rows = 300,
                            .max_wants = 300,
                            .max_seqs = 32,
                            .shuffle = w->chunk};
    static const struct engine_param param = {
        .temperature = 0.8f, .top_p = 0.9f, .repetition = 1.1f, .presence = 0.2f, .seed = 4};
    struct driver_seq *all[NEIGHBOURS + 1], *s;
    struct err err = {0};
    struct driver d;
    int32_t prompt[PROMPT];

    fake_find()->n_multiprocessors = (int)w->n_multiprocessors;
    fake_find()->order = w->order;
    fake_find()->n_graph_launches = 0;
    setenv("WEFT_CUDA_GRAPHS", w->graphs ? "1" : "0", 1);
    setenv("WEFT_CUDA_FUSE", w->fuse, 1);
    setenv("WEFT_CUDA_WIDE", w->wide, 1);
    setenv("WEFT_CUDA_WGMMA", w->wgmma, 1);
    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    random_tokens(prompt, PROMPT, d.info->n_vocab, 8);
    all[0] = s = driver_add(&d, prompt, PROMPT, OUTPUTS, &param);
    cr_assert(s != NULL);
    s->every_row = true;
    s->n_top = 3;
    t->subject = s;
    for (uint32_t i = 1; i <= w->n_neighbours; i++)
        all[i] = add_neighbour(&d, i);
    for (uint32_t i = 1; s->n_computed < PROMPT; i++) {
        struct driver_part part[2] = {{NULL, 0}, {s, MIN(w->chunk, PROMPT - s->n_computed)}};
        bool with = i <= w->n_neighbours && part[1].n_rows + all[i]->n_prompt <= 300;

        if (with)
            part[0] = (struct driver_part){all[i], all[i]->n_prompt};
        driver_step(&d, with ? part : part + 1, with ? 2 : 1);
    }
    for (uint32_t i = 1; i <= w->n_neighbours; i++)
        driver_prefill(&d, all[i], 0);
    driver_decode(&d, all, 1, 2, w->overlap);
    driver_decode(&d, all, w->n_neighbours + 1, OUTPUTS - 3, w->overlap);
    for (uint32_t i = 0; i <= w->n_neighbours; i++)
        driver_drop(&d, all[i]);
    driver_close(&d);
    fake_find()->order = 0;
    bool used = fake_find()->n_graph_launches > 0;
    cr_expect(used == w->graphs, "%s", w->name);
}

static void expect_same(const struct trace *a, const struct trace *b, const char *name) {
    for (uint32_t i = 0; i < PROMPT + OUTPUTS - 1; i++) {
        cr_assert(a->seen[i] && b->seen[i], "%s: position %u", name, i);
        cr_assert(a->at[i].digest == b->at[i].digest, "%s: logits at position %u", name, i);
        cr_assert(a->at[i].token == b->at[i].token, "%s: token at position %u", name, i);
        cr_assert(a->at[i].logprob == b->at[i].logprob, "%s: position %u", name, i);
    }
}

/* Decode in chunks of one or two rows uses matvec and split attention, whole prompts use
 * matmul_wide and matmul_wgmma. Only the last case has all of these. */
#define FIRST_OTHER_WAY FEWER(1, 3)

Test(cuda, a_sequence_is_the_same_whatever_the_batch) {
    static const struct way ways[] = {
        {"alone, at once", 300, 16, 0, 4, false, false, 0, "0", "128", "0"},
        {"by 128 rows", 220, 32, 1, 1, false, true, 5, "16384", "1000", "1"},
        {"by few rows, split attention", 13, 64, 2, 140, false, false, 0, "3000", "128", "1"},
        {"overlapped, other order of threads", 60, 16, 19, 140, true, true, 77, "1000000", "16",
         "1"},
    };
    struct tiny_model m = {.type = TENSOR_Q4_K,
                           .arch = "qwen3",
                           .n_layer = 1,
                           .head_dim = 64,
                           .n_embd = 256,
                           .n_head = 4,
                           .n_head_kv = 2};
    static struct trace first, other;
    char path[64];

    tiny_model_temp(&m, path);
    run_way(&ways[0], path, &first);
    for (size_t i = FIRST_OTHER_WAY; i < ARRAY_SIZE(ways); i++) {
        memset(&other, 0, sizeof(other));
        run_way(&ways[i], path, &other);
        expect_same(&first, &other, ways[i].name);
    }
    unlink(path);
}

/* Sequences with a common prefix decode, the longest first: on shared pages, as far as these are
 * full, or on pages of their own. */
struct sharing {
    /* tokens */
    uint32_t n, common;
    uint32_t n_multiprocessors;
    bool same_pages, share, graphs;
    uint64_t order;
    /* attend_decode */
    bool decode;
};

enum { MOST_COMMON = 540, MOST_SHARERS = 18 };

typedef uint64_t sharer_digests[MOST_SHARERS][5];

static void run_sharing(const char *path, const struct sharing *w, sharer_digests digest) {
    struct driver_opts o = {.backend = "cuda",
                            .path = path,
                            .n_pages = w->n * ((w->common + w->n + 6) / 16 + 1),
                            .max_rows = 300,
                            .max_seqs = w->n,
                            .max_wants = w->n,
                            .shuffle = 3};
    struct driver_seq *all[MOST_SHARERS];
    uint32_t own[MOST_SHARERS][MOST_COMMON / 16], n_pages = w->common / 16;
    int32_t prompt[MOST_COMMON + MOST_SHARERS];
    struct err err = {0};
    struct driver d;

    cr_assert(w->n <= MOST_SHARERS && w->common <= MOST_COMMON);
    setenv("WEFT_CUDA_SHARE", w->share ? "1" : "0", 1);
    setenv("WEFT_CUDA_GRAPHS", w->graphs ? "1" : "0", 1);
    setenv("WEFT_CUDA_ATTEND", w->decode ? "1" : "0", 1);
    fake_find()->n_multiprocessors = w->n_multiprocessors;
    fake_find()->order = w->order;
    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    random_tokens(prompt, w->common + w->n, d.info->n_vocab, 5);
    for (uint32_t i = 0; i < w->n; i++) {
        all[i] = driver_add(&d, prompt, w->common + w->n - 1 - i, 6, NULL);
        cr_assert(all[i] != NULL);
        memcpy(own[i], all[i]->page, n_pages * sizeof(*own[i]));
        if (w->same_pages && i > 0) {
            memcpy(all[i]->page, all[0]->page, n_pages * sizeof(*own[i]));
            all[i]->n_computed = all[i]->launched = n_pages * 16;
        }
        driver_prefill(&d, all[i], 0);
    }
    driver_decode(&d, all, w->n, 4, true);
    for (uint32_t i = 0; i < w->n; i++) {
        cr_assert(all[i]->n_out == 5);
        for (uint32_t k = 0; k < 5; k++)
            digest[i][k] = all[i]->out[k].digest;
        memcpy(all[i]->page, own[i], n_pages * sizeof(*own[i]));
        driver_drop(&d, all[i]);
    }
    driver_close(&d);
    unsetenv("WEFT_CUDA_GRAPHS");
    unsetenv("WEFT_CUDA_ATTEND");
    fake_find()->n_multiprocessors = 4;
    fake_find()->order = 0;
}

static uint64_t n_shared_items;

/* With a window of 12, only some rows attend to the common chunk. */
static void see_twelve(const char *kernel, uint64_t number, void *args) {
    if (strncmp(kernel, "attend", 6) == 0 || strcmp(kernel, "merge") == 0)
        ((struct attend_args *)args)->window = 12;
}

static void count_shared(const char *kernel, uint64_t number, void *args) {
    const struct attend_args *a = args;

    if (strncmp(kernel, "attend", 6) == 0)
        for (uint32_t i = 0; i < a->batch->n_merges; i++)
            n_shared_items += a->batch->merge[i].shared.n_chunks;
}

Test(cuda, sequences_on_the_same_pages_are_the_same_as_alone) {
    static const struct sharing ways[] = {{3, 262, 140, false, true, true, 0, false},
                                          {3, 262, 140, true, false, true, 0, false},
                                          {3, 262, 140, true, true, true, 0, false},
                                          {3, 262, 140, true, true, true, 0, true}};
    static sharer_digests digest[7];
    char path[64];

    fake_small_model(path);
    run_sharing(path, &ways[0], digest[0]);
    run_sharing(path, &ways[1], digest[1]);
    fake_find()->on_launch = count_shared;
    run_sharing(path, &ways[2], digest[2]);
    run_sharing(path, &ways[3], digest[5]);
    fake_find()->on_launch = see_twelve;
    run_sharing(path, &ways[0], digest[3]);
    run_sharing(path, &ways[2], digest[4]);
    run_sharing(path, &ways[3], digest[6]);
    fake_find()->on_launch = NULL;
    cr_expect(n_shared_items == 2 * 4 * 3, "%llu", (unsigned long long)n_shared_items);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t k = 0; k < 5; k++) {
            cr_expect(digest[0][i][k] == digest[1][i][k] && digest[1][i][k] == digest[2][i][k],
                      "sequence %u, token %u", i, k);
            cr_expect(digest[3][i][k] != digest[0][i][k] && digest[3][i][k] == digest[4][i][k],
                      "sequence %u, token %u, window", i, k);
            cr_expect(digest[5][i][k] == digest[0][i][k] && digest[6][i][k] == digest[3][i][k],
                      "sequence %u, token %u, attend_decode", i, k);
        }
    unlink(path);
}

static uint64_t n_wide, n_wide_items; /* launches for few rows; items shared by sequences */

static void count_wide(const char *kernel, uint64_t number, void *args) {
    const struct batch_head *b = ((const struct attend_args *)args)->batch;

    if (strncmp(kernel, "attend_wide", 11))
        return;
    n_wide += b->n_rows <= 128;
    for (uint32_t i = 0; i < b->n_wide_items; i++)
        n_wide_items += b->wide_item[i].chunk >= 0;
}

/* 72 queries share two chunks, each of which is one item; or less than one chunk. */
Test(cuda, many_sequences_on_the_same_pages_are_the_same_as_alone) {
    static const struct sharing ways[] = {{18, 520, 2, true, false, false, 0, false},
                                          {18, 520, 2, true, true, true, 77, false},
                                          {18, 200, 2, true, true, true, 0, false}};
    struct tiny_model m = {.type = TENSOR_Q8_0,
                           .n_layer = 1,
                           .n_embd = 64,
                           .n_ff = 64,
                           .n_vocab = 40,
                           .n_head = 4,
                           .n_head_kv = 1,
                           .head_dim = 32,
                           .max_context = 600};
    static sharer_digests digest[2];
    char path[64];

    tiny_model_temp(&m, path);
    fake_find()->on_launch = count_wide;
    run_sharing(path, &ways[0], digest[0]);
    cr_expect(n_wide_items == 0, "%llu", (unsigned long long)n_wide_items);
    run_sharing(path, &ways[1], digest[1]);
    cr_expect(n_wide_items == 4 * 2, "%llu", (unsigned long long)n_wide_items);
    cr_expect_arr_eq(digest[0], digest[1], sizeof(digest[0]));
    n_wide = 0;
    run_sharing(path, &ways[2], digest[1]);
    cr_expect(n_wide == 0, "%llu", (unsigned long long)n_wide);
    fake_find()->on_launch = NULL;
    unlink(path);
}

/* -- faults ------------------------------------------------------------------------------------ */

#define TRIED_ROWS 70u /* more than a panel of 64 rows */

/* Opens the model, computes @n_rows rows in one step, then one row. Returns the first error. */
static int try_rows(const char *path, uint32_t n_rows, struct err *err) {
    static const int32_t tokens[TRIED_ROWS] = {5, 6};
    static const uint32_t start[2] = {0, 5}, page[5] = {1, 0, 4, 5, 6};
    struct engine_param param = {.top_p = 1, .repetition = 1};
    struct gguf *file;
    struct engine *e = NULL;
    int r = gguf_open(&file, path, err);

    cr_assert(r == 0);
    struct engine_opts o = {.file = file,
                            .backend = "cuda",
                            .n_pages = 7,
                            .n_host_pages = 2,
                            .page_tokens = 16,
                            .max_rows = MAX(n_rows, 4u),
                            .max_seqs = 2,
                            .max_wants = 4};
    r = engine_new(&e, &o, err);
    for (uint64_t step = 1; step <= 2 && r == 0; step++) {
        struct engine_seq seq = {
            .n_rows = step == 1 ? n_rows : 1, .pos0 = step == 1 ? 0 : n_rows, .feed = -1};
        struct engine_want want = {.row = seq.n_rows - 1, .what = WANT_SAMPLE};
        struct engine_copy copy[] = {{.src = 1, .dst = 2, .dir = COPY_D2D},
                                     {.src = 2, .dst = 1, .dir = COPY_D2H},
                                     {.src = 1, .dst = 3, .dir = COPY_H2D}};
        struct engine_batch b = {.step = step,
                                 .n_rows = seq.n_rows,
                                 .n_seqs = 1,
                                 .n_wants = 1,
                                 .n_params = 1,
                                 .n_after = 3,
                                 .token = tokens,
                                 .seq = &seq,
                                 .table[KV_GLOBAL] = {start, page},
                                 .want = &want,
                                 .param = &param,
                                 .after = copy};
        struct engine_result result;

        r = fake_run_step(e, &b, &result);
        if (r < 0) {
            cr_expect(r == -EIO && engine_launch(e, &b) == -EIO, "a lost device stays lost");
            cr_expect(engine_fault(e)[0] != 0, "it says which call failed");
        }
    }
    engine_free(e);
    gguf_free(file);
    return r;
}

static int try_all(const char *path, struct err *err) {
    return try_rows(path, 1, err);
}

/* Lets each call of try_rows(), or each @stride-th, fail once. Returns the number of calls. */
static uint32_t fail_calls(uint32_t n_rows, uint32_t every) {
    struct err err = {0};
    char path[64];

    fake_small_model(path);
    fake_find()->idle = true; /* kernels need not compute */
    fake_find()->n_calls = 0;
    cr_assert(try_rows(path, n_rows, &err) == 0, "%s", err.message);
    cr_expect(fake_find()->n_live == 0);
    uint32_t n = fake_find()->n_calls;
    uint32_t n_captures = 0;
    cr_assert(n > 100);
    for (uint32_t i = 1; i <= n; i += every) {
        fake_find()->n_calls = 0;
        fake_find()->fail_at = i;
        fake_find()->sticky = i % 2;
        fake_find()->failed_capture = false;
        memset(&err, 0, sizeof(err));
        int r = try_rows(path, n_rows, &err);
        /* errors of the two waits at closing are not reported; without a capture the step is
         * launched directly */
        bool closing = i + 1 >= n;
        if (closing || (r == 0 && fake_find()->failed_capture)) {
            n_captures += r == 0 && !closing;
            cr_expect(fake_find()->n_live == 0, "call %u: %d left", i, fake_find()->n_live);
            continue;
        }
        cr_expect(r < 0, "call %u", i);
        cr_expect(r == -EIO || err.message[0], "call %u: %d without a word", i, r);
        cr_expect(fake_find()->n_live == 0, "call %u: %d left", i, fake_find()->n_live);
    }
    fake_find()->fail_at = 0;
    fake_find()->idle = false;
    /* with a stride, some kinds of calls may never fail */
    cr_expect(n_captures > 3 || every > 1, "%u", n_captures);
    unlink(path);
    return n;
}

/* A device whose memory is full has no room for graphs; its steps are launched kernel by kernel. */
Test(cuda, no_memory_for_a_graph_is_no_lost_device) {
    struct err err = {0};
    char path[64];

    fake_small_model(path);
    fake_find()->no_graphs = true;
    fake_find()->n_graphs = fake_find()->n_graph_launches = 0;
    cr_expect(try_all(path, &err) == 0, "%s", err.message);
    cr_expect(fake_find()->n_graphs == 0 && fake_find()->n_graph_launches == 0);
    cr_expect(fake_find()->n_live == 0, "%d left", fake_find()->n_live);
    fake_find()->no_graphs = false;
    cr_expect(try_all(path, &err) == 0, "%s", err.message);
    cr_expect(fake_find()->n_graphs > 0, "the small model has graphs");
    unlink(path);
}

Test(cuda, every_call_may_fail_once) {
    fail_calls(1, 1);
}

/* A trial of a product makes about 56 calls, seven for each run of two ways: some of each must
 * fail. */
Test(cuda, calls_of_trials_may_fail) {
    setenv("WEFT_CUDA_TIMES", "1", 1);
    cr_expect(fail_calls(TRIED_ROWS, 11) > 300);
}

Test(cuda, memory_that_is_too_small_is_refused_with_the_sum) {
    struct err err = {0};
    char path[64];

    fake_small_model(path);
    fake_find()->bytes = 200u << 20;
    cr_expect(try_all(path, &err) == -ENOMEM);
    cr_expect(strstr(err.message, "does not fit: weights") != NULL, "%s", err.message);
    cr_expect(fake_find()->n_live == 0 && fake_find()->peak_bytes == 0, "nothing was allocated");
    unlink(path);
}

Test(cuda, the_announced_memory_is_enough) {
    static const enum tensor_type types[] = {TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_Q5_0, TENSOR_F32};
    struct err err = {0};

    for (size_t i = 0; i < FEW(ARRAY_SIZE(types)); i++) {
        struct tiny_model m = {.type = types[i], .tied = i % 2, .n_layer = 1, .n_vocab = 50};
        char path[64];
        size_t low = 0, high = (size_t)1 << 30;

        tiny_model_temp(&m, path);
        while (high - low > 65536) { /* the least memory with which opening succeeds */
            fake_find()->bytes = low + (high - low) / 2;
            if (try_all(path, &err) == -ENOMEM)
                low = fake_find()->bytes;
            else
                high = fake_find()->bytes;
        }
        fake_find()->bytes = high;
        cr_expect(try_all(path, &err) == 0, "%s", err.message);
        cr_expect(fake_find()->peak_bytes <= high, "%zu", fake_find()->peak_bytes);
        fake_find()->peak_bytes = 0;
        unlink(path);
    }
}

Test(cuda, weights_beyond_half_precision_are_refused_by_name) {
    struct tiny_model m = {.type = TENSOR_F32};
    struct gguf_writer w;
    struct err err = {0};
    char path[64];
    float huge = 1e6f;

    gw_init(&w);
    tiny_model_build(&m, &w);
    gw_finish(&w);
    memcpy(w.file.data + w.file.len - 4096, &huge, 4);
    snprintf(path, sizeof(path), "/tmp/weft-huge-%d", (int)getpid());
    gw_save_bytes(path, w.file.data, w.file.len);
    gw_deinit(&w);
    cr_expect(try_all(path, &err) == -EINVAL);
    cr_expect(strstr(err.message, "blk.1.ffn_down.weight") != NULL, "%s", err.message);
    unlink(path);
}

Test(cuda, heads_that_do_not_fit_the_kernels_are_refused) {
    struct tiny_model m = {.type = TENSOR_F16, .head_dim = 20};
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    cr_expect(try_all(path, &err) == -EINVAL);
    cr_expect(strstr(err.message, "heads of 20") != NULL, "%s", err.message);
    unlink(path);
}

/* Changed bytes of a page must change the digest of its sequence, and no other. */
static void corrupt(const char *kernel, uint64_t number, void *args) {
    if (strcmp(kernel, "attend_64") == 0)
        ((uint8_t *)((struct attend_args *)args)->pages)[64] ^= 0x40;
}

Test(cuda, a_corrupt_page_changes_the_digest) {
    struct tiny_model m = {.type = TENSOR_F16, .n_layer = 1};
    struct driver_opts o = {.backend = "cuda", .n_pages = 8, .max_rows = 16, .max_seqs = 2};
    int32_t prompt[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    uint64_t digest[2] = {0};
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    o.path = path;
    for (int i = 0; i < 2; i++) {
        struct driver d;

        fake_find()->on_launch = i ? corrupt : NULL;
        cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
        for (uint32_t p = 0; p < d.n_free; p++) /* page 0 is given out first */
            d.free_page[d.n_free - 1 - p] = p;
        struct driver_seq *s = driver_add(&d, prompt, 9, 2, NULL);
        driver_prefill(&d, s, 0);
        digest[i] = s->out[0].digest;
        driver_drop(&d, s);
        driver_close(&d);
    }
    fake_find()->on_launch = NULL;
    cr_expect(digest[0] != digest[1]);
    unlink(path);
}

/* More wants than rows of logits in one round, and more masks than the upload has room for. */
Test(cuda, many_wants_are_sampled_in_rounds) {
    struct tiny_model m = {.type = TENSOR_Q8_0, .n_layer = 1};
    static uint32_t mask[10];
    struct driver_out out[2][300];
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    memset(mask, 0x5A, sizeof(mask));
    for (int i = 0; i < 2; i++) {
        struct rows rows = {.out = out[i]};
        struct driver_opts o = {
            .backend = i ? "cuda" : "reference", .path = path, .max_rows = 300, .ctx = &rows};
        int32_t prompt[300];
        struct driver d;

        cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
        random_tokens(prompt, 300, d.info->n_vocab, 1);
        struct driver_seq *s = driver_add(&d, prompt, 300, 2, NULL);
        s->every_row = true;
        s->mask = mask;
        d.opts.on_out = keep_out;
        driver_prefill(&d, s, 0);
        driver_drop(&d, s);
        driver_close(&d);
    }
    uint32_t n_same = 0;
    for (int i = 0; i < 300; i++) {
        bool allowed = (mask[out[1][i].token / 32] >> (out[1][i].token % 32)) & 1;

        cr_expect(allowed);
        n_same += out[0][i].token == out[1][i].token;
    }
    cr_expect(n_same > 290, "%u", n_same);
    unlink(path);
}

/* A device that hangs: the step fails, and the engine can be freed without waiting (fake_api.c). */
Test(cuda, a_hanging_device_is_given_up) {
    struct err err = {0};
    char path[64];

    fake_small_model(path);
    setenv("WEFT_CUDA_WAIT_MS", "20", 1);
    fake_find()->hang_after = 1; /* an event of a step, after the events of loading */
    __lsan_disable();
    cr_expect(try_all(path, &err) == -EIO, "%s", err.message);
    __lsan_enable();
    cr_expect(fake_find()->n_live > 0, "left to the end of the process");
    unlink(path);
}

/* A device that hangs while weights are loaded: opening fails with the reason instead of
 * waiting. */
Test(cuda, a_device_that_hangs_while_weights_are_loaded_is_given_up) {
    struct err err = {0};
    char path[64];

    fake_small_model(path);
    setenv("WEFT_CUDA_WAIT_MS", "20", 1);
    fake_find()->hang_records = 1; /* the first buffer of weights */
    __lsan_disable();
    cr_expect(try_all(path, &err) == -EIO, "%s", err.message);
    __lsan_enable();
    cr_expect(strstr(err.message, "the device has not answered for 20 ms") != NULL, "%s",
              err.message);
    unlink(path);
}
