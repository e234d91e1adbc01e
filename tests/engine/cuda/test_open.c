/* Tests the backend before a model is loaded: it finds memory and tests its kernels. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cuda/kernels.h"
#include "engine/engine.h"
#include "engine/ops/attention/kernels_attention.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/support/few.h"
#include "tests/support/synth/synth.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

static char note[600]; /* of the last engine opened */
static uint8_t sources[20];

/* Opens and closes with the changes of @o; *n_pages gets the number of pages. */
static int try_open(const char *path, struct engine_opts o, uint32_t *n_pages, struct err *err) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct engine *e = NULL;

    cr_assert(gguf_open(&file, path, err) == 0);
    o.file = file;
    o.backend = "cuda";
    o.kv_bytes = 1 << 20;
    o.page_tokens = 16;
    o.max_rows = o.max_rows ? o.max_rows : 256;
    o.max_seqs = 2;
    o.max_wants = 4;
    int r = engine_new(&e, &o, err);
    if (r == 0 && n_pages)
        *n_pages = engine_info(e)->n_pages;
    if (r == 0)
        memcpy(sources, engine_info(e)->sources, sizeof(sources));
    snprintf(note, sizeof(note), "%s", r == 0 ? engine_info(e)->note : "");
    engine_free(e);
    cr_expect(fake_find()->n_live == 0);
    return r;
}

static uint32_t pages_with(const char *path, uint32_t share) {
    struct err err = {0};
    uint32_t n = 0;

    cr_assert(try_open(path, (struct engine_opts){.device_share = share}, &n, &err) == 0, "%s",
              err.message);
    return n;
}

/* Rows are long and matrices few, so that a norm exceeds the reserve for the ends of matrices. The
 * gates of attention's output use the norm of the queries; a norm after the embedding has no
 * weights in the file. */
Test(cuda_open, norms_beyond_the_files_are_counted) {
    static const char *const shapes[] = {
        "step-3.5-flash,n_layer=4,n_lead=3,n_embd=8192,n_head=2,n_kv=1,head_dim=32,"
        "n_head_window=2,n_ff=64,n_shared=64,n_dense=64,n_vocab=272,n_expert=2,n_used=1,window=16",
        "muse-glimmer-30b,n_layer=1,n_embd=32768,n_head=2,n_kv=1,head_dim=32,n_ff=64,n_vocab=272,"
        "window=16"};
    char path[64];

    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        snprintf(path, sizeof(path), "/tmp/weft-open-%d.gguf", (int)getpid());
        const char *argv[] = {"synth", "--shape", shapes[i], "--format", "Q8_0", "-o", path, NULL};
        struct err err = {0};

        cr_assert(synth_main(ARRAY_SIZE(argv) - 1, (char **)argv) == 0);
        cr_expect(try_open(path, (struct engine_opts){.max_rows = 16}, NULL, &err) == 0, "%s",
                  err.message);
        unlink(path);
    }
}

