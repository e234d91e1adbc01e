/*
 * Tests the engine with a device backend, a fake weft-cuda.so beside this program (fake_cuda.c): it
 * is found and checked like the real one, steps overlap, samples are fed on the device, and a lost
 * device stays lost.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "tests/support/engine_driver.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

static const int32_t prompt[40] = {7, 3, 11, 200, 5, 18, 4, 299, 0, 64, 23, 9};
static const struct engine_param hot = {
    .temperature = 1, .top_p = 1, .repetition = 1.1f, .seed = 9};

static void open_driver(struct driver *d, const char *backend) {
    struct tiny_model t = {.type = TENSOR_Q4_0};
    struct driver_opts o = {.backend = backend};
    struct err err;
    char path[64];

    tiny_model_temp(&t, path);
    o.path = path;
    int r = driver_open(d, &o, &err);
    cr_assert(r == 0, "%s", err.message);
    unlink(path);
}

static void expect_unusable(const char *how, const char *reason) {
    struct err err = {0};

    setenv("FAKE_CUDA", how, 1);
    cr_expect(backend_find("cuda", NULL, &err) == NULL, "%s", how);
    cr_expect(strstr(err.message, reason) != NULL, "%s: %s", how, err.message);
}

Test(device, a_library_of_another_abi_is_refused) {
    expect_unusable("abi", "is of another build");
}

Test(device, a_library_of_another_build_is_refused) {
    expect_unusable("build", "is of another build");
}

Test(device, without_a_device_the_reason_is_told) {
    struct err err = {0};

    expect_unusable("probe", "the fake has no device");
    const struct be_ops *ops = backend_find("auto", NULL, &err);
    cr_expect(ops == NULL || strcmp(ops->name, "cpu") == 0, "auto falls back to the CPU");
    unsetenv("FAKE_CUDA");
    ops = backend_find("auto", NULL, &err);
    cr_expect(ops != NULL && strcmp(ops->name, "cuda") == 0, "and prefers the device");
}

/* Opens "auto" with FAKE_CUDA=@how. Returns true if the note contains @why. */
static void expect_auto(const char *how, const char *backend, const char *why) {
    struct driver d;

    setenv("FAKE_CUDA", how, 1);
    open_driver(&d, "auto");
    cr_expect(strcmp(d.info->backend, backend) == 0, "%s: %s", how, d.info->backend);
    cr_expect(why[0] ? strstr(d.info->note, why) != NULL : d.info->note[0] == 0, "%s: '%s'", how,
              d.info->note);
    driver_close(&d);
    unsetenv("FAKE_CUDA");
}

Test(device, auto_takes_the_device_or_says_why_not) {
    struct err err = {0};

    if (!backend_find("cpu", NULL, &err))
        cr_skip_test("%s", err.message);
    expect_auto("build", "cpu", "the CPU computes: weft-cuda.so is of another build");
    expect_auto("", "cuda", "");
    expect_auto("open", "cpu", "the CPU computes: the fake does not open");
    expect_auto("probe", "cpu", "the CPU computes: the fake has no device");
}

Test(device, the_version_says_which_library_is_loaded) {
    char text[500];

    setenv("FAKE_CUDA", "build", 1);
    engine_describe_cuda(text, sizeof(text));
    cr_expect(strstr(text, "cuda (not used: weft-cuda.so is of another build") == text, "%s", text);
    unsetenv("FAKE_CUDA");
    engine_describe_cuda(text, sizeof(text));
    cr_expect(strstr(text, "cuda (/") == text, "%s", text);
    cr_expect(strstr(text, "/tests/engine/device/weft-cuda.so)") != NULL, "%s", text);
}

/* with "auto" the CPU serves such a model */
Test(device, models_that_the_device_does_not_compute_are_refused) {
    static const char why[] = "the cuda backend does not compute residual streams, which this "
                              "deepseek4 model has; use --backend cpu";
    char path[TEST_DATA_PATH];
    struct driver_opts o = {.backend = "cuda"};
    struct driver d;
    struct err err = {0};

    o.path = test_data_file(path, "golden", "deepseek4", ".gguf");
    cr_expect(driver_open(&d, &o, &err) == -EINVAL);
    cr_expect(strcmp(err.message, why) == 0, "%s", err.message);
    if (!backend_find("cpu", NULL, &err))
        cr_skip_test("%s", err.message);
    o.backend = "auto";
    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    cr_expect(strcmp(d.info->backend, "cpu") == 0, "%s", d.info->backend);
    cr_expect(strstr(d.info->note, "does not compute residual streams") != NULL, "%s",
              d.info->note);
    driver_close(&d);
}

