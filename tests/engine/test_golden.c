/*
 * Golden tests: every model of the test data with a supported architecture, against logits and
 * greedy continuations of another implementation. A backend is a row of tolerances
 * (tests/data/README.md); a backend that is not built is skipped by name. Continuations are fed
 * from the golden file, whatever was sampled, so that one near tie does not hide the rest.
 */

#include <criterion/criterion.h>
#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "tests/engine/golden.h"
#include "tests/support/engine_driver.h"
#include "tests/support/few.h"
#include "tests/support/synth/synth.h"
#include "tests/support/test_data.h"

struct judge {
    const char *backend;
    enum engine_kv_type kv_type;
    /* largest difference of logits */
    double max, rms;
    /* another token than the golden one is accepted below this margin */
    double margin;
    /* number of cases of a file that are run, the shortest ones; 0: all */
    uint32_t n_cases;
};

/* Change of the logits by a table of half-precision GELU (tests/data/README.md): below 0.06, and
 * 0.079 for gemma3n, which keeps the largest values of a gate and so changes more where they do. */
#define GELU_TABLE 0.1

/* Computed steps of a continuation. Under a sanitizer a few suffice: the others use the same
 * code. */
#define MAX_STEPS FEWER(GOLDEN_STEPS, 8u)

/* Results of one file. */
struct seen {
    const struct judge *judge;
    const struct golden *golden;
    struct driver_seq *seq[GOLDEN_CASES];
    /* margin: the largest of a token that differs */
    double max, sum, margin;
    /* largest difference from values computed with a table */
    double table;
    uint64_t n;
    /* tokens that differ; those that the margin does not excuse */
    uint32_t n_other, n_wrong;
    /* rows of a mixture that chose other experts */
    uint32_t n_apart;
};

static void compare(struct seen *seen, float mine, float golden) {
    double d = fabs((double)mine - (double)golden);

    seen->max = d <= seen->max ? seen->max : d; /* NaN too */
    seen->sum += d * d;
    seen->n++;
}

/* Values computed with a table have a tolerance of their own. */
static void compare_value(struct seen *seen, const struct golden_case *c, float mine,
                          float golden) {
    double d = fabs((double)mine - (double)golden);

    if (c->from_table)
        seen->table = d <= seen->table ? seen->table : d;
    else
        compare(seen, mine, golden);
}

static void compare_step(struct seen *seen, const struct golden_case *c,
                         const struct golden_step *g, int32_t token, const float *logits) {
    compare_value(seen, c, logits[g->id], g->logit);
    if (token == g->id)
        return;
    seen->n_other++;
    seen->margin = MAX(seen->margin, (double)g->margin);
    if ((double)g->margin >= seen->judge->margin) /* the third may be as close as the second */
        seen->n_wrong++;
}

static void look(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct seen *seen = ctx;
    const struct golden_case *c = NULL;
    struct seen before = *seen;

    for (uint32_t i = 0; i < seen->golden->n_cases; i++)
        if (seen->seq[i] == s)
            c = &seen->golden->cases[i];
    cr_assert(c && logits);
    for (uint32_t i = 0; i < c->n_spots; i++)
        for (uint32_t j = 0; j < c->spot[i].n && c->spot[i].pos == pos; j++)
            compare_value(seen, c, logits[c->spot[i].id[j]], c->spot[i].value[j]);
    for (uint32_t i = 0; i < c->n_last && pos == c->n_prompt - 1; i++)
        compare(seen, logits[i], c->last[i]);
    if (pos + 1 >= c->n_prompt && pos + 1 - c->n_prompt < c->n_greedy)
        compare_step(seen, c, &c->greedy[pos + 1 - c->n_prompt], out->token, logits);
    /* If two experts are nearly equal, or one is at the limit of those whose weights are summed
     * (phimoe), the last bit of a cached value decides, and the row differs. */
    const char *arch = seen->golden->label.arch;
    static const char *const mixtures[] = {"qwen3moe", "qwen35moe",  "gpt-oss", "deepseek2",
                                           "laguna",   "minimax-m2", "step35",  "bailingmoe3",
                                           "qwen4exp", "deepseek4",  "phimoe",  "glm5-next",
                                           "mimo2",    "minimax-m3"};
    bool mixture = false;
    for (size_t i = 0; i < ARRAY_SIZE(mixtures); i++)
        mixture |= strcmp(arch, mixtures[i]) == 0;
    if (mixture && seen->max > seen->judge->max && before.max <= seen->judge->max) {
        *seen = before;
        seen->n_apart++;
    }
}