Test(cuda_open, encoders_are_refused_by_name) {
    static const struct {
        const char *arch, *lacks;
    } cases[] = {
        {"bert", "norms with biases"},
        {"nomic-bert", "norms with biases"},
        {"jina-bert-v2", "norms with biases"},
        {"modern-bert", "attention of encoders"},
        {"gemma-embedding", "attention of encoders"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct tiny_model m = {.arch = cases[i].arch};
        struct err err = {0};
        char path[64];

        tiny_model_temp(&m, path);
        cr_expect(try_open(path, (struct engine_opts){0}, NULL, &err) < 0);
        cr_expect(strstr(err.message, "does not compute"), "%s", err.message);
        cr_expect(strstr(err.message, cases[i].lacks), "%s", err.message);
        unlink(path);
    }
}

/* A worker that replaces another one, whose memory becomes free a moment later. */
Test(cuda_open, memory_of_a_process_that_ends_is_waited_for) {
    struct err err = {0};
    char path[64];

    fake_small_model(path);
    fake_find()->others = fake_find()->bytes - (1 << 20);
    fake_find()->others_stay = 3;
    cr_expect(try_open(path, (struct engine_opts){0}, NULL, &err) == 0, "%s", err.message);
    cr_expect(fake_find()->others_stay == 0);
    unlink(path);
}

/* fewer than the self-test would use together */
Test(cuda_open, steps_of_the_fewest_rows_are_tried) {
    struct err err = {0};
    char path[64];

    setenv("WEFT_CUDA_CHECK", "1", 1);
    fake_small_model(path);
    cr_expect(try_open(path, (struct engine_opts){.max_rows = 16}, NULL, &err) == 0, "%s",
              err.message);
    unlink(path);
}

Test(cuda_open, a_driver_that_is_too_old_is_named) {
    struct err err = {0};
    char path[64];

    fake_small_model(path);
    fake_find()->fail_at = 1;
    fake_find()->error = CUDA_OLD_DRIVER;
    fake_find()->driver = 12080;
    cr_expect(try_open(path, (struct engine_opts){0}, NULL, &err) < 0);
    cr_expect(strstr(err.message, "made for CUDA 12.8, weft-cuda.so for 13.0; install a newer"),
              "%s", err.message);
    fake_find()->n_calls = 0;
    fake_find()->error = CUDA_FABRIC;
    cr_expect(try_open(path, (struct engine_opts){0}, NULL, &err) < 0);
    cr_expect(strstr(err.message, "no CUDA device: "), "another error: %s", err.message);
    unlink(path);
}

/* Errors that a machine may give at first. */
Test(cuda_open, why_there_is_no_device_is_told) {
    static const struct {
        /* 1: query of the number of devices; 3: use of the device */
        uint32_t call;
        int error;
        const char *told;
    } cases[] = {
        {1, CUDA_FABRIC, "no CUDA device: some error (is nvidia-fabricmanager running?)"},
        {1, CUDA_OTHER_DRIVER, "restart after a driver's upgrade"},
        {1, CUDA_UNKNOWN, "is the module nvidia-uvm loaded"},
        {1, 100, "no CUDA device: some error"},
        {3, CUDA_BUSY, "CUDA device 0: some error (another process has it alone"},
    };
    char path[64];

    fake_small_model(path);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct err err = {0};

        fake_find()->n_calls = 0;
        fake_find()->fail_at = cases[i].call;
        fake_find()->error = cases[i].error;
        cr_expect(try_open(path, (struct engine_opts){0}, NULL, &err) < 0);
        cr_expect(strstr(err.message, cases[i].told) != NULL, "%s", err.message);
    }
    unlink(path);
}

/* Without a configured size, the KV cache gets the remaining memory of the device; also while
 * another process ends. */
Test(cuda_open, pages_take_what_the_device_has_left) {
    char path[64];

    fake_small_model(path);
    fake_find()->idle = true; /* what kernels compute does not matter here */
    fake_find()->bytes = 768 << 20;
    uint32_t asked = pages_with(path, 0), all = pages_with(path, 1);
    cr_expect(asked < all / 10, "%u of %u", asked, all);
    cr_expect(fake_find()->peak_bytes > fake_find()->bytes / 4, "%zu", fake_find()->peak_bytes);
    uint32_t part = pages_with(path, 16);
    cr_expect(part + 1 >= all / 16 && part <= all / 16 + 1, "%u of %u", part, all);
    fake_find()->others = 100 << 20;
    fake_find()->others_stay = 1;
    uint32_t again = pages_with(path, 1);
    cr_expect(again == all, "what came back is used: %u of %u", again, all);
    unlink(path);
}

/* Returns how many calls of the runtime an open without and with the steps before the first request
 * makes, with those of closing. */
static uint32_t calls_of_open(const char *path, const char *warm) {
    struct err err = {0};

    setenv("WEFT_CUDA_WARM", warm, 1);
    fake_find()->n_calls = 0;
    cr_assert(try_open(path, (struct engine_opts){.max_rows = 16}, NULL, &err) == 0, "%s",
              err.message);
    return fake_find()->n_calls;
}

/* Calls of closing come last, so that those of the steps begin before the last calls of an open
 * without them. Without a capture a step is launched kernel by kernel. */
Test(cuda_open, a_call_that_fails_in_a_step_before_the_first_request_is_an_error) {
    uint32_t n_failed = 0, n_captures = 0;
    struct err err = {0};
    char path[64];

    fake_small_model(path);
    fake_find()->idle = true; /* what kernels compute does not matter here */
    uint32_t cold = calls_of_open(path, "0"), warm = calls_of_open(path, "1");
    cr_assert(warm > cold + 50, "%u, %u", cold, warm);
    for (uint32_t i = cold; i + 1 < cold + (warm - cold) / 2; i++) {
        fake_find()->n_calls = 0;
        fake_find()->fail_at = i;
        fake_find()->sticky = i % 2;
        fake_find()->failed_capture = false;
        memset(&err, 0, sizeof(err));
        int r = try_open(path, (struct engine_opts){.max_rows = 16}, NULL, &err);
        n_captures += r == 0 && fake_find()->failed_capture;
        n_failed += r < 0;
        cr_expect(r < 0 || fake_find()->failed_capture, "call %u", i);
        cr_expect(r == 0 || r == -EIO || err.message[0], "call %u: %d without a word", i, r);
    }
    cr_expect(n_failed > 10 && n_captures > 0, "%u, %u", n_failed, n_captures);
    fake_find()->fail_at = 0;
    unlink(path);
}

