/*
 * Tests a model's drafting block (multi-token prediction), or its assistant in a file of its own:
 * logits against those of another implementation, and conditions that must not change them. The
 * model's own results have the same bits with and without drafts.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "tests/engine/draft_run.h"
#include "tests/engine/golden.h"
#include "tests/support/few.h"

enum { N_DRAFTS = GOLDEN_DRAFTS };

#ifdef BACKEND            /* does not compute all architectures */
#define A_FEW(n) 1u       /* of n */
#define STEP FEWEST(1, 5) /* with few cases an architecture of each kind of vector */
#else
#define A_FEW(n) (n)
#define STEP 1
#endif

static const struct file {
    /* model: of an assistant */
    const char *name, *model;
    /* keys are computed although holes are possible, too */
    bool whole;
} files[] = {
#ifdef BACKEND
    {"qwen35moe-mtp", NULL, false},   {"glm4moe-mtp", NULL, false}, {"qwen35-mtp", NULL, false},
    {"deepseek2-mtp", NULL, false},   {"step35-mtp", NULL, false},  {"deepseek4-mtp", NULL, true},
    {"bailingmoe3-mtp", NULL, false}, {"mimo2-mtp", NULL, false},   {"glm5-next-mtp", NULL, true},
#else
    {"glm4moe-mtp", NULL, false},
    {"qwen35-mtp", NULL, false},
    {"qwen35moe-mtp", NULL, false},
    {"deepseek2-mtp", NULL, false},
    {"nemotron-h-moe-mtp", NULL, false},
    {"step35-mtp", NULL, false},
    {"bailingmoe3-mtp", NULL, false},
    {"deepseek4-mtp", NULL, true},
    {"mimo2-mtp", NULL, false},
    {"glm5-next-mtp", NULL, true},
    {"nemotron-h-puzzle", NULL, false},
    {"gemma4-assistant", "gemma4", false},
    {"gemma4-ple-assistant", "gemma4-ple", false},
#endif
};

static void open_file(struct driver *d, const struct file *f, const char *backend,
                      enum engine_kv_type kv_type, bool drafts, struct draft_watch *w) {
    const char *name = f->name;
    struct driver_opts o = {
        .path = draft_path(f->model ? f->model : name, ".gguf"),
        .block = f->model && drafts ? draft_path(name, ".gguf") : NULL,
        .backend = backend,
        .kv_type = kv_both(kv_type),
        .n_threads = 2,
        .n_pages = 128,
        .max_rows = 64,
        .max_seqs = 4,
        .drafts = drafts,
        .on_out = draft_see,
        .ctx = w,
    };
    struct err err;

    cr_assert_eq(driver_open(d, &o, &err), 0, "%s: %s", name, err.message);
    cr_assert_leq(d->info->n_vocab, N_VOCAB);
    w->n_vocab = d->info->n_vocab;
    cr_assert_eq(d->info->n_slots > 0, drafts, "%s: %s", name, d->info->note);
}

/* Drafts after a token: N_DRAFTS, or one by each block. */
static uint32_t n_drafts(const struct driver *d) {
    return d->info->draft_passes > 1 ? d->info->draft_passes : N_DRAFTS;
}

/* Returns the largest difference; for a device, whose activations have eleven bits, |x - right| /
 * |right|. */
static double distance(const float *x, const float *right, uint32_t n) {
    double most = 0, sum = 0, norm = 0;

    for (uint32_t i = 0; i < n; i++) {
        double diff = fabs((double)x[i] - (double)right[i]);

        most = diff <= most ? most : diff; /* NaN too */
        sum += diff * diff;
        norm += (double)right[i] * (double)right[i];
    }
    return BACKEND_IS_DEVICE ? sqrt(sum / norm) : most;
}

static void check_case(struct driver *d, struct draft_watch *w, const struct golden_case *c,
                       double tolerance, const char *name) {
    int32_t first = c->greedy[0].id;
    struct driver_seq *s = driver_add(d, c->prompt, c->n_prompt, 8, NULL);
    double worst = 0;

    cr_assert_eq(c->n_drafts, n_drafts(d));
    s->forced = &first;
    driver_prefill(d, s, 50);
    w->pos0 = c->n_prompt;
    w->n_seen = 0;
    for (uint32_t k = 0; k < c->n_drafts; k++) {
        driver_draft(d, &s, 1, k);
        cr_assert_eq(w->n_seen, k + 1);
        double diff = distance(w->logits[k], c->draft[k].logits, w->n_vocab);
        worst = diff <= worst ? worst : diff; /* NaN too */
        s->draft[k] = c->draft[k].id;
    }
    printf("# %s %s, %u tokens: %.2g\n", d->info->backend, name, c->n_prompt, worst);
    cr_expect(worst <= tolerance, "%s: %g", name, worst);
    w->pos0 = UINT32_MAX;
    driver_drop(d, s);
}

