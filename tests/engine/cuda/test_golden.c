/*
 * Tests greedy continuations of golden files on the CUDA backend, without a device: its tokens must
 * be those of another implementation, which the reference and the CPU match, too
 * (tests/engine/test_golden.c). Each step is fed the golden token, so each token is judged after
 * the right text.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/experts.h"
#include "engine/formats/quant.h"
#include "engine/host.h"
#include "engine/ops/compressed/kernels_compressed.h"
#include "engine/sparse.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/golden.h"
#include "tests/support/engine_driver.h"
#include "tests/support/test_data.h"

enum { JUDGE_VOCAB = 512 };

/* Logits after the prompts of a run, its greedy tokens, and the logits of the file's tokens. */
struct judge {
    float last[GOLDEN_CASES][JUDGE_VOCAB];
    struct golden_step greedy[GOLDEN_CASES][GOLDEN_STEPS];
};

/* Results of a file's prompts and their continuations. */
struct seen {
    const struct golden *golden;
    const struct driver_seq *seq[GOLDEN_CASES];
    /* results that are compared, of another run; NULL: those of the file */
    const struct judge *judge;
    /* written, or NULL */
    struct judge *out;
    /* distance of the logits behind the prompt */
    double last[GOLDEN_CASES];
    /* Tokens that follow; those that are golden; those whose logit is near the golden one. */
    uint32_t n_greedy[GOLDEN_CASES], n_equal[GOLDEN_CASES], n_near[GOLDEN_CASES];
};

static void look(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct seen *seen = ctx;
    uint32_t i = 0;

    while (seen->seq[i] != s)
        i++;
    const struct golden_case *c = &seen->golden->cases[i];
    if (pos + 1 < c->n_prompt)
        return;
    uint32_t k = pos + 1 - c->n_prompt;
    const float *last = seen->judge ? seen->judge->last[i] : c->last;
    const struct golden_step *right = seen->judge ? &seen->judge->greedy[i][k] : &c->greedy[k];
    float logit = logits[c->greedy[k].id];
    for (uint32_t t = 0; t < c->n_last && k == 0; t++)
        seen->last[i] = fmax(seen->last[i], fabs((double)logits[t] - (double)last[t]));
    seen->n_greedy[i]++;
    seen->n_equal[i] += out->token == right->id;
    seen->n_near[i] += fabs((double)logit - (double)right->logit) < 0.05;
    if (!seen->out)
        return;
    seen->out->greedy[i][k] = (struct golden_step){.id = out->token, .logit = logit};
    if (k == 0)
        memcpy(seen->out->last[i], logits, c->n_last * sizeof(*logits));
}

static struct golden *load(const char *name) {
    char path[TEST_DATA_PATH];

    return golden_load(test_data_file(path, "golden", name, ".json"));
}

/* Computes the prompts of up to 130 tokens in chunks, and then their continuations together.
 * @begin: called once the model is open, or NULL. */
static void run_file(const struct golden *g, const char *name, const char *backend,
                     void (*begin)(void), struct seen *seen) {
    char path[TEST_DATA_PATH];
    const struct driver_opts o = {.backend = backend,
                                  .path = test_data_file(path, "golden", name, ".gguf"),
                                  .max_rows = 64,
                                  .max_seqs = GOLDEN_CASES,
                                  .on_out = look,
                                  .ctx = seen,
                                  .shuffle = 3};
    int32_t forced[GOLDEN_CASES][GOLDEN_STEPS];
    struct driver_seq *seq[GOLDEN_CASES];
    struct err err = {0};
    struct driver d;
    int r = driver_open(&d, &o, &err);

    cr_assert(r == 0, "%s", err.message);
    *seen = (struct seen){.golden = g, .judge = seen->judge, .out = seen->out};
    if (begin)
        begin();
    for (uint32_t i = 0; i < g->n_cases; i++) {
        const struct golden_case *c = &g->cases[i];

        for (uint32_t k = 0; k < c->n_greedy; k++)
            forced[i][k] = c->greedy[k].id;
        seen->seq[i] = seq[i] = driver_add(&d, c->prompt, c->n_prompt, c->n_greedy, NULL);
        cr_assert(seq[i] && c->n_greedy == g->cases[0].n_greedy && c->n_greedy > 1);
        seq[i]->forced = forced[i];
        driver_prefill(&d, seq[i], 50);
    }
    driver_decode(&d, seq, g->n_cases, g->cases[0].n_greedy - 1, false);
    for (uint32_t i = 0; i < g->n_cases; i++) {
        const struct golden_case *c = &g->cases[i];

        printf("# %s, %s, %u tokens: %.2g; of %u rows %u are equal, %u near\n", name, backend,
               c->n_prompt, seen->last[i], c->n_greedy, seen->n_equal[i], seen->n_near[i]);
        cr_expect(seen->n_greedy[i] == c->n_greedy);
        driver_drop(&d, seq[i]);
    }
    driver_close(&d);
}