/* On a device that uses host memory, the driver counts the file cache as used. */
Test(cuda_open, file_cache_is_free_where_the_device_is_integrated) {
    struct err err = {0};
    char path[64];

    fake_small_model(path);
    fake_find()->idle = true; /* what kernels compute does not matter here */
    fake_find()->bytes = 768 << 20;
    fake_find()->integrated = true;
    uint32_t all = pages_with(path, 1);
    fake_find()->cached = 600 << 20;
    cr_expect(pages_with(path, 1) == all);
    cr_expect(try_open(path, (struct engine_opts){0}, NULL, &err) == 0, "%s", err.message);
    unlink(path);
}

/* Pinned pages take memory from the device's pages, whether their size or their number is
 * configured. */
Test(cuda_open, pinned_memory_of_an_integrated_device_is_counted_once) {
    static const uint64_t pinned = 300 << 20;
    struct err err = {0};
    uint32_t n = 0;
    char path[64];

    fake_small_model(path);
    fake_find()->idle = true; /* what kernels compute does not matter here */
    fake_find()->bytes = 768 << 20;
    uint32_t apart = pages_with(path, 1);
    uint64_t page = fake_find()->peak_bytes / apart; /* not less than it needs */
    for (int i = 0; i < 2; i++) {
        struct engine_opts o = {.device_share = 1};

        if (i)
            o.n_host_pages = (uint32_t)(pinned / page);
        else
            o.host_kv_bytes = pinned;
        fake_find()->integrated = false;
        cr_assert(try_open(path, o, &n, &err) == 0, "%s", err.message);
        cr_expect(n == apart, "%u of %u", n, apart);
        fake_find()->integrated = true;
        fake_find()->peak_bytes = 0;
        cr_assert(try_open(path, o, &n, &err) == 0, "%s", err.message);
        uint64_t left = fake_find()->bytes - fake_find()->peak_bytes;
        cr_expect(n > apart / 8 && n < apart / 2, "%u of %u", n, apart);
        cr_expect(left > 200 << 20 && left < 330 << 20, "the reserve and a little: %llu",
                  (unsigned long long)left);
    }
    struct engine_opts o = {.n_host_pages = (uint32_t)((600ull << 20) / page)};
    cr_expect(try_open(path, o, NULL, &err) < 0);
    cr_expect(strstr(err.message, "does not fit: weights"), "%s", err.message);
    unlink(path);
}

/* Returns the MiB of weights that a refusal names, for a model whose last FFN is the host's. */
static double refused_weights(const char *path, bool integrated) {
    struct err err = {0};

    fake_find()->bytes = 1 << 20;
    fake_find()->integrated = integrated;
    cr_expect(try_open(path, (struct engine_opts){.device_layers = 1}, NULL, &err) < 0);
    const char *at = strstr(err.message, "weights ");
    cr_assert(at, "%s", err.message);
    return atof(at + strlen("weights "));
}

Test(cuda_open, an_integrated_device_gains_no_room_by_what_the_host_computes) {
    struct tiny_model m = {.n_layer = 2, .n_embd = 256, .n_ff = 1024}; /* F32: an FFN of 3 MiB */
    char path[64];

    tiny_model_temp(&m, path);
    double apart = refused_weights(path, false), both = refused_weights(path, true);
    cr_expect(both > apart + 2.9 && both < apart + 3.1, "%.1f and %.1f", both, apart);
    unlink(path);
}

/* Devices of two families need not give the same bits, so requests do not move between them. */
Test(cuda_open, sources_tell_families_apart) {
    uint8_t first[20];
    struct err err = {0};
    char path[64];

    fake_small_model(path);
    cr_assert(try_open(path, (struct engine_opts){0}, NULL, &err) == 0, "%s", err.message);
    memcpy(first, sources, sizeof(first));
    fake_find()->minor++;
    cr_assert(try_open(path, (struct engine_opts){0}, NULL, &err) == 0, "%s", err.message);
    cr_expect(memcmp(first, sources, sizeof(first)) != 0);
    unlink(path);
}

