/* Tests products that compute the norm of their one or two rows (WEFT_CUDA_PROLOGUE=1): the bits of
 * a whole model, and how many kernels a layer has. */

#include <criterion/criterion.h>
#include <unistd.h>

#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

/* n_launches: of the present step; n_last: of the one before. */
static uint64_t n_launches, n_last, n_steps, n_pack, n_norm;

static void prologue_count(const char *kernel, uint64_t number, void *args) {
    (void)number;
    (void)args;
    if (strcmp(kernel, "embed") == 0) {
        n_last = n_launches;
        n_launches = 0;
    }
    n_launches++;
    n_steps += strcmp(kernel, "embed") == 0;
    n_pack += strcmp(kernel, "pack") == 0;
    n_norm += strcmp(kernel, "matvec_norm") == 0;
}

/* Runs the model at @path with the named options. */
static void prologue_run(const char *path, bool fixed, bool prologue, const struct way *w,
                         struct trace *t) {
    n_launches = n_last = n_steps = n_pack = n_norm = 0;
    setenv("WEFT_CUDA_STATIC", fixed ? "1" : "0", 1);
    setenv("WEFT_CUDA_PROLOGUE", prologue ? "1" : "0", 1);
    fake_find()->on_launch = prologue_count;
    ways_run(path, "cuda", w, t);
    fake_find()->on_launch = NULL;
    unsetenv("WEFT_CUDA_STATIC");
    unsetenv("WEFT_CUDA_PROLOGUE");
}

static void prologue_model(uint32_t n_layer, enum tensor_type type, char path[64]) {
    tiny_model_temp(&(struct tiny_model){.arch = "qwen3",
                                         .type = type,
                                         .n_layer = n_layer,
                                         .head_dim = 64,
                                         .n_embd = 256,
                                         .n_ff = 512,
                                         .n_head = 4,
                                         .n_head_kv = 2},
                    path);
}

static const struct way alone = {.name = "row by row", .chunk = 1, .fuse = "1"};

Test(prologue, a_norm_in_the_product_changes_no_bit) {
    static const struct way ways[] = {
        {.name = "row by row", .chunk = 1, .fuse = "1"},
        {.name = "two rows", .chunk = 2, .fuse = "1"},
        {.name = "by 13 rows", .chunk = 13, .fuse = "1"},
        {.name = "nothing fused", .chunk = 1, .fuse = "0"},
        {.name = "at once, beside others, as graphs",
         .n_neighbours = 3,
         .graphs = true,
         .overlap = true,
         .order = 77,
         .fuse = "1"},
    };
    struct trace own = {0};
    char path[64];

    prologue_model(1, TENSOR_Q4_K, path);
    prologue_run(path, false, false, &alone, &own);
    uint64_t packs = n_pack;
    cr_expect_eq(n_norm, 0);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        struct trace t = {0};

        prologue_run(path, false, true, &ways[i], &t);
        for (uint32_t r = 0; r + 1 < LONGEST; r++)
            cr_expect(own.at[r].digest == t.at[r].digest && own.at[r].token == t.at[r].token,
                      "%s: position %u", ways[i].name, r);
        free(t.logits);
        cr_expect_eq(n_norm > 0, i != 3, "%s", ways[i].name);
        if (i > 0)
            continue;
        cr_expect_eq(n_norm, 2 * n_steps);
        cr_expect_eq(packs - n_pack, 2 * n_steps);
    }
    free(own.logits);
    unlink(path);
}

/* Returns the launches of a step of one row of a model with @n_layer layers. */
static uint64_t launches_of(uint32_t n_layer, bool fixed, bool prologue) {
    struct trace t = {0};
    char path[64];

    prologue_model(n_layer, TENSOR_Q4_K, path);
    prologue_run(path, fixed, prologue, &alone, &t);
    free(t.logits);
    unlink(path);
    return n_last;
}

/* With static scales: q k v, store, attend, merge, o, gate and up, down. */
Test(prologue, a_layer_has_seven_kernels) {
    static const struct {
        bool fixed, prologue;
        uint64_t right;
    } cases[] = {{false, false, 11}, {false, true, 9}, {true, false, 9}, {true, true, 7}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint64_t two = launches_of(2, cases[i].fixed, cases[i].prologue);
        uint64_t one = launches_of(1, cases[i].fixed, cases[i].prologue);

        cr_expect_eq(two - one, cases[i].right, "case %zu: %lu", i, (unsigned long)(two - one));
    }
}
