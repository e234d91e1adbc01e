/*
 * models - checks whole models on the device: small random models against the reference backend,
 * and bit for bit against themselves in other batches. With a file it measures the steps of that
 * model.
 *
 * usage: models [--tiny] [--prompts | --goals | --masks | --drafts | --profile | --trace |
 *               --selftest] [--q8 | --q4] [--two] [MODEL.gguf]
 *   --prompts   measures prompts
 *   --goals     measures only the batches for which goals are set
 *   --masks     measures batches whose rows have masks of allowed tokens
 *   --drafts    measures the MTP block of the model
 *   --profile   runs one step of each kind, for ncu with --profile-from-start off
 *   --trace     prints the times of kernels by the device's clock, if weft-cuda.so is traced
 *   --selftest  checks whether the backend accepts the device
 *   --q8, --q4  uses a KV cache of format q8_0 or q4_0
 *   --two       uses two devices
 *
 * weft-cuda.so must be in the folder of the program. It reads WEFT_CUDA_GRAPHS, WEFT_CUDA_EARLY and
 * WEFT_CUDA_FUSE from the environment.
 */

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/backend.h"
#include "engine/cuda/kernels.h"
#include "tests/gpu/report.h"
#include "tests/support/engine_driver.h"
#include "tests/support/tiny_model.h"

enum { PROMPT = 300, OUTPUTS = 10, LONGEST = PROMPT + OUTPUTS };

/* Outputs of the rows of one sequence, the subject. */
struct watch {
    const struct driver_seq *subject;
    /* [LONGEST][n_vocab], or NULL */
    float *logits;
    struct driver_out at[LONGEST];
    uint32_t n_vocab;
};

/* Implements driver_opts.on_out: stores an output of the subject. */
static void look(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct watch *w = ctx;

    if (s != w->subject)
        return;
    w->at[pos] = (struct driver_out){out->token, out->logprob, out->digest};
    if (w->logits && logits)
        memcpy(w->logits + (size_t)pos * w->n_vocab, logits, w->n_vocab * sizeof(float));
}

static void random_tokens(int32_t *t, uint32_t n, uint32_t n_vocab, uint64_t seed) {
    struct rng r = {seed};

    for (uint32_t i = 0; i < n; i++)
        t[i] = (int32_t)rng_below(&r, n_vocab);
}

static void open_or_exit(struct driver *d, const struct driver_opts *o) {
    struct err err = {0};

    if (driver_open(d, o, &err) == 0)
        return;
    printf("FAILED to open %s with %s: %s\n", o->path, o->backend, err.message);
    exit(1);
}

/* A way to run a model. */
struct way {
    const char *backend;
    /* chunk: rows of the prompt in a step; 0: all */
    uint32_t chunk, n_prompt, n_neighbours;
    enum engine_kv_type kv;
    /* forced: outputs are replaced by given tokens */
    bool overlap, sampled, forced;
    /* NULL: the first device */
    char *devices;
};

static bool bytes; /* the device of the last run multiplies bytes (BYTES_FAMILY) */

/* Runs the subject's prompt and the decoding of OUTPUTS tokens, in batches with n_neighbours other
 * sequences. */
static void run(const char *path, const struct way *way, struct watch *w) {
    static const struct engine_param hot = {
        .temperature = 0.9f, .top_p = 0.95f, .repetition = 1.1f, .seed = 3};
    struct driver_opts o = {.backend = way->backend,
                            .path = path,
                            .n_pages = 256,
                            .max_rows = 320,
                            .max_wants = 128,
                            .max_seqs = 32,
                            .kv_type = kv_both(way->kv),
                            .devices = way->devices,
                            .on_out = look,
                            .ctx = w,
                            .shuffle = way->chunk};
    struct driver_seq *all[32];
    int32_t prompt[PROMPT], forced[OUTPUTS];
    struct driver d;

    open_or_exit(&d, &o);
    w->n_vocab = d.info->n_vocab;
    bytes = strncmp(d.info->isa, "sm_", 3) == 0 && BYTES_FAMILY(atoi(d.info->isa + 3));
    random_tokens(prompt, PROMPT, w->n_vocab, 1);
    random_tokens(forced, OUTPUTS, w->n_vocab, 2);
    all[0] = driver_add(&d, prompt, way->n_prompt, OUTPUTS, way->sampled ? &hot : NULL);
    w->subject = all[0];
    all[0]->forced = way->forced ? forced : NULL;
    for (uint32_t i = 1; i <= way->n_neighbours; i++) {
        random_tokens(prompt, PROMPT, w->n_vocab, 50 + i);
        all[i] = driver_add(&d, prompt, 3 * i, OUTPUTS, &hot);
        driver_prefill(&d, all[i], 0);
    }
    driver_prefill(&d, all[0], way->chunk);
    driver_decode(&d, all, way->n_neighbours + 1, OUTPUTS - 1, way->overlap);
    for (uint32_t i = 0; i <= way->n_neighbours; i++)
        driver_drop(&d, all[i]);
    driver_close(&d);
}

