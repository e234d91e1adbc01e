/* Tests the contract of engine.h apart from logits: sizes, refusals, feeding, masks, copies,
 * memory. */

#include <criterion/criterion.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "tests/support/engine_driver.h"
#include "tests/support/tiny_model.h"

static const char *const backends[] = {"reference", "cpu"};

/* -- counting allocations: the linker sends every call here (--wrap) --------------------------- */

static atomic_ulong n_allocations;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_reallocarray(void *p, size_t n, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t n);
int __real_posix_memalign(void **out, size_t alignment, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t n);
int __wrap_posix_memalign(void **out, size_t alignment, size_t n);

void *__wrap_malloc(size_t n) {
    n_allocations++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size) {
    n_allocations++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n) {
    n_allocations++;
    return __real_realloc(p, n);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size) {
    n_allocations++;
    return __real_reallocarray(p, n, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t n) {
    n_allocations++;
    return __real_aligned_alloc(alignment, n);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t n) {
    n_allocations++;
    return __real_posix_memalign(out, alignment, n);
}

/* -- opening ----------------------------------------------------------------------------------- */

struct model_file {
    char path[64];
    struct gguf *file;
};

static struct model_file make(const struct tiny_model *t) {
    struct model_file m;
    struct err err;

    tiny_model_temp(t, m.path);
    cr_assert_eq(gguf_open(&m.file, m.path, &err), 0);
    unlink(m.path);
    return m;
}

static struct engine_opts opts_for(const struct model_file *m) {
    return (struct engine_opts){
        .file = m->file,
        .backend = "reference",
        .isa = "auto",
        .n_threads = 1,
        .n_pages = 8,
        .page_tokens = 16,
        .max_rows = 32,
        .max_seqs = 4,
        .max_wants = 32,
        .digest = true,
    };
}

static char note[400]; /* of the engine that try_open() opened last */

static int try_open(const struct engine_opts *o, struct engine_info *info, struct err *err) {
    struct engine *e;
    int r = engine_new(&e, o, err);

    if (r == 0) {
        if (info)
            *info = *engine_info(e);
        snprintf(note, sizeof(note), "%s", engine_info(e)->note);
        engine_free(e);
    }
    return r;
}

Test(engine, tells_what_it_opened) {
    struct model_file m = make(&(struct tiny_model){.arch = "qwen2", .type = TENSOR_Q8_0});
    struct engine_opts o = opts_for(&m);
    struct engine_info i;
    struct err err;
    uint8_t fingerprint[16];
    uint64_t matrices = 2 * 300 * 256 + 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 256);
    uint64_t vectors = 256 + 2 * (2 * 256 + 256 + 2 * 128);

    cr_assert_eq(try_open(&o, &i, &err), 0);
    gguf_fingerprint(m.file, fingerprint);
    cr_expect(i.n_vocab == 300 && i.n_embd == 256 && i.n_layer == 2);
    cr_expect_eq(i.max_context, 128); /* content of 8 pages */
    cr_expect_eq(i.n_params, matrices + vectors);
    cr_expect_eq(i.weight_bytes, matrices / 32 * 34 + vectors * 4);
    cr_expect_eq(i.page_bytes, 2ull * 2 * 16 * 2 * 64 * 2);
    cr_expect(memcmp(i.fingerprint, fingerprint, 16) == 0);
    gguf_free(m.file);
}

Test(engine, lowers_a_context_above_the_models) {
    static const uint32_t asked[] = {513, 1u << 31};
    struct model_file m = make(&(struct tiny_model){0});
    struct engine_opts o = opts_for(&m);
    struct engine_info i;
    struct err err;

    o.n_pages = 64;
    for (size_t k = 0; k < ARRAY_SIZE(asked); k++) {
        o.max_context = asked[k];
        cr_assert_eq(try_open(&o, &i, &err), 0, "%s", err.message);
        cr_expect_eq(i.max_context, 512u);
    }
    gguf_free(m.file);
}

