/*
 * Tests promise 1 for the engine: the results of a sequence depend only on its tokens and
 * parameters. A subject runs alone, with its prompt in one piece; then in company, in other pieces,
 * with other pages, threads and instruction sets, overlapped, and resumed from its tokens. Every
 * position must give the same digest of logits, the same token and the same log probability.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/backend.h"
#include "tests/support/engine_driver.h"
#include "tests/support/few.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

enum { OUTPUTS = 14, LONGEST = 1200, NEIGHBOURS = 15 };

/* Results at each position of the subject. */
struct trace {
    struct driver_out at[LONGEST];
    bool seen[LONGEST];
};

struct way { /* A way to run the subject. */
    const char *name;
    uint32_t chunk, page_tokens, n_threads, n_neighbours;
    bool overlap;
    /* outputs after which it is dropped and computed again from its tokens; 0: never */
    uint32_t resume_after;
    /* NULL: from the model's row */
    const char *isa;
};

struct watch {
    struct driver_seq *subject;
    struct trace *trace;
};

static void look(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct watch *w = ctx;

    if (s != w->subject)
        return;
    /* Samples inside the prompt serve only for their digests. */
    bool is_output = pos + 1 >= s->n_prompt;
    struct driver_out o = {is_output ? out->token : 0, is_output ? out->logprob : 0, out->digest};
    cr_assert(out->digest != 0);
    if (w->trace->seen[pos]) { /* computed again after a resumption */
        cr_expect(w->trace->at[pos].digest == o.digest, "position %u computed again", pos);
        return;
    }
    w->trace->seen[pos] = true;
    w->trace->at[pos] = o;
}

static struct driver_seq *add_random(struct driver *d, struct rng *rng, uint32_t n, uint32_t n_max,
                                     const struct engine_param *param) {
    int32_t prompt[LONGEST];

    for (uint32_t i = 0; i < n; i++)
        prompt[i] = (int32_t)rng_below(rng, d->info->n_vocab);
    return driver_add(d, prompt, n, n_max, param);
}

/* Rows of @s in the next step: known tokens up to @chunk, or the one that is being sampled. */
static uint32_t rows_of(const struct driver_seq *s, uint32_t chunk, bool overlap) {
    if (s->launched >= s->cap)
        return 0;
    if (s->launched < s->n_tokens)
        return MIN(chunk, s->n_tokens - s->launched);
    return overlap ? 1 : 0;
}

/* Some rows of every neighbour; neighbours that have ended are replaced. */
static uint32_t add_neighbours(struct driver *d, struct driver_seq **list, uint32_t n,
                               struct rng *rng, bool overlap, struct driver_part *part) {
    uint32_t n_parts = 0;

    for (uint32_t i = 0; i < n; i++) {
        static const struct engine_param hot = {.temperature = 1.3f, .top_p = 1, .repetition = 1};

        if (list[i] && list[i]->launched >= list[i]->cap && list[i]->n_computed >= list[i]->cap)
            list[i] = driver_drop(d, list[i]);
        if (!list[i])
            list[i] = add_random(d, rng, 1 + rng_below(rng, 60), rng_below(rng, 9), &hot);
        uint32_t rows = list[i] ? rows_of(list[i], 1 + rng_below(rng, 12), overlap) : 0;
        if (rows)
            part[n_parts++] = (struct driver_part){list[i], rows};
    }
    return n_parts;
}

/* Resumes the subject from its tokens. */
static struct driver_seq *resume(struct driver *d, struct driver_seq *s) {
    uint32_t n_prompt = s->n_prompt, n = s->n_tokens, cap = s->cap;
    int32_t tokens[LONGEST];

    memcpy(tokens, s->token, n * sizeof(*tokens));
    struct engine_param param = s->param;
    driver_drop(d, s);
    s = driver_add(d, tokens, n, cap - n, &param);
    cr_assert(s != NULL);
    s->n_prompt = n_prompt;
    s->every_row = true;
    return s;
}

