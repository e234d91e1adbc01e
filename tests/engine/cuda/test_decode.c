/* Tests attention of few rows as one kernel (WEFT_CUDA_ATTEND=1, attend_decode): the bits of store,
 * attend and merge for each format of pages, in batches, across chunks, with windows and sinks; and
 * how many kernels a layer has. */

#include <criterion/criterion.h>
#include <unistd.h>

#include "engine/ops/attention/kernels_attention.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

/* n_launches: of the present step; n_last: of the one before. n_merges: of attend_decode. */
static uint64_t n_launches, n_last, n_decode, n_store, n_merge, n_merges;

static void decode_count(const char *kernel, uint64_t number, void *args) {
    const struct attend_args *a = args;

    (void)number;
    if (strcmp(kernel, "embed") == 0) {
        n_last = n_launches;
        n_launches = 0;
    }
    n_launches++;
    n_store += strcmp(kernel, "store") == 0;
    n_merge += strcmp(kernel, "merge") == 0;
    if (strncmp(kernel, "attend_decode", 13) != 0)
        return;
    n_decode++;
    n_merges += a->batch->n_merges;
}

static void decode_begin(bool decode) {
    n_launches = n_last = n_decode = n_store = n_merge = n_merges = 0;
    setenv("WEFT_CUDA_ATTEND", decode ? "1" : "0", 1);
    fake_find()->on_launch = decode_count;
}

static void decode_end(void) {
    fake_find()->on_launch = NULL;
    unsetenv("WEFT_CUDA_ATTEND");
}

static void decode_run(const char *path, bool decode, const struct way *w, struct trace *t) {
    decode_begin(decode);
    ways_run(path, "cuda", w, t);
    decode_end();
}

static void decode_same(const struct trace *a, const struct trace *b, const char *name) {
    for (uint32_t r = 0; r + 1 < LONGEST; r++)
        cr_expect(a->at[r].digest == b->at[r].digest && a->at[r].token == b->at[r].token,
                  "%s: position %u", name, r);
}

static void decode_model(uint32_t n_layer, char path[64]) {
    tiny_model_temp(&(struct tiny_model){.arch = "qwen3",
                                         .type = TENSOR_Q4_K,
                                         .n_layer = n_layer,
                                         .head_dim = 64,
                                         .n_embd = 256,
                                         .n_ff = 512,
                                         .n_head = 4,
                                         .n_head_kv = 2,
                                         .max_context = 600},
                    path);
}

static const struct way alone = {.name = "row by row", .chunk = 1, .fuse = "1"};

/* Five rows are those of a verified draft. */
Test(decode, one_kernel_changes_no_bit) {
    static const struct way ways[] = {
        {.name = "row by row", .chunk = 1, .fuse = "1"},
        {.name = "by five rows", .chunk = 5, .fuse = "1"},
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

    decode_model(1, path);
    decode_run(path, false, &alone, &own);
    cr_expect_eq(n_decode, 0);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        struct trace t = {0};

        decode_run(path, true, &ways[i], &t);
        decode_same(&own, &t, ways[i].name);
        free(t.logits);
        cr_expect_eq(n_decode > 0, i != 3, "%s", ways[i].name);
        if (i == 0)
            cr_expect(n_store == 0 && n_merge == 0);
    }
    free(own.logits);
    unlink(path);
}

Test(decode, pages_of_every_format_have_the_same_bits) {
    static const struct kv_formats formats[] = {{ENGINE_KV_Q8_0, ENGINE_KV_Q8_0},
                                                {ENGINE_KV_Q8_0, ENGINE_KV_Q4_0},
                                                {ENGINE_KV_Q4_0, ENGINE_KV_Q4_0}};
    char path[64];

    decode_model(1, path);
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++) {
        struct trace own = {0}, t = {0};
        struct way way = {.name = "quantised", .chunk = 6, .fuse = "1", .kv_type = formats[i]};

        decode_run(path, false, &way, &own);
        decode_run(path, true, &way, &t);
        decode_same(&own, &t, way.name);
        cr_expect(n_decode > 0);
        free(own.logits);
        free(t.logits);
    }
    unlink(path);
}

/* Steps of five rows cross the ends of two chunks, whose results are merged by the last block. */
Test(decode, chunks_are_merged_in_order) {
    enum { TOKENS = 530 };
    static uint64_t digest[3][TOKENS];
    char path[64];

    decode_model(1, path);
    for (uint32_t i = 0; i < 3; i++) {
        decode_begin(i > 0);
        setenv("WEFT_CUDA_STATIC", i == 2 ? "1" : "0", 1);
        ways_long(path, TOKENS, i == 2 ? 16 : 5, digest[i]);
        decode_end();
        cr_expect_eq(n_merges > 0, i > 0);
    }
    unsetenv("WEFT_CUDA_STATIC");
    for (uint32_t r = 0; r < TOKENS; r++)
        cr_expect(digest[0][r] == digest[1][r] && digest[0][r] == digest[2][r],
                  "logits at position %u", r);
    unlink(path);
}

/* Windows and sinks, norms of all heads together, unit values, layers that share keys, gates of
 * attention, other heads in some layers. */
Test(decode, models_of_other_forms_have_the_same_bits) {
    static const char *const files[] = {"gpt-oss-f32", "minimax-m2", "gemma3", "gemma4-ple",
                                        "qwen3next"};

    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        static const struct way way = {.chunk = 7, .n_neighbours = 2, .overlap = true, .fuse = "1"};
        struct trace own = {0}, t = {0};
        char path[TEST_DATA_PATH];

        ways_golden(files[i], path);
        decode_run(path, false, &way, &own);
        decode_run(path, true, &way, &t);
        decode_same(&own, &t, files[i]);
        cr_expect(n_decode > 0, "%s", files[i]);
        free(own.logits);
        free(t.logits);
    }
}

/* Returns the launches of a step of one row of a model with @n_layer layers. */
static uint64_t launches_of(uint32_t n_layer, bool others) {
    struct trace t = {0};
    char path[64];

    decode_model(n_layer, path);
    setenv("WEFT_CUDA_STATIC", others ? "1" : "0", 1);
    setenv("WEFT_CUDA_PROLOGUE", others ? "1" : "0", 1);
    decode_run(path, true, &alone, &t);
    unsetenv("WEFT_CUDA_STATIC");
    unsetenv("WEFT_CUDA_PROLOGUE");
    free(t.logits);
    unlink(path);
    return n_last;
}

/* With static scales and norms in the products: q k v, attention, o, gate and up, down. */
Test(decode, a_layer_has_nine_kernels_or_five) {
    for (uint32_t others = 0; others < 2; others++) {
        uint64_t two = launches_of(2, others), one = launches_of(1, others);

        cr_expect_eq(two - one, others ? 5 : 9, "%lu", (unsigned long)(two - one));
    }
}
