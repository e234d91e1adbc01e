/* Tests that opening a device finds a fault of one kernel, or of one way to launch it. Either that
 * way is not used, a note says so, and steps give the same tokens as before; or the device is
 * refused. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/ops/attention/kernels_attention.h"
#include "engine/ops/recurrent/kernels_recurrent.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/support/engine_driver.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

enum { COMMON = 272, SEQS = 17, MORE = 3, OWN = 40 };

/* Results of all sequences, in their order. */
struct digests {
    uint64_t at[SEQS * 8];
    uint32_t n;
};

static void keep(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct digests *d = ctx;

    cr_assert(d->n < ARRAY_SIZE(d->at));
    d->at[d->n++] = out->digest;
}

static bool opened; /* counts only launches of steps */

static int open_model(struct driver *d, const char *path, struct digests *out, char note[600]) {
    struct driver_opts o = {.backend = "cuda",
                            .path = path,
                            .n_pages = 400,
                            .max_rows = 160,
                            .max_wants = SEQS,
                            .max_seqs = SEQS,
                            .n_listed = SEQS * 24,
                            .on_out = keep,
                            .ctx = out};
    struct err err = {0};

    opened = false;
    int r = driver_open(d, &o, &err);
    snprintf(note, 600, "%s", r == 0 ? d->info->note : err.message);
    opened = true;
    return r;
}

static struct driver_seq *add(struct driver *d, uint32_t n, uint64_t seed) {
    int32_t tokens[COMMON + SEQS + 1];
    struct rng common = {6}, own = {seed};

    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)rng_below(i < COMMON ? &common : &own, d->info->n_vocab);
    struct driver_seq *s = driver_add(d, tokens, n, MORE + 2, NULL);
    cr_assert(s != NULL);
    return s;
}

/* Sequences on the same pages: first many at a time, then four. */
static void run_shared(struct driver *d) {
    struct driver_seq *all[SEQS];

    for (uint32_t i = 0; i < SEQS; i++) {
        all[i] = add(d, COMMON + 1 + i, 70 + i);
        if (i > 0) {
            memcpy(all[i]->page, all[0]->page, COMMON / 16 * sizeof(*all[i]->page));
            all[i]->n_computed = all[i]->launched = COMMON;
        }
        driver_prefill(d, all[i], 0);
    }
    driver_decode(d, all, SEQS, MORE - 1, false);
    driver_decode(d, all, 4, 1, false);
    for (uint32_t i = 0; i < SEQS; i++)
        driver_drop(d, all[i]);
}

/* A prompt, then a single row. */
static void run_alone(struct driver *d) {
    struct driver_seq *s = add(d, OWN, 1);

    driver_prefill(d, s, 0);
    driver_decode(d, &s, 1, 1, false);
    driver_drop(d, s);
}

/* A prompt in steps of five rows. */
static void run_fives(struct driver *d) {
    struct driver_seq *s = add(d, OWN, 1);

    driver_prefill(d, s, 5);
    driver_drop(d, s);
}

/* -- faults ------------------------------------------------------------------------------------ */

/* Tells whether a launch uses the faulty way. */
typedef bool (*is_way)(const char *kernel, const void *args);

static bool is_matmul(const char *kernel) {
    return strncmp(kernel, "matmul_w", 8) == 0;
}

static bool is_wgmma(const char *kernel, const void *args) {
    return strncmp(kernel, "matmul_wgmma", 12) == 0;
}

static bool is_join(const char *kernel, const void *args) {
    return strcmp(kernel, "matmul_wgmma_join") == 0;
}

static bool is_roles(const char *kernel, const void *args) {
    return strncmp(kernel, "matmul_roles", 12) == 0;
}

static bool is_shared_roles(const char *kernel, const void *args) {
    return is_roles(kernel, args) && ((const struct matmul_args *)args)->n_splits > 1;
}

static bool is_wide(const char *kernel, const void *args) {
    return strcmp(kernel, "matmul_wide") == 0;
}

static bool is_matvec(const char *kernel, const void *args) {
    return strncmp(kernel, "matvec", 6) == 0;
}

static bool is_cluster(const char *kernel, const void *args) {
    return strncmp(kernel, "matvec_cluster", 14) == 0;
}

static bool is_dry(const char *kernel, const void *args) {
    return strncmp(kernel, "matvec", 6) == 0 && strstr(kernel, "_dry");
}

static bool is_expert_vec(const char *kernel, const void *args) {
    return strcmp(kernel, "expert_vec") == 0;
}