/* Returns the largest |a - b| / |b| of the logits of a row. */
static double distance(const struct watch *a, const struct watch *b, uint32_t n_prompt) {
    double worst = 0;

    for (uint32_t r = n_prompt - 1; r + 1 < n_prompt + OUTPUTS; r++) {
        double d = 0, norm = 0;

        for (uint32_t i = 0; i < a->n_vocab; i++) {
            float x = a->logits[(size_t)r * a->n_vocab + i],
                  y = b->logits[(size_t)r * a->n_vocab + i];

            d += pow((double)x - (double)y, 2);
            norm += pow((double)y, 2);
        }
        d = sqrt(d / norm);
        worst = d >= worst ? d : d == d ? worst : 1e30;
    }
    return worst;
}

/* Returns the largest relative error of logits; it is larger on devices that multiply bytes. */
static double logits_limit(enum engine_kv_type kv) {
    if (bytes)
        return kv == ENGINE_KV_Q4_0 ? 6e-2 : 4e-2;
    return kv == ENGINE_KV_Q4_0 ? 4e-2 : kv == ENGINE_KV_Q8_0 ? 1e-2 : 6e-3;
}

/* Compares the logits of a model with those of the reference backend. */
static void judge(const struct tiny_model *m, enum engine_kv_type kv, uint32_t n_prompt) {
    struct way way = {.backend = "reference", .n_prompt = n_prompt, .kv = kv, .forced = true};
    struct watch expect = {.logits = calloc((size_t)LONGEST * 300, sizeof(float))};
    struct watch got = {.logits = calloc((size_t)LONGEST * 300, sizeof(float))};
    char path[64], name[100];

    tiny_model_temp(m, path);
    run(path, &way, &expect);
    way.backend = "cuda";
    run(path, &way, &got);
    unlink(path);
    snprintf(name, sizeof(name), "%s %s, kv %s: logits", m->arch,
             tensor_format((uint32_t)m->type)->name, kv_types[kv].name);
    report_check(name, distance(&got, &expect, n_prompt), logits_limit(kv));
    free(expect.logits);
    free(got.logits);
}

struct judge_case {
    struct tiny_model model;
    enum engine_kv_type kv;
    uint32_t n_prompt;
};

static void judge_case(const void *arg) {
    const struct judge_case *c = arg;

    judge(&c->model, c->kv, c->n_prompt);
}