/* Expects the golden tokens, and logits after the prompts within @limit of the golden ones. */
static void expect_equal(const struct seen *seen, double limit) {
    const struct golden *g = seen->golden;

    for (uint32_t i = 0; i < g->n_cases; i++) {
        const struct golden_case *c = &g->cases[i];

        cr_expect(seen->last[i] < limit, "%s, %u tokens: %g", g->label.arch, c->n_prompt,
                  seen->last[i]);
        cr_expect(seen->n_equal[i] == c->n_greedy && seen->n_near[i] > c->n_greedy / 2,
                  "%s, %u tokens: %u of %u are equal, %u near", g->label.arch, c->n_prompt,
                  seen->n_equal[i], c->n_greedy, seen->n_near[i]);
    }
}

static void check_file(const char *name, double limit) {
    CLEANUP(golden_freep) struct golden *g = load(name);
    struct seen seen = {0};

    run_file(g, name, "cuda", NULL, &seen);
    expect_equal(&seen, limit);
}

/* -- choices ----------------------------------------------------------------------------------- */

/* Numbers that the reference chose by, in the order of its rows, which is that of the device's. */
struct choices {
    float *v;
    /* at: of the device's next choice */
    size_t n, cap, at;
    /* chosen; of them those that the reference did not choose */
    uint32_t n_all, n_other;
};

static struct choices experts, blocks;
static bool records, imposes;
/* the reference rounds inputs and weights of products to half precision, as the device does, and
 * chooses by the recorded numbers */
static bool rounds;

void __real_experts_pick(float *logits, const struct expert_rule *r, struct expert_pick *out);
void __wrap_experts_pick(float *logits, const struct expert_rule *r, struct expert_pick *out);
void __real_sparse_see(const struct sparse_shape *s, uint32_t pos, const float *score,
                       uint32_t *seen);
void __wrap_sparse_see(const struct sparse_shape *s, uint32_t pos, const float *score,
                       uint32_t *seen);

static void record(struct choices *c, const float *v, uint32_t n) {
    if (!records)
        return;
    if (c->n + n > c->cap) {
        c->cap = 2 * c->cap + n;
        c->v = realloc(c->v, c->cap * sizeof(*c->v));
        cr_assert(c->v);
    }
    memcpy(c->v + c->n, v, n * sizeof(*v));
    c->n += n;
}

/* Returns the next @n recorded numbers. */
static const float *recorded(struct choices *c, uint32_t n) {
    const float *v = c->v + c->at;

    c->at += n;
    cr_assert(c->at <= c->n);
    return v;
}

/* The linker puts them before experts_pick() and sparse_see(). */
void __wrap_experts_pick(float *logits, const struct expert_rule *r, struct expert_pick *out) {
    record(&experts, logits, r->n);
    if (rounds)
        memcpy(logits, recorded(&experts, r->n), r->n * sizeof(*logits));
    __real_experts_pick(logits, r, out);
}

void __wrap_sparse_see(const struct sparse_shape *s, uint32_t pos, const float *score,
                       uint32_t *seen) {
    uint32_t n = sparse_whole(s, pos);

    if (n > s->n_block)
        record(&blocks, score, n);
    if (n > s->n_block && rounds)
        score = recorded(&blocks, n);
    __real_sparse_see(s, pos, score, seen);
}

/* Counts which of the @k largest of the device's @n numbers are not among the reference's. With
 * @imposes the reference's, divided by @by, take their place. */
static void compare_row(struct choices *c, float *own, uint32_t n, uint32_t k, float by) {
    uint32_t a[64], b[64], same = 0;
    const float *right = recorded(c, n);

    cr_assert(k <= ARRAY_SIZE(a));
    sparse_best(own, n, k, a);
    sparse_best(right, n, k, b);
    for (uint32_t i = 0; i < k * k; i++)
        same += a[i / k] == b[i % k];
    c->n_all += k;
    c->n_other += k - same;
    for (uint32_t i = 0; i < n && imposes; i++)
        own[i] = right[i] / by;
}

/* on_launch of fake_api.h. */
static void compare(const char *kernel, uint64_t number, void *args) {
    if (strcmp(kernel, "route") == 0) {
        const struct route_args *a = args;

        for (uint32_t r = 0; r < a->batch->n_rows; r++)
            compare_row(&experts, (float *)a->logits + (size_t)r * a->n_expert, a->n_expert,
                        a->n_used, a->in_scale);
    } else if (strcmp(kernel, "choose_blocks") == 0) {
        const struct pick_args *a = args;
        uint32_t end = MIN(a->row0 + PICK_ROWS, a->batch->n_rows);

        for (uint32_t r = a->row0; r < end; r++) {
            uint32_t n = (a->batch->pos[r] + 1) / a->keys.block;

            if (n > a->n_best)
                compare_row(&blocks, a->score + (size_t)(r - a->row0) * a->stride, n, a->n_best, 1);
        }
    }
}