static void run_subject(struct driver *d, struct watch *watch, const struct way *way,
                        struct rng *rng) {
    struct driver_seq *neighbour[NEIGHBOURS] = {0}, *s = watch->subject;
    bool resumed = way->resume_after == 0;
    uint32_t in_flight = 0;

    while (s->n_computed < s->cap) {
        struct driver_part part[NEIGHBOURS + 1];
        uint32_t n = add_neighbours(d, neighbour, way->n_neighbours, rng, way->overlap, part);
        uint32_t rows = rows_of(s, way->chunk, way->overlap), at = rng_below(rng, n + 1);

        if (rows) { /* at some place among the others */
            memmove(&part[at + 1], &part[at], (n - at) * sizeof(*part));
            part[at] = (struct driver_part){s, rows};
            n++;
        }
        driver_launch(d, part, n);
        if (++in_flight > (way->overlap ? 1u : 0u)) {
            driver_wait(d);
            in_flight--;
        }
        if (!resumed && s->n_tokens - s->n_prompt >= way->resume_after && in_flight == 0) {
            s = watch->subject = resume(d, s);
            resumed = true;
        }
    }
    while (in_flight-- > 0)
        driver_wait(d);
    for (uint32_t i = 0; i < NEIGHBOURS; i++)
        driver_drop(d, neighbour[i]);
}

#define F16_BOTH                                                                                   \
    { ENGINE_KV_F16, ENGINE_KV_F16 }

struct model_row {
    const char *arch, *backend, *isa;
    enum tensor_type type;
    struct kv_formats kv_type;
    bool tied;
    /* of the subject */
    uint32_t n_prompt;
};

static void trace_way(const struct model_row *m, const char *path, const struct way *way,
                      const struct engine_param *param, uint64_t seed, struct trace *out) {
    struct rng rng = {seed}, company = {seed ^ way->chunk << 8 ^ way->page_tokens};
    struct watch watch = {.trace = out};
    struct driver_opts o = {
        .path = path,
        .backend = m->backend,
        .isa = way->isa ? way->isa : m->isa,
        .n_threads = way->n_threads,
        .page_tokens = way->page_tokens,
        .n_pages = 4096 / way->page_tokens,
        .max_rows = 256,
        .kv_type = m->kv_type,
        .shuffle = way->page_tokens + way->chunk,
        .on_out = look,
        .ctx = &watch,
    };
    struct driver d;
    struct err err;

    *out = (struct trace){0};
    int r = driver_open(&d, &o, &err);
    cr_assert(r == 0, "%s %s: %s", m->backend, way->name, err.message);
    watch.subject = add_random(&d, &rng, m->n_prompt, OUTPUTS, param);
    watch.subject->every_row = true;
    run_subject(&d, &watch, way, &company);
    driver_drop(&d, watch.subject);
    driver_close(&d);
}

static void compare(const struct model_row *m, const struct way *way, const char *sampling,
                    const struct trace *a, const struct trace *b) {
    for (uint32_t p = 0; p < m->n_prompt + OUTPUTS; p++)
        if (!b->seen[p] || memcmp(&a->at[p].digest, &b->at[p].digest, sizeof(uint64_t)) != 0 ||
            a->at[p].token != b->at[p].token ||
            memcmp(&a->at[p].logprob, &b->at[p].logprob, sizeof(float)) != 0) {
            cr_expect(false, "%s %s %s kv%d %d, %s, %s: position %u differs (token %d, %d)",
                      m->backend, m->arch, tensor_format((uint32_t)m->type)->name,
                      (int)m->kv_type.k, (int)m->kv_type.v, way->name, sampling, p, a->at[p].token,
                      b->at[p].token);
            return;
        }
}

static const struct way alone = {"alone", 256, 16, 1, 0, false, 0, NULL};
/* Every page size, one and several threads, rows alone and in company, overlapped, resumed. Models
 * of F32 and Q4_K run in all ways. Other formats differ only by kernels (cpu_matmul tests each with
 * every instruction set) and run in the first N_FORMAT_WAYS; golden files in N_GOLDEN_WAYS. */