static void check_golden(const char *backend, enum engine_kv_type kv_type, double tolerance) {
    for (size_t f = 0; f < ARRAY_SIZE(files); f++) {
        CLEANUP(golden_freep) struct golden *g = golden_load(draft_path(files[f].name, ".json"));
        struct draft_watch w = {.pos0 = UINT32_MAX};
        struct driver d;

        open_file(&d, &files[f], backend, kv_type, true, &w);
        for (uint32_t i = 0; i < A_FEW(g->n_cases); i++)
            check_case(&d, &w, &g->cases[i], tolerance, files[f].name);
        driver_close(&d);
    }
}

#ifndef BACKEND
Test(mtp, reference_drafts_what_another_implementation_does) {
    check_golden("reference", ENGINE_KV_F32, 1e-3);
}
#endif

Test(mtp, drafts_stay_close) {
    check_golden(JUDGED, ENGINE_KV_F16, 0.05);
}

/* -- conditions that must not change results --------------------------------------------------- */

static void open_of(const void *of, const char *backend, bool drafts, struct driver *d,
                    struct draft_watch *w) {
    open_file(d, of, backend, ENGINE_KV_F16, drafts, w);
}

static void draft_all(struct driver *d, struct driver_seq *const *seq, uint32_t n) {
    for (uint32_t k = 0; k < n_drafts(d); k++)
        driver_draft(d, seq, n, k);
}

static void check_manners(const char *backend) {
    for (size_t f = 0; f < A_FEW(ARRAY_SIZE(files)); f++)
        draft_check_manners(&(struct drafting){files[f].name, &files[f], open_of, draft_all},
                            backend);
}

#ifndef BACKEND
Test(mtp, reference_drafts_do_not_depend_on_what_else_runs) {
    check_manners("reference");
}
#endif

Test(mtp, drafts_do_not_depend_on_what_else_runs) {
    check_manners(JUDGED);
}

/* Vectors of a prompt's rows, of @n values each. */
struct vectors {
    uint32_t n;
    float of[N_PROMPT][64];
};

/* driver_opts.on_out, whose context is a struct vectors. */
static void see_vector(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                       const float *logits) {
    struct vectors *v = ctx;

    (void)s, (void)logits;
    if (out->vector && pos < N_PROMPT)
        memcpy(v->of[pos], out->vector, v->n * sizeof(float));
}

static void run_vectors(const struct file *f, bool drafts, struct vectors *out) {
    struct draft_watch w = {.pos0 = UINT32_MAX};
    int32_t prompt[N_PROMPT];
    struct driver d;

    open_file(&d, f, JUDGED, ENGINE_KV_F16, drafts, &w);
    out->n = d.info->n_embd;
    cr_assert_leq(out->n * sizeof(float), sizeof(out->of[0]));
    d.opts.on_out = see_vector;
    d.opts.ctx = out;
    draft_prompt(prompt, 1, w.n_vocab);
    struct driver_seq *s = driver_add(&d, prompt, N_PROMPT, 1, NULL);
    s->vectors = true;
    driver_prefill(&d, s, 26);
    driver_drop(&d, s);
    driver_close(&d);
}

/* The keys of a block use the buffer of WANT_HIDDEN's input, possibly before its norm. */
Test(mtp, vectors_of_rows_are_the_same_with_a_block) {
    static struct vectors without, with;

    for (size_t f = 0; f < ARRAY_SIZE(files); f += STEP) {
        if (files[f].model)
            continue;
        run_vectors(&files[f], false, &without);
        run_vectors(&files[f], true, &with);
        cr_expect(memcmp(&without, &with, sizeof(with)) == 0, "%s", files[f].name);
        cr_expect(memcmp(with.of[0], with.of[N_PROMPT - 1], sizeof(with.of[0])) != 0, "%s",
                  files[f].name);
    }
}

/* -- keys that are not computed ---------------------------------------------------------------- */

enum { N_FORCED = 36, N_HOLES = 34 }; /* holes cover more than a tile of keys */