static bool is_expert_wide(const char *kernel, const void *args) {
    return strcmp(kernel, "expert_wide") == 0;
}

static bool is_split(const char *kernel, const void *args) {
    return is_matmul(kernel) && ((const struct matmul_args *)args)->n_splits > 1;
}

static bool is_attend(const char *kernel, const void *args) {
    return strcmp(kernel, "attend_64") == 0;
}

static bool is_decode(const char *kernel, const void *args) {
    return strcmp(kernel, "attend_decode_64") == 0;
}

/* The keys of the step are not stored. */
static bool is_decode_store(const char *kernel, const void *args) {
    return is_decode(kernel, args);
}

/* Blocks of many queries over a run of chunks, or over all. */
static bool is_attend_wide(const char *kernel, const void *args, bool runs) {
    const struct attend_args *a = args;
    bool wide = strcmp(kernel, "attend_wide_64") == 0 && a->batch->n_wide_items > 0;

    return wide && (a->batch->wide_item[0].n_run > 0) == runs;
}

static bool is_whole(const char *kernel, const void *args) {
    return is_attend_wide(kernel, args, false);
}

static bool is_many(const char *kernel, const void *args) {
    return is_attend_wide(kernel, args, true);
}

/* Blocks of many queries by wgmma, likewise. */
static bool is_attend_wgmma(const char *kernel, const void *args, bool runs) {
    const struct attend_args *a = args;
    bool wide = strcmp(kernel, "attend_wgmma_64") == 0 && a->batch->n_wide_items > 0;

    return wide && (a->batch->wide_item[0].n_run > 0) == runs;
}

static bool is_whole_wgmma(const char *kernel, const void *args) {
    return is_attend_wgmma(kernel, args, false);
}

static bool is_many_wgmma(const char *kernel, const void *args) {
    return is_attend_wgmma(kernel, args, true);
}

/* Blocks of a few queries of several sequences. */
static bool is_few(const char *kernel, const void *args) {
    const struct attend_args *a = args;
    bool shared = false;

    for (uint32_t i = 0; is_attend(kernel, args) && i < a->batch->n_items; i++) {
        const struct attn_item *it = &a->batch->item[i];

        for (uint32_t k = 0; k < a->batch->n_seqs && it->chunk >= 0; k++)
            shared = shared || (a->batch->seq[k].row0 == it->row0 &&
                                it->n_q > a->batch->seq[k].n_rows * a->group);
    }
    return shared;
}

struct fault {
    is_way wrong;
    /* text of the note or of the refusal */
    const char *note;
    bool refused;
    /* steps of a run without a fault must use the way */
    bool taken;
};

static struct {
    const struct fault *faults;
    /* launches of each fault's way, by steps */
    uint32_t n_faults, n_taken[8];
    /* or NULL */
    const struct fault *present;
} scene;

static void spoil(const char *kernel, uint64_t number, void *args) {
    struct attend_args *a = args;
    struct matmul_args *m = args;
    struct expert_args *e = args;

    for (uint32_t i = 0; i < scene.n_faults && opened; i++)
        scene.n_taken[i] += scene.faults[i].wrong(kernel, args);
    if (!scene.present || !scene.present->wrong(kernel, args))
        return;
    if (scene.present->wrong == is_decode_store)
        ((struct decode_args *)args)->store.n_kv = 0;
    else if (strncmp(kernel, "attend", 6) == 0)
        a->scale *= 2;
    else if (strncmp(kernel, "expert", 6) == 0)
        e->m[0].inverse *= 2;
    else
        m->m[0].inverse *= 2;
}

/* Runs steps without a fault, then with each fault. */
static void try_faults(const struct tiny_model *m, void (*run)(struct driver *d),
                       const struct fault *f, uint32_t n) {
    struct digests right = {{0}, 0};
    struct driver d;
    char path[64], note[600];

    tiny_model_temp(m, path);
    scene.faults = f;
    scene.n_faults = n;
    fake_find()->on_launch = spoil;
    setenv("WEFT_CUDA_CHECK", "0", 1);
    scene.present = NULL;
    memset(scene.n_taken, 0, sizeof(scene.n_taken));
    cr_assert(open_model(&d, path, &right, note) == 0, "%s", note);
    run(&d);
    driver_close(&d);
    for (uint32_t i = 0; i < n; i++)
        cr_expect(scene.n_taken[i] > 0 || !f[i].taken, "%s", f[i].note);
    setenv("WEFT_CUDA_CHECK", "1", 1);
    for (uint32_t i = 0; i < n; i++) {
        struct digests got = {{0}, 0};

        scene.present = &f[i];
        memset(scene.n_taken, 0, sizeof(scene.n_taken));
        int r = open_model(&d, path, &got, note);
        cr_expect((r < 0) == f[i].refused && strstr(note, f[i].note), "%s: %s", f[i].note, note);
        if (r < 0)
            continue;
        run(&d);
        driver_close(&d);
        cr_expect(scene.n_taken[i] == 0, "%s: %u", f[i].note, scene.n_taken[i]);
        cr_expect(memcmp(&got, &right, sizeof(got)) == 0, "%s", f[i].note);
    }
    unlink(path);
}