Test(engine, sizes_pages_from_bytes) {
    struct model_file m = make(&(struct tiny_model){0});
    struct engine_opts o = opts_for(&m);
    struct engine_info i;
    struct err err;

    o.n_pages = 0;
    o.page_tokens = 32;
    for (int type = 0; type < 4; type++) {
        static const uint64_t per_value_x16[] = {32, 17, 9, 64};
        uint64_t page = 2ull * 32 * 2 * 2 * 64 * per_value_x16[type] / 16;

        o.kv_type = kv_both((enum engine_kv_type)type);
        o.kv_bytes = 10 * page + page / 2;
        cr_assert_eq(try_open(&o, &i, &err), 0);
        cr_expect(i.page_bytes == page && i.n_pages == 10);
    }
    gguf_free(m.file);
}

#ifndef __SANITIZE_ADDRESS__ /* which keeps freed memory for a while */
static uint64_t address_space(void) {
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0;

    cr_assert(f && fscanf(f, "%llu", &pages) == 1);
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* a daemon loads one model after another */
Test(engine, what_is_closed_gives_its_memory_back) {
    struct model_file m = make(&(struct tiny_model){0});
    struct engine_opts o = opts_for(&m);
    struct err err;

    o.n_pages = 4096; /* 64 MiB */
    for (size_t i = 0; i < ARRAY_SIZE(backends); i++) {
        uint64_t before = 0;

        o.backend = backends[i];
        for (int k = 0; k < 3; k++) {
            if (k == 1) /* the first engine's remainder belongs to the C library */
                before = address_space();
            cr_assert_eq(try_open(&o, NULL, &err), 0, "%s", err.message);
        }
        cr_expect_lt(address_space(), before + (16 << 20), "%s", backends[i]);
    }
    gguf_free(m.file);
}
#endif

Test(engine, keys_and_values_have_formats_of_their_own) {
    struct model_file m = make(&(struct tiny_model){0});
    struct engine_opts o = opts_for(&m);
    struct engine_info i;
    struct err err;

    o.kv_type = (struct kv_formats){ENGINE_KV_Q8_0, ENGINE_KV_Q4_0};
    cr_assert_eq(try_open(&o, &i, &err), 0);
    cr_expect_eq(i.page_bytes, 2ull * 2 * 64 * o.page_tokens * (17 + 9) / 16);
    cr_expect(i.kv_type.k == ENGINE_KV_Q8_0 && i.kv_type.v == ENGINE_KV_Q4_0);
    gguf_free(m.file);
}

/* If there is room for the context in f16, nothing changes. */
Test(engine, auto_takes_q8_0_where_f16_does_not_hold_the_context) {
    struct model_file m = make(&(struct tiny_model){0});
    struct engine_opts o = opts_for(&m);
    uint64_t page = 2ull * o.page_tokens * 2 * 2 * 64 * 2;
    struct engine_info i;
    struct err err;

    o.n_pages = 0;
    o.kv_auto = true;
    o.max_context = 256;
    o.kv_bytes = 256 / o.page_tokens * page;
    cr_assert_eq(try_open(&o, &i, &err), 0, "%s", err.message);
    cr_expect(i.kv_type.k == ENGINE_KV_F16 && i.kv_type.v == ENGINE_KV_F16);
    cr_expect_str_empty(note);
    o.kv_bytes -= page;
    cr_assert_eq(try_open(&o, &i, &err), 0, "%s", err.message);
    cr_expect(i.kv_type.k == ENGINE_KV_Q8_0 && i.kv_type.v == ENGINE_KV_Q8_0);
    cr_expect_str_eq(note, "kv-type auto is q8_0: the memory does not hold 256 tokens in f16");
    gguf_free(m.file);
}

Test(engine, tells_how_many_sequences_keep_their_windows) {
    struct model_file m = make(&(struct tiny_model){.arch = "gpt-oss"});
    struct engine_opts o = opts_for(&m);
    struct engine_info i;
    struct err err;
    uint64_t page = 2ull * o.page_tokens * 2 * 64 * 2;

    o.n_pages = 0;
    o.windows = true;
    o.kv_bytes = 65 * page;
    cr_assert_eq(try_open(&o, &i, &err), 0, "%s", err.message);
    cr_expect_eq(i.window_seqs, o.max_seqs);
    cr_expect_str_empty(note);
    o.kv_bytes = 35 * page;
    cr_assert_eq(try_open(&o, &i, &err), 0, "%s", err.message);
    cr_expect_eq(i.window_seqs, 2);
    cr_expect_str_eq(note, "layers with a window keep their last keys for 2 of 4 sequences");
    gguf_free(m.file);
}

static void expect_refused(const struct engine_opts *o, const char *part) {
    struct err err;

    cr_expect(try_open(o, NULL, &err) < 0, "expected: %s", part);
    cr_expect(strstr(err.message, part) != NULL, "expected '%s' in '%s'", part, err.message);
}

Test(engine, says_why_it_does_not_open) {
    struct model_file m = make(&(struct tiny_model){.head_dim = 48});
    struct engine_opts good = opts_for(&m), o = good;

    o.page_tokens = 24;
    expect_refused(&o, "page_tokens is 24");
    o = good, o.max_rows = 0;
    expect_refused(&o, "max_rows");
    o = good, o.kv_type = kv_both(ENGINE_KV_Q8_0);
    expect_refused(&o,
                   "kv type q8_0 needs heads whose size is a multiple of 32; this model has 48");
    o = good, o.kv_type = kv_both(ENGINE_KV_Q4_0);
    expect_refused(&o,
                   "kv type q4_0 needs heads whose size is a multiple of 32; this model has 48");
    o = good, o.max_context = 200; /* 13 pages of 12 KiB */
    expect_refused(&o,
                   "200 tokens takes 156.0 KiB of KV memory, but there are only 96.0 KiB (8 pages");
    o = good, o.n_pages = 0, o.kv_bytes = 1000;
    expect_refused(&o, "a page of 16 tokens takes 12.0 KiB");
    o = good, o.n_pages = 1u << 30;
    expect_refused(&o, "this machine has");
    o = good, o.backend = "gpu";
    expect_refused(&o, "unknown backend 'gpu'");
    gguf_free(m.file);
}

Test(engine, sizes_of_steps_have_limits) {
    struct model_file m = make(&(struct tiny_model){0});
    struct engine_opts good = opts_for(&m);
    const struct {
        /* in the options */
        size_t at;
        uint32_t most;
        const char *zero, *more;
    } fields[] = {
        {offsetof(struct engine_opts, max_rows), 1u << 20, "must not be 0", "at most 1048576"},
        {offsetof(struct engine_opts, max_seqs), 1u << 20, "must not be 0", "at most 1048576"},
        {offsetof(struct engine_opts, max_wants), 1u << 20, "must not be 0", "at most 1048576"},
        {offsetof(struct engine_opts, picture_rows), 1u << 16, NULL, "at most 65536"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        struct engine_opts o = good;
        uint32_t *field = (uint32_t *)((char *)&o + fields[i].at);
        struct err err = {0};

        *field = fields[i].most + 1;
        expect_refused(&o, fields[i].more);
        *field = 0;
        if (fields[i].zero)
            expect_refused(&o, fields[i].zero);
        else
            cr_expect_eq(try_open(&o, NULL, &err), 0, "%s", err.message);
    }
    gguf_free(m.file);
}

Test(engine, backends_that_are_not_there_are_refused_with_a_reason) {
    static const char *const names[] = {"cpu", "cuda", "auto"};
    struct err err;

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        err = (struct err){0};
        if (!backend_find(names[i], NULL, &err))
            cr_expect(strstr(err.message, "backend") || strstr(err.message, "weft-cuda.so"), "%s",
                      err.message);
    }
    cr_expect(backend_find("reference", NULL, &err) == &backend_reference);
}

static double last_fraction;

static void on_progress(void *ctx, const char *what, double fraction) {
    cr_expect(fraction >= last_fraction && what[0] != 0 && ctx == &last_fraction);
    last_fraction = fraction;
}

Test(engine, loading_tells_its_progress) {
    struct model_file m = make(&(struct tiny_model){0});
    struct engine_opts o = opts_for(&m);
    struct err err;

    o.progress = on_progress;
    o.progress_ctx = &last_fraction;
    cr_assert_eq(try_open(&o, NULL, &err), 0);
    cr_expect(last_fraction == 1.0);
    gguf_free(m.file);
}

/* -- steps ------------------------------------------------------------------------------------- */

static uint64_t n_ops; /* engine_opts.step_progress */

/* NULL: the backend is not available. */
static struct driver *open_driver(const char *backend, struct driver *d) {
    struct tiny_model t = {.type = TENSOR_Q4_K};
    struct driver_opts o = {
        .backend = backend, .n_threads = 2, .n_host_pages = 8, .step_progress = &n_ops};
    struct err err;
    char path[64];

    if (!backend_find(backend, NULL, &err)) {
        printf("# %s\n", err.message);
        return NULL;
    }
    tiny_model_temp(&t, path);
    o.path = path;
    int r = driver_open(d, &o, &err);
    cr_assert(r == 0, "%s", err.message);
    unlink(path);
    return d;
}

static const int32_t prompt[40] = {7, 3, 11, 200, 5, 18, 4, 299, 0, 64, 23, 9};
static const struct engine_param hot = {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 9};

/* Counts are read every 64 steps. */
Test(engine, picks_of_experts_are_counted) {
    struct tiny_model t = {.arch = "qwen3moe", .n_embd = 64, .n_ff = 64};
    char path[64], counts[] = "/tmp/weft-counts-XXXXXX";
    struct driver_opts o = {.backend = "cpu", .path = path, .experts_fd = mkstemp(counts)};
    struct driver d;
    struct err err;

    tiny_model_temp(&t, path);
    cr_assert_eq(driver_open(&d, &o, &err), 0, "%s", err.message);
    unlink(path);
    unlink(counts);
    struct driver_seq *s = driver_add(&d, prompt, 40, 64, &hot);
    driver_prefill(&d, s, 0);
    driver_decode(&d, &s, 1, 63, false);
    cr_expect_eq(d.info->n_picks, (40 + 63) * 2 * 3); /* in each of 2 layers 3 of 7 experts */
    cr_expect_eq(d.info->n_host_picks, 0);
    driver_drop(&d, s);
    driver_close(&d);
    close(o.experts_fd);
}

Test(engine, steps_do_not_allocate) {
    for (size_t i = 0; i < ARRAY_SIZE(backends); i++) {
        struct engine_param all = {.temperature = 0.9f,
                                   .top_p = 0.9f,
                                   .top_k = 50,
                                   .min_p = 0.01f,
                                   .repetition = 1.1f,
                                   .presence = 0.1f,
                                   .frequency = 0.1f};
        struct driver *d = open_driver(backends[i], &(struct driver){0});

        if (!d)
            continue;
        struct driver_seq *s[2] = {driver_add(d, prompt, 40, 50, NULL),
                                   driver_add(d, prompt, 33, 50, &all)};
        cr_expect(n_allocations > 0, "allocations are counted");
        s[1]->n_top = 20;
        unsigned long before = n_allocations;
        driver_prefill(d, s[0], 0);
        driver_prefill(d, s[1], 7);
        for (int n = 0; n < 20; n++)
            driver_step(d, (struct driver_part[]){{s[0], 1}, {s[1], 1}}, 2);
        cr_expect_eq(n_allocations - before, 0, "%s", backends[i]);
        driver_drop(d, s[0]);
        driver_drop(d, s[1]);
        driver_close(d);
    }
}

/* A step that takes longer than hang-timeout-ms is no hang: each op of its two layers counts as
 * progress. */
Test(engine, each_op_of_a_step_counts_as_progress) {
    for (size_t i = 0; i < ARRAY_SIZE(backends); i++) {
        struct driver *d = open_driver(backends[i], &(struct driver){0});

        if (!d)
            continue;
        struct driver_seq *s = driver_add(d, prompt, 40, 8, NULL);
        for (int n = 0; n < 3; n++) {
            uint64_t before = n_ops;

            driver_step(d, (struct driver_part[]){{s, 8}}, 1);
            cr_expect_geq(n_ops - before, 2 * 4, "%s", backends[i]);
        }
        driver_drop(d, s);
        driver_close(d);
    }
}

Test(engine, masks_forbid) {
    for (size_t i = 0; i < ARRAY_SIZE(backends); i++) {
        struct driver *d = open_driver(backends[i], &(struct driver){0});
        uint32_t mask[(300 + 31) / 32] = {0};

        if (!d)
            continue;
        mask[1] = 0x00F00000; /* tokens 52 to 55 */
        for (int overlap = 0; overlap < 2; overlap++) {
            struct driver_seq *s[2] = {driver_add(d, prompt, 20, 20, &hot),
                                       driver_add(d, prompt, 20, 20, &hot)};
            uint32_t n_outside = 0;

            s[0]->mask = mask;
            driver_prefill(d, s[0], 0);
            driver_prefill(d, s[1], 0);
            driver_decode(d, s, 2, 20, overlap);
            for (uint32_t k = 0; k < s[0]->n_out; k++)
                cr_expect(s[0]->out[k].token >= 52 && s[0]->out[k].token <= 55);
            for (uint32_t k = 0; k < s[1]->n_out; k++)
                n_outside += s[1]->out[k].token < 52 || s[1]->out[k].token > 55;
            cr_expect(n_outside > 10 && s[0]->n_out == 21);
            driver_drop(d, s[0]);
            driver_drop(d, s[1]);
        }
        driver_close(d);
    }
}

/* Moves the pages of @s to others by a step with copies only; @by_host: by way of host pages from
 * @host on. */
static void move_pages(struct driver *d, struct driver_seq *s, bool after, bool by_host,
                       uint32_t host) {
    struct engine_copy copy[16];
    struct engine_batch b = {.step = d->step + 1};
    struct engine_result r;
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_pages; i++) {
        uint32_t to = d->free_page[--d->n_free];

        struct engine_copy c = {.src = s->page[i], .dst = to, .n_tokens = 16, .cls = KV_GLOBAL};
        struct engine_copy out = c, in = c;

        out.dst = in.src = host + i;
        out.dir = COPY_D2H;
        in.dir = COPY_H2D;
        if (by_host)
            copy[n++] = out;
        copy[n++] = by_host ? in : c;
        s->page[i] = to;
    }
    if (after)
        b.after = copy, b.n_after = n;
    else
        b.before = copy, b.n_before = n;
    cr_assert(engine_launch(d->engine, &b) == 0 && engine_seal(d->engine, b.step) == 0 &&
              engine_wait(d->engine, b.step, &r) == 0);
    cr_expect(r.n_outs == 0);
    d->waited = d->step = b.step;
}