Test(device, a_backend_that_does_not_open_is_cleaned_up) {
    struct tiny_model t = {.type = TENSOR_Q4_0};
    struct driver_opts o = {.backend = "cuda"};
    struct driver d;
    struct err err;
    char path[64];

    setenv("FAKE_CUDA", "open", 1);
    tiny_model_temp(&t, path);
    o.path = path;
    cr_expect(driver_open(&d, &o, &err) == -EINVAL);
    cr_expect(strstr(err.message, "does not open") != NULL, "%s", err.message);
    unlink(path);
}

/* Three sequences, one of them masked: tokens and digests by backend and with or without
 * overlap. */
static void run(const char *backend, bool overlap, struct driver_out out[3][25]) {
    uint32_t mask[10] = {0xFFFF, 0xF0F0F0F0};
    struct driver_seq *s[3];
    struct driver d;

    open_driver(&d, backend);
    for (int i = 0; i < 3; i++) {
        s[i] = driver_add(&d, prompt, 10 + 11 * (uint32_t)i, 24, i ? &hot : NULL);
        s[i]->mask = i == 2 ? mask : NULL;
        driver_prefill(&d, s[i], 8);
    }
    driver_decode(&d, s, 3, 24, overlap);
    for (int i = 0; i < 3; i++) {
        cr_expect(s[i]->n_out == 25);
        memcpy(out[i], s[i]->out, sizeof(out[i]));
        driver_drop(&d, s[i]);
    }
    driver_close(&d);
}

Test(device, overlapped_steps_give_the_same_tokens) {
    struct driver_out expect[3][25], got[3][25];

    run("reference", false, expect);
    for (int overlap = 0; overlap < 2; overlap++) {
        run("cuda", overlap, got);
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < 25; k++) {
                cr_expect(expect[i][k].digest == got[i][k].digest, "%d, %d, %d", overlap, i, k);
                cr_expect(expect[i][k].token == got[i][k].token);
            }
    }
}

/* From the failing call on, every call returns -EIO, and the engine can still be freed. */
static void lose_in(const char *where) {
    int32_t token = 7;
    uint32_t start[2] = {0, 1}, page = 3;
    struct engine_seq seq = {.n_rows = 1, .feed = -1};
    struct engine_result r;
    struct driver d;
    int first[3] = {0};

    setenv("FAKE_CUDA", where, 1);
    open_driver(&d, "cuda");
    for (uint64_t step = 1; step <= 3; step++) {
        struct engine_want want = {.what = WANT_SAMPLE};
        struct engine_param param = {.top_p = 1, .repetition = 1};
        struct engine_batch b = {.step = step,
                                 .n_rows = 1,
                                 .n_seqs = 1,
                                 .n_wants = 1,
                                 .n_params = 1,
                                 .token = &token,
                                 .seq = &seq,
                                 .table[KV_GLOBAL] = {start, &page},
                                 .want = &want,
                                 .param = &param};
        seq.pos0 = (uint32_t)step - 1;
        int r3[3] = {engine_launch(d.engine, &b), engine_seal(d.engine, step),
                     engine_wait(d.engine, step, &r)};
        for (int i = 0; i < 3; i++)
            cr_expect(step == 3 || r3[i] == 0);
        memcpy(first, r3, sizeof(first));
    }
    int at = strcmp(where, "begin") == 0 ? 0 : strcmp(where, "sample") == 0 ? 1 : 2;
    for (int i = 0; i < 3; i++)
        cr_expect(first[i] == (i >= at ? -EIO : 0), "%s, call %d: %d", where, i, first[i]);
    cr_expect(engine_wait(d.engine, 3, &r) == -EIO);
    driver_close(&d);
}

Test(device, lost_at_launch_stays_lost) {
    lose_in("begin");
}

Test(device, lost_at_seal_stays_lost) {
    lose_in("sample");
}

Test(device, lost_at_wait_stays_lost) {
    lose_in("end");
}