/* Returns true if the CPU backend rounds activations for weights of @type. */
static bool rounds_acts(const char *type) {
    return strcmp(type, "F32") != 0 && strcmp(type, "F16") != 0;
}

/* Runs all cases of a file, as far as it is judged: prompts in chunks of different sizes, then all
 * continuations in one batch. */
static void run_cases(struct driver *d, struct seen *seen) {
    const struct golden *g = seen->golden;
    int32_t forced[GOLDEN_CASES][GOLDEN_STEPS];
    uint32_t longest = 0, n_cases = seen->judge->n_cases;

    n_cases = n_cases ? MIN(n_cases, g->n_cases) : g->n_cases;
    for (uint32_t i = 0; i < n_cases; i++) {
        const struct golden_case *c = &g->cases[i];

        for (uint32_t j = 0; j < c->n_greedy; j++)
            forced[i][j] = c->greedy[j].id;
        uint32_t n = MIN(c->n_greedy, MAX_STEPS);

        cr_assert(n > 0);
        seen->seq[i] = driver_add(d, c->prompt, c->n_prompt, n - 1, NULL);
        cr_assert(seen->seq[i] != NULL, "pages");
        seen->seq[i]->forced = forced[i];
        seen->seq[i]->every_row = c->n_spots > 0;
        longest = MAX(longest, n);
        driver_prefill(d, seen->seq[i], 50);
    }
    for (uint32_t step = 1; step < longest; step++) {
        struct driver_part part[GOLDEN_CASES];
        uint32_t n = 0;

        for (uint32_t i = 0; i < n_cases; i++)
            if (step < MIN(g->cases[i].n_greedy, MAX_STEPS))
                part[n++] = (struct driver_part){seen->seq[i], 1};
        driver_step(d, part, n);
    }
    for (uint32_t i = 0; i < n_cases; i++)
        seen->seq[i] = driver_drop(d, seen->seq[i]);
}

static void check_file(const struct judge *judge, const char *model, const char *golden_path) {
    CLEANUP(golden_freep) struct golden *g = golden_load(golden_path);
    struct seen seen = {.judge = judge, .golden = g};
    struct driver d;
    struct err err;
    struct driver_opts o = {
        .path = model,
        .backend = judge->backend,
        .kv_type = kv_both(judge->kv_type),
        .n_threads = 2,
        .n_pages = 512,
        .max_rows = 64,
        .on_out = look,
        .ctx = &seen,
    };
    const char *name = strrchr(model, '/') + 1;

    int r = driver_open(&d, &o, &err);
    cr_assert(r == 0, "%s: %s", name, err.message);
    bool has_states = d.info->n_states > 0, deep = d.info->n_layer > 20;
    /* also for models that pick half of few experts, or with a limit (phimoe) */
    bool often_apart = has_states || strcmp(g->label.arch, "gpt-oss") == 0 ||
                       strcmp(g->label.arch, "laguna") == 0 ||
                       strcmp(g->label.arch, "minimax-m2") == 0 ||
                       strcmp(g->label.arch, "mimo2") == 0 || strcmp(g->label.arch, "phimoe") == 0;
    run_cases(&d, &seen);
    driver_close(&d);
    double rms = sqrt(seen.sum / (double)seen.n);
    printf("# %s %s kv%d: max %.2g rms %.2g, %u other tokens, margin %.2g\n", judge->backend, name,
           (int)judge->kv_type, seen.max, rms, seen.n_other, seen.margin);
    /* Recurrent states add up the errors of earlier rows, and many layers those of the cache. */
    double more = has_states || deep ? 1.1 : 1;
    cr_expect(seen.n > 0 && seen.max <= judge->max && rms <= judge->rms * more,
              "%s: logits differ by %g at most, %g rms", name, seen.max, rms);
    cr_expect(seen.table <= judge->max + GELU_TABLE, "%s: logits differ by %g from a table's", name,
              seen.table);
    /* through a recurrent state, a row affects later rows */
    cr_expect(seen.n_apart <= (deep          ? 6
                               : often_apart ? 3
                                             : 1),
              "%s: %u rows are other ones", name, seen.n_apart);
    cr_expect(seen.n_wrong == 0, "%s: %u tokens differ, margin %g", name, seen.n_wrong,
              seen.margin);
}