Test(engine, copied_pages_hold_the_same) {
    for (size_t i = 0; i < ARRAY_SIZE(backends); i++) {
        struct driver *d = open_driver(backends[i], &(struct driver){0});

        if (!d)
            continue;
        struct driver_seq *s[2] = {driver_add(d, prompt, 40, 20, &hot),
                                   driver_add(d, prompt, 40, 20, &hot)};
        for (int k = 0; k < 2; k++)
            driver_prefill(d, s[k], 0);
        for (int k = 0; k < 20; k++) {
            driver_decode(d, s, 2, 1, false);
            if (k % 5 == 2)
                move_pages(d, s[1], k % 2, k % 10 > 5, (uint32_t)k % 3);
        }
        for (uint32_t k = 0; k < 21; k++)
            cr_expect_eq(s[0]->out[k].digest, s[1]->out[k].digest, "%s", backends[i]);
        driver_drop(d, s[0]);
        driver_drop(d, s[1]);
        driver_close(d);
    }
}

/* PROMPT_LP of a prompt must equal what SAMPLE returned when the same tokens were sampled. */
Test(engine, prompt_logprobs_are_those_of_samples) {
    for (size_t i = 0; i < ARRAY_SIZE(backends); i++) {
        struct driver *d = open_driver(backends[i], &(struct driver){0});

        if (!d)
            continue;
        struct driver_seq *s = driver_add(d, prompt, 12, 18, &hot);
        driver_prefill(d, s, 0);
        driver_decode(d, &s, 1, 18, false);

        int32_t tokens[30];
        uint32_t start[2] = {0, s->n_pages};
        struct engine_want want[29];
        struct engine_seq seq = {.n_rows = 30, .n_prompt = 30, .feed = -1};
        struct engine_param param = {
            .top_p = 1, .repetition = 1, .tokens = tokens, .n_prompt = 30, .n_tokens = 30};
        struct engine_result r;

        memcpy(tokens, s->token, sizeof(tokens));
        for (uint32_t k = 0; k < 29; k++)
            want[k] = (struct engine_want){
                .row = k, .what = WANT_PROMPT_LP, .logprob = true, .n_top = k % 3 ? 0 : 2};
        struct engine_batch b = {
            .step = d->step + 1,
            .n_rows = 30,
            .n_seqs = 1,
            .n_wants = 29,
            .n_params = 1,
            .token = tokens,
            .seq = &seq,
            .table[KV_GLOBAL] = {start, s->page},
            .want = want,
            .param = &param,
        };
        cr_assert(engine_launch(d->engine, &b) == 0 && engine_seal(d->engine, b.step) == 0 &&
                  engine_wait(d->engine, b.step, &r) == 0);
        for (uint32_t k = 11; k < 29; k++) {
            cr_expect_eq(r.out[k].token, s->token[k + 1]);
            cr_expect(r.out[k].logprob == s->out[k - 11].logprob);
            cr_expect_eq(r.out[k].digest, s->out[k - 11].digest);
        }
        cr_expect(r.out[3].n_top == 2 && r.out[3].top[0].logprob >= r.out[3].top[1].logprob);
        driver_drop(d, s);
        driver_close(d);
    }
}