/* Runs N_FORCED tokens after the prompt, of which the first @holes have no keys of the block.
 * @stale: the pages had another text before. */
static void run_holes(const struct file *file, const char *backend, enum engine_kv_type kv_type,
                      uint32_t holes, bool stale, struct draft_run *out) {
    int32_t prompt[N_PROMPT], forced[N_FORCED + 1];
    struct draft_watch w = {.pos0 = UINT32_MAX};
    struct driver d;

    open_file(&d, file, backend, kv_type, true, &w);
    for (uint32_t i = 0; i <= N_FORCED; i++)
        forced[i] = (int32_t)((i * 29 + 5) % w.n_vocab);
    for (int k = stale ? 0 : 1; k < 2; k++) {
        draft_prompt(prompt, k ? 1 : 3, w.n_vocab);
        struct driver_seq *s = driver_add(&d, prompt, N_PROMPT, N_FORCED + 1 + N_DRAFTS, NULL);
        s->forced = forced;
        driver_prefill(&d, s, 0);
        for (uint32_t t = 0; t < N_FORCED; t++) {
            d.holes = k && t < holes;
            driver_decode(&d, &s, 1, 1, false);
        }
        memcpy(out->out, s->out + N_FORCED + 1 - N_TOKENS, sizeof(out->out));
        w.pos0 = k ? s->n_computed : UINT32_MAX;
        for (uint32_t i = 0; k && i < n_drafts(&d); i++) {
            driver_draft(&d, &s, 1, i);
            s->draft[i] = forced[i];
        }
        memcpy(out->drafts, w.logits, sizeof(w.logits));
        out->n_drafts = w.n_seen;
        driver_drop(&d, s);
    }
    driver_close(&d);
}

static double apart(const struct draft_run *a, const struct draft_run *b) {
    double worst = 0;

    for (uint32_t k = 0; k < MIN(a->n_drafts, b->n_drafts); k++) {
        double diff = distance(a->drafts[k], b->drafts[k], N_VOCAB);

        worst = diff <= worst ? worst : diff; /* NaN too */
    }
    return worst;
}

/* Earlier contents of the pages must have no effect, and the model itself none either. Two backends
 * that read keys in different ways must agree. */
static void check_holes(const struct file *file, enum engine_kv_type kv_type, double tolerance) {
    static struct draft_run all, reference, judged, stale;
    const char *name = file->name;

    run_holes(file, JUDGED, kv_type, 0, false, &all);
    run_holes(file, JUDGED, kv_type, N_HOLES, false, &judged);
    run_holes(file, JUDGED, kv_type, N_HOLES, true, &stale);
    cr_expect(memcmp(judged.drafts, stale.drafts, sizeof(judged.drafts)) == 0, "%s: a hole is seen",
              name);
    cr_expect(draft_same_text(&all, &judged) && draft_same_text(&all, &stale),
              "%s: holes change the model", name);
    run_holes(file, "reference", kv_type, N_HOLES, false, &reference);
    printf("# %s: reference and " JUDGED " %.2g, without holes %.2g\n", name,
           apart(&reference, &judged), apart(&all, &judged));
    cr_expect(apart(&reference, &judged) <= tolerance, "%s: %g", name, apart(&reference, &judged));
    double left_out = apart(&all, &judged);
    cr_expect(file->whole ? left_out == 0 : left_out > 2 * tolerance,
              "%s: keys that are not there change drafts by %g", name, left_out);
}

Test(mtp, keys_that_were_left_out_are_not_seen) {
    for (size_t f = 0; f < A_FEW(ARRAY_SIZE(files)); f++)
        if (!files[f].model)
            check_holes(&files[f], ENGINE_KV_F16, 0.05);
}

/* A small difference moves some codes by one, which may change the choice of experts: the CPU's
 * file has none. */
Test(mtp, nor_are_those_of_eight_or_four_bits) {
    if (FEWEST(true, !BACKEND_IS_DEVICE))
        check_holes(&files[BACKEND_IS_DEVICE ? 0 : 1], ENGINE_KV_Q8_0,
                    BACKEND_IS_DEVICE ? 0.05 : 0.2);
    check_holes(&files[BACKEND_IS_DEVICE ? 0 : 1], ENGINE_KV_Q4_0, 0.2);
}

