/*
 * Mixtures of experts on the CUDA backend, without a device: whole models judged by the reference
 * backend, and the same bits however a sequence is computed.
 */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/rng.h"
#include "engine/backend.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/support/engine_driver.h"
#include "tests/support/tiny_model.h"

enum { PROMPT = 40, OUTPUTS = 4, LONGEST = PROMPT + OUTPUTS, NEIGHBOURS = 6 };

/* How the subject is computed; chunk 0: the prompt at once. */
struct way {
    const char *name;
    uint32_t chunk, n_neighbours;
    bool graphs, overlap, forced;
    const char *fuse;
    uint64_t order, seed; /* of threads; of the tokens, 0: 8 */
};

/* What came of the subject's rows. */
struct trace {
    const struct driver_seq *subject;
    float *logits; /* [LONGEST][n_vocab] */
    uint32_t n_vocab;
    struct driver_out at[LONGEST];
};

static void keep(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct trace *t = ctx;

    if (s != t->subject)
        return;
    t->at[pos] = (struct driver_out){out->token, out->logprob, out->digest};
    if (logits)
        memcpy(t->logits + (size_t)pos * t->n_vocab, logits, t->n_vocab * sizeof(float));
}

static void random_tokens(int32_t *t, uint32_t n, uint32_t n_vocab, uint64_t seed) {
    struct rng r = {seed};

    for (uint32_t i = 0; i < n; i++)
        t[i] = (int32_t)rng_below(&r, n_vocab);
}

static void run(const char *path, const char *backend, const struct way *w, struct trace *t) {
    struct driver_opts o = {.backend = backend,
                            .path = path,
                            .n_pages = 100,
                            .on_out = keep,
                            .ctx = t,
                            .max_rows = 128,
                            .max_wants = 128,
                            .max_seqs = NEIGHBOURS + 1,
                            .shuffle = 3};
    struct driver_seq *all[NEIGHBOURS + 1];
    int32_t tokens[PROMPT], forced[OUTPUTS];
    struct err err = {0};
    struct driver d;

    setenv("WEFT_CUDA_GRAPHS", w->graphs ? "1" : "0", 1);
    setenv("WEFT_CUDA_FUSE", w->fuse, 1);
    fake_find()->order = w->order;
    int r = driver_open(&d, &o, &err);
    cr_assert(r == 0, "%s", err.message);
    t->n_vocab = d.info->n_vocab;
    t->logits = calloc((size_t)LONGEST * t->n_vocab, sizeof(float));
    random_tokens(tokens, PROMPT, t->n_vocab, w->seed ? w->seed : 8);
    random_tokens(forced, OUTPUTS, t->n_vocab, 9);
    t->subject = all[0] = driver_add(&d, tokens, PROMPT, OUTPUTS, NULL);
    all[0]->every_row = true;
    all[0]->forced = w->forced ? forced : NULL;
    for (uint32_t i = 1; i <= w->n_neighbours; i++) {
        random_tokens(tokens, PROMPT, t->n_vocab, 40 + i);
        all[i] = driver_add(&d, tokens, i, OUTPUTS, NULL);
        driver_prefill(&d, all[i], 0);
    }
    driver_prefill(&d, all[0], w->chunk);
    driver_decode(&d, all, w->n_neighbours + 1, OUTPUTS - 1, w->overlap);
    for (uint32_t i = 0; i <= w->n_neighbours; i++)
        driver_drop(&d, all[i]);
    driver_close(&d);
    fake_find()->order = 0;
}

/* The largest |a - b| / |b| of a row. */
static double distance(const struct trace *a, const struct trace *b) {
    double worst = 0;

    for (uint32_t r = 0; r + 1 < LONGEST; r++) {
        double d = 0, norm = 0;

        for (uint32_t i = 0; i < a->n_vocab; i++) {
            double x = (double)a->logits[(size_t)r * a->n_vocab + i];
            double y = (double)b->logits[(size_t)r * a->n_vocab + i];

            d += (x - y) * (x - y);
            norm += y * y;
        }
        d = sqrt(d / norm);
        worst = d >= worst ? d : isnan(d) ? INFINITY : worst;
    }
    return worst;
}

#ifdef __SANITIZE_ADDRESS__ /* slow there; the first of each kind goes the same ways */
#define FEW(all) 1
#else
#define FEW(all) (all)
#endif

/* By 16 rows: expert_vec; the prompt at once: expert_wide. No seed has a row whose last pick is so
 * close to the next expert that another rounding takes that one. */