static const struct way ways[] = {
    {"overlapped in a batch of 16", 13, 32, 3, NEIGHBOURS, true, 0, NULL},
    {"one row at a time", 1, 16, 1, 0, false, 0, NULL},
    {"resumed", 40, 16, 1, 3, false, 6, NULL},
    {"chunks of 33, pages of 64", 33, 64, 2, 0, false, 0, NULL},
    {"in a batch of 16", 64, 16, 1, NEIGHBOURS, false, 0, NULL},
};
static const struct way long_ways[] = {
    {"long, in a batch of 16", 47, 16, 3, NEIGHBOURS, true, 0, NULL},
    {"long, chunks of 1", 1, 64, 3, 0, false, 0, NULL},
    {"long, resumed", 200, 32, 1, 2, false, 6, NULL},
};
static const struct way isas[] = {
    {"generic", 21, 32, 2, 1, false, 0, "generic"}, /* slow: it calls fmaf() for each product */
    {"avx2", 21, 32, 2, NEIGHBOURS, false, 0, "avx2"},
    {"avx512", 21, 32, 2, NEIGHBOURS, false, 0, "avx512"},
    {"avx512bf16", 21, 32, 2, NEIGHBOURS, false, 0, "avx512bf16"},
    {"amx", 40, 32, 2, NEIGHBOURS, false, 0, "amx"},
    {"neon", 21, 32, 2, NEIGHBOURS, false, 0, "neon"},
    {"dotprod", 21, 32, 2, NEIGHBOURS, false, 0, "dotprod"},
    {"i8mm", 40, 32, 2, NEIGHBOURS, false, 0, "i8mm"},
};
/* Under a sanitizer, which looks for memory faults, each kind of step runs once. */
#ifdef __SANITIZE_ADDRESS__
enum { N_WAYS = 3, N_FORMAT_WAYS = 0, N_GOLDEN_WAYS = 1, N_LONG_WAYS = 1, N_GOLDEN_ISAS = 0 };
#else
enum {
    N_WAYS = ARRAY_SIZE(ways),
    N_FORMAT_WAYS = FEWER(2, 1),
    N_GOLDEN_WAYS = FEWER(3, 1),
    N_LONG_WAYS = ARRAY_SIZE(long_ways),
    N_GOLDEN_ISAS = FEWER(1, 0)
};
#endif

static bool goes_all_ways(enum tensor_type type) {
    return type == TENSOR_F32 || type == TENSOR_Q4_K;
}

static const struct engine_bias bias[] = {{5, 2.5f}, {17, -4.0f}};
static const int32_t bans[] = {3, 250};
static const struct {
    const char *name;
    struct engine_param param;
} samplings[] = {
    {"greedy", {.top_p = 1, .repetition = 1}},
    {"temperature 1", {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 77}},
    {"penalties",
     {.temperature = 0.8f,
      .top_p = 0.9f,
      .top_k = 40,
      .min_p = 0.01f,
      .repetition = 1.2f,
      .presence = 0.4f,
      .frequency = 0.3f,
      .seed = 5,
      .choice = 1,
      .n_bias = ARRAY_SIZE(bias),
      .bias = bias,
      .n_bans = ARRAY_SIZE(bans),
      .bans = bans}},
};

/* Skips the test, by name, if the backend is not available. */
static void need(const char *backend) {
    struct err err;

    if (!backend_find(backend, NULL, &err))
        cr_skip_test("%s", err.message);
}

static bool can_run(const char *backend, const char *isa, const char *path) {
    struct driver_opts o = {.path = path, .backend = backend, .isa = isa, .n_pages = 64};
    struct driver d;
    struct err err;

    if (driver_open(&d, &o, &err) < 0) {
        printf("# %s %s: %s\n", backend, isa, err.message);
        return false;
    }
    driver_close(&d);
    return true;
}

