/*
 * Speculation with real engines and a small random model: hundreds of random requests at any
 * temperature, with penalties, bias, stop strings, in company, preempted, get the same tokens,
 * digests and log probabilities with drafts as without. The drafts come from the real sources;
 * predictions with mistakes make many drafts right and many wrong.
 */

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "scheduler/draft/draft.h"
#include "tests/support/few.h"
#include "tests/support/serving.h"
#include "tests/support/synth/synth.h"
#include "tests/support/tiny_model.h"
#include "text/tokenizer.h"

enum {
    REQUESTS = FEWER(240, 40),
    BLOCK_REQUESTS = FEWER(120, 24),
    REFERENCE_REQUESTS = FEWER(24, 8)
};
#ifdef DEVICES /* no more than the longest context, so some requests are preempted */
#define FEW_PAGES 8u
#else
#define FEW_PAGES MIN(n_requests + 3, 12)
#endif
enum { VOCAB = 300, TOGETHER = 12, PROMPT = 60, OUT = 32, STOPS = 2 };

static struct gguf *model, *vocabulary;
static uint32_t n_snapshots, n_requests = REQUESTS;
static bool block;         /* the model drafts itself */
static struct gguf *apart; /* file of its assistant or block drafter, or NULL */
static bool windowed;      /* some layers of the model have a window */
static struct gguf *small; /* file of the draft model, or NULL */
static uint32_t small_pages, large_pages = 12;
static struct tokenizer *tokenizer;
static char *devices; /* NULL: the first device */
static struct heard plain[REQUESTS], drafted[REQUESTS];
static int32_t prediction[REQUESTS][HEARD_MAX];
static struct msg_stats sum;

/* Makes a vocabulary of pieces of two or three letters out of four, so that stop strings occur. */
static void make_tokenizer(void) {
    static char piece[VOCAB][4];
    const char *text[VOCAB] = {"<unk>", "<s>", "</s>"};
    float score[VOCAB] = {0};
    int32_t type[VOCAB] = {2, 3, 3};
    struct gguf_writer w;
    struct err err = {0};
    char path[64];

    for (int i = 3; i < VOCAB; i++) {
        snprintf(piece[i], sizeof(piece[i]), "%c%c%c", 'a' + i % 4, 'a' + i / 4 % 4,
                 i < 19 ? '\0' : 'a' + i / 16 % 20);
        text[i] = piece[i];
        type[i] = 1;
    }
    gw_init(&w);
    gw_string(&w, "general.architecture", "llama");
    gw_string(&w, "tokenizer.ggml.model", "llama");
    gw_strings(&w, "tokenizer.ggml.tokens", VOCAB, text);
    gw_array(&w, "tokenizer.ggml.scores", GGUF_F32, VOCAB, score, sizeof(score));
    gw_array(&w, "tokenizer.ggml.token_type", GGUF_I32, VOCAB, type, sizeof(type));
    gw_u32(&w, "tokenizer.ggml.bos_token_id", 1);
    gw_u32(&w, "tokenizer.ggml.eos_token_id", 2);
    tiny_model_temp_of(&w, path);
    gw_deinit(&w);
    cr_assert_eq(gguf_open(&vocabulary, path, &err), 0, "%s", err.message);
    unlink(path);
    cr_assert_eq(tokenizer_new(&tokenizer, vocabulary, &err), 0, "%s", err.message);
}

static void open_tiny(const struct tiny_model *t, struct gguf **out) {
    struct err err = {0};
    char path[64];

    tiny_model_temp(t, path);
    cr_assert_eq(gguf_open(out, path, &err), 0, "%s", err.message);
    unlink(path);
}

#ifndef BACKEND
static void open_model(void) {
    open_tiny(&(struct tiny_model){.seed = 8, .n_layer = 1, .n_embd = 128, .n_ff = 128}, &model);
    make_tokenizer();
}
#endif

