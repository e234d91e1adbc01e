/* Tests that the memory reported before a model is loaded is the memory that is then taken, and
 * that a size that a refusal names fits. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/fit.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

static struct gguf *file;

static void open_model(const char *arch) {
    const struct tiny_model t = {.arch = arch, .max_context = 65536};
    struct err err;
    char path[64];

    tiny_model_temp(&t, path);
    cr_assert_eq(gguf_open(&file, path, &err), 0);
    unlink(path);
}

static void close_model(void) {
    file = gguf_free(file);
}

TestSuite(engine_fit, .fini = close_model);

static struct engine_opts opts(uint64_t memory) {
    return (struct engine_opts){
        .file = file,
        .backend = "cpu",
        .isa = "generic",
        .n_threads = 1,
        .page_tokens = 32,
        .max_rows = 64,
        .max_seqs = 8,
        .max_wants = 64,
        .memory = memory,
    };
}

static uint64_t total(const struct engine_fit *f) {
    return f->weight_bytes + f->buffer_bytes + f->kv_bytes;
}

/* Buffers of a model with a drafter whose Markov head has this rank; 0: none. */
static uint64_t buffers_with(uint32_t markov) {
    const struct tiny_model t = {.arch = "dflash", .n_embd = 128, .n_ff = 128, .markov = markov};
    struct engine_opts o = opts(1u << 30);
    struct gguf *drafter;
    struct engine_fit f;
    struct err err;
    char path[64];

    tiny_model_temp(&t, path);
    cr_assert_eq(gguf_open(&drafter, path, &err), 0);
    unlink(path);
    o.drafts = true;
    o.block = drafter;
    cr_assert_eq(engine_fit(&f, &o, &err), 0, "%s", err.message);
    gguf_free(drafter);
    return f.buffer_bytes;
}

/* The head's matrices are as long as the vocabulary, but a row has no outputs for them beside its
 * logits. */
Test(engine_fit, a_markov_head_takes_no_buffers_of_the_vocabularys_size) {
    const struct tiny_model t = {.arch = "qwen3", .n_embd = 128, .n_ff = 128};
    struct err err;
    char path[64];

    tiny_model_temp(&t, path);
    cr_assert_eq(gguf_open(&file, path, &err), 0);
    unlink(path);
    cr_expect_eq(buffers_with(0), buffers_with(16));
}

static const char *const archs[] = {"llama", "qwen3moe", "qwen3next", "gpt-oss"};

Test(engine_fit, what_fits_is_below_the_memory_and_grows_with_it) {
    for (size_t a = 0; a < ARRAY_SIZE(archs); a++) {
        uint32_t context = 0;
        bool has_fitted = false;

        open_model(archs[a]);
        for (uint64_t memory = 1 << 20; memory < 4ull << 30; memory += memory / 16) {
            struct engine_opts o = opts(memory);
            struct engine_fit f;
            struct err err = {0};
            int r = engine_fit(&f, &o, &err);

            if (r < 0) {
                cr_assert(r == -ENOMEM && !has_fitted && strstr(err.message, "does not fit"), "%s",
                          err.message);
                cr_assert(f.weight_bytes > 0 && f.context == 0);
                continue;
            }
            has_fitted = true;
            cr_assert_leq(total(&f), memory);
            cr_assert(f.context >= FIT_LEAST && f.context >= context, "%u", f.context);
            context = f.context;
        }
        cr_assert_eq(context, 65536, "%s", archs[a]);
        close_model();
    }
}

Test(engine_fit, what_is_told_is_what_is_opened) {
    for (size_t a = 0; a < ARRAY_SIZE(archs); a++) {
        open_model(archs[a]);
        struct engine_opts o = opts(200 << 20);
        struct engine *e = NULL;
        struct engine_fit f;
        struct err err = {0};

        o.windows = true;
        cr_assert_eq(engine_fit(&f, &o, &err), 0, "%s", err.message);
        cr_assert_eq(engine_new(&e, &o, &err), 0, "%s", err.message);
        const struct engine_info *i = engine_info(e);
        cr_expect_eq(i->n_pages, f.n_pages);
        cr_expect_eq(i->n_states, f.n_states);
        cr_expect_eq(i->n_snapshots, f.n_snapshots);
        cr_expect_eq(i->max_context, f.context);
        cr_expect_eq(i->state_bytes, f.state_bytes);
        cr_expect_eq(i->memory_bytes, total(&f));
        cr_expect_eq(f.kv_bytes, i->n_pages * i->page_bytes + i->n_windows * i->window_bytes +
                                     (i->n_states + i->n_snapshots) * i->state_bytes);
        cr_expect_eq(i->n_snapshots > 0, i->state_bytes > 0);
        cr_expect_eq(i->n_windows > 0, strcmp(archs[a], "gpt-oss") == 0);
        cr_expect_str_eq(i->arch, f.arch);
        engine_free(e);
        close_model();
    }
}