static void judge_all(bool tiny) {
    /* the formats with tiles of their own first; --tiny checks one of the others, which become F16
     * tiles */
    static const enum tensor_type types[] = {
        TENSOR_F16,   TENSOR_Q4_0,  TENSOR_Q8_0,   TENSOR_Q4_K,   TENSOR_Q5_K, TENSOR_Q6_K,
        TENSOR_MXFP4, TENSOR_NVFP4, TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_F32,  TENSOR_BF16,
        TENSOR_Q4_1,  TENSOR_Q5_0,  TENSOR_Q5_1,   TENSOR_Q2_K,   TENSOR_Q3_K, TENSOR_IQ2_XXS};
    enum { N_TINY = 11 };
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    struct judge_case c = {.kv = ENGINE_KV_F16, .n_prompt = tiny ? 20 : PROMPT};
    char name[60];

    for (size_t i = 0; i < (tiny ? N_TINY : ARRAY_SIZE(types)); i++) {
        c.model = (struct tiny_model){.arch = archs[i % 3], .type = types[i], .tied = i % 2};
        snprintf(name, sizeof(name), "model %s", tensor_format((uint32_t)types[i])->name);
        report_alone(name, 60, judge_case, &c);
    }
    for (size_t i = 0; i < ARRAY_SIZE(archs); i++) {
        c.kv = i == 1 ? ENGINE_KV_Q4_0 : ENGINE_KV_Q8_0;
        c.model = (struct tiny_model){
            .arch = archs[i], .type = TENSOR_Q8_0, .head_dim = 128, .n_head = 8, .tied = true};
        snprintf(name, sizeof(name), "model %s, kv %s", archs[i], kv_types[c.kv].name);
        report_alone(name, 60, judge_case, &c);
    }
    c.kv = ENGINE_KV_F16;
    c.model = (struct tiny_model){.arch = "gpt-oss", .type = TENSOR_MXFP4, .seed = 1};
    report_alone("model gpt-oss", 60, judge_case, &c);
    for (size_t i = 0; i < 2; i++) { /* in these models rounding changes no row's picks */
        c.model = (struct tiny_model){.arch = i ? "llama" : "qwen3moe",
                                      .type = i ? TENSOR_Q6_K : TENSOR_Q4_K,
                                      .n_layer = 1,
                                      .n_expert = i ? 4 : 7,
                                      .n_expert_used = i ? 2 : 3,
                                      .n_ff = i ? 256 : 768};
        snprintf(name, sizeof(name), "model %s with experts", c.model.arch);
        report_alone(name, 60, judge_case, &c);
    }
    for (size_t i = 0; i < 2; i++) {
        c.model = (struct tiny_model){.arch = i ? "qwen3next" : "qwen35",
                                      .type = i ? TENSOR_Q8_0 : TENSOR_Q4_K};
        snprintf(name, sizeof(name), "model %s with delta nets", c.model.arch);
        report_alone(name, 60, judge_case, &c);
    }
}

/* Checks that the outputs @b have the bits of @a, the first run. */
static void compare(const struct watch *a, const struct watch *b, const char *name) {
    uint32_t wrong = 0;

    for (uint32_t i = PROMPT - 1; i + 1 < LONGEST; i++) {
        const struct driver_out *x = &a->at[i], *y = &b->at[i];
        bool same =
            x->digest && x->digest == y->digest && x->token == y->token && x->logprob == y->logprob;

        if (!same && wrong++ < 3)
            report_detail(
                "%s, position %u: digest %016llx token %d logprob %.9g, first run %016llx "
                "%d %.9g",
                name, i, (unsigned long long)y->digest, y->token, (double)y->logprob,
                (unsigned long long)x->digest, x->token, (double)x->logprob);
    }
    report_check(name, wrong, 0);
}

#define ALL "1" /* value of WEFT_CUDA_FUSE */

/* Checks that a tiny model gives the same bits however prompts are divided into steps, kernels are
 * launched and fused, and whatever other sequences are in the batch. */