static void submit(struct sched *s, uint32_t i, bool drafts) {
    static const struct submit_bias bias[] = {{5, 1.5F}, {9, -100.0F}};
    static const char *const stops[] = {"abca", "dda", "bb"};
    struct rng r = {100 + i}, common = {i / 6 + 1};
    int32_t tokens[PROMPT];
    struct submit m = {
        .id = i + 1,
        .seed = 50 + i,
        .n_prompt = 8 + rng_below(&r, PROMPT - 8),
        .max_new = 1 + rng_below(&r, OUT),
        .tokens = tokens,
        .flags = SUBMIT_DIGESTS | SUBMIT_LOGPROBS,
        .n_top = (uint8_t)(rng_below(&r, 4) ? 0 : 3),
    };

#ifdef DEVICES /* after short outputs long ones are not expected, and soon lack pages */
    m.n_prompt = 8 + m.n_prompt % 8;
    m.max_new = i < 4 ? 1 : OUT;
#endif
    m.n_tokens = m.n_prompt;
    m.min_new = rng_below(&r, 3) ? 0 : rng_below(&r, m.max_new);
    for (uint32_t k = 0; k < m.n_prompt; k++) /* a repetitive prompt */
        tokens[k] = k > 12 && rng_below(&r, 4) ? tokens[k - 7] : (int32_t)rng_below(&common, VOCAB);
    serving_draw(&r, &m.sampling);
    m.n_bias = rng_below(&r, 3) ? 0 : 2;
    m.bias = bias;
    m.n_stops = rng_below(&r, 3) ? 0 : 1 + rng_below(&r, 3);
#ifdef DEVICES /* nor ends one early */
    m.n_stops = 0;
    m.min_new = m.max_new;
#endif
    for (uint32_t k = 0; k < m.n_stops; k++)
        m.stops[k] = (struct str){stops[k], (uint32_t)strlen(stops[k])};
    if (drafts && rng_below(&r, 4))
        heard_predict(&plain[i], i + 5000, VOCAB, prediction[i], &m);
    cr_assert_eq(sched_submit(s, &m), 0);
}

static void serve(const char *backend, const struct sched_opts *opts, struct heard *all) {
    struct serving w = {
        .model = model,
        .draft = small,
        .backend = backend,
        .devices = devices,
        .block = block,
        .apart = apart,
        .windows = windowed && large_pages >= 100,
        .n_snapshots = n_snapshots,
        .max_seqs = TOGETHER,
        .n_pages = large_pages,
        .draft_pages = small_pages,
        .draft_page_tokens = 32,
        .n_requests = n_requests,
        .at_once = 2 * TOGETHER,
        .submit = submit,
    };
    struct sched_opts so = *opts;
    struct msg_stats stats;

    so.check = true;
    so.tokenizer = tokenizer;
    serving_run(&w, &so, all, &stats);
    sum.n_preemptions += stats.n_preemptions;
    sum.n_drafted += stats.n_drafted;
    sum.n_accepted += stats.n_accepted;
    sum.n_output_tokens += stats.n_output_tokens;
    if ((small || block) && !so.no_speculation)
        cr_expect_gt(stats.n_drafted, 0);
}

#ifndef BACKEND
struct backend_name {
    char name[16];
};

ParameterizedTestParameters(spec_engine, drafts_change_no_bit) {
    static struct backend_name names[] = {{"reference"}, {"cpu"}};

    return cr_make_param_array(struct backend_name, names, 2);
}

ParameterizedTest(struct backend_name *backend, spec_engine, drafts_change_no_bit) {
    open_model();
    serve(backend->name, &(struct sched_opts){.depth = 1, .no_speculation = true}, plain);
    cr_expect_eq(sum.n_drafted, 0);
    uint64_t n_out = sum.n_output_tokens;
    for (uint32_t depth = 1; depth <= 2; depth++) {
        serve(backend->name, &(struct sched_opts){.depth = depth, .force_draft = 8}, drafted);
        heard_compare(plain, drafted, REQUESTS);
        serve(backend->name, &(struct sched_opts){.depth = depth}, drafted);
        heard_compare(plain, drafted, REQUESTS);
    }
    cr_expect_eq(sum.n_output_tokens, 5 * n_out);
    cr_expect_gt(sum.n_preemptions, 0);
    /* The number depends on the time that steps take. */
    cr_expect_gt(sum.n_accepted, 0);
    cr_expect_gt(sum.n_drafted, sum.n_accepted);
    fprintf(stderr, "# %s: %lu tokens, %lu of %lu drafted accepted, %lu preemptions\n",
            backend->name, sum.n_output_tokens, sum.n_accepted, sum.n_drafted, sum.n_preemptions);
    tokenizer_free(tokenizer);
    gguf_free(vocabulary);
    gguf_free(model);
}

static void open_small(uint64_t seed) {
    small = gguf_free(small);
    open_tiny(&(struct tiny_model){.seed = seed, .n_layer = 1, .n_embd = 128, .n_ff = 128}, &small);
}

/* A small model that equals the large one samples the same at every temperature and with every
 * penalty: everything is accepted except tokens behind an end. Another small model is mostly wrong.
 * Neither changes a bit, with few pages or many. */
