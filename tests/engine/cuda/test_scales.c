/* Tests static scales of activations (WEFT_CUDA_STATIC=1, engine/cuda/bounds.h): attention and the
 * product of gate and up pack their results themselves. Scales are powers of two,
 * so that the bits are those of the rows' own scales where no value is far below the bound, as in
 * these models. */

#include <criterion/criterion.h>
#include <unistd.h>

#include "engine/cuda/kernels.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

enum { LAYERS = 1 };

static uint64_t n_pack, n_steps, n_plain;

/* Counts packs of few rows, and those of h. */
static void scales_count(const char *kernel, uint64_t number, void *args) {
    const struct pack_args *a = args;

    (void)number;
    n_steps += strcmp(kernel, "embed") == 0;
    if (strncmp(kernel, "pack", 4) != 0)
        return;
    n_pack++;
    n_plain += a->fixed == 0;
}

static void scales_run(const char *path, bool fixed, const struct way *w, struct trace *t) {
    n_pack = n_steps = n_plain = 0;
    setenv("WEFT_CUDA_STATIC", fixed ? "1" : "0", 1);
    fake_find()->on_launch = scales_count;
    ways_run(path, "cuda", w, t);
    fake_find()->on_launch = NULL;
}

static void scales_same(const struct trace *a, const struct trace *b, const char *name) {
    for (uint32_t r = 0; r + 1 < LONGEST; r++) {
        cr_assert(a->at[r].digest == b->at[r].digest, "%s: logits at position %u", name, r);
        cr_assert(a->at[r].token == b->at[r].token, "%s: token at position %u", name, r);
    }
}

static void scales_model(enum tensor_type type, uint32_t n_ff, char path[64]) {
    tiny_model_temp(&(struct tiny_model){.arch = "qwen3",
                                         .type = type,
                                         .n_layer = LAYERS,
                                         .head_dim = 64,
                                         .n_embd = 256,
                                         .n_ff = n_ff,
                                         .n_head = 4,
                                         .n_head_kv = 2},
                    path);
}

/* Packs of a step: the norms of QKV, of GATE_UP and of the logits, attention's output, and h. */
Test(scales, a_static_one_saves_a_pack_and_no_bit) {
    static const struct way ways[] = {
        {.name = "row by row", .chunk = 1, .fuse = "1"},
        {.name = "nothing fused", .chunk = 1, .fuse = "0"},
        {.name = "by 13 rows", .chunk = 13, .fuse = "1"},
        {.name = "at once, beside others, as graphs",
         .n_neighbours = 3,
         .graphs = true,
         .overlap = true,
         .order = 77,
         .fuse = "1"},
    };
    struct trace own = {0};
    char path[64];

    scales_model(TENSOR_Q4_K, 512, path);
    scales_run(path, false, &ways[0], &own);
    uint64_t own_packs = n_pack, own_steps = n_steps;
    cr_expect_eq(n_plain, n_pack);
    for (size_t i = 0; i < FEWER(ARRAY_SIZE(ways), 3); i++) {
        struct trace t = {0};

        scales_run(path, true, &ways[i], &t);
        scales_same(&own, &t, ways[i].name);
        free(t.logits);
        if (i > 1)
            continue;
        cr_expect_eq(n_steps, own_steps);
        cr_expect_eq(own_packs - n_pack, i == 0 ? 2 * LAYERS * n_steps : 0, "%s: %lu of %lu packs",
                     ways[i].name, (unsigned long)n_pack, (unsigned long)own_packs);
        cr_expect_eq(n_plain, 0, "%s: %lu packs", ways[i].name, (unsigned long)n_plain);
    }
    free(own.logits);
    unlink(path);
}

/* The prompt is one step of 40 rows, in which attention packs its output, and the product of gate
 * and up packs h: by wgmma, by mma, and by warps with roles. The other steps have one row. */