static void check_identity(const void *arg) {
    static const struct {
        const char *name, *graphs, *early, *fuse;
        struct way way;
    } ways[] = {
        {"identity: the same again",
         "0",
         "0",
         "0",
         {"cuda", 0, PROMPT, 0, ENGINE_KV_F16, 0, true, 0, NULL}},
        {"identity: in chunks of 7",
         "0",
         "0",
         "0",
         {"cuda", 7, PROMPT, 0, ENGINE_KV_F16, 0, true, 0, NULL}},
        {"identity: with 7 others",
         "0",
         "0",
         "0",
         {"cuda", 100, PROMPT, 7, ENGINE_KV_F16, 0, true, 0, NULL}},
        {"identity: with 25, overlapped",
         "0",
         "0",
         "0",
         {"cuda", 64, PROMPT, 25, ENGINE_KV_F16, true, true, 0, NULL}},
        {"identity: graphs",
         "1",
         "0",
         "0",
         {"cuda", 7, PROMPT, 0, ENGINE_KV_F16, 0, true, 0, NULL}},
        {"identity: fused", "0", "0", ALL, {"cuda", 7, PROMPT, 0, ENGINE_KV_F16, 0, true, 0, NULL}},
        {"identity: fused, graphs",
         "1",
         "0",
         ALL,
         {"cuda", 13, PROMPT, 11, ENGINE_KV_F16, true, true, 0, NULL}},
        {"identity: graphs, with 25, overlapped",
         "1",
         "0",
         ALL,
         {"cuda", 64, PROMPT, 25, ENGINE_KV_F16, true, true, 0, NULL}},
        {"identity: early",
         "0",
         "1",
         "0",
         {"cuda", 7, PROMPT, 3, ENGINE_KV_F16, true, true, 0, NULL}},
        {"identity: early, fused",
         "0",
         "1",
         ALL,
         {"cuda", 7, PROMPT, 3, ENGINE_KV_F16, true, true, 0, NULL}},
        {"identity: early, fused, graphs",
         "1",
         "1",
         ALL,
         {"cuda", 7, PROMPT, 3, ENGINE_KV_F16, true, true, 0, NULL}},
    };
    static struct watch first, other;
    const struct tiny_model *m = arg;
    char path[64], name[100];

    tiny_model_temp(m, path);
    setenv("WEFT_CUDA_GRAPHS", "0", 1);
    setenv("WEFT_CUDA_EARLY", "0", 1);
    setenv("WEFT_CUDA_FUSE", "0", 1);
    run(path, &ways[0].way, &first);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        memset(&other, 0, sizeof(other));
        setenv("WEFT_CUDA_GRAPHS", ways[i].graphs, 1);
        setenv("WEFT_CUDA_EARLY", ways[i].early, 1);
        setenv("WEFT_CUDA_FUSE", ways[i].fuse, 1);
        run(path, &ways[i].way, &other);
        snprintf(name, sizeof(name), "%s, %s", ways[i].name, m->arch);
        compare(&first, &other, name);
    }
    unlink(path);
}

#include "tests/gpu/devices.h"

/* -- the MTP block ----------------------------------------------------------------------------- */

enum { N_DRAFTS = 3, N_VOCAB = 300 };

/* Outputs of a text, and the logits of the drafts after it. */
struct drafted {
    float logits[N_DRAFTS][N_VOCAB];
    struct driver_out out[OUTPUTS];
    uint32_t k;
};

static void look_draft(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                       const float *logits) {
    struct drafted *d = ctx;

    if (logits)
        memcpy(d->logits[d->k], logits, sizeof(d->logits[d->k]));
}

static void run_drafts(const char *path, const char *backend, bool drafts, struct drafted *out) {
    struct driver_opts o = {.backend = backend,
                            .path = path,
                            .n_pages = 64,
                            .max_rows = 64,
                            .max_seqs = 2,
                            .drafts = drafts,
                            .on_out = look_draft,
                            .ctx = out};
    int32_t prompt[PROMPT], forced[OUTPUTS];
    struct driver d;

    open_or_exit(&d, &o);
    random_tokens(prompt, 45, d.info->n_vocab, 1);
    random_tokens(forced, OUTPUTS, d.info->n_vocab, 2);
    struct driver_seq *s = driver_add(&d, prompt, 45, OUTPUTS + N_DRAFTS, NULL);
    s->forced = forced;
    driver_prefill(&d, s, 40);
    driver_decode(&d, &s, 1, OUTPUTS - 1, false);
    memcpy(out->out, s->out, sizeof(out->out));
    for (out->k = 0; drafts && out->k < N_DRAFTS; out->k++) {
        driver_draft(&d, &s, 1, out->k);
        s->draft[out->k] = forced[out->k];
    }
    driver_drop(&d, s);
    driver_close(&d);
}

/* Compares the logits of drafts with those of the reference backend, and checks that the text has
 * the same bits with and without drafts. */