Test(mtp, a_model_without_a_block_has_no_slots) {
    struct driver_opts o = {.path = draft_path("llama-mha", ".gguf"), .drafts = true};
    struct driver d;
    struct err err;

    cr_assert_eq(driver_open(&d, &o, &err), 0, "%s", err.message);
    cr_expect_eq(d.info->n_slots, 0);
    cr_expect_str_empty(d.info->note);
    driver_close(&d);
}

/* -- a block in a file of its own -------------------------------------------------------------- */

/* Writes the model of @t; with @apart its block in another file. */
static void run_tiny(const struct tiny_model *t, bool apart, const char *backend,
                     struct draft_run *out) {
    struct tiny_model model = *t, block = *t;
    int32_t prompt[N_PROMPT];
    struct draft_watch w = {.pos0 = UINT32_MAX, .n_vocab = 300};
    char path[2][64];
    struct driver d;
    struct err err;

    model.n_blocks = apart ? 0 : t->n_blocks;
    tiny_model_temp(&model, path[0]);
    block.blocks_alone = true;
    tiny_model_temp(&block, path[1]);
    struct driver_opts o = {
        .path = path[0], .backend = backend, .drafts = true, .on_out = draft_see, .ctx = &w};
    o.block = apart ? path[1] : NULL;
    cr_assert_eq(driver_open(&d, &o, &err), 0, "%s: %s", t->arch, err.message);
    cr_assert(d.info->n_slots > 0);
    cr_expect(engine_is_block(d.file) == false && (!apart || engine_is_block(d.block)));
    draft_prompt(prompt, 1, 300);
    struct driver_seq *s = driver_add(&d, prompt, N_PROMPT, N_TOKENS + N_DRAFTS, NULL);
    driver_prefill(&d, s, 0);
    driver_decode(&d, &s, 1, N_TOKENS - 1, false);
    memcpy(out->out, s->out, sizeof(out->out));
    w.pos0 = s->n_computed;
    draft_all(&d, &s, 1);
    memcpy(out->drafts, w.logits, sizeof(w.logits));
    out->n_drafts = w.n_seen;
    driver_drop(&d, s);
    driver_close(&d);
    unlink(path[0]);
    unlink(path[1]);
}

Test(mtp, a_block_in_a_file_of_its_own_drafts_the_same) {
    static const char *const archs[] = {"qwen35moe", "qwen35", "glm4moe"};
    static struct draft_run together, apart;

    for (size_t i = 0; i < A_FEW(ARRAY_SIZE(archs)); i++) {
        const struct tiny_model t = {.arch = archs[i], .n_blocks = 1, .type = TENSOR_Q8_0};
        const char *backend = i || BACKEND_IS_DEVICE ? JUDGED : "reference";

        run_tiny(&t, false, backend, &together);
        run_tiny(&t, true, backend, &apart);
        cr_expect(draft_same_text(&together, &apart), "%s", archs[i]);
        cr_expect(memcmp(together.drafts, apart.drafts, sizeof(apart.drafts)) == 0, "%s", archs[i]);
    }
}

/* -- several blocks ---------------------------------------------------------------------------- */

/* Compares a file with one block and files with three blocks, the first @n_same of which equal that
 * block. Equal blocks have the same keys and continue from the same states as one block that makes
 * all drafts. */
static void check_blocks(const char *backend, bool apart) {
    static struct draft_run one, three;
    struct tiny_model t = {.arch = "glm4moe", .n_blocks = 1, .type = TENSOR_Q8_0};

    run_tiny(&t, apart, backend, &one);
    cr_assert_eq(one.n_drafts, N_DRAFTS);
    for (t.n_blocks = 3, t.n_same = 1; t.n_same <= 3; t.n_same++) {
        run_tiny(&t, apart, backend, &three);
        cr_assert_eq(three.n_drafts, 3);
        cr_expect(draft_same_text(&one, &three), "%s", backend);
        for (uint32_t k = 0; k < 3; k++)
            cr_expect((memcmp(one.drafts[k], three.drafts[k], sizeof(one.drafts[k])) == 0) ==
                          (k < t.n_same),
                      "%s: %u blocks are the same: draft %u", backend, t.n_same, k);
    }
}

Test(mtp, of_several_blocks_each_makes_one_draft) {
    check_blocks(JUDGED, false);
#ifndef BACKEND
    check_blocks("reference", false);
    check_blocks(JUDGED, true);
#endif
}

