/*
 * Mixtures of experts on the CUDA backend, without a device: whole models judged by the reference
 * backend, and the same bits however a sequence is computed.
 */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/cuda/kernels.h"
#include "engine/experts.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

/* The reference's router logits, by position, then layer (its prompt is computed a row at a time),
 * take the place of the CUDA backend's, so that both pick the same experts with the same weights.
 * Else a last pick that is closer to the next best than the rounding of activations becomes another
 * expert, and other rows that see it; and weights are exponentials of what was rounded. */
static struct {
    float logits[LONGEST * 4][40];
    uint32_t n, n_expert, n_layer, seen[LONGEST];
    double worst; /* the largest distance of a row's logits before */
    bool record;
} router;

void __real_experts_pick(float *logits, const struct expert_rule *r, struct expert_pick *out);
void __wrap_experts_pick(float *logits, const struct expert_rule *r, struct expert_pick *out);

/* The linker puts it before experts_pick(). */
void __wrap_experts_pick(float *logits, const struct expert_rule *r, struct expert_pick *out) {
    if (router.record) {
        cr_assert(router.n < ARRAY_SIZE(router.logits) && r->n <= ARRAY_SIZE(router.logits[0]));
        router.n_expert = r->n;
        memcpy(router.logits[router.n++], logits, r->n * sizeof(float));
    }
    __real_experts_pick(logits, r, out);
}

/* |a - b| / |b| */
static double distance_of(const float *a, const float *b, uint32_t n) {
    double d = 0, norm = 0;

    for (uint32_t i = 0; i < n; i++) {
        double x = (double)a[i], y = (double)b[i];

        d += (x - y) * (x - y);
        norm += y * y;
    }
    d = sqrt(d / norm);
    return isnan(d) ? INFINITY : d;
}

/* on_launch of fake_api.h. */
static void impose(const char *kernel, uint64_t number, void *args) {
    struct route_args *a = args;

    (void)number;
    if (strcmp(kernel, "route") != 0)
        return;
    cr_assert(a->n_expert == router.n_expert);
    for (uint32_t r = 0; r < a->batch->n_rows; r++) {
        uint32_t pos = a->batch->pos[r], layer = router.seen[pos]++;
        float *got = (float *)a->logits + (size_t)r * a->n_expert;

        cr_assert(layer < router.n_layer);
        const float *right = router.logits[pos * router.n_layer + layer];
        router.worst = fmax(router.worst, distance_of(got, right, a->n_expert));
        memcpy(got, right, a->n_expert * sizeof(float));
    }
}

#ifdef __SANITIZE_ADDRESS__ /* slow there; the first of each kind goes the same ways */
#define FEW(all) 1
#else
#define FEW(all) (all)
#endif

/* Rows within @limit of the reference's, router logits within 1e-2: of the golden files with 8 to
 * 14 prompts each they were within 5.1e-3 and 7.4e-3. By 16 rows: expert_vec; the prompt at once:
 * expert_wide. */
static void near_reference(const char *name, const char *path, double limit) {
    const struct way slow = {.chunk = 1, .forced = true, .fuse = "0"};
    const struct way at_once = {.forced = true, .fuse = "0"};
    const struct way by_16 = {.chunk = 16, .forced = true, .fuse = "16384"};
    struct trace right = {0}, few = {0}, many = {0};

    router.n = 0;
    router.record = true;
    ways_run(path, "reference", &slow, &right);
    router.record = false;
    router.n_layer = router.n / (LONGEST - 1);
    cr_assert(router.n_layer > 0 && router.n == router.n_layer * (LONGEST - 1), "%s", name);
    router.worst = 0;
    fake_find()->on_launch = impose;
    memset(router.seen, 0, sizeof(router.seen));
    ways_run(path, "cuda", &at_once, &many);
    memset(router.seen, 0, sizeof(router.seen));
    ways_run(path, "cuda", &by_16, &few);
    fake_find()->on_launch = NULL;
    double d = ways_distance(&many, &right);
    cr_expect(d < limit, "%s: %g", name, d);
    cr_expect(router.worst < 1e-2, "%s: router %g", name, router.worst);
    for (uint32_t r = 0; r + 1 < LONGEST; r++) {
        cr_expect(router.seen[r] == router.n_layer, "%s: position %u", name, r);
        cr_expect(few.at[r].digest == many.at[r].digest, "%s: position %u", name, r);
    }
    free(right.logits);
    free(few.logits);
    free(many.logits);
}

Test(cuda_experts, every_architecture_is_near_the_reference) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3moe", .type = TENSOR_Q4_K, .n_ff = 768, .n_vocab = 64, .n_layer = 1},
        {.arch = "llama", .type = TENSOR_Q6_K, .n_expert = 4, .n_expert_used = 2, .n_vocab = 64},
        {.arch = "qwen3moe", .type = TENSOR_Q8_0, .n_embd = 96, .n_ff = 32, .n_vocab = 64},
        {.arch = "llama",
         .type = TENSOR_F32,
         .n_ff = 80,
         .n_embd = 80,
         .n_expert = 40,
         .n_expert_used = 2,
         .n_vocab = 64},
    };

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        char path[64];

        tiny_model_temp(&models[i], path);
        near_reference(models[i].arch, path, 4e-3);
        unlink(path);
    }
}

/* glm4moe: a dense layer first, then an expert of all rows around those that are picked by sigmoids
 * and a bias. gpt-oss: windows, sinks, YaRN, biases of router and experts, clamped gates. Three and
 * four layers, random weights of another scale. */
Test(cuda_experts, golden_files_are_near_the_reference) {
    static const char *const files[] = {"glm4moe-mtp", "gpt-oss.mxfp4", "gpt-oss-f32",
                                        "gpt-oss.f16"};

    setenv("WEFT_CUDA_WIDE", "20", 1); /* at once: 64 queries a block */
    for (size_t i = 0; i < FEW(ARRAY_SIZE(files)); i++) {
        char path[1024];

        ways_golden(files[i], path);
        near_reference(files[i], path, 6e-3);
    }
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
    ways_compare(path, ways, ARRAY_SIZE(ways));
    unlink(path);
    tiny_model_temp(&windowed, path);
    ways_compare(path, (const struct way[]){ways[0], ways[2]}, 2);
    unlink(path);
}