/* Files of golden/ that must exist and be served. Others are judged as soon as they are
 * supported. */
static const char *const served[] = {
    "llama-bf16",
    "llama-f16",
    "llama-gqa",
    "llama-linear",
    "llama-mha",
    "llama-q.q8_0",
    "llama-rope-freqs",
    "llama-tied",
    "llama-yarn",
    "qwen2",
    "qwen3",
    "qwen3-q.q8_0",
    "qwen3moe",
    "qwen3next",
    "qwen35-mtp",
    "qwen35moe-mtp",
    "qwen3moe-q.mxfp4",
    "gpt-oss-f32",
    "gpt-oss.f16",
    "gpt-oss.mxfp4",
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4-moe",
    "gemma4-ple",
    "granite",
    "phi3",
    "mistral3",
    "olmo2",
    "lfm2",
    "lfm2moe",
    "glm4moe-mtp",
    "nemotron-h-moe-mtp",
    "laguna",
    "deepseek2-lite",
    "deepseek2-mtp",
};

/* Files of the repository that the larger set has in another place. */
static const char *const served_here[] = {"llama4",        "gemma3n",
                                          "minimax-m2",    "muse-glimmer",
                                          "step35",        "bailingmoe3",
                                          "qwen4exp",      "qwen4exp-r2",
                                          "deepseek4",     "afmoe",
                                          "arcee",         "bailingmoe",
                                          "bailingmoe2",   "deepseek",
                                          "deepseek2-v3",  "dots1",
                                          "ernie4-5",      "ernie4-5-moe",
                                          "exaone",        "exaone-moe",
                                          "exaone4",       "exaone4-window",
                                          "gemma",         "glm4",
                                          "granitehybrid", "granitehybrid-dense",
                                          "granitemoe",    "internlm2",
                                          "olmoe",         "qwen2moe",
                                          "seed-oss",      "smollm3",
                                          "command-r",     "cohere2",
                                          "cohere2moe",    "hunyuan-dense",
                                          "hunyuan-moe",   "nemotron",
                                          "stablelm",      "starcoder2",
                                          "apertus",       "falcon-h1",
                                          "kimi-linear",   "mistral4",
                                          "nanbeige",      "olmo",
                                          "jamba",         "phimoe",
                                          "plamo2",        "plamo3",
                                          "glm5-next",     "mimo2",
                                          "mimo2-mtp",     "nemotron-h-puzzle",
                                          "minimax-m3"};
/* Files that only the larger set has. */
static const char *const served_larger[] = {
    "llama-q.iq2_xxs",
    "llama-q.iq4_nl",
    "llama-q.iq4_xs",
    "llama-q.q2_k",
    "llama-q.q3_k_m",
    "llama-q.q4_0",
    "llama-q.q4_1",
    "llama-q.q4_k_m",
    "llama-q.q5_0",
    "llama-q.q5_1",
    "llama-q.q5_k_m",
    "llama-q.q6_k",
    "qwen3-q.iq4_nl",
    "qwen3-q.iq4_xs",
    "qwen3-q.q2_k",
    "qwen3-q.q3_k_m",
    "qwen3-q.q4_0",
    "qwen3-q.q4_k_m",
    "qwen3-q.q5_k_m",
    "qwen3-q.q6_k",
    "qwen3moe-q.iq4_xs",
    "qwen3moe-q.q4_k",
    "qwen3moe-q.q6_k",
    "qwen35moe-q.q4_k",
    "qwen35moe-q.iq4_xs-mxfp4",
};

