/*
 * models - whole models on the device: small random ones against the reference backend and by bits against
 * themselves in other batches; then how long the steps of a large one take.
 *
 * usage: models [--tiny] [MODEL.gguf]
 * weft-cuda.so stands beside the program.
 */

#include <math.h>
#include <string.h>
#include <unistd.h>
#include "base/rng.h"
#include "engine/backend.h"
#include "tests/gpu/report.h"
#include "tests/support/engine_driver.h"
#include "tests/support/tiny_model.h"

enum { PROMPT = 300, OUTPUTS = 10, LONGEST = PROMPT + OUTPUTS };

struct watch { /* what came out of the subject's rows */
    const struct driver_seq *subject;
    float *logits; /* [LONGEST][n_vocab], or NULL */
    struct driver_out at[LONGEST];
    uint32_t n_vocab;
};

static void look(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct watch *w = ctx;

    if (s != w->subject)
        return;
    w->at[pos] = (struct driver_out){out->token, out->logprob, out->digest};
    if (w->logits && logits)
        memcpy(w->logits + (size_t)pos * w->n_vocab, logits, w->n_vocab * sizeof(float));
}

static void random_tokens(int32_t *t, uint32_t n, uint32_t n_vocab, uint64_t seed) {
    struct rng r = {seed};

    for (uint32_t i = 0; i < n; i++)
        t[i] = (int32_t)rng_below(&r, n_vocab);
}

static void open_or_exit(struct driver *d, const struct driver_opts *o) {
    struct err err = {0};

    if (driver_open(d, o, &err) == 0)
        return;
    printf("FAILED to open %s with %s: %s\n", o->path, o->backend, err.message);
    exit(1);
}

struct way {
    const char *backend;
    uint32_t chunk, n_prompt, n_neighbours;
    enum engine_kv_type kv;
    bool overlap, sampled, forced;
};

/* The subject through a prompt and some tokens more, with neighbours at its side when it decodes. */
static void run(const char *path, const struct way *way, struct watch *w) {
    static const struct engine_param hot = {
        .temperature = 0.9f, .top_p = 0.95f, .repetition = 1.1f, .seed = 3};
    struct driver_opts o = {.backend = way->backend,
                            .path = path,
                            .n_pages = 256,
                            .max_rows = 320,
                            .max_wants = 128,
                            .max_seqs = 32,
                            .kv_type = way->kv,
                            .on_out = look,
                            .ctx = w,
                            .shuffle = way->chunk};
    struct driver_seq *all[32];
    int32_t prompt[PROMPT], forced[OUTPUTS];
    struct driver d;

    open_or_exit(&d, &o);
    w->n_vocab = d.info->n_vocab;
    random_tokens(prompt, PROMPT, w->n_vocab, 1);
    random_tokens(forced, OUTPUTS, w->n_vocab, 2);
    all[0] = driver_add(&d, prompt, way->n_prompt, OUTPUTS, way->sampled ? &hot : NULL);
    w->subject = all[0];
    all[0]->forced = way->forced ? forced : NULL;
    for (uint32_t i = 1; i <= way->n_neighbours; i++) {
        random_tokens(prompt, PROMPT, w->n_vocab, 50 + i);
        all[i] = driver_add(&d, prompt, 3 * i, OUTPUTS, &hot);
        driver_prefill(&d, all[i], 0);
    }
    driver_prefill(&d, all[0], way->chunk);
    driver_decode(&d, all, way->n_neighbours + 1, OUTPUTS - 1, way->overlap);
    for (uint32_t i = 0; i <= way->n_neighbours; i++)
        driver_drop(&d, all[i]);
    driver_close(&d);
}

/* The largest |a - b| / |b| of the output rows. */
static double distance(const struct watch *a, const struct watch *b, uint32_t n_prompt) {
    double worst = 0;

    for (uint32_t r = n_prompt - 1; r + 1 < n_prompt + OUTPUTS; r++) {
        double d = 0, norm = 0;

        for (uint32_t i = 0; i < a->n_vocab; i++) {
            float x = a->logits[(size_t)r * a->n_vocab + i],
                  y = b->logits[(size_t)r * a->n_vocab + i];

            d += pow((double)x - (double)y, 2);
            norm += pow((double)y, 2);
        }
        d = sqrt(d / norm);
        worst = d >= worst ? d : d == d ? worst : 1e30;
    }
    return worst;
}

static void judge(const struct tiny_model *m, enum engine_kv_type kv, uint32_t n_prompt) {
    struct way way = {.backend = "reference", .n_prompt = n_prompt, .kv = kv, .forced = true};
    struct watch expect = {.logits = calloc((size_t)LONGEST * 300, sizeof(float))};
    struct watch got = {.logits = calloc((size_t)LONGEST * 300, sizeof(float))};
    char path[64], name[100];

    tiny_model_temp(m, path);
    run(path, &way, &expect);
    way.backend = "cuda";
    run(path, &way, &got);
    unlink(path);
    snprintf(name, sizeof(name), "%s %s, kv %s: logits", m->arch,
             tensor_format((uint32_t)m->type)->name, kv == ENGINE_KV_Q8_0 ? "q8_0" : "f16");
    report_check(name, distance(&got, &expect, n_prompt), kv == ENGINE_KV_Q8_0 ? 1e-2 : 4e-3);
    free(expect.logits);
    free(got.logits);
}