/* -- mistakes of the caller -------------------------------------------------------------------- */

enum mistake {
    TOKEN_TOO_LARGE,
    PAGE_TOO_LARGE,
    LATER_PAGE_TOO_LARGE,
    PAGES_TOO_FEW,
    TOO_LONG,
    WRONG_STEP,
    ROW_WITHOUT_SEQ,
    FEED_OF_NOTHING,
    COPY_BEFORE_OF_NO_PAGE,
    COPY_AFTER_TO_NO_PAGE,
    NOT_SEALED
};

static void make_mistake(enum mistake m) {
    struct driver *d = open_driver("reference", &(struct driver){0});
    int32_t token = m == TOKEN_TOO_LARGE ? 300 : 7;
    bool later = m == LATER_PAGE_TOO_LARGE;
    uint32_t start[2] = {0, m == PAGES_TOO_FEW ? 0 : 1 + later};
    uint32_t page[2] = {m == PAGE_TOO_LARGE ? 64 : 3, 64};
    struct engine_seq seq = {.n_rows = 1,
                             .pos0 = m == TOO_LONG ? 512
                                     : later       ? 16
                                                   : 0,
                             .feed = m == FEED_OF_NOTHING ? 0 : -1};
    struct engine_batch b = {
        .step = m == WRONG_STEP ? 2 : 1,
        .n_rows = m == ROW_WITHOUT_SEQ ? 2 : 1,
        .n_seqs = 1,
        .token = &token,
        .seq = &seq,
        .table[KV_GLOBAL] = {start, page},
    };
    const struct engine_copy before = {.dir = COPY_D2D, .src = 64},
                             after = {.dir = COPY_D2D, .dst = 64};
    struct engine_result r;

    if (m == COPY_BEFORE_OF_NO_PAGE)
        b.before = &before, b.n_before = 1;
    if (m == COPY_AFTER_TO_NO_PAGE)
        b.after = &after, b.n_after = 1;
    engine_launch(d->engine, &b);
    if (m != NOT_SEALED)
        engine_seal(d->engine, 1);
    engine_wait(d->engine, 1, &r);
}

#define ABORTS(mistake)                                                                            \
    Test(engine_aborts, mistake, .signal = SIGABRT) {                                              \
        make_mistake(mistake);                                                                     \
    }

ABORTS(TOKEN_TOO_LARGE)
ABORTS(PAGE_TOO_LARGE)
ABORTS(LATER_PAGE_TOO_LARGE)
ABORTS(PAGES_TOO_FEW)
ABORTS(TOO_LONG)
ABORTS(WRONG_STEP)
ABORTS(ROW_WITHOUT_SEQ)
ABORTS(FEED_OF_NOTHING)
ABORTS(COPY_BEFORE_OF_NO_PAGE)
ABORTS(COPY_AFTER_TO_NO_PAGE)
ABORTS(NOT_SEALED)