/* Returns true if the file is supported. */
static bool takes(const char *model, struct err *err) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;

    *err = (struct err){0};
    return gguf_open(&file, model, err) == 0 && engine_check(file, NULL, err) == 0;
}

/* A refusal must name the unsupported format, or the architecture and the supported ones. */
static void expect_refusal(const char *model, const struct golden_label *label,
                           const struct err *err) {
    const char *format = strrchr(err->message, '(');
    char name[32] = "";

    if (strstr(err->message, "which weft does not support")) {
        sscanf(format ? format : "", "(%31[^)])", name);
        cr_expect(name[0] && strstr(label->type, name), "%s: %s", model, err->message);
    } else {
        snprintf(name, sizeof(name), "'%.28s'", label->arch);
        cr_expect(strstr(err->message, name) &&
                      (strstr(err->message,
                              "it is a draft model; give it as draft-model of a gemma4 model") ||
                       strstr(err->message, "it is a block drafter; give it as draft-model") ||
                       strstr(err->message, "; the nearest is '")),
                  "%s: %s", model, err->message);
    }
    printf("# left out: %s: %s\n", strrchr(model, '/') + 1, err->message);
}

/* Returns how many names in @list equal the first @n characters of @name: 0 or 1. */
static uint32_t count_name(const char *const *list, size_t n_list, const char *name, size_t n) {
    uint32_t found = 0;

    for (size_t i = 0; i < n_list; i++)
        found += strlen(list[i]) == n && strncmp(list[i], name, n) == 0;
    return found;
}

/* Judges the files of golden/ whose name begins with @only (NULL: all), by @floats or @blocks
 * according to their weights. Unsupported files must be refused by name. */
static void check_synthetic(const struct judge *floats, const struct judge *blocks,
                            const char *only) {
    char dir[512], model[1024], json[1024];
    uint32_t n_run = 0, n_refused = 0, n_known = 0;

    snprintf(dir, sizeof(dir), "%s/golden", test_data());
    DIR *list = opendir(dir);
    cr_assert(list != NULL);
    for (struct dirent *e; (e = readdir(list));) {
        int n = (int)strlen(e->d_name) - 5;
        struct err err;

        if (n < 1 || strcmp(e->d_name + n, ".json") != 0 || !strncmp(e->d_name, "specs", 5))
            continue;
        if (only && strncmp(e->d_name, only, strlen(only)) != 0)
            continue;
        snprintf(json, sizeof(json), "%s/%s", dir, e->d_name);
        snprintf(model, sizeof(model), "%s/%.*s.gguf", dir, n, e->d_name);
        struct golden_label label = golden_label(json);
        if (!takes(model, &err)) {
            expect_refusal(model, &label, &err);
            n_refused++;
            continue;
        }
        n_known += count_name(served, ARRAY_SIZE(served), e->d_name, (size_t)n);
        n_known += count_name(served_here, ARRAY_SIZE(served_here), e->d_name, (size_t)n);
        n_known += count_name(served_larger, ARRAY_SIZE(served_larger), e->d_name, (size_t)n);
        n_run++;
        check_file(rounds_acts(label.type) ? blocks : floats, model, json);
    }
    closedir(list);
    printf("# %s: %u files computed, %u left out\n", floats->backend, n_run, n_refused);
    cr_expect(n_run > 0);
    size_t n_wanted = ARRAY_SIZE(served) +
                      (test_data_is_larger() ? ARRAY_SIZE(served_larger) : ARRAY_SIZE(served_here));
    cr_expect(only || n_known == n_wanted, "%u of %zu files", n_known, n_wanted);
}

static void check_real(const struct judge *judge, const char *name) {
    char model[TEST_DATA_PATH], json[TEST_DATA_PATH];

    test_data_file(model, "models", name, ".gguf");
    test_data_file(json, "models", name, ".golden.json");
    check_file(judge, model, json);
}