static void begin_record(void) {
    records = true;
}

static void begin_compare(void) {
    fake_find()->on_launch = compare;
}

/* At most one of @part choices is another one. */
static void expect_same(const char *what, struct choices *c, uint32_t part) {
    printf("# %u of %u %s are others\n", c->n_other, c->n_all, what);
    cr_expect(c->at == c->n && c->n > 0 && c->n_other * part <= c->n_all, "%u of %u %s are others",
              c->n_other, c->n_all, what);
    c->n_all = c->n_other = c->at = 0;
}

/* Experts and blocks are chosen by comparisons, and rounded activations move the numbers behind
 * them: where two are close, another one is chosen, and the row's values and those of the rows
 * behind it are others. Where the reference's numbers are imposed, the device computes the golden
 * tokens; else at least @least of them. */
static void check_choices(const char *name, double limit, const uint32_t *least) {
    CLEANUP(golden_freep) struct golden *g = load(name);
    struct seen seen = {0};

    run_file(g, name, "reference", begin_record, &seen);
    records = false;
    expect_equal(&seen, limit);
    for (int i = 0; i < 2; i++) {
        imposes = i == 0;
        run_file(g, name, "cuda", begin_compare, &seen);
        fake_find()->on_launch = NULL;
        expect_same("experts", &experts, imposes ? 250 : 50);
        if (blocks.n)
            expect_same("blocks", &blocks, imposes ? 100 : 20);
        if (imposes)
            expect_equal(&seen, limit);
        for (uint32_t k = 0; k < g->n_cases; k++)
            cr_expect(seen.n_equal[k] >= least[k], "%s, case %u: %u are equal", name, k,
                      seen.n_equal[k]);
    }
    free(experts.v);
    free(blocks.v);
}

/* -- rounded products -------------------------------------------------------------------------- */

void __real_ref_linear(struct be *b, const struct tensor *w, const struct tensor *bias,
                       const float *x, uint32_t n_rows, float *y);
void __wrap_ref_linear(struct be *b, const struct tensor *w, const struct tensor *bias,
                       const float *x, uint32_t n_rows, float *y);

static void round_halves(const float *x, size_t n, float *to) {
    for (size_t i = 0; i < n; i++)
        to[i] = mx_half_to_float(mx_float_to_half(x[i]));
}

/* The linker puts it before ref_linear(). */
void __wrap_ref_linear(struct be *b, const struct tensor *w, const struct tensor *bias,
                       const float *x, uint32_t n_rows, float *y) {
    size_t n = w->ne[0], n_out = w->ne[1];

    if (!rounds) {
        __real_ref_linear(b, w, bias, x, n_rows, y);
        return;
    }
    CLEANUP(freep) float *all = malloc((n_rows + 1) * n * sizeof(*all));
    cr_assert(all && !bias);
    float *row = all + n_rows * n;
    round_halves(x, n_rows * n, all);
    for (size_t o = 0; o < n_out; o++) {
        quant_decode_row(w, o, row);
        round_halves(row, n, row);
        for (uint32_t r = 0; r < n_rows; r++)
            y[r * n_out + o] = host_dot(row, all + r * n, n);
    }
}

/* For a file whose layers multiply the rounding of products so often that it moves logits by more
 * than close ones are apart: a reference with rounded products, of which at least @least tokens are
 * the file's, is the judge of the device. All choose by the numbers of the reference. */
static void check_rounded(const char *name, double limit, const uint32_t *least) {
    CLEANUP(golden_freep) struct golden *g = load(name);
    static struct judge judge;
    struct seen seen = {0};

    run_file(g, name, "reference", begin_record, &seen);
    records = false;
    expect_equal(&seen, limit);
    rounds = true;
    seen = (struct seen){.out = &judge};
    run_file(g, name, "reference", NULL, &seen);
    rounds = false;
    experts.at = blocks.at = 0;
    for (uint32_t k = 0; k < g->n_cases; k++)
        cr_expect(seen.n_equal[k] >= least[k] && g->cases[k].n_last <= JUDGE_VOCAB,
                  "%s, case %u: %u are equal", name, k, seen.n_equal[k]);
    imposes = true;
    seen = (struct seen){.judge = &judge};
    run_file(g, name, "cuda", begin_compare, &seen);
    fake_find()->on_launch = NULL;
    expect_same("experts", &experts, 250);
    expect_same("blocks", &blocks, 100);
    expect_equal(&seen, limit);
    free(experts.v);
    free(blocks.v);
}