Test(mtp, a_block_of_another_model_is_refused) {
    static const struct {
        struct tiny_model block;
        const char *why;
    } cases[] = {
        {{.arch = "qwen35", .n_blocks = 1},
         "belongs to a model of architecture qwen35, and this one is glm4moe"},
        {{.arch = "glm4moe", .n_blocks = 1, .n_layer = 3},
         "belongs to a model of 3 layers, and this one has 2"},
        {{.arch = "glm4moe", .n_blocks = 1, .n_embd = 128},
         "the block's file: tensor 'blk.2.nextn.eh_proj.weight' is 256 x 128"},
        {{.arch = "glm4moe", .n_blocks = 1, .leave_out = "blk.2.nextn.hnorm.weight"},
         "the block's file: the model file has no tensor 'blk.2.nextn.hnorm.weight'"},
    };
    struct tiny_model model = {.arch = "glm4moe"};
    char path[2][64];

    tiny_model_temp(&model, path[0]);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tiny_model block = cases[i].block;
        struct driver d;
        struct err err = {0};

        block.blocks_alone = true;
        tiny_model_temp(&block, path[1]);
        struct driver_opts o = {.path = path[0], .block = path[1], .drafts = true};
        cr_expect_eq(driver_open(&d, &o, &err), -EINVAL);
        cr_expect(strstr(err.message, cases[i].why) != NULL, "%s", err.message);
        unlink(path[1]);
    }
    unlink(path[0]);
}

/* The model is served without the block, and a note names what is missing. */
Test(mtp, a_block_that_lacks_a_tensor_is_left_out) {
    static const char *const tensors[] = {
        "blk.2.nextn.eh_proj.weight", "blk.2.nextn.enorm.weight", "blk.2.attn_k.weight",
        "blk.2.attn_norm.weight",     "blk.2.ffn_up_exps.weight",
    };

    for (size_t i = 0; i < ARRAY_SIZE(tensors); i++) {
        struct tiny_model t = {.arch = "glm4moe", .n_blocks = 1, .leave_out = tensors[i]};
        struct driver d;
        struct err err;
        char path[64];

        tiny_model_temp(&t, path);
        struct driver_opts o = {.path = path, .drafts = true};
        cr_assert_eq(driver_open(&d, &o, &err), 0, "%s: %s", tensors[i], err.message);
        unlink(path);
        cr_expect_eq(d.info->n_slots, 0);
        cr_expect(strstr(d.info->note, "the model's own block is not used for drafts") != NULL,
                  "%s", d.info->note);
        cr_expect(strstr(d.info->note, i ? tensors[i] : "does not have its tensors") != NULL,
                  "%s: %s", tensors[i], d.info->note);
        driver_close(&d);
    }
}

/* -- an assistant of another model
 * --------------------------------------------------------------- */

static const struct tiny_model gemma4 = {.arch = "gemma4", .n_embd = 128, .n_ff = 128};

static struct tiny_model assistant_of(struct tiny_model t) {
    t.arch = "gemma4-assistant";
    return t;
}

Test(mtp, an_assistant_has_no_pages) {
    const struct tiny_model assistant = assistant_of(gemma4);
    struct driver d, alone;
    char path[64];
    struct err err;

    cr_assert_eq(draft_open_tiny(&gemma4, &assistant, NULL, &d, &err), 0, "%s", err.message);
    cr_expect(d.info->borrows && d.info->n_slots > 0 && d.info->draft_bytes > 0);
    cr_expect(engine_is_block(d.block) && !engine_is_block(d.file));
    tiny_model_temp(&gemma4, path);
    cr_assert_eq(driver_open(&alone, &(struct driver_opts){.path = path}, &err), 0);
    unlink(path);
    cr_expect_eq(d.info->page_bytes, alone.info->page_bytes);
    driver_close(&alone);
    driver_close(&d);
}