/* For formats of weights, the prompts of 7 and 33 tokens; another test has the long one. Keys and
 * values are floats, whatever the weights are. */
#define SHORT 2u

static const struct judge exact = {"reference", ENGINE_KV_F32, 1e-3, 1e-3, 1e-3, 0};
static const struct judge exact_blocks = {"reference", ENGINE_KV_F32, 1e-3,
                                          1e-3,        1e-3,          FEWER(0, SHORT)};
static const struct judge f16 = {"reference", ENGINE_KV_F16, 0.05, 0.01, 0.02, 0};
static const struct judge f16_blocks = {"reference", ENGINE_KV_F16, 0.05, 0.01, 0.02, SHORT};

Test(golden, reference_agrees_with_exact_arithmetic) {
    check_synthetic(&exact, &exact_blocks, NULL);
}

/* A few files may suffice: the tests above read the others' formats, with another cache. */
#define HALF_CACHE_FILES FEWER(NULL, "qwen3next")

Test(golden, reference_with_half_cache_stays_close) {
    check_synthetic(&f16, &f16_blocks, HALF_CACHE_FILES);
}

/* only if a head consists of blocks of 32 */
Test(golden, reference_with_8_bit_cache_stays_near) {
    static const struct judge q8 = {"reference", ENGINE_KV_Q8_0, 0.5, 0.1, 0.6, 0};

#ifndef __SANITIZE_ADDRESS__
    check_synthetic(&q8, &q8, "llama-q.q8_0");
#endif
    check_synthetic(&q8, &q8, "qwen3-q.");
}

/* A value may be off by a sixteenth of the largest value of its block: 16 times as much as in
 * q8_0. */
Test(golden, reference_with_4_bit_cache_is_less_exact) {
    static const struct judge q4 = {"reference", ENGINE_KV_Q4_0, 5, 1, 5, 0};

    check_synthetic(&q4, &q4, "qwen3-q.q8_0");
}

Test(golden, reference_reads_split_files) {
    char model[TEST_DATA_PATH], json[TEST_DATA_PATH];

    test_data_file(model, "golden", "llama-gqa-split-00001-of-00003", ".gguf");
    test_data_file(json, "golden", "llama-gqa", ".json");
    check_file(&exact, model, json);
}

/* Writes a copy of file @name of golden/ with the word @from of its metadata replaced by @to, of
 * equal length. */
static void rename_words(const char *name, const char *from, const char *to, char path[64]) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    size_t n_word = strlen(from), n;
    char model[TEST_DATA_PATH];
    struct err err = {0};

    test_data_file(model, "golden", name, ".gguf");
    cr_assert_eq(gguf_open(&file, model, &err), 0, "%s", err.message);
    n = gguf_bytes(file);
    char *bytes = malloc(n), *end = bytes + gguf_tensor(file, 0)->file_offset;
    FILE *f = fopen(model, "rb");
    cr_assert(strlen(to) == n_word && bytes && f && fread(bytes, 1, n, f) == n);
    fclose(f);
    for (char *p = bytes; (p = memmem(p, (size_t)(end - p), from, n_word));)
        memcpy(p, to, n_word);
    snprintf(path, 64, "/tmp/weft-golden-%d.gguf", (int)getpid());
    f = fopen(path, "wb");
    cr_assert(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    free(bytes);
}

Test(golden, reference_tells_stories_and_chats) {
    check_real(&exact, "stories260K-f32");
    if (test_data_is_larger()) {
        check_real(&exact, "stories15M-q8_0");
        check_real(&f16, "minimind2-small-q8_0");
    }
}

/* Activations have 8 bits if the weights have blocks, else they are floats. */
static const struct judge cpu_8 = {"cpu", ENGINE_KV_F16, 1.0, 0.2, 0.8, 0};
static const struct judge cpu_f = {"cpu", ENGINE_KV_F16, 0.05, 0.01, 0.02, 0};