/* Runs the subject in the @n ways of @list and with the first @n_isas instruction sets. */
static void check_ways(const struct model_row *m, const char *path, const struct way *list,
                       size_t n, size_t n_isas, size_t sampling) {
    static struct trace expect, got;
    const struct engine_param *param = &samplings[sampling].param;
    const char *name = samplings[sampling].name;
    uint32_t n_different = 0;

    trace_way(m, path, &alone, param, 11 + sampling, &expect);
    for (uint32_t p = m->n_prompt; p < m->n_prompt + OUTPUTS; p++)
        n_different += expect.at[p].token != expect.at[p - 1].token;
    /* Greedy text may repeat itself. */
    cr_expect(n_different > 2 || param->temperature == 0, "%s, %s: too plain for a test", path,
              name);
    for (size_t w = 0; w < n + n_isas; w++) {
        const struct way *way = w < n ? &list[w] : &isas[w - n];

        if (way->isa && !can_run(m->backend, way->isa, path))
            continue;
        trace_way(m, path, way, param, 11 + sampling, &got);
        compare(m, way, name, &expect, &got);
    }
}

static void check_model(const struct model_row *m) {
    struct tiny_model tiny = {
        .arch = m->arch, .type = m->type, .tied = m->tied, .seed = 1 + (uint64_t)m->type};
    char path[64];

    tiny_model_temp(&tiny, path);
    /* Samples depend only on logits, whatever format these come from: one sampling for each
     * format. */
    bool all = goes_all_ways(m->type), has_isas = strcmp(m->backend, "cpu") == 0 && all;
    check_ways(m, path, ways, all ? N_WAYS : N_FORMAT_WAYS, has_isas ? ARRAY_SIZE(isas) : 0,
               m->type % ARRAY_SIZE(samplings));
    unlink(path);
}

/* A context of several attention chunks, for a narrow model of one layer, to save time. */
static void check_long(const struct model_row *m) {
    struct tiny_model tiny = {.arch = m->arch,
                              .type = m->type,
                              .n_layer = 1,
                              .n_embd = 64,
                              .n_ff = 64,
                              .n_vocab = 70,
                              .head_dim = 32,
                              .max_context = LONGEST};
    char path[64];

    tiny_model_temp(&tiny, path);
    check_ways(m, path, long_ways, N_LONG_WAYS, 0, 1);
    unlink(path);
}

/* Slow under a sanitizer: the golden values and other formats cover the rest. */
#define FIRST_REFERENCE FEWER(0, 2)
#define N_EXPERT_TYPES FEWER(ARRAY_SIZE(t), 1)
#define N_DELTA_TYPES FEWER(ARRAY_SIZE(t), 1)

Test(identity, reference) {
    static const struct model_row rows[] = {
        {"llama", "reference", "auto", TENSOR_F32, F16_BOTH, false, 77},
        {"qwen2", "reference", "auto", TENSOR_Q4_K, {ENGINE_KV_Q8_0, ENGINE_KV_Q8_0}, false, 77},
        {"qwen3", "reference", "auto", TENSOR_Q8_0, F16_BOTH, true, 77},
        {"qwen3moe", "reference", "auto", TENSOR_Q8_0, F16_BOTH, false, 77},
    };

    for (size_t i = FIRST_REFERENCE; i < ARRAY_SIZE(rows); i++)
        check_model(&rows[i]);
}

Test(identity, reference_in_long_contexts) {
    static const struct model_row row = {"llama",  "reference", "auto", TENSOR_F32,
                                         F16_BOTH, false,       1050};

    check_long(&row);
}

static void check_cpu(const enum tensor_type *types, size_t n) {
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    /* Each format of keys, and each format of values. */
    static const struct kv_formats kv[] = {
        F16_BOTH, {ENGINE_KV_Q8_0, ENGINE_KV_Q4_0}, {ENGINE_KV_Q4_0, ENGINE_KV_Q8_0}};

    need("cpu");
    for (size_t i = 0; i < n; i++) {
        struct model_row row = {archs[i % 3],        "cpu",      "auto", types[i],
                                kv[(i + i / 3) % 3], i % 4 == 3, 77};

        check_model(&row);
    }
}