Test(spec_engine, a_draft_model_changes_no_bit) {
    static const struct draft_source *const only[] = {&draft_model, NULL};
    struct sched_opts opts = {.drafts = only};

    open_model();
    serve("cpu", &(struct sched_opts){.no_speculation = true}, plain);
    for (uint32_t depth = 1; depth <= 2; depth++)
        for (small_pages = 5; small_pages <= 60; small_pages += 55) {
            large_pages = small_pages == 5 ? 12 : 100;
            opts.depth = depth;
            opts.force_draft = 6;
            sum = (struct msg_stats){0};
            open_small(8);
            serve("cpu", &opts, drafted);
            heard_compare(plain, drafted, REQUESTS);
            fprintf(stderr, "# the same model, %u pages, depth %u: %lu of %lu\n", small_pages,
                    depth, sum.n_accepted, sum.n_drafted);
            cr_expect_gt(sum.n_accepted, sum.n_drafted * 8 / 10, "%lu of %lu", sum.n_accepted,
                         sum.n_drafted);
            sum = (struct msg_stats){0};
            open_small(9);
            serve("cpu", &opts, drafted);
            heard_compare(plain, drafted, REQUESTS);
            cr_expect_lt(sum.n_accepted, sum.n_drafted / 2);
            opts.force_draft = 0;
            opts.drafts = NULL;
            serve("cpu", &opts, drafted);
            heard_compare(plain, drafted, REQUESTS);
            opts.drafts = only;
        }
    small = gguf_free(small);
    tokenizer_free(tokenizer);
    gguf_free(vocabulary);
    gguf_free(model);
}

#endif

/* Ling 3.0: Kimi delta attention, then latent attention, which the block has too. */
static void open_ling(float loud, struct gguf **out) {
    char shape[256], path[64];
    char *const argv[] = {"synth", "--shape", shape, "--format", "F32", "--seed", "5", "-o", path};
    struct err err = {0};

    snprintf(shape, sizeof(shape),
             "ling-3.0-flash,n_layer=2,n_embd=128,n_head=2,head_dim=48,n_rot=16,kv_rank=32,"
             "v_dim=32,period=2,n_lead=1,n_dense=128,n_ff=64,n_shared=64,n_expert=8,n_used=2,"
             "n_group=4,n_vocab=%d,context=512,loud=%g",
             VOCAB, (double)loud);
    snprintf(path, sizeof(path), "/tmp/weft-ling-%d.gguf", getpid());
    cr_assert_eq(synth_main((int)ARRAY_SIZE(argv), (char **)argv), 0);
    cr_assert_eq(gguf_open(out, path, &err), 0, "%s", err.message);
    unlink(path);
}

struct block_model {
    char arch[16], backend[16];
    float loud;
    uint32_t n_snapshots, n_requests;
    /* Architecture or kind of the file that drafts; "": the model's own block, "blocks": three of
     * them, "none": only drafts from known text. */
    char apart[20];
};

ParameterizedTestParameters(spec_engine, a_models_own_block_changes_no_bit) {
    static struct block_model all[] = {
#ifdef DEVICES /* some of the layers are on each device, and the block is on the last one */
        {"qwen3", BACKEND, 0.01F, 0, N_REQUESTS, "none"},
        {"glm4moe", BACKEND, 0.3F, 0, N_REQUESTS, ""},
        {"qwen35", BACKEND, 0.3F, 40, N_REQUESTS, ""},
        {"qwen3", BACKEND, 0.3F, 0, N_REQUESTS, "dflash"},
#elif defined(BACKEND) /* a device, which is emulated */
        {"glm4moe", BACKEND, 0.01F, 0, N_REQUESTS, ""},
        {"qwen35", BACKEND, 0.01F, 40, N_REQUESTS, ""},
        {"bailingmoe3", BACKEND, 0.1F, 40, N_REQUESTS, ""},
        {"qwen35", BACKEND, 0.01F, 40, N_REQUESTS, "dflash"},
        {"qwen3", BACKEND, 0.01F, 0, N_REQUESTS, "dspark"},
#else
        {"glm4moe", "cpu", 0.01F, 0, BLOCK_REQUESTS, ""},
        {"glm4moe", "cpu", 0.5F, 0, BLOCK_REQUESTS, ""},
        {"glm4moe", "reference", 0.2F, 0, REFERENCE_REQUESTS, ""},
        {"glm4moe", "cpu", 0.01F, 0, BLOCK_REQUESTS, "blocks"},
        {"qwen35", "cpu", 0.5F, 40, BLOCK_REQUESTS, "blocks"},
        {"qwen35", "cpu", 0.01F, 40, BLOCK_REQUESTS, ""},
        {"qwen35", "cpu", 0.5F, 40, BLOCK_REQUESTS, ""},
        {"qwen35", "reference", 0.2F, 40, REFERENCE_REQUESTS, ""},
        {"bailingmoe3", "cpu", 0.1F, 40, BLOCK_REQUESTS, ""},
        {"bailingmoe3", "reference", 0.1F, 40, REFERENCE_REQUESTS, ""},
        {"gemma4", "cpu", 0.01F, 0, BLOCK_REQUESTS, "gemma4-assistant"},
        {"gemma4", "cpu", 0.5F, 0, BLOCK_REQUESTS, "gemma4-assistant"},
        {"gemma4", "reference", 0.2F, 0, REFERENCE_REQUESTS, "gemma4-assistant"},
        {"qwen3", "cpu", 0.01F, 0, BLOCK_REQUESTS, "dflash"},
        {"qwen3", "cpu", 0.5F, 0, BLOCK_REQUESTS, "dflash"},
        {"qwen35", "cpu", 0.01F, 40, BLOCK_REQUESTS, "dflash"},
        {"qwen3", "cpu", 0.01F, 0, BLOCK_REQUESTS, "dspark"},
        {"qwen3", "reference", 0.2F, 0, REFERENCE_REQUESTS, "dspark"},
        {"qwen35", "reference", 0.2F, 40, REFERENCE_REQUESTS, "dflash"},
#endif
    };

    return cr_make_param_array(struct block_model, all, ARRAY_SIZE(all));
}