/* Eight units of columns in the down projection, so that its segments can be shared. */
static const struct tiny_model dense = {.type = TENSOR_Q8_0,
                                        .n_layer = 1,
                                        .n_embd = 64,
                                        .n_vocab = 60,
                                        .n_ff = 512,
                                        .max_context = 64},
                               experts = {.arch = "qwen3moe",
                                          .type = TENSOR_Q8_0,
                                          .n_layer = 1,
                                          .n_embd = 64,
                                          .n_vocab = 60,
                                          .n_ff = 64,
                                          .n_expert = 4,
                                          .n_expert_used = 2,
                                          .max_context = 64},
                               one_key_head = {.type = TENSOR_Q8_0,
                                               .n_layer = 1,
                                               .n_embd = 64,
                                               .n_vocab = 60,
                                               .n_ff = 64,
                                               .n_head_kv = 1,
                                               .head_dim = 32,
                                               .max_context = 560};

Test(cuda_selftest, products_that_are_wrong_are_left_out) {
    static const struct fault faults[] = {
        {is_matvec, "without matvec: other bits than matmul_wide", false, true},
        {is_split, "without shared segments: other bits", false, false},
        {is_join, "without matmul_wgmma_join: other bits", false, false},
        {is_wgmma, "without matmul_wgmma: other bits", false, true},
        {is_wide, "matmul_wide of Q8_0 is off by", true, false},
    };

    try_faults(&dense, run_alone, faults, ARRAY_SIZE(faults));
}

Test(cuda_selftest, roles_that_are_wrong_are_left_out) {
    static const struct fault faults[] = {
        {is_roles, "without matmul_roles: other bits", false, true},
        {is_shared_roles, "without matmul_roles: other bits", false, true},
    };

    setenv("WEFT_CUDA_ROLES", "1", 1);
    try_faults(&dense, run_alone, faults, ARRAY_SIZE(faults));
    unsetenv("WEFT_CUDA_ROLES");
}

Test(cuda_selftest, clusters_that_are_wrong_are_left_out) {
    static const struct fault faults[] = {
        {is_cluster, "without matvec_cluster: other bits", false, true},
    };

    setenv("WEFT_CUDA_CLUSTER", "1", 1);
    try_faults(&dense, run_fives, faults, ARRAY_SIZE(faults));
    unsetenv("WEFT_CUDA_CLUSTER");
}

Test(cuda_selftest, dry_runs_that_are_wrong_are_left_out) {
    static const struct fault faults[] = {
        {is_dry, "without dry runs: other bits", false, true},
    };

    setenv("WEFT_CUDA_DRY", "1", 1);
    try_faults(&dense, run_fives, faults, ARRAY_SIZE(faults));
    unsetenv("WEFT_CUDA_DRY");
}

Test(cuda_selftest, experts_that_are_wrong_are_left_out) {
    static const struct fault faults[] = {
        {is_expert_vec, "without expert_vec: other bits", false, true},
        {is_expert_wide, "without expert_wide: other bits", false, true},
    };

    try_faults(&experts, run_alone, faults, ARRAY_SIZE(faults));
}

Test(cuda_selftest, attention_that_is_wrong_is_left_out) {
    static const struct fault faults[] = {
        {is_attend, "attention is off by", true, true},
        {is_whole, "without attend_wide: other bits", false, true},
        {is_few, "without pages shared by few queries: other bits", false, true},
        {is_many, "without pages shared by many queries: other bits", false, true},
    };

    fake_find()->n_multiprocessors = 1;
    try_faults(&one_key_head, run_shared, faults, ARRAY_SIZE(faults));
}