static void check_block(const void *arg) {
    static struct drafted right, with, without;
    const struct tiny_model *m = arg;
    double d = 0, norm = 0;
    uint32_t wrong = 0;
    char path[64];

    tiny_model_temp(m, path);
    run_drafts(path, "reference", true, &right);
    run_drafts(path, "cuda", true, &with);
    run_drafts(path, "cuda", false, &without);
    unlink(path);
    for (uint32_t i = 0; i < N_DRAFTS * N_VOCAB; i++) {
        double y = (double)right.logits[i / N_VOCAB][i % N_VOCAB];

        d += pow((double)with.logits[i / N_VOCAB][i % N_VOCAB] - y, 2);
        norm += y * y;
    }
    report_check("the model's own block: logits of drafts", sqrt(d / norm), 1e-2);
    for (uint32_t i = 0; i < OUTPUTS; i++)
        wrong += with.out[i].digest == 0 || with.out[i].digest != without.out[i].digest;
    report_check("the model's own block: the text without it", wrong, 0);
}

/* -- times ------------------------------------------------------------------------------------- */

/* Returns the bytes of weights that every step reads; of experts, those that one token picks. */
static double least_weights(const struct driver *d) {
    const struct engine_opts o = {.file = d->file,
                                  .backend = "cuda",
                                  .n_pages = d->info->n_pages,
                                  .page_tokens = d->info->page_tokens,
                                  .max_rows = 1,
                                  .max_seqs = 1,
                                  .max_wants = 1};
    struct engine_fit fit;

    return engine_fit(&fit, &o, NULL) == 0 ? (double)fit.token_bytes
                                           : (double)d->info->weight_bytes;
}

static void report_step(struct driver *d, const char *name, double seconds, uint32_t n_seqs,
                        uint32_t context, double tokens) {
    double kv = (double)d->info->page_bytes / d->opts.page_tokens * context * n_seqs;

    report_time(name, seconds, least_weights(d) + kv, report_bandwidth());
    printf("    %.1f tokens/s\n", tokens / seconds);
    if (report_json())
        fprintf(report_json(),
                R"({"step": "%s", "tokens_s": %g})"
                "\n",
                name, tokens / seconds);
}

/* A row of the table: n_seqs sequences of context tokens, of which shared tokens are in common
 * pages, decode n tokens each. */
struct decode_row {
    uint32_t n_seqs, context, n, shared;
    /* each row has a mask, which allows all tokens */
    bool masks;
};

static void decode_name(char name[80], const struct decode_row *r) {
    snprintf(name, 80, "decode, %u x %u tokens", r->n_seqs, r->context);
    if (r->shared)
        snprintf(name + strlen(name), 80 - strlen(name), ", %u of them shared", r->shared);
    if (r->masks)
        snprintf(name + strlen(name), 80 - strlen(name), ", masks");
}

/* Measures a row of decoding: all steps after the first few. Skips a row for which there are not
 * enough pages. With one sequence, measures its prompt too. */
static void time_decoding(struct driver *d, const struct decode_row *r) {
    struct driver_seq **all = calloc(r->n_seqs, sizeof(*all));
    int32_t *prompt = calloc(r->context, sizeof(*prompt));
    uint32_t *mask = calloc(d->info->n_vocab / 32 + 1, sizeof(*mask)), n = 0;
    double prefill = 0;
    char name[80];

    memset(mask, 0xFF, (d->info->n_vocab / 32 + 1) * sizeof(*mask));
    decode_name(name, r);
    for (; n < r->n_seqs; n++) {
        /* the shared tokens are those of the first sequence, which have its seed */
        random_tokens(prompt, r->context, d->info->n_vocab, n + 1);
        random_tokens(prompt, r->shared, d->info->n_vocab, 1);
        all[n] = driver_add(d, prompt, r->context, r->n, NULL);
        if (!all[n])
            break;
        if (n > 0 && r->shared)
            driver_share(d, all[n], all[0], r->shared);
        if (r->masks)
            all[n]->mask = mask;
        double start = report_now();
        driver_prefill(d, all[n], 512);
        prefill = report_now() - start;
    }
    if (n == r->n_seqs) {
        driver_decode(d, all, n, 4, true);
        double start = report_now();
        driver_decode(d, all, n, r->n - 5, true);
        double step = (report_now() - start) / (r->n - 5);
        report_step(d, name, step, n, r->context - r->shared, n);
        if (n == 1) {
            snprintf(name, sizeof(name), "prompt of %u", r->context);
            report_step(d, name, prefill, 1, 0, r->context);
        }
    } else {
        report_skipped(name, "more pages than the device has room for");
    }
    while (n-- > 0)
        driver_drop(d, all[n]);
    free(all);
    free(prompt);
    free(mask);
}