#ifndef BYTES /* kernels of such families do not wait for the previous one */
/* Kernels are launched early if their code waits for the previous kernel, unless it is turned
 * off. */
Test(cuda_open, early_launch_is_for_kernels_that_wait) {
    static const struct {
        /* made_for 0: the device's family */
        int major, made_for;
        /* value of the environment variable */
        const char *said;
        bool early;
    } cases[] = {{9, 0, NULL, true}, {9, 0, "0", false}, {9, 80, "1", false}, {8, 0, NULL, false}};
    char path[64];

    fake_small_model(path);
    setenv("WEFT_CUDA_CHECK", "1", 1);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct err err = {0};

        fake_find()->major = cases[i].major;
        unsetenv("WEFT_CUDA_EARLY");
        if (cases[i].said)
            setenv("WEFT_CUDA_EARLY", cases[i].said, 1);
        fake_find()->made_for = cases[i].made_for;
        fake_find()->n_early = 0;
        cr_assert(try_open(path, (struct engine_opts){.max_context = 32}, NULL, &err) == 0, "%s",
                  err.message);
        cr_expect((fake_find()->n_early > 0) == cases[i].early, "case %zu", i);
    }
    unlink(path);
}
#endif

static void widen(const char *kernel, uint64_t number, void *args) {
    struct attend_args *a = args;

    if (strncmp(kernel, "attend", 6) == 0 && a->window < UINT32_MAX)
        a->window++;
}

/* Tests models that have them, the second in its second layer only, with values that are shorter
 * than keys; a fault of these kernels alone must be found, too. */
Test(cuda_open, windows_and_sinks_are_tried) {
    static const struct {
        const char *name;
        uint32_t max_context;
    } files[] = {{"gpt-oss.mxfp4", 512}, {"mimo2", 224}};

    setenv("WEFT_CUDA_CHECK", "1", 1);
    for (int k = 0; k < 4; k++) {
        const struct engine_opts o = {.max_context = files[k / 2].max_context};
        struct err err = {0};
        char path[TEST_DATA_PATH];
        int i = k % 2;

        test_data_file(path, "golden", files[k / 2].name, ".gguf");
        fake_find()->on_launch = i ? widen : NULL;
        int r = try_open(path, o, NULL, &err);
        cr_expect(i ? r < 0 : r == 0, "%d: %s", i, err.message);
        cr_expect(i == 0 || strstr(err.message, "attention with a window is off"), "%s",
                  err.message);
    }
}

static void forget_values(const char *kernel, uint64_t number, void *args) {
    struct store_args *a = args;

    if (strcmp(kernel, "store") == 0)
        a->n_value -= 32;
}

/* Keys of 192 numbers and values of 128; the last case stores values of 96. */
Test(cuda_open, short_values_are_tried) {
    static const struct kv_formats pages[] = {{ENGINE_KV_F16, ENGINE_KV_F16},
                                              {ENGINE_KV_Q8_0, ENGINE_KV_Q8_0},
                                              {ENGINE_KV_Q4_0, ENGINE_KV_Q4_0},
                                              {ENGINE_KV_Q8_0, ENGINE_KV_Q4_0},
                                              {ENGINE_KV_F16, ENGINE_KV_F16}};
    const size_t wrong = ARRAY_SIZE(pages) - 1;
    char path[TEST_DATA_PATH];

    test_data_file(path, "golden", "mimo2", ".gguf");
    setenv("WEFT_CUDA_CHECK", "1", 1);
    for (size_t i = 0; i < ARRAY_SIZE(pages); i++) {
        const struct engine_opts o = {.kv_type = pages[i], .max_context = 224};
        struct err err = {0};

        fake_find()->on_launch = i == wrong ? forget_values : NULL;
        int r = try_open(path, o, NULL, &err);
        cr_expect((r < 0) == (i == wrong), "%zu: %s", i, err.message);
        cr_expect(!strstr(note, "other bits"), "%zu: %s", i, note);
        cr_expect(i != wrong || strstr(err.message, "attention is off"), "%s", err.message);
    }
}