/* If the layers add next to nothing, the block or gemma4's assistant samples the same as the model
 * at every temperature, as far as its own keys do, and a block drafter the first of three or four
 * tokens; if they add more, it is often wrong. Few pages and many, depth 1 and 2, alone and beside
 * the other sources. */
ParameterizedTest(struct block_model *b, spec_engine, a_models_own_block_changes_no_bit) {
    static const struct draft_source *const only[] = {&draft_mtp, NULL};
    bool several = strcmp(b->apart, "blocks") == 0;
    struct tiny_model t = {.arch = b->arch,
                           .seed = 5,
                           .n_layer = 2,
                           .n_embd = 128,
                           .n_ff = 128,
                           .n_blocks = several ? 3 : !b->apart[0],
                           .loud = b->loud};
    struct sched_opts opts = {.drafts = only};
    bool none = strcmp(b->apart, "none") == 0, chains = strcmp(b->apart, "dspark") == 0;
    uint32_t n_one_of = chains ? 4 : strcmp(b->apart, "dflash") == 0 ? 3 : 1;

    if (strcmp(b->arch, "bailingmoe3") == 0)
        open_ling(b->loud, &model);
    else
        open_tiny(&t, &model);
    windowed = strcmp(b->arch, "gemma4") == 0;
    t.arch = chains ? "dflash" : b->apart;
    t.markov = chains ? 16 : 0;
    t.anchored = chains;
    if (b->apart[0] && !none && !several)
        open_tiny(&t, &apart);
    make_tokenizer();
    block = !none;
    n_snapshots = b->n_snapshots;
    n_requests = b->n_requests;
    serve(b->backend, &(struct sched_opts){.no_speculation = true}, plain);
#ifdef DEVICES
    setenv("WEFT_CUDA_PEERS", "0", 1);
    devices = DEVICES;
#endif
    for (uint32_t depth = 1; depth <= 2; depth++) {
        large_pages = depth == 1 ? FEW_PAGES : 100;
        opts.depth = depth;
        opts.force_draft = 6;
        opts.drafts = none ? NULL : only;
        sum = (struct msg_stats){0};
        serve(b->backend, &opts, drafted);
        heard_compare(plain, drafted, n_requests);
        fprintf(stderr, "# %s %s %s, %u pages: %lu of %lu, %lu preemptions\n", b->arch, b->apart,
                b->backend, large_pages, sum.n_accepted, sum.n_drafted, sum.n_preemptions);
        cr_expect_gt(sum.n_accepted, 0);
#ifdef DEVICES
        cr_expect_gt(sum.n_drafted, sum.n_accepted);
        cr_expect(depth == 2 || sum.n_preemptions > 0);
#endif
        if (b->loud < 0.1F && n_requests > 20)
            cr_expect_gt(sum.n_accepted, sum.n_drafted * 8 / 10 / n_one_of);
#ifndef BACKEND
        opts.force_draft = 0;
        opts.drafts = NULL;
        serve(b->backend, &opts, drafted);
        heard_compare(plain, drafted, n_requests);
#endif
    }
    tokenizer_free(tokenizer);
    gguf_free(vocabulary);
    gguf_free(model);
    gguf_free(apart);
}