/* Measures steps of one sequence with @n_rows rows, all of which are sampled, as when drafts are
 * verified. */
static void time_verification(struct driver *d, uint32_t n_rows, uint32_t shrink) {
    enum { STEPS = 24 };
    uint32_t context = 1024 / shrink;
    int32_t prompt[1024 + 16 * STEPS + 1];
    char name[80];

    random_tokens(prompt, context + n_rows * STEPS + 1, d->info->n_vocab, n_rows);
    struct driver_seq *s = driver_add(d, prompt, context + n_rows * STEPS + 1, 1, NULL);
    struct driver_part part = {s, 512 / shrink};
    for (uint32_t at = 0; at < context; at += part.n_rows)
        driver_step(d, &part, 1);
    s->every_row = true;
    part.n_rows = n_rows;
    for (int i = 0; i < 4; i++)
        driver_step(d, &part, 1);
    double start = report_now();
    for (int i = 4; i < STEPS; i++)
        driver_step(d, &part, 1);
    double step = (report_now() - start) / (STEPS - 4);
    snprintf(name, sizeof(name), "verification of %u rows, not overlapped", n_rows);
    report_step(d, name, step, 1, context, n_rows);
    driver_drop(d, s);
}

/* Options of the measurements. */
struct timing {
    const char *path;
    /* divisor of contexts and batches, for a rehearsal with --tiny */
    uint32_t shrink;
    enum engine_kv_type kv;
    /* measure only the rows for which goals are set; only the first two, with masks of tokens */
    bool goals, masks;
    char *devices;
};

/* Opens the model with pages for the largest row, or else for as many rows as fit into the device's
 * memory. */
static void open_for_times(struct driver *d, const struct timing *t) {
    static const uint32_t tokens[] = {128 * 1120 + 4160, 32 * 4160, 64 * 1120, 8 * 1120};
    struct err err = {0};

    for (size_t i = 0; i < ARRAY_SIZE(tokens); i++) {
        struct driver_opts o = {.backend = "cuda",
                                .path = t->path,
                                .page_tokens = 32,
                                .max_rows = 512,
                                .n_pages = tokens[i] / 32,
                                .kv_type = kv_both(t->kv),
                                .devices = t->devices,
                                .n_listed = 128 * (4200 / 32 + 1),
                                .max_wants = 128,
                                .max_seqs = 128};
        double start = report_now();

        if (driver_open(d, &o, &err) == 0) {
            printf("loaded in %.1f s, pages for %u tokens\n", report_now() - start, tokens[i]);
            return;
        }
        printf("pages for %u tokens: %s\n", tokens[i], err.message);
    }
    exit(1);
}

/* Rows for which goals are set come first, because a run may be cut off. */
static const struct decode_row decode_rows[] = {
    {1, 1024, 96, 0, false},  {64, 1024, 32, 0, false},    {128, 4096, 32, 3072, false},
    {1, 4096, 64, 0, false},  {32, 4096, 32, 3840, false}, {2, 1024, 64, 0, false},
    {4, 1024, 64, 0, false},  {8, 1024, 48, 0, false},     {16, 1024, 40, 0, false},
    {32, 1024, 32, 0, false}, {1, 256, 96, 0, false},
};
enum { GOALS = 3, MASKED = 2 };
static const uint32_t verify_rows[] = {1, 5, 2, 4, 8, 16};

static unsigned n_times(const struct timing *t) {
    if (t->masks)
        return MASKED;
    return t->goals ? GOALS : ARRAY_SIZE(decode_rows) + ARRAY_SIZE(verify_rows);
}