/* Every tensor type, and both types of pages. */
Test(cuda_open, what_is_right_is_not_refused) {
    static const enum tensor_type types[] = {
        TENSOR_F32,   TENSOR_BF16,  TENSOR_Q4_0,  TENSOR_Q5_1,    TENSOR_Q2_K,   TENSOR_Q3_K,
        TENSOR_Q4_K,  TENSOR_Q5_K,  TENSOR_Q6_K,  TENSOR_IQ2_XXS, TENSOR_IQ4_NL, TENSOR_IQ4_XS,
        TENSOR_MXFP4, TENSOR_NVFP4, TENSOR_IQ2_S, TENSOR_IQ1_M,   TENSOR_IQ3_S};
    static const struct kv_formats pages[] = {{ENGINE_KV_F16, ENGINE_KV_F16},
                                              {ENGINE_KV_Q8_0, ENGINE_KV_Q8_0},
                                              {ENGINE_KV_Q4_0, ENGINE_KV_Q4_0},
                                              {ENGINE_KV_Q8_0, ENGINE_KV_Q4_0}};

    setenv("WEFT_CUDA_CHECK", "1", 1);
    for (size_t i = 0; i < ARRAY_SIZE(types); i += i < ARRAY_SIZE(pages) ? 1 : FEWEST(1, 3)) {
        struct tiny_model m = {.type = types[i], .n_layer = 1, .n_embd = 256, .n_ff = 256};
        struct err err = {0};
        char path[64];

        tiny_model_temp(&m, path);
        /* Attention over slightly more than a chunk with each type of pages. */
        struct engine_opts o = {.kv_type = pages[i % ARRAY_SIZE(pages)],
                                .max_context = i < ARRAY_SIZE(pages) ? 300 : 32};
        cr_expect(try_open(path, o, NULL, &err) == 0, "%s: %s", tensor_format(types[i])->name,
                  err.message);
        unlink(path);
    }
}

Test(cuda_open, pages_of_other_formats_apart_are_refused) {
    static const struct kv_formats apart[] = {{ENGINE_KV_F16, ENGINE_KV_Q8_0},
                                              {ENGINE_KV_Q8_0, ENGINE_KV_F16},
                                              {ENGINE_KV_Q4_0, ENGINE_KV_Q8_0}};
    const struct tiny_model m = {0};
    char path[64], message[200];

    tiny_model_temp(&m, path);
    for (size_t i = 0; i < ARRAY_SIZE(apart); i++) {
        struct engine_opts o = {.kv_type = apart[i]};
        struct err err = {0};

        cr_expect(try_open(path, o, NULL, &err) < 0);
        snprintf(message, sizeof(message),
                 "kv-type-k %s and kv-type-v %s: the cuda backend has kernels for one format, and "
                 "for keys of q8_0 beside values of q4_0",
                 kv_types[apart[i].k].name, kv_types[apart[i].v].name);
        cr_expect_str_eq(err.message, message);
    }
    unlink(path);
}

/* No device supports an assistant: the model is served without its drafts, and a note says so. */
Test(cuda_open, a_model_is_served_without_its_assistant) {
    const struct tiny_model model = {.arch = "gemma4", .n_embd = 128, .n_ff = 128};
    struct tiny_model assistant = model;
    CLEANUP(gguf_freep) struct gguf *file = NULL, *block = NULL;
    struct engine *e = NULL;
    struct err err = {0};
    char path[2][64];

    assistant.arch = "gemma4-assistant";
    tiny_model_temp(&model, path[0]);
    tiny_model_temp(&assistant, path[1]);
    cr_assert(gguf_open(&file, path[0], &err) == 0 && gguf_open(&block, path[1], &err) == 0);
    const struct engine_opts o = {.file = file,
                                  .block = block,
                                  .drafts = true,
                                  .backend = "cuda",
                                  .kv_bytes = 1 << 20,
                                  .page_tokens = 16,
                                  .max_rows = 32,
                                  .max_seqs = 2,
                                  .max_wants = 4};
    cr_assert(engine_new(&e, &o, &err) == 0, "%s", err.message);
    const struct engine_info *info = engine_info(e);
    cr_expect(info->n_slots == 0 && !info->borrows && strcmp(info->backend, "cuda") == 0);
    cr_expect(strstr(info->note,
                     "the draft model's file is not used for drafts: this backend does not "
                     "compute it") != NULL,
              "%s", info->note);
    engine_free(e);
    cr_expect(fake_find()->n_live == 0);
    unlink(path[0]);
    unlink(path[1]);
}