/* Opens the file of a tiny model. */
static struct gguf *open_tiny(const struct tiny_model *t) {
    struct gguf *of = NULL;
    struct err err;
    char path[64];

    tiny_model_temp(t, path);
    cr_assert_eq(gguf_open(&of, path, &err), 0);
    unlink(path);
    return of;
}

/* Expects that the weights of the file, and of a drafter or NULL, take the counted bytes. Returns
 * these. */
static uint64_t check_stored(struct gguf *drafter, const char *name) {
    enum { VECTORS = 256 << 10, HUGE = 2 << 20 };
    struct engine_opts o = opts(400 << 20);
    struct engine *e = NULL;
    struct engine_fit f;
    struct err err = {0};
    struct stat st;

    o.block = drafter;
    o.drafts = drafter != NULL;
    o.keep_fd = memfd_create("weights", MFD_ALLOW_SEALING);
    cr_assert_eq(engine_fit(&f, &o, &err), 0, "%s", err.message);
    cr_assert_eq(engine_new(&e, &o, &err), 0, "%s", err.message);
    cr_assert(o.keep_fd > 0 && fstat(o.keep_fd, &st) == 0);
    uint64_t has = (uint64_t)st.st_blocks * 512;
    cr_expect(has + VECTORS >= f.weight_bytes && has <= f.weight_bytes + VECTORS + 2 * HUGE,
              "%s: %llu are stored, %llu counted", name, (unsigned long long)has,
              (unsigned long long)f.weight_bytes);
    engine_free(e);
    close(o.keep_fd);
    return f.weight_bytes;
}

/* Formats whose packed form is larger than in the file are counted as packed. */
Test(engine_fit, weights_are_counted_as_they_are_stored) {
    static const enum tensor_type types[] = {TENSOR_Q4_K, TENSOR_Q3_K, TENSOR_Q2_K, TENSOR_IQ1_M};

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        file = open_tiny(&(struct tiny_model){
            .arch = "llama", .type = types[i], .n_layer = 4, .n_embd = 512, .n_ff = 8192});
        check_stored(NULL, tensor_format(types[i])->name);
        close_model();
    }
}

/* The drafter's table of 16 MiB is its own; its output, of equal size, is the model's. */
Test(engine_fit, a_drafter_has_the_models_head_once) {
    struct tiny_model t = {.arch = "qwen3", .n_embd = 128, .n_ff = 128, .n_vocab = 32768};

    file = open_tiny(&t);
    t.arch = "dflash";
    struct gguf *drafter = open_tiny(&t);
    uint64_t alone = check_stored(NULL, "qwen3"), both = check_stored(drafter, "qwen3 and dflash");
    cr_expect_lt(both - alone, 24 << 20);
    gguf_free(drafter);
}

/* Returns how many of the system's pages from @at on are resident. */
static size_t n_resident(uint8_t *at, size_t bytes) {
    static unsigned char in[(size_t)64 << 20 >> 12];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 0;

    at -= (uintptr_t)at % page;
    cr_assert(bytes / page <= sizeof(in) && mincore(at, bytes, in) == 0);
    for (size_t i = 0; i < bytes / page; i++)
        n += in[i] & 1;
    return n;
}

/* A first write to memory is slow, so the first 256 MiB of KV pages are written to before requests
 * come; the rest is allocated by the system at first use. */
Test(engine_fit, the_first_kv_pages_have_memory_before_the_first_request) {
    enum { PART = 16 << 20 };
    struct engine *e = NULL;
    struct err err = {0};

    open_model("llama");
    struct engine_opts o = opts(1200u << 20);
    o.kv_bytes = 512 << 20;
    o.n_host_pages = 1; /* its page follows the KV memory */
    cr_assert_eq(engine_new(&e, &o, &err), 0, "%s", err.message);
    const struct engine_info *i = engine_info(e);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = i->n_pages * (size_t)i->page_bytes;
    uint8_t *kv = (uint8_t *)engine_host_page(e, 0) - bytes;
    cr_assert(bytes >= 400 << 20, "%zu", bytes);
    cr_expect_eq(n_resident(kv, PART), PART / page);
    cr_expect_eq(n_resident(kv + (240 << 20), PART), PART / page);
    cr_expect_eq(n_resident(kv + bytes - PART - (2 << 20), PART), 0);
    engine_free(e);
}