Test(identity, cpu_plain_formats) {
    static const enum tensor_type t[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};

    check_cpu(t, ARRAY_SIZE(t));
}

Test(identity, cpu_blocks_of_32) {
    static const enum tensor_type t[] = {TENSOR_Q4_0, TENSOR_Q4_1,   TENSOR_Q5_0,  TENSOR_Q5_1,
                                         TENSOR_Q8_0, TENSOR_IQ4_NL, TENSOR_MXFP4, TENSOR_NVFP4};

    check_cpu(t, ARRAY_SIZE(t));
}

Test(identity, cpu_blocks_of_256) {
    static const enum tensor_type t[] = {
        TENSOR_Q2_K,    TENSOR_Q3_K,    TENSOR_Q4_K,  TENSOR_Q5_K,  TENSOR_Q6_K,
        TENSOR_IQ2_XXS, TENSOR_IQ4_XS,  TENSOR_IQ1_S, TENSOR_IQ1_M, TENSOR_IQ2_XS,
        TENSOR_IQ2_S,   TENSOR_IQ3_XXS, TENSOR_IQ3_S, TENSOR_TQ1_0, TENSOR_TQ2_0};

    check_cpu(t, ARRAY_SIZE(t));
}

/* Rows share groups of pairs with other rows of the same expert. */
Test(identity, cpu_experts) {
    static const enum tensor_type t[] = {TENSOR_Q4_K, TENSOR_F32, TENSOR_Q8_0};

    need("cpu");
    for (size_t i = 0; i < N_EXPERT_TYPES; i++) {
        struct model_row row = {"qwen3moe", "cpu", "auto", t[i], F16_BOTH, false, 77};

        check_model(&row);
    }
}

/* State is carried from step to step, in slots that other sequences had before. */
Test(identity, reference_delta_nets) {
    static const struct model_row row = {"qwen35", "reference", "auto", TENSOR_F32,
                                         F16_BOTH, false,       77};
    struct tiny_model tiny = {.arch = row.arch, .type = row.type, .seed = 7};
    char path[64];

    tiny_model_temp(&tiny, path);
    check_ways(&row, path, ways, N_WAYS, 0, 1);
    unlink(path);
}

Test(identity, cpu_delta_nets) {
    static const struct {
        const char *arch;
        enum tensor_type type;
    } t[] = {{"qwen35", TENSOR_Q4_K}, {"qwen3next", TENSOR_F32}, {"qwen35moe", TENSOR_Q8_0}};

    need("cpu");
    for (size_t i = 0; i < N_DELTA_TYPES; i++) {
        struct model_row row = {t[i].arch, "cpu", "auto", t[i].type, F16_BOTH, false, 77};

        check_model(&row);
    }
}

/* Chunks of attention, queries with a temperature, experts whose inputs are weighed. */
Test(identity, cpu_chunks) {
    const struct model_row row = {"llama4", "cpu", "auto", TENSOR_Q8_0, F16_BOTH, false, 77};

    need("cpu");
    check_model(&row);
}

/* Residual streams, sparse gates, layers that read the keys of others. */
Test(identity, cpu_streams) {
    static const enum tensor_type t[] = {TENSOR_F32, TENSOR_Q4_K};

    need("cpu");
    for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
        struct model_row row = {"gemma3n", "cpu", "auto", t[i], F16_BOTH, false, 77};

        check_model(&row);
    }
}

/* Models of golden/ in the test data: windows of 8 to 32 keys, sinks, capped scores, layers with
 * different heads, layers that share keys, experts beside a dense FFN. */
static const char *const windowed[] = {"gpt-oss-f32", "gpt-oss.mxfp4", "gemma2",    "gemma3",
                                       "gemma4",      "gemma4-moe",    "gemma4-ple"};