Test(mtp, an_assistant_of_another_model_is_refused) {
    struct tiny_model wide = gemma4, words = gemma4, window = gemma4, heads = gemma4,
                      missing = gemma4, keys = gemma4, uneven = gemma4, odd = gemma4;
    static const struct tiny_model llama = {.arch = "llama", .n_embd = 128, .n_ff = 128};
    wide.n_embd = 256;
    words.n_vocab = 320;
    window.window = 32;
    heads.head_dim = 32;
    missing.leave_out = "nextn.post_projection.weight";
    keys.n_head_kv = 4;
    uneven.n_head = 6;
    odd.n_layer = 3;
    const struct {
        struct tiny_model model, assistant;
        const char *why;
    } cases[] = {
        {llama, gemma4, "the assistant belongs to a gemma4 model, and this one is llama"},
        {gemma4, wide, "embedding_length_out' is 256, but the model's is 128"},
        {gemma4, words, "vocab_size' is 320, but the model's is 300"},
        {gemma4, window, "attention.sliding_window' is 32, but the model's is 24"},
        {gemma4, heads, "attention.key_length' is 32, but the model's is 64"},
        {gemma4, keys, "layer 0 reads 4 key heads, and the model has 2"},
        {keys, uneven, "layer 0 reads 2 key heads, and the model has 4"},
        {odd, gemma4,
         "the model's last two layers, which must be one with a window and one without"},
        {gemma4, missing, "has no tensor 'nextn.post_projection.weight'"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct driver d;
        struct err err;

        const struct tiny_model assistant = assistant_of(cases[i].assistant);
        cr_expect_eq(draft_open_tiny(&cases[i].model, &assistant, NULL, &d, &err), -EINVAL);
        cr_expect(strstr(err.message, cases[i].why) != NULL, "%zu: %s", i, err.message);
    }
}

/* Returns the logits of two drafts of @model with the assistant in @path. */
static void draft_pair(const char *model, const char *assistant, float logits[2][N_VOCAB]) {
    static const int32_t prompt[] = {7, 1, 33, 12, 5};
    struct draft_watch w = {.pos0 = UINT32_MAX, .n_vocab = 300};
    const struct driver_opts o = {
        .path = model, .block = assistant, .drafts = true, .on_out = draft_see, .ctx = &w};
    struct driver d;
    struct err err = {0};

    cr_assert_eq(driver_open(&d, &o, &err), 0, "%s", err.message);
    cr_assert(d.info->n_slots > 0, "%s", d.info->note);
    struct driver_seq *s = driver_add(&d, prompt, ARRAY_SIZE(prompt), 4, NULL);
    driver_prefill(&d, s, 0);
    w.pos0 = s->n_computed;
    for (uint32_t k = 0; k < 2; k++) {
        driver_draft(&d, &s, 1, k);
        memcpy(logits[k], w.logits[k], 300 * sizeof(float));
    }
    driver_drop(&d, s);
    driver_close(&d);
}

/* Uses a cluster for each token, as E2B and E4B do. Without it all logits are computed. */
Test(mtp, tables_that_pick_an_assistants_tokens_are_not_read) {
    static float plain[2][N_VOCAB], with[2][N_VOCAB];
    struct tiny_model t = assistant_of(gemma4);
    struct gguf_writer w;
    char path[3][64];

    tiny_model_temp(&gemma4, path[0]);
    tiny_model_temp(&t, path[1]);
    gw_init(&w);
    tiny_model_build(&t, &w);
    gw_tensor(&w, "masked_embd_centroids.weight", TENSOR_F32, 2, (uint64_t[]){64, 20}, NULL);
    gw_tensor(&w, "masked_embd_ordering", TENSOR_I32, 1, (uint64_t[]){300}, NULL);
    tiny_model_temp_of(&w, path[2]);
    gw_deinit(&w);
    draft_pair(path[0], path[1], plain);
    draft_pair(path[0], path[2], with);
    cr_expect(plain[0][0] != 0 && memcmp(plain, with, sizeof(with)) == 0);
    for (int i = 0; i < 3; i++)
        unlink(path[i]);
}

/* A table in place of weights. */
Test(mtp, integers_are_no_weights) {
    struct tiny_model t = gemma4;
    struct gguf_writer w;
    struct driver d;
    struct err err = {0};
    char path[64];

    t.leave_out = "blk.0.attn_q.weight";
    gw_init(&w);
    tiny_model_build(&t, &w);
    gw_tensor(&w, t.leave_out, TENSOR_I32, 2, (uint64_t[]){128, 128}, NULL);
    tiny_model_temp_of(&w, path);
    gw_deinit(&w);
    cr_expect_eq(driver_open(&d, &(struct driver_opts){.path = path}, &err), -EINVAL);
    unlink(path);
    cr_expect(strstr(err.message, "attn_q.weight' has type I32") != NULL, "%s", err.message);
}

Test(mtp, an_assistant_alone_is_no_model) {
    struct tiny_model t = assistant_of(gemma4);
    struct driver d;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&t, path);
    cr_expect_eq(driver_open(&d, &(struct driver_opts){.path = path}, &err), -EINVAL);
    unlink(path);
    cr_expect(strstr(err.message, "it is a draft model") != NULL, "%s", err.message);
}