Test(cuda_experts, every_architecture_is_near_the_reference) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3moe", .type = TENSOR_Q4_K, .n_ff = 768, .n_vocab = 64, .n_layer = 1},
        {.arch = "llama",
         .type = TENSOR_Q6_K,
         .n_expert = 4,
         .n_expert_used = 2,
         .n_vocab = 64,
         .seed = 3},
        {.arch = "qwen3moe", .type = TENSOR_Q8_0, .n_embd = 96, .n_ff = 32, .n_vocab = 64},
        {.arch = "llama",
         .type = TENSOR_F32,
         .n_ff = 80,
         .n_embd = 80,
         .n_expert = 40,
         .n_expert_used = 2,
         .n_vocab = 64},
    };
    const struct way at_once = {.name = "at once", .forced = true, .fuse = "0"};
    const struct way by_16 = {.name = "by 16", .chunk = 16, .forced = true, .fuse = "16384"};

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        struct trace right = {0}, few = {0}, many = {0};
        char path[64];

        tiny_model_temp(&models[i], path);
        run(path, "reference", &at_once, &right);
        run(path, "cuda", &at_once, &many);
        run(path, "cuda", &by_16, &few);
        unlink(path);
        double d = distance(&many, &right);
        cr_expect(d < 4e-3, "%s %zu: %g", models[i].arch, i, d);
        for (uint32_t r = 0; r + 1 < LONGEST; r++)
            cr_expect(few.at[r].digest == many.at[r].digest, "%zu: position %u", i, r);
        free(right.logits);
        free(few.logits);
        free(many.logits);
    }
}

static void golden(const char *name, char path[1024]) {
    const char *dir = getenv("WEFT_DATA");

    snprintf(path, 1024, "%s/golden/%s.gguf", dir ? dir : "", name);
    if (access(path, R_OK) < 0)
        cr_skip_test("%s is not there", path);
}

/* glm4moe: a dense layer first, then an expert of all rows around those that are picked by sigmoids
 * and a bias. gpt-oss: windows, sinks, YaRN, biases of router and experts, clamped gates. Three and
 * four layers, random weights of another scale. */
Test(cuda_experts, golden_files_are_near_the_reference) {
    static const struct {
        const char *name;
        uint64_t seed;
    } files[] = {{"glm4moe-mtp", 0}, {"gpt-oss.mxfp4", 0}, {"gpt-oss-f32", 0}, {"gpt-oss.f16", 3}};
    struct way at_once = {.name = "at once", .forced = true, .fuse = "0"};
    struct way by_16 = {.name = "by 16", .chunk = 16, .forced = true, .fuse = "16384"};

    setenv("WEFT_CUDA_WIDE", "20", 1); /* at once: 64 queries a block */
    for (size_t i = 0; i < FEW(ARRAY_SIZE(files)); i++) {
        struct trace right = {0}, few = {0}, many = {0};
        char path[1024];

        golden(files[i].name, path);
        at_once.seed = by_16.seed = files[i].seed;
        run(path, "reference", &at_once, &right);
        run(path, "cuda", &at_once, &many);
        run(path, "cuda", &by_16, &few);
        double d = distance(&many, &right);
        cr_expect(d < 1e-2, "%s: %g", files[i].name, d);
        for (uint32_t r = 0; r + 1 < LONGEST; r++)
            cr_expect(few.at[r].digest == many.at[r].digest, "%s: position %u", files[i].name, r);
        free(right.logits);
        free(few.logits);
        free(many.logits);
    }
}

/* Each way by bits against the first. */
static void compare_ways(const char *path, const struct way *ways, size_t n) {
    struct trace first = {0}, other = {0};

    run(path, "cuda", &ways[0], &first);
    for (size_t i = 1; i < n; i++) {
        run(path, "cuda", &ways[i], &other);
        for (uint32_t r = 0; r + 1 < LONGEST; r++) {
            cr_expect(first.at[r].digest && first.at[r].digest == other.at[r].digest,
                      "%s: position %u", ways[i].name, r);
            cr_expect(first.at[r].token == other.at[r].token, "%s: position %u", ways[i].name, r);
        }
        free(other.logits);
    }
    free(first.logits);
}

Test(cuda_experts, a_sequence_is_the_same_whatever_the_batch) {
    static const struct way ways[] = {
        {.name = "at once", .fuse = "0"},
        {.name = "in company, as graphs",
         .chunk = 35,
         .n_neighbours = 4,
         .graphs = true,
         .fuse = "16384"},
        {.name = "overlapped, other order of threads",
         .chunk = 9,
         .n_neighbours = NEIGHBOURS,
         .graphs = true,
         .overlap = true,
         .fuse = "1000000",
         .order = 77},
    };
    const struct tiny_model m = {.arch = "qwen3moe",
                                 .type = TENSOR_Q4_K,
                                 .n_embd = 256,
                                 .n_ff = 512,
                                 .n_vocab = 64,
                                 .n_expert = 6,
                                 .n_expert_used = 3};
    const struct tiny_model windowed = {
        .arch = "gpt-oss", .type = TENSOR_MXFP4, .n_embd = 64, .n_ff = 64, .n_vocab = 64};
    char path[64];

    tiny_model_temp(&m, path);
    compare_ways(path, ways, ARRAY_SIZE(ways));
    unlink(path);
    tiny_model_temp(&windowed, path);
    compare_ways(path, (const struct way[]){ways[0], ways[2]}, 2);
    unlink(path);
}