static void need_cpu(void) {
    struct err err;

    if (!backend_find("cpu", NULL, &err))
        cr_skip_test("%s", err.message);
}

Test(golden, cpu_stays_close) {
    need_cpu();
    check_synthetic(&cpu_f, &cpu_8, NULL);
}

Test(golden, cpu_tells_the_stories_and_chats) {
    need_cpu();
    check_real(&cpu_f, "stories260K-f32");
    if (test_data_is_larger()) {
        check_real(&cpu_8, "stories15M-q8_0");
        check_real(&cpu_8, "minimind2-small-q8_0");
    }
}

/* MiniCPM has Granite's layers and factors under other names; there is no golden file for it. */
Test(golden, minicpm_computes_what_granite_does) {
    char path[64], json[TEST_DATA_PATH];

    rename_words("granite", "granite", "minicpm", path);
    test_data_file(json, "golden", "granite", ".json");
    check_file(&exact, path, json);
    need_cpu();
    check_file(&cpu_f, path, json);
    unlink(path);
}

/* Tests formats of weights with weft-gguf's models of 2 layers, whose bytes are a function of these
 * options. The expected values (formats/NAME.json) are those of other implementations with the
 * weights decoded to F32: llama.cpp 0.7.0, whose llama-quantize decoded them, or a float64
 * computation. NVFP4 has factors beside its matrices. Each token uses all experts, so that no small
 * error changes the choice. */
static const struct format {
    const char *name, *arch;
} formats[] = {
    {"F16", "llama"},       {"BF16", "llama"},    {"Q4_0", "llama"},    {"Q4_1", "llama"},
    {"Q5_0", "llama"},      {"Q5_1", "llama"},    {"Q8_0", "llama"},    {"Q2_K", "llama"},
    {"Q3_K", "llama"},      {"Q4_K", "llama"},    {"Q5_K", "llama"},    {"Q6_K", "llama"},
    {"IQ4_NL", "llama"},    {"IQ4_XS", "llama"},  {"IQ2_XXS", "llama"}, {"MXFP4", "llama"},
    {"IQ1_S", "llama"},     {"IQ1_M", "llama"},   {"IQ2_XS", "llama"},  {"IQ2_S", "llama"},
    {"IQ3_XXS", "llama"},   {"IQ3_S", "llama"},   {"TQ1_0", "llama"},   {"TQ2_0", "llama"},
    {"NVFP4", "llama"},     {"Q4_K", "qwen3moe"}, {"Q5_K", "qwen3moe"}, {"Q6_K", "qwen3moe"},
    {"IQ4_XS", "qwen3moe"},
};

static void check_format(const struct judge *judge, const struct format *f) {
    static const char shape[] = "tiny,n_layer=2,n_embd=256,n_ff=256,n_head=4,n_kv=2,head_dim=64,"
                                "n_vocab=512";
    bool experts = strcmp(f->arch, "qwen3moe") == 0;
    char path[64], json[256], whole[160], lower[16] = "";
    const char *argv[] = {"synth",    "--arch", f->arch, "--shape", whole,
                          "--format", f->name,  "-o",    path,      NULL};

    for (size_t i = 0; f->name[i] && i + 1 < sizeof(lower); i++)
        lower[i] = (char)tolower((unsigned char)f->name[i]);
    snprintf(whole, sizeof(whole), "%s%s", shape, experts ? ",n_expert=4,n_used=4" : "");
    snprintf(path, sizeof(path), "/tmp/weft-%s-%d.gguf", f->name, (int)getpid());
    snprintf(json, sizeof(json), FORMATS "/%s%s.json", experts ? "qwen3moe-" : "", lower);
    cr_assert(synth_main(ARRAY_SIZE(argv) - 1, (char **)argv) == 0);
    check_file(judge, path, json);
    unlink(path);
}

Test(golden, reference_reads_every_format) {
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        check_format(&exact, &formats[i]);
}

Test(golden, cpu_reads_every_format) {
    need_cpu();
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        check_format(rounds_acts(formats[i].name) ? &cpu_8 : &cpu_f, &formats[i]);
}
