/* Tests attention of many rows by wgmma (WEFT_CUDA_ATTEND_WGMMA=1, attend_wgmma) in whole models:
 * the bits of attend_wide for each format of pages, in chunks, beside others, with windows, capped
 * scores and sinks. */

#include <criterion/criterion.h>
#include <unistd.h>

#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

static uint64_t n_wgmma, n_wide; /* launches of attend_wgmma; of attend_wide for the same heads */

static void prompts_count(const char *kernel, uint64_t number, void *args) {
    (void)number;
    (void)args;
    n_wgmma += strncmp(kernel, "attend_wgmma", 12) == 0;
    n_wide += strncmp(kernel, "attend_wide_64", 14) == 0;
    n_wide += strncmp(kernel, "attend_wide_128", 15) == 0;
}

static void prompts_run(const char *path, bool wgmma, const struct way *w, struct trace *t) {
    n_wgmma = n_wide = 0;
    setenv("WEFT_CUDA_ATTEND_WGMMA", wgmma ? "1" : "0", 1);
    setenv("WEFT_CUDA_WIDE", "20", 1); /* of 40 rows */
    fake_find()->on_launch = prompts_count;
    ways_run(path, "cuda", w, t);
    fake_find()->on_launch = NULL;
    unsetenv("WEFT_CUDA_ATTEND_WGMMA");
    unsetenv("WEFT_CUDA_WIDE");
}

/* Expects that a prompt has the same bits by both kernels. */
static void prompts_same(const char *path, const char *name, const struct way *w) {
    struct trace own = {0}, t = {0};

    prompts_run(path, false, w, &own);
    cr_expect(n_wide > 0 && n_wgmma == 0, "%s, %s", name, w->name);
    prompts_run(path, true, w, &t);
    cr_expect(n_wide == 0 && n_wgmma > 0, "%s, %s", name, w->name);
    for (uint32_t r = 0; r + 1 < LONGEST; r++)
        cr_expect(own.at[r].digest == t.at[r].digest && own.at[r].token == t.at[r].token,
                  "%s, %s: position %u", name, w->name, r);
    free(own.logits);
    free(t.logits);
}

Test(prompts, pages_of_every_format_have_the_same_bits) {
    static const struct kv_formats formats[] = {{ENGINE_KV_F16, ENGINE_KV_F16},
                                                {ENGINE_KV_Q8_0, ENGINE_KV_Q8_0},
                                                {ENGINE_KV_Q8_0, ENGINE_KV_Q4_0},
                                                {ENGINE_KV_Q4_0, ENGINE_KV_Q4_0}};
    static const uint32_t dims[] = {64, 128};
    char path[64];

    for (size_t d = 0; d < ARRAY_SIZE(dims); d++) {
        tiny_model_temp(&(struct tiny_model){.arch = "qwen3",
                                             .type = TENSOR_Q8_0,
                                             .n_layer = 1,
                                             .head_dim = dims[d],
                                             .n_embd = 64,
                                             .n_ff = 64,
                                             .n_head = 4,
                                             .n_head_kv = 1,
                                             .max_context = 600},
                        path);
        for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
            prompts_same(path, dims[d] == 64 ? "64" : "128",
                         &(struct way){.name = "at once", .fuse = "1", .kv_type = formats[i]});
        prompts_same(path, "alone",
                     &(struct way){.name = "beside others, overlapped, as graphs",
                                   .fuse = "1",
                                   .chunk = 25,
                                   .n_neighbours = 3,
                                   .graphs = true,
                                   .overlap = true,
                                   .order = 77});
        unlink(path);
    }
}

/* gemma2 caps its scores, gemma3 has windows, gpt-oss sinks. */
Test(prompts, caps_windows_and_sinks_have_the_same_bits) {
    static const char *const files[] = {"gemma2", "gemma3", "gpt-oss-f32"};

    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        char path[TEST_DATA_PATH];

        ways_golden(files[i], path);
        prompts_same(path, files[i], &(struct way){.name = "at once", .fuse = "1"});
    }
}