Test(cuda_selftest, attention_by_wgmma_that_is_wrong_is_left_out) {
    static const struct fault faults[] = {
        {is_whole_wgmma, "without attend_wgmma: other bits", false, true},
        {is_many_wgmma, "without attend_wgmma: other bits", false, true},
    };

    fake_find()->n_multiprocessors = 1;
    setenv("WEFT_CUDA_ATTEND_WGMMA", "1", 1);
    try_faults(&one_key_head, run_shared, faults, ARRAY_SIZE(faults));
    unsetenv("WEFT_CUDA_ATTEND_WGMMA");
}

Test(cuda_selftest, attention_as_one_kernel_that_is_wrong_is_left_out) {
    static const struct fault faults[] = {
        {is_decode, "without attend_decode: other bits", false, true},
        {is_decode_store, "without attend_decode: other bits", false, true},
    };

    setenv("WEFT_CUDA_ATTEND", "1", 1);
    try_faults(&one_key_head, run_shared, faults, ARRAY_SIZE(faults));
    unsetenv("WEFT_CUDA_ATTEND");
}

/* -- ops that choose or keep something --------------------------------------------------------- */

static uint32_t mistake; /* number of the fault below, from 1 on; 0: none */

/* Faults: groups of experts, the bias of the choice, the weights, the decays, their gates, and the
 * inputs kept for the convolution of a second step. */
static void spoil_ops(const char *kernel, uint64_t number, void *args) {
    bool routes = strcmp(kernel, "route") == 0, begins = strcmp(kernel, "delta_in") == 0;
    struct route_args *r = args;
    struct state_args *d = args;

    if (routes && mistake == 1)
        r->n_group = 0;
    else if (routes && mistake == 2)
        r->bias = NULL;
    else if (routes && mistake == 3)
        r->scale *= 1.0000002f;
    else if (begins && mistake == 4)
        d->lower *= 1.01f;
    else if (strcmp(kernel, "delta_out") == 0 && mistake == 5)
        d->sigmoid = false;
    else if (begins && mistake == 6 && d->batch->seq[0].pos0 > 0)
        d->n_taps--;
}

Test(cuda_selftest, picks_and_states_that_are_wrong_are_refused) {
    static const char *const refusals[] = {
        NULL,
        "rows pick other experts or weights",
        "rows pick other experts or weights",
        "19 of 19 rows pick other experts or weights",
        "Kimi delta attention is off by",
        "Kimi delta attention is off by",
        "Kimi delta attention in two steps gives other bits",
    };
    struct digests none;
    char path[TEST_DATA_PATH], note[600];
    struct driver d;

    test_data_file(path, "golden", "bailingmoe3", ".gguf");
    setenv("WEFT_CUDA_CHECK", "1", 1);
    fake_find()->on_launch = spoil_ops;
    for (mistake = 0; mistake < ARRAY_SIZE(refusals); mistake++) {
        int r = open_model(&d, path, &none, note);

        cr_expect((r < 0) == (mistake > 0), "%u: %s", mistake, note);
        cr_expect(mistake ? strstr(note, refusals[mistake]) != NULL : !note[0], "%u: %s", mistake,
                  note);
        if (r == 0)
            driver_close(&d);
    }
}

/* -- graphs ------------------------------------------------------------------------------------ */

static uint64_t n_replayed;

/* counts embeddings, one for each graph that is launched */
static void spoil_graphs(const char *kernel, uint64_t number, void *args) {
    if (strcmp(kernel, "embed") != 0 || fake_find()->n_graph_launches == n_replayed)
        return;
    n_replayed = fake_find()->n_graph_launches;
    ((struct embed_args *)args)->scale *= 2;
}

/* launched by the proof, which repeats its steps */
Test(cuda_selftest, graphs_that_are_wrong_are_left_out) {
    struct digests out[2] = {{{0}, 0}};
    char path[64], note[600];
    struct driver d;

    tiny_model_temp(&dense, path);
    setenv("WEFT_CUDA_CHECK", "1", 1);
    for (int i = 0; i < 2; i++) {
        uint64_t before = n_replayed = fake_find()->n_graph_launches;

        fake_find()->on_launch = i ? spoil_graphs : NULL;
        cr_assert(open_model(&d, path, &out[i], note) == 0, "%s", note);
        cr_expect(i ? strstr(note, "without graphs: a repeated step") != NULL : !note[0], "%s",
                  note);
        run_alone(&d);
        run_alone(&d);
        driver_close(&d);
        cr_expect(fake_find()->n_graph_launches > before);
    }
    cr_expect(out[0].n > 0 && memcmp(&out[0], &out[1], sizeof(out[0])) == 0);
    unlink(path);
}
