/*
 * Tests the choice of `auto` on a device with a broken kernel: every kernel in turn does nothing,
 * or something wrong. Either a plainer kernel replaces it and the tokens are those of a working
 * device, or the CPU serves the model; a note says which and why.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "engine/cuda/kernels.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/support/engine_driver.h"
#include "tests/support/tiny_model.h"

#define N_PROMPT 24
#define N_OUT 6

struct answer {
    char backend[16], note[400];
    int32_t token[N_OUT];
};

static const char *shifted; /* a kernel of sampling that reads one logit too many */

static void spoil(const char *kernel, uint64_t number, void *args) {
    if (shifted && strcmp(kernel, shifted) == 0)
        ((struct sample_args *)args)->logits++;
}

/* Opens the model with `auto` and generates. */
static void ask(const char *path, const char *broken, struct answer *out) {
    const struct driver_opts o = {
        .backend = "auto", .path = path, .n_pages = 40, .max_rows = 256, .max_seqs = 2};
    struct driver d;
    struct err err = {0};
    int32_t prompt[N_PROMPT];

    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = (i * 5 + 3) % 40;
    bool samples = broken && strncmp(broken, "sample", 6) == 0;
    fake_find()->broken = samples ? NULL : broken;
    shifted = samples ? broken : NULL;
    fake_find()->other_wgmma = broken && strcmp(broken, "wgmma") == 0;
    int r = driver_open(&d, &o, &err);
    cr_assert(r == 0, "%s: %s", broken, err.message);
    snprintf(out->backend, sizeof(out->backend), "%s", d.info->backend);
    snprintf(out->note, sizeof(out->note), "%s", d.info->note);
    struct driver_seq *s = driver_add(&d, prompt, N_PROMPT, N_OUT, NULL);
    cr_assert(s);
    driver_prefill(&d, s, 0);
    driver_decode(&d, &s, 1, N_OUT - 1, true);
    memcpy(out->token, s->token + N_PROMPT, sizeof(out->token));
    driver_drop(&d, s);
    driver_close(&d);
    fake_find()->broken = NULL;
    shifted = NULL;
    fake_find()->other_wgmma = false;
}

struct broken {
    const char *kernel, *backend, *note;
};

/* Breaks each of the kernels in turn, for the model @m; NULL: fake_small_model(). */
static void break_each(const struct tiny_model *m, const struct broken *cases, size_t n) {
    struct answer right, a;
    struct err err;
    char path[64];

    if (!backend_find("cpu", NULL, &err))
        cr_skip_test("%s", err.message);
    if (m)
        tiny_model_temp(m, path);
    else
        fake_small_model(path);
    setenv("WEFT_CUDA_CHECK", "1", 1);
    fake_find()->on_launch = spoil;
    ask(path, NULL, &right);
    cr_assert(strcmp(right.backend, "cuda") == 0 && !right.note[0], "%s", right.note);
    for (size_t i = 0; i < n; i++) {
        ask(path, cases[i].kernel, &a);
        printf("# %s: %s: %s\n", cases[i].kernel, a.backend, a.note);
        cr_expect(strcmp(a.backend, cases[i].backend) == 0, "%s: %s, %s", cases[i].kernel,
                  a.backend, a.note);
        cr_expect(a.note[0] && strstr(a.note, cases[i].note), "%s: %s", cases[i].kernel, a.note);
        if (strcmp(a.backend, "cuda") == 0)
            cr_expect(memcmp(a.token, right.token, sizeof(a.token)) == 0, "%s", cases[i].kernel);
    }
    unlink(path);
}

Test(cuda_auto, a_right_device_is_taken_and_a_wrong_kernel_never) {
    static const struct broken cases[] = {
        {"matmul_wide", "cpu", "matmul_wide"},
        {"wgmma", "cuda", "without matmul_wgmma: other bits than matmul_wide"},
        {"repack", "cpu", ""},
        {"embed", "cpu", "logits"},
        {"rope", "cpu", ""},
        {"pack", "cpu", ""},
        {"store", "cpu", ""},
        {"plan", "cpu", ""},
        {"copy_page", "cpu", "logits"},
        {"keep", "cpu", "hidden vectors"},
        {"sample_scan", "cpu", ""},
        {"sample_weigh", "cpu", ""},
        {"sample_draw", "cpu", ""},
    };
    break_each(NULL, cases, ARRAY_SIZE(cases));
}

Test(cuda_auto, wrong_kernels_of_experts_are_never_taken) {
    static const struct broken cases[] = {
        {"route", "cpu", ""},
        {"combine", "cpu", ""},
    };
    const struct tiny_model m = {.arch = "qwen3moe",
                                 .type = TENSOR_Q8_0,
                                 .n_layer = 1,
                                 .n_embd = 64,
                                 .n_ff = 32,
                                 .n_vocab = 60,
                                 .n_head = 2,
                                 .n_head_kv = 1,
                                 .head_dim = 32};
    break_each(&m, cases, ARRAY_SIZE(cases));
}
