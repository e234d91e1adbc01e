/*
 * The whole CUDA backend without a device: its host code over a fake runtime, its kernels on the CPU (simt.h).
 * Judged by the reference backend; and the promises that hold on a device are checked by bits.
 */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/rng.h"
#include "engine/backend.h"
#include "tests/engine/cuda/fake_api.h"
#include "tests/support/engine_driver.h"
#include "tests/support/tiny_model.h"

static struct fake_cuda *fake(void) {
    static struct fake_cuda *found;
    char path[300];
    ssize_t n = readlink("/proc/self/exe", path, 200);

    if (found)
        return found;
    cr_assert(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/weft-cuda.so");
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert(lib != NULL, "%s", dlerror());
    found = dlsym(lib, "fake_cuda");
    cr_assert(found != NULL);
    return found;
}

static void random_tokens(int32_t *t, uint32_t n, uint32_t n_vocab, uint64_t seed) {
    struct rng r = {seed};

    for (uint32_t i = 0; i < n; i++)
        t[i] = (int32_t)rng_below(&r, n_vocab);
}

/* Logits of every row, in order of positions. */
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

struct subject {
    struct tiny_model model;
    enum engine_kv_type kv;
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

/* Mean over the rows of |a - b| / |b|, and whether the best token is the same where that is clear. */
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

static double judge(const struct subject *s) {
    struct rows expect = {0}, got = {0};

    run_subject(s, "reference", &expect);
    run_subject(s, "cuda", &got);
    double d = distance(&got, &expect, s->n_prompt + s->n_max - 1);
    free_rows(&expect);
    free_rows(&got);
    return d;
}

Test(cuda, every_format_is_near_the_reference) {
    static const enum tensor_type types[] = {
        TENSOR_F32,  TENSOR_F16,     TENSOR_BF16,   TENSOR_Q4_0,  TENSOR_Q4_1, TENSOR_Q5_0,
        TENSOR_Q5_1, TENSOR_Q8_0,    TENSOR_Q2_K,   TENSOR_Q3_K,  TENSOR_Q4_K, TENSOR_Q5_K,
        TENSOR_Q6_K, TENSOR_IQ2_XXS, TENSOR_IQ4_NL, TENSOR_IQ4_XS};

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        struct subject s = {.model = {.type = types[i], .seed = i},
                            .n_prompt = 20,
                            .n_max = 3,
                            .chunk = 17,
                            .page_tokens = 16};
        double d = judge(&s);

        cr_expect(d < 4e-3, "%s: %g", tensor_format(types[i])->name, d);
    }
}

Test(cuda, every_architecture_is_near_the_reference) {
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};

    for (size_t i = 0; i < ARRAY_SIZE(archs); i++)
        for (int kv = 0; kv < 2; kv++) {
            struct subject s = {.model = {.arch = archs[i],
                                          .type = TENSOR_Q8_0,
                                          .head_dim = 96,
                                          .n_head = 6,
                                          .n_head_kv = 2,
                                          .seed = i},
                                .kv = kv ? ENGINE_KV_Q8_0 : ENGINE_KV_F16,
                                .n_prompt = 40,
                                .n_max = 3,
                                .chunk = 23,
                                .page_tokens = 32};
            double d = judge(&s);

            /* A small difference takes some codes of a q8_0 page to their neighbour, 1/127 away. */
            cr_expect(d < (kv ? 1e-2 : 4e-3), "%s, kv %d: %g", archs[i], kv, d);
        }
}

Test(cuda, without_a_device_it_is_refused_with_the_reason) {
    struct err err = {0};

    fake()->n_devices = 0;
    cr_expect(backend_find("cuda", &err) == NULL);
    cr_expect(strstr(err.message, "no CUDA device") != NULL, "%s", err.message);
    fake()->n_devices = 1;
    fake()->major = 7;
    cr_expect(backend_find("cuda", &err) == NULL);
    cr_expect(strstr(err.message, "compute capability 7.0") != NULL, "%s", err.message);
    fake()->major = 9;
    fake()->no_code = true;
    cr_expect(backend_find("cuda", &err) == NULL);
    cr_expect(strstr(err.message, "no code for") != NULL, "%s", err.message);
}