static void check_golden(const char *backend, const char *name, uint32_t n_prompt,
                         const struct way *list, size_t n) {
    struct model_row row = {name,  backend, "auto", TENSOR_F32, {ENGINE_KV_F16, ENGINE_KV_F16},
                            false, n_prompt};
    char path[TEST_DATA_PATH];

    test_data_file(path, "golden", name, ".gguf");
    check_ways(&row, path, list, n, strcmp(backend, "cpu") == 0 ? N_GOLDEN_ISAS : 0, 1);
}

Test(identity, cpu_windows) {
    need("cpu");
    for (size_t i = 0; i < ARRAY_SIZE(windowed); i++)
        check_golden("cpu", windowed[i], 77, ways, N_GOLDEN_WAYS);
}

Test(identity, cpu_windows_in_long_contexts) {
    need("cpu");
    check_golden("cpu", "gpt-oss.mxfp4", 900, long_ways, N_LONG_WAYS);
    check_golden("cpu", "gemma4-ple", 900, long_ways, 1);
}

/* A row may attend to no key of a chunk. */
Test(identity, cpu_blocks_in_long_contexts) {
    need("cpu");
    check_golden("cpu", "qwen4exp", 900, long_ways, 1);
    check_golden("cpu", "deepseek4", 900, long_ways, 1);
    check_golden("cpu", "glm5-next", 900, long_ways, 1);
    check_golden("cpu", "minimax-m3", 900, long_ways, 1);
}

Test(identity, reference_windows) {
    check_golden("reference", "gpt-oss-f32", 77, ways, N_GOLDEN_WAYS);
    check_golden("reference", "gemma4-moe", 77, ways, N_GOLDEN_WAYS);
}

/* Other features of the table of architectures. */
static const char *const others[] = {"granite",
                                     "phi3",
                                     "mistral3",
                                     "olmo2",
                                     "lfm2",
                                     "lfm2moe",
                                     "glm4moe-mtp",
                                     "nemotron-h-moe-mtp",
                                     "deepseek2-mtp",
                                     "deepseek2-lite",
                                     "laguna",
                                     "minimax-m2",
                                     "muse-glimmer",
                                     "step35",
                                     "bailingmoe3",
                                     "qwen4exp",
                                     "qwen4exp-r2",
                                     "deepseek4",
                                     "smollm3",
                                     "glm4",
                                     "exaone4-window",
                                     "arcee",
                                     "afmoe",
                                     "bailingmoe2",
                                     "granitemoe",
                                     "granitehybrid",
                                     "qwen2moe",
                                     "deepseek2-v3",
                                     "cohere2moe",
                                     "hunyuan-moe",
                                     "command-r",
                                     "stablelm",
                                     "apertus",
                                     "falcon-h1",
                                     "kimi-linear",
                                     "mistral4",
                                     "nanbeige",
                                     "olmo",
                                     "llama4",
                                     "gemma3n",
                                     "jamba",
                                     "phimoe",
                                     "plamo2",
                                     "plamo3",
                                     "glm5-next",
                                     "mimo2-mtp",
                                     "nemotron-h-puzzle",
                                     "minimax-m3"};

Test(identity, cpu_architectures) {
    need("cpu");
    for (size_t i = 0; i < ARRAY_SIZE(others); i += FEWER(1, 3))
        check_golden("cpu", others[i], 77, ways, N_GOLDEN_WAYS);
}

/* Plain loops, which test_golden.c covers, too. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(WEFT_FEW_CASES)
Test(identity, reference_architectures) {
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        check_golden("reference", others[i], 77, ways, N_GOLDEN_WAYS);
}
#endif

Test(identity, cpu_in_long_contexts) {
    need("cpu");
    for (int i = 0; i < 3; i++) {
        struct model_row row = {"llama", "cpu", "auto", TENSOR_Q8_0, {ENGINE_KV_F16, ENGINE_KV_F16},
                                false,   1050};

        row.kv_type = kv_both((enum engine_kv_type)(ENGINE_KV_F16 + i));
        check_long(&row);
    }
}