static void time_model(const void *arg, unsigned first) {
    const struct timing *t = arg;
    char name[80];
    struct driver d;

    open_for_times(&d, t);
    for (unsigned i = first; i < n_times(t); i++) {
        /* the order of rows: goals, verification of drafts, other batches */
        unsigned verify = i - GOALS, decode = verify - (unsigned)ARRAY_SIZE(verify_rows) + GOALS;

        if (i >= GOALS && verify < ARRAY_SIZE(verify_rows)) {
            snprintf(name, sizeof(name), "verification of %u rows", verify_rows[verify]);
            report_row(i, 30, name);
            time_verification(&d, verify_rows[verify], t->shrink);
            continue;
        }
        struct decode_row r = decode_rows[i < GOALS ? i : decode];
        r.masks = t->masks;
        decode_name(name, &r);
        report_row(i, 60, name);
        if (r.shared && d.info->state_bytes) {
            printf("not measured: pages that are shared are of no use without states\n");
            continue;
        }
        r.context /= t->shrink;
        r.n /= MIN(t->shrink, 4);
        r.shared /= t->shrink;
        r.n_seqs = MAX(r.n_seqs / t->shrink, 1);
        time_decoding(&d, &r);
    }
    driver_close(&d);
}

/* Measures prompts of 4096 tokens in steps of 512 and of 2048 rows, the second run of each. */
static void time_prompts(const void *arg) {
    const struct timing *t = arg;
    uint32_t n = 4096 / t->shrink;
    int32_t *prompt = calloc(n, sizeof(*prompt));

    struct driver_opts o = {.backend = "cuda",
                            .path = t->path,
                            .page_tokens = 32,
                            .max_rows = 2048 / t->shrink,
                            .devices = t->devices,
                            .n_pages = 4 * (4200 / 32 + 1),
                            .max_wants = 128,
                            .max_seqs = 64};
    struct driver d;

    open_or_exit(&d, &o);
    for (uint32_t chunk = 512; chunk <= 2048; chunk *= 4) {
        double took = 0;
        char name[80];

        for (int again = 0; again < 2; again++) {
            random_tokens(prompt, n, d.info->n_vocab, chunk + (uint32_t)again);
            struct driver_seq *s = driver_add(&d, prompt, n, 1, NULL);
            double start = report_now();
            driver_prefill(&d, s, chunk / t->shrink);
            took = report_now() - start;
            driver_drop(&d, s);
        }
        snprintf(name, sizeof(name), "prompt of %u in steps of %u", n, chunk / t->shrink);
        report_step(&d, name, took, 1, 0, n);
    }
    driver_close(&d);
    free(prompt);
}

/* Measures steps of a model with an MTP block: decoding with the block's keys, decoding with holes,
 * and a draft pass. */
static void time_drafts(const void *arg) {
    enum { DRAFTS = 4 };
    static const uint32_t n_seqs[] = {1, 8, 32};
    const struct timing *t = arg;
    uint32_t context = 1024 / t->shrink, steps = t->shrink > 1 ? 2 : 24;
    uint32_t n_drafts = (t->shrink > 1 ? 2 : 4) * DRAFTS;
    int32_t prompt[1024];
    struct driver_seq *all[32];
    struct driver_opts o = {.backend = "cuda",
                            .path = t->path,
                            .page_tokens = 32,
                            .n_pages = 32 * (1200 / 32),
                            .max_seqs = 32,
                            .drafts = true};
    struct driver d;
    char name[80];

    open_or_exit(&d, &o);
    for (size_t r = 0; r < (t->shrink > 1 ? 1 : ARRAY_SIZE(n_seqs)) && d.info->n_slots; r++) {
        uint32_t n = MAX(n_seqs[r] / t->shrink, 1u);

        for (uint32_t i = 0; i < n; i++) {
            random_tokens(prompt, context, d.info->n_vocab, i);
            all[i] = driver_add(&d, prompt, context, 2 * steps + 9 + DRAFTS, NULL);
            driver_prefill(&d, all[i], 512);
        }
        for (int holes = 0; holes < 2; holes++) {
            d.holes = holes;
            driver_decode(&d, all, n, 4, true);
            double start = report_now();
            driver_decode(&d, all, n, steps, true);
            snprintf(name, sizeof(name), "decode, %u x %u tokens, %s of the block", n, context,
                     holes ? "holes" : "keys");
            report_step(&d, name, (report_now() - start) / steps, n, context, n);
        }
        double start = 0;
        for (uint32_t k = 0; k < n_drafts; k++) {
            start = k == DRAFTS ? report_now() : start; /* the first passes create the graphs */
            driver_draft(&d, all, n, k % DRAFTS);
            for (uint32_t i = 0; i < n; i++)
                all[i]->draft[k % DRAFTS] = (int32_t)(k + i);
        }
        double took = (report_now() - start) / (n_drafts - DRAFTS);
        snprintf(name, sizeof(name), "a row of the block, %u x %u tokens", n, context);
        report_value(name, took * 1e6, "us");
        for (uint32_t i = 0; i < n; i++)
            driver_drop(&d, all[i]);
    }
    if (!d.info->n_slots)
        report_skipped("the model's own block", "it has none");
    driver_close(&d);
}