Test(engine_fit, the_context_that_a_refusal_names_fits_and_no_longer_one) {
    for (size_t a = 0; a < ARRAY_SIZE(archs); a++) {
        unsigned long long would;
        struct engine_fit f;
        struct err err = {0};

        open_model(archs[a]);
        struct engine_opts o = opts(100 << 20);
        o.max_context = 65536;
        cr_assert_eq(engine_fit(&f, &o, &err), -ENOMEM, "%s", archs[a]);
        const char *at = strstr(err.message, "max-context ");
        cr_assert(at && sscanf(at, "max-context %llu would fit", &would) == 1, "%s", err.message);
        o.max_context = (uint32_t)would;
        cr_assert_eq(engine_fit(&f, &o, &err), 0, "%s", err.message);
        cr_assert_geq(f.context, would);
        o.max_context = (uint32_t)would + 32;
        cr_assert_eq(engine_fit(&f, &o, &err), -ENOMEM);
        close_model();
    }
}

Test(engine_fit, wishes_give_way_and_a_context_makes_them_grow) {
    struct engine_fit small, large;
    struct err err = {0};

    open_model("llama");
    struct engine_opts o = opts(400 << 20);
    o.kv_bytes = 1 << 20;
    o.max_context = 512;
    cr_assert_eq(engine_fit(&small, &o, &err), 0, "%s", err.message);
    cr_assert_leq(small.kv_bytes, 1 << 20);
    o.max_context = 8192;
    cr_assert_eq(engine_fit(&large, &o, &err), 0, "%s", err.message);
    cr_assert(large.context == 8192 && large.kv_bytes > small.kv_bytes);
    o.kv_bytes = 4ull << 30;
    cr_assert_eq(engine_fit(&large, &o, &err), 0, "%s", err.message);
    cr_assert_leq(total(&large), 400 << 20);
}

Test(engine_fit, bits_a_weight_are_named_where_no_context_would_help) {
    const struct fit f = {
        .weights = 8ull << 30,
        .buffers = 64 << 20,
        .page = 1 << 20,
        .page_tokens = 32,
        .model_context = 4096,
        .memory = 6ull << 30,
        .n_params = 8000000000,
    };
    struct err err = {0};
    uint64_t kv = 7;

    cr_assert_eq(fit_kv(&f, &kv, &err), -ENOMEM);
    cr_assert_eq(kv, 7);
    /* (6 GiB * 15/16 - 64 MiB - 32 MiB) * 8 / 8e9 = 5.94 bits; has 8.59 */
    cr_assert(strstr(err.message, "at most 5.9 bits a weight would fit, this one has 8.6"), "%s",
              err.message);
}

Test(engine_fit, experts_that_are_not_picked_are_not_read) {
    struct engine_fit f;
    struct err err = {0};

    open_model("qwen3moe"); /* 3 of 7 */
    struct engine_opts o = opts(400 << 20);
    cr_assert_eq(engine_fit(&f, &o, &err), 0, "%s", err.message);
    cr_assert_lt(f.token_bytes, f.weight_bytes * 6 / 10);
    close_model();
    open_model("llama");
    o.file = file;
    cr_assert_eq(engine_fit(&f, &o, &err), 0, "%s", err.message);
    cr_assert(f.token_bytes < f.weight_bytes && f.token_bytes > f.weight_bytes / 2);
}

/* deepseek4 has 32 pages of (2 x (32 + 64) x 8 + 32) halves for 1024 positions; in each of two
 * layers 251 of 256 short blocks are not chosen. qwen4exp and glm5-next choose 20 positions, in two
 * layers of two heads and in three layers. */
Test(engine_fit, keys_that_are_not_chosen_are_not_read) {
    static const struct {
        const char *name;
        uint64_t unseen;
    } models[] = {{"deepseek4", 2 * 251 * 32 * 2},
                  {"qwen4exp", (1024 - 20) * 2 * 2 * 64 * 2},
                  {"glm5-next", (1024 - 20) * 3 * 64 * 2}};

    for (size_t i = 0; i < ARRAY_SIZE(models); i++) {
        char path[TEST_DATA_PATH];
        struct engine_fit f;
        struct err err = {0};

        test_data_file(path, "golden", models[i].name, ".gguf");
        cr_assert_eq(gguf_open(&file, path, &err), 0, "%s", err.message);
        struct engine_opts o = opts(400 << 20);
        cr_assert_eq(engine_fit(&f, &o, &err), 0, "%s", err.message);
        cr_assert_eq(f.context, 1024);
        cr_expect_eq(f.context_bytes, 32 * f.page_bytes - models[i].unseen, "%s: %llu %llu",
                     models[i].name, (unsigned long long)f.context_bytes,
                     (unsigned long long)f.page_bytes);
        close_model();
    }
}