Test(scales, steps_of_many_rows_pack_nothing_but_norms) {
    static const struct way way = {.name = "at once", .fuse = "1"};
    static const char *const wgmma[] = {"1", "0", "1"}, *const roles[] = {"0", "0", "1"};
    struct trace own = {0};
    char path[64];

    scales_model(TENSOR_Q4_K, 512, path);
    scales_run(path, false, &way, &own);
    uint64_t own_packs = n_pack;
    for (size_t i = 0; i < ARRAY_SIZE(wgmma); i++) {
        struct trace t = {0};

        setenv("WEFT_CUDA_WGMMA", wgmma[i], 1);
        setenv("WEFT_CUDA_ROLES", roles[i], 1);
        scales_run(path, true, &way, &t);
        scales_same(&own, &t, way.name);
        cr_expect_eq(own_packs - n_pack, 2 * LAYERS * n_steps, "%zu: %lu of %lu packs", i,
                     (unsigned long)n_pack, (unsigned long)own_packs);
        free(t.logits);
    }
    unsetenv("WEFT_CUDA_WGMMA");
    unsetenv("WEFT_CUDA_ROLES");
    free(own.logits);
    unlink(path);
}

/* The rows after 256 keys have two chunks. In steps of 16 rows merge() packs their results. In
 * those of 150 rows attend_wide or attend_wgmma does, and the product of gate and up packs two
 * units of 128 rows. */
Test(scales, chunks_are_packed_where_they_are_merged) {
    enum { TOKENS = 275 };
    static const struct {
        const char *fixed, *roles;
        uint32_t n_rows;
    } runs[] = {{"0", "0", 150}, {"1", "0", 16}, {"1", "0", 150}, {"1", "1", 150}};
    static uint64_t digest[ARRAY_SIZE(runs)][TOKENS];
    uint64_t packs[ARRAY_SIZE(runs)];
    char path[64];

    scales_model(TENSOR_Q4_K, 512, path);
    for (size_t i = 0; i < ARRAY_SIZE(runs); i++) {
        n_pack = n_steps = n_plain = 0;
        setenv("WEFT_CUDA_STATIC", runs[i].fixed, 1);
        setenv("WEFT_CUDA_ROLES", runs[i].roles, 1);
        setenv("WEFT_CUDA_ATTEND_WGMMA", runs[i].roles, 1);
        fake_find()->on_launch = scales_count;
        ways_long(path, TOKENS, runs[i].n_rows, digest[i]);
        fake_find()->on_launch = NULL;
        packs[i] = n_pack;
        cr_expect_eq(n_plain, i ? 0 : n_pack);
        for (uint32_t r = 0; r < TOKENS; r++)
            cr_expect_eq(digest[0][r], digest[i][r], "run %zu: logits at position %u", i, r);
    }
    cr_expect_eq(packs[0] - packs[2], 2 * LAYERS * n_steps);
    cr_expect_eq(packs[0] - packs[3], 2 * LAYERS * n_steps);
    unsetenv("WEFT_CUDA_ROLES");
    unsetenv("WEFT_CUDA_ATTEND_WGMMA");
    unlink(path);
}

/* Values of q8_0 pages may exceed the bound. */
Test(scales, attention_over_bytes_keeps_the_scale_of_the_row) {
    static const struct way way = {
        .name = "q8_0", .chunk = 1, .fuse = "1", .kv_type = {ENGINE_KV_Q8_0, ENGINE_KV_Q8_0}};
    struct trace own = {0}, t = {0};
    char path[64];

    scales_model(TENSOR_Q4_K, 512, path);
    scales_run(path, false, &way, &own);
    uint64_t own_packs = n_pack;
    scales_run(path, true, &way, &t);
    cr_expect_eq(own_packs - n_pack, LAYERS * n_steps); /* those of h */
    cr_expect_eq(n_plain, LAYERS * n_steps);
    scales_same(&own, &t, way.name);
    free(own.logits);
    free(t.logits);
    unlink(path);
}

/* h of 288 values ends in half a unit of 64 columns, so that the kernel packs it. */
Test(scales, other_shapes_keep_the_scale_of_the_row) {
    static const struct way way = {.name = "row by row", .chunk = 1, .fuse = "1"};
    struct trace own = {0}, t = {0};
    char path[64];

    scales_model(TENSOR_Q8_0, 288, path);
    scales_run(path, false, &way, &own);
    uint64_t own_packs = n_pack;
    scales_run(path, true, &way, &t);
    cr_expect_eq(own_packs - n_pack, LAYERS * n_steps); /* attention's */
    cr_expect_eq(n_plain, LAYERS * n_steps);
    scales_same(&own, &t, "288 values");
    free(own.logits);
    free(t.logits);
    unlink(path);
}