#include "tests/gpu/profile.h"
#include "tests/gpu/trace_steps.h"

/* Removes @name from the front of the arguments. Returns false if it is not there. */
static bool takes(int *argc, char ***argv, const char *name) {
    if (*argc < 2 || strcmp((*argv)[1], name) != 0)
        return false;
    (*argc)--;
    (*argv)++;
    return true;
}

/* Checks that opening the large model with the self-test, as the daemon does, succeeds. */
static void check_selftest(const void *path) {
    struct driver_opts o = {.backend = "cuda", .path = path};
    struct err err = {0};
    struct driver d;

    setenv("WEFT_CUDA_CHECK", "1", 1);
    double start = report_now();
    int r = driver_open(&d, &o, &err);
    report_check("the self-test at open passes", r < 0, 0);
    if (r < 0) {
        report_detail("%s", err.message);
        return;
    }
    report_value("loading with the self-test", report_now() - start, "s");
    driver_close(&d);
}

int main(int argc, char **argv) {
    bool tiny = takes(&argc, &argv, "--tiny"), prompts = takes(&argc, &argv, "--prompts");
    struct timing t = {.shrink = tiny ? 32 : 1,
                       .goals = takes(&argc, &argv, "--goals"),
                       .masks = takes(&argc, &argv, "--masks")};

    bool drafts = takes(&argc, &argv, "--drafts"), profile = takes(&argc, &argv, "--profile");
    bool trace = takes(&argc, &argv, "--trace");
    if (takes(&argc, &argv, "--q8"))
        t.kv = ENGINE_KV_Q8_0;
    if (takes(&argc, &argv, "--q4"))
        t.kv = ENGINE_KV_Q4_0;
    static char two[] = "0,1";
    if (takes(&argc, &argv, "--two"))
        t.devices = two;
    if (takes(&argc, &argv, "--selftest")) {
        report_alone("self-test", 120, check_selftest, argv[1]);
        return report_end("self-test");
    }
    if (argc > 1) {
        t.path = argv[1];
        if (profile)
            profile_steps(&t);
        else if (trace)
            report_alone("trace", 90, trace_steps, &t);
        else if (drafts)
            report_alone("times of drafts", 90, time_drafts, &t);
        else if (prompts)
            report_alone("times of prompts", 90, time_prompts, &t);
        else
            report_rows("times of a model", 120, n_times(&t), time_model, &t);
        return report_end("times");
    }
    judge_all(tiny);
    report_alone("model qwen35 with its block", 120, check_block,
                 &(struct tiny_model){.arch = "qwen35", .type = TENSOR_Q8_0, .n_blocks = 1});
    static const struct tiny_model identical[] = {
        {.arch = "qwen3", .type = TENSOR_Q4_K, .n_layer = 3, .n_embd = 512, .n_ff = 1024},
        {.arch = "gpt-oss", .type = TENSOR_MXFP4, .n_embd = 512},
        {.arch = "qwen35moe", .type = TENSOR_Q4_K, .n_layer = 3, .n_embd = 512, .n_ff = 1024}};
    static const char *const names[] = {"identity", "identity, gpt-oss", "identity, qwen35moe"};
    for (size_t i = 0; i < ARRAY_SIZE(identical) && !tiny; i++)
        report_alone(names[i], 90, check_identity, &identical[i]);
    report_alone("several devices", 120, check_devices, &tiny);
    return report_end("models");
}