/* KV memory of all keys of @n_pages pages, in one class. */
static uint64_t joint(const struct fit_windows *w, uint64_t n_pages) {
    return n_pages * (w->page + w->window_page);
}

/* KV memory that is chosen for a context of @n_pages pages. */
static uint64_t chosen(const struct fit_windows *w, uint64_t n_pages) {
    const struct fit f = {.page = w->page,
                          .windows = w,
                          .page_tokens = w->page_tokens,
                          .model_context = 1u << 26,
                          .context = (uint32_t)n_pages * w->page_tokens,
                          .wish = 1,
                          .memory = UINT64_MAX / 2};
    struct err err = {0};
    uint64_t bytes;

    cr_assert_eq(fit_kv(&f, &bytes, &err), 0, "%s", err.message);
    return bytes;
}

Test(engine_fit, windows_leave_room_for_the_context_that_is_asked_for) {
    struct rng r = {1};

    for (int i = 0; i < 20000; i++) {
        const struct fit_windows w = {.page = 512 * (1 + rng_below(&r, 2000)),
                                      .window_page = 512 * (1 + rng_below(&r, 2000)),
                                      .window = 1 + rng_below(&r, 4096),
                                      .page_tokens = 16u << rng_below(&r, 3),
                                      .max_seqs = 1 + rng_below(&r, 256),
                                      .max_rows = 16 + rng_below(&r, 1024)};
        uint64_t n_pages = 1 + rng_below(&r, 100000), bytes = chosen(&w, n_pages);
        uint32_t n_seqs = 0;
        uint64_t n = fit_divide(&w, bytes, &n_seqs);

        cr_assert_leq(bytes, joint(&w, n_pages));
        cr_assert(MAX(n, bytes / joint(&w, 1)) >= n_pages);
        if (n == 0)
            continue;
        cr_assert(n_seqs > 0 && n_seqs <= w.max_seqs);
        /* One sequence reads a window and writes two steps of all rows. */
        cr_assert_geq(fit_n_windows(&w, 0, 1) * w.page_tokens, w.window + 2ull * w.max_rows);
        cr_assert_leq(n * w.page + fit_n_windows(&w, n, n_seqs) * w.window_page, bytes);
    }
}

/* gpt-oss-20b: 12 layers with a window of 128 and 12 without, 8 key heads of 64 values, in f16. */
Test(engine_fit, half_of_the_layers_with_a_window_take_half_of_the_memory) {
    struct fit_windows w = {.page = 12 * 2 * 8 * 64 * 2 * 32,
                            .window_page = 12 * 2 * 8 * 64 * 2 * 32,
                            .window = 128 + 31,
                            .page_tokens = 32,
                            .max_seqs = 8,
                            .max_rows = 512};
    uint64_t all = joint(&w, 131072 / 32);

    cr_expect_eq(all, 6ull << 30);
    cr_expect_lt(chosen(&w, 131072 / 32), all * 55 / 100);
    w.max_seqs = 64;
    cr_expect_lt(chosen(&w, 131072 / 32), all * 61 / 100);
}

/* A draft model has a quarter of the model's KV memory, on a device a sixteenth of what is free. */
Test(engine_fit, a_draft_model_takes_its_part) {
    struct engine_opts model = {.memory = 1600, .device_share = 1, .n_pages = 7, .drafts = true};
    struct engine_opts draft = engine_draft_opts(&model, 0);

    cr_expect_eq(draft.kv_bytes, 100);
    cr_expect_eq(draft.memory, 0);
    cr_expect_eq(draft.device_share, 16);
    cr_expect_eq(draft.n_pages, 0);
    cr_expect(!draft.drafts);
    model.kv_bytes = 1000;
    cr_expect_eq(engine_draft_opts(&model, 0).kv_bytes, 250);
    draft = engine_draft_opts(&model, 77);
    cr_expect_eq(draft.kv_bytes, 77);
    cr_expect_eq(draft.device_share, 0);
}