static void judge_all(uint32_t n_prompt) {
    static const enum tensor_type types[] = {
        TENSOR_F32,  TENSOR_F16,     TENSOR_BF16,   TENSOR_Q4_0,  TENSOR_Q4_1, TENSOR_Q5_0,
        TENSOR_Q5_1, TENSOR_Q8_0,    TENSOR_Q2_K,   TENSOR_Q3_K,  TENSOR_Q4_K, TENSOR_Q5_K,
        TENSOR_Q6_K, TENSOR_IQ2_XXS, TENSOR_IQ4_NL, TENSOR_IQ4_XS};
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};

    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        judge(&(struct tiny_model){.arch = archs[i % 3], .type = types[i]}, ENGINE_KV_F16,
              n_prompt);
    for (size_t i = 0; i < ARRAY_SIZE(archs); i++)
        judge(
            &(struct tiny_model){
                .arch = archs[i], .type = TENSOR_Q8_0, .head_dim = 128, .n_head = 8, .tied = true},
            ENGINE_KV_Q8_0, n_prompt);
}

static void compare(const struct watch *a, const struct watch *b, const char *name) {
    uint32_t wrong = 0;

    for (uint32_t i = PROMPT - 1; i + 1 < LONGEST; i++)
        wrong += !a->at[i].digest || a->at[i].digest != b->at[i].digest ||
                 a->at[i].token != b->at[i].token || a->at[i].logprob != b->at[i].logprob;
    report_check(name, wrong, 0);
}

static void check_identity(void) {
    static const struct {
        const char *name;
        struct way way;
    } ways[] = {
        {"identity: the same again", {"cuda", 0, PROMPT, 0, ENGINE_KV_F16, false, true, false}},
        {"identity: in chunks of 7", {"cuda", 7, PROMPT, 0, ENGINE_KV_F16, false, true, false}},
        {"identity: with 7 others", {"cuda", 100, PROMPT, 7, ENGINE_KV_F16, false, true, false}},
        {"identity: with 25, overlapped",
         {"cuda", 64, PROMPT, 25, ENGINE_KV_F16, true, true, false}},
    };
    static struct watch first, other;
    struct tiny_model m = {
        .arch = "qwen3", .type = TENSOR_Q4_K, .n_layer = 3, .n_embd = 512, .n_ff = 1024};
    char path[64];

    tiny_model_temp(&m, path);
    run(path, &ways[0].way, &first);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        memset(&other, 0, sizeof(other));
        run(path, &ways[i].way, &other);
        compare(&first, &other, ways[i].name);
    }
    unlink(path);
}

/* -- times ---------------------------------------------------------------------------------------- */

static void time_decoding(const char *path, uint32_t n_seqs, uint32_t context, uint32_t n) {
    struct driver_opts o = {.backend = "cuda",
                            .path = path,
                            .page_tokens = 32,
                            .max_rows = 512,
                            .n_pages = n_seqs * ((context + n + 31) / 32 + 1),
                            .max_wants = 128,
                            .max_seqs = n_seqs};
    struct driver_seq **all = calloc(n_seqs, sizeof(*all));
    int32_t *prompt = calloc(context, sizeof(*prompt));
    struct driver d;
    char name[80];

    open_or_exit(&d, &o);
    double start = report_now(), prefill = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        random_tokens(prompt, context, d.info->n_vocab, i);
        all[i] = driver_add(&d, prompt, context, n, NULL);
        start = report_now();
        driver_prefill(&d, all[i], 512);
        prefill = report_now() - start;
    }
    driver_decode(&d, all, n_seqs, 4, true);
    start = report_now();
    driver_decode(&d, all, n_seqs, n - 5, true);
    double step = (report_now() - start) / (n - 5);
    uint64_t kv = d.info->page_bytes / 32 * context * n_seqs;

    snprintf(name, sizeof(name), "decode, %u sequences of %u tokens", n_seqs, context);
    const char *gb = getenv("GPU_READ_GB_S");
    report_time(name, step, (double)(d.info->weight_bytes + kv), gb ? atof(gb) * 1e9 : 0);
    printf("    %.1f tokens/s; prompt of %u: %.1f ms, %.0f tokens/s\n", n_seqs / step, context,
           prefill * 1e3, context / prefill);
    for (uint32_t i = 0; i < n_seqs; i++)
        driver_drop(&d, all[i]);
    driver_close(&d);
    free(all);
    free(prompt);
}

int main(int argc, char **argv) {
    bool tiny = false;
    const char *path = NULL;

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--tiny") == 0)
            tiny = true;
        else
            path = argv[i];
    if (path) {
        time_decoding(path, 1, 256, 64);
        time_decoding(path, 1, 4096, 64);
        time_decoding(path, 8, 1024, 48);
        time_decoding(path, 32, 1024, 32);
        time_decoding(path, 64, 512, 32);
        return report_end("times");
    }
    judge_all(tiny ? 20 : PROMPT);
    if (!tiny)
        check_identity();
    return report_end("models");
}