/* -- files ------------------------------------------------------------------------------------- */

/* A block of 128 positions. Scores of blocks are 1e-4 apart and more, which is less than what
 * rounded activations move them by: a row that picks another one is apart, and with it those that
 * see its key. Of 48 rows 0, 2 and 17 were. */
Test(cuda_golden, compressed_keys) {
    check_file("deepseek4", 0.05);
}

/* A norm of the embedding, gates of attention, norms after branches, capped logits. */
Test(cuda_golden, norm_of_the_embedding) {
    check_file("muse-glimmer", 0.05);
}

/* Layer norms with biases or without, or without weights; branches beside each other that read the
 * same norm; norms at the ends of rows with wants alone. */
Test(cuda_golden, layer_norms) {
    check_file("nemotron", 0.05);
    check_file("command-r", 0.05);
    check_file("cohere2", 0.05);
    check_file("stablelm", 0.05);
    check_file("olmo", 0.1); /* 0.059 was seen */
}

/* Experts beside attention, which read its layer norm, and half of a shared expert. */
Test(cuda_golden, experts_behind_layer_norms) {
    check_file("cohere2moe", 0.05);
}

/* Experts whose inputs are weighed, unweighted norms behind the rotation, layers that attend in
 * chunks. */
Test(cuda_golden, weighed_inputs_of_experts) {
    check_file("llama4", 0.05);
}

/* Functions of the up values alone. */
Test(cuda_golden, ffns_without_gates) {
    check_file("starcoder2", 0.05);
    check_file("apertus", 0.05);
}

/* Layers that run twice share weights, not keys. They round twice as often: 0.083 was seen. */
Test(cuda_golden, layers_that_run_twice) {
    check_file("nanbeige", 0.1);
}

/* Kimi delta attention beside latent attention, experts in groups. */
Test(cuda_golden, delta_and_latent_attention) {
    check_file("bailingmoe3", 0.1);
}

/* Decays without a bound, inputs of a lower rank, latent attention without rotary positions. */
Test(cuda_golden, unbounded_decays) {
    check_file("kimi-linear", 0.1);
}

/* Windows with rotary positions of their own, norms after branches. */
Test(cuda_golden, norms_after_branches_with_windows) {
    check_file("plamo3", 0.1);
}

/* Norms of queries and keys behind the rotation. */
Test(cuda_golden, norms_behind_rotations) {
    check_file("hunyuan-dense", 0.1);
    check_file("hunyuan-moe", 0.1);
}

/* Attention beside Mamba-2, with and without a norm behind it. */
Test(cuda_golden, attention_beside_mamba) {
    check_file("falcon-h1", 0.1);
}

/* Mamba-1 beside attention without rotary positions, experts in every other layer. */
Test(cuda_golden, attention_beside_scans) {
    check_file("jamba", 0.1);
}

/* Mamba-1 with the steps of heads, norms of queries and keys with weights for each head. */
Test(cuda_golden, scans_by_head) {
    check_file("plamo2", 0.1);
}

/* Latent queries with a temperature, a shared expert. */
Test(cuda_golden, latent_attention_with_temperatures) {
    check_file("mistral4", 0.12);
}

/* Alternating updates of four streams, a low-rank branch, thinned gates, layers that share keys. */
Test(cuda_golden, alternating_updates) {
    check_file("gemma3n", 0.1);
}

/* Weights of experts jump where a logit enters a masked softmax: once in 48 tokens of a prompt. */
Test(cuda_golden, experts_of_masked_softmaxes) {
    check_choices("phimoe", 0.05, (const uint32_t[]){46, 46, 46});
}

/* Values of 128 numbers beside keys of 192, sinks in layers with a window. */
Test(cuda_golden, short_values) {
    check_choices("mimo2", 0.05, (const uint32_t[]){46, 48, 48});
}

/* Experts in a latent space, whose number and width differ by layer, beside a shared one. */
Test(cuda_golden, latent_experts) {
    check_file("nemotron-h-puzzle", 0.1);
}

/* Mixed residual streams, attention to chosen blocks, a table of n-grams. */
Test(cuda_golden, chosen_keys) {
    check_choices("qwen4exp", 0.1, (const uint32_t[]){48, 46, 40});
}

/* Latent keys that an indexer chooses by pooled keys, a layer that sees the choice of another one,
 * blended residual streams around Kimi delta attention. Rounding to halves alone moves the logits
 * of the reference by up to 0.41, of which the delta nets' division by short lengths is a part. */
Test(cuda_golden, pooled_keys) {
    check_rounded("glm5-next", 0.15, (const uint32_t[]){48, 47, 47});
}

/* Blocks that each head of keys chooses. */
Test(cuda_golden, blocks_of_key_heads) {
    check_file("minimax-m3", 0.1);
}
