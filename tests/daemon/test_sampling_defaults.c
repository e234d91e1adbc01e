#include <criterion/criterion.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/gguf_override.h"
#include "base/util.h"
#include "daemon/config/sampling_defaults.h"
#include "tests/support/tiny_model.h"

static char path[64]; /* the model's file, which is written once for each test */

static void tear_down(void) {
    if (*path)
        unlink(path);
}

TestSuite(sampling_defaults, .fini = tear_down);

static void override(struct gguf *file, const char *key, const char *value) {
    char text[300];
    struct err err = {0};

    snprintf(text, sizeof(text), "%s=%s", key, value);
    cr_assert_eq(gguf_override(file, text, &err), 0, "%s", err.message);
}

static struct gguf *open_model(const char *arch) {
    struct tiny_model t = {.n_layer = 1};
    char architecture[80];
    struct gguf *file;
    struct err err = {0};

    if (!*path)
        tiny_model_temp(&t, path);
    cr_assert_eq(gguf_open(&file, path, &err), 0, "%s", err.message);
    snprintf(architecture, sizeof(architecture), "str:%s", arch);
    override(file, "general.architecture", architecture);
    return file;
}

/* Reads the defaults of a model of architecture @arch that is called @name. @key: a key of its file
 * that has @value, TYPE:VALUE; NULL: none. */
static int read_with(struct sampling_defaults *out, const char *arch, const char *name,
                     const char *key, const char *value, char *const *option, struct err *err) {
    struct gguf *file = open_model(arch);

    if (key)
        override(file, key, value);
    int r = sampling_defaults_read(out, file, name, option, err);
    gguf_free(file);
    return r;
}

static int read_defaults(struct sampling_defaults *out, const char *arch, const char *name,
                         char *const *option, struct err *err) {
    return read_with(out, arch, name, NULL, NULL, option, err);
}

Test(sampling_defaults, are_those_of_the_family_else_of_weft) {
    static const struct {
        const char *arch, *name, *source;
        double temperature, top_p, min_p;
        int64_t top_k;
    } cases[] = {
        {"qwen3", "Qwen3-8B-Q4_K_M", "family:qwen3", 0.6, 0.95, 0, 20},
        {"qwen3", "qwen3_4b_INSTRUCT_2507", "family:qwen3-instruct", 0.7, 0.8, 0, 20},
        {"qwen3", "DeepSeek-R1-0528-Qwen3-8B", "family:deepseek-r1", 0.6, 0.95, 0, 0},
        {"qwen3vl", "Qwen3-VL-8B-Instruct", "family:qwen3-vl", 0.7, 0.8, 0, 20},
        {"qwen3vlmoe", "Qwen3-VL-30B-A3B-Thinking", "family:qwen3-vl-thinking", 0.6, 0.95, 0, 20},
        {"qwen2vl", "Qwen2.5-VL-7B-Instruct", "family:qwen2-vl", 0.01, 0.001, 0, 1},
        {"llama", "Llama-3.2-1B", "family:llama-3", 0.6, 0.9, 0, 0},
        {"llama", "llama3", "family:llama-3", 0.6, 0.9, 0, 0},
        {"llama", "codellama-34b", "weft", 0.8, 0.95, 0.05, 40},
        {"llama", "tinyllama-1.1b-chat", "weft", 0.8, 0.95, 0.05, 40},
        {"llama", "", "weft", 0.8, 0.95, 0.05, 40},
    };
    char *none[] = {NULL};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct sampling_defaults d;
        struct err err = {0};

        cr_assert_eq(read_defaults(&d, cases[i].arch, cases[i].name, none, &err), 0);
        cr_expect_str_eq(d.source, cases[i].source, "%s: %s", cases[i].name, d.source);
        cr_expect_eq(d.values.temperature, cases[i].temperature, "%s", cases[i].name);
        cr_expect_eq(d.values.top_p, cases[i].top_p, "%s", cases[i].name);
        cr_expect_eq(d.values.min_p, cases[i].min_p, "%s", cases[i].name);
        cr_expect_eq(d.values.repetition_penalty, 1, "%s", cases[i].name);
        cr_expect_eq(d.values.top_k, cases[i].top_k, "%s", cases[i].name);
        cr_expect_eq(params_check(&d.values, &err), 0);
        cr_expect_not(d.has_seed);
    }
}

/* A name has 250 bytes at most, and those in the file 100. */
Test(sampling_defaults, are_those_of_any_of_three_names) {
    static const struct {
        const char *key;
        int before;
        const char *source;
    } cases[] = {
        {NULL, 0, "family:deepseek-r1"},
        {NULL, 239, "family:deepseek-r1"},
        {NULL, 240, "family:qwen3"},
        {"general.name", 0, "family:deepseek-r1"},
        {"general.name", 89, "family:deepseek-r1"},
        {"general.name", 90, "family:qwen3"},
        {"general.basename", 0, "family:deepseek-r1"},
        {"general.basename", 89, "family:deepseek-r1"},
        {"general.basename", 90, "family:qwen3"},
        {"general.finetune", 0, "family:qwen3"},
    };
    char *none[] = {NULL}, text[300], long_name[300], name[400];
    struct sampling_defaults d;
    struct err err = {0};

    memset(long_name, 'm', 250);
    long_name[250] = 0;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        memset(name, 'x', sizeof(name));
        strcpy(name + cases[i].before, "DeepSeek-R1");
        snprintf(text, sizeof(text), "str:%.200s", name);
        cr_assert_eq(
            read_with(&d, "qwen3", cases[i].key ? long_name : name, cases[i].key, text, none, &err),
            0, "%s", err.message);
        cr_expect_str_eq(d.source, cases[i].source, "%s: %s", name, d.source);
    }
}

/* A value that is out of range, or of another type, is left out, and the family's stays. */
Test(sampling_defaults, are_those_of_the_file_if_it_has_any) {
    static const struct {
        const char *key, *to;
        /* of a double, or of top_k */
        size_t offset;
        double value;
        const char *source;
    } cases[] = {
        {"general.sampling.temp", "float:0.25", offsetof(struct sampling, temperature), 0.25,
         "model-file"},
        {"general.sampling.top_p", "float:0.5", offsetof(struct sampling, top_p), 0.5,
         "model-file"},
        {"general.sampling.min_p", "float:0.5", offsetof(struct sampling, min_p), 0.5,
         "model-file"},
        {"general.sampling.penalty_repeat", "float:1.5",
         offsetof(struct sampling, repetition_penalty), 1.5, "model-file"},
        {"general.sampling.top_k", "int:7", offsetof(struct sampling, top_k), 7, "model-file"},
        {"general.sampling.temp", "float:-1", 0, 0.6, "family:qwen3"},
        {"general.sampling.top_p", "float:1.5", 0, 0.6, "family:qwen3"},
        {"general.sampling.penalty_repeat", "float:-1", 0, 0.6, "family:qwen3"},
        {"general.sampling.top_k", "str:7", 0, 0.6, "family:qwen3"},
    };
    char *none[] = {NULL};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct sampling want;
        struct sampling_defaults d;
        struct err err = {0};

        params_init(&want);
        want.temperature = 0.6;
        want.top_p = 0.95;
        want.top_k = 20;
        if (cases[i].offset == offsetof(struct sampling, top_k))
            want.top_k = (int64_t)cases[i].value;
        else
            memcpy((char *)&want + cases[i].offset, &cases[i].value, sizeof(double));
        cr_assert_eq(read_with(&d, "qwen3", "m", cases[i].key, cases[i].to, none, &err), 0);
        cr_expect_str_eq(d.source, cases[i].source, "%s %s: %s", cases[i].key, cases[i].to,
                         d.source);
        cr_expect_eq(memcmp(&d.values, &want, sizeof(want)), 0, "%s %s", cases[i].key, cases[i].to);
        cr_expect(!d.has_seed && d.seed == 0);
    }
}

/* Names and values of a file count together. */
Test(sampling_defaults, are_those_of_several_keys) {
    struct gguf *file = open_model("qwen3");
    char *none[] = {NULL};
    struct sampling_defaults d;
    struct err err = {0};

    override(file, "general.basename", "str:other");
    cr_assert_eq(sampling_defaults_read(&d, file, "DeepSeek-R1", none, &err), 0);
    cr_expect_str_eq(d.source, "family:deepseek-r1");
    override(file, "general.sampling.temp", "float:0.25");
    override(file, "general.sampling.top_k", "int:7");
    cr_assert_eq(sampling_defaults_read(&d, file, "DeepSeek-R1", none, &err), 0);
    cr_expect_str_eq(d.source, "model-file");
    cr_expect(d.values.temperature == 0.25 && d.values.top_k == 7 && d.values.top_p == 0.95);
    gguf_free(file);
}

Test(sampling_defaults, the_option_comes_first) {
    char *some[] = {"top_k=5", "seed=9", NULL}, *openai[] = {"openai", NULL};
    char *both[] = {"openai", "min_p=0.5", NULL}, *random[] = {"seed=-1", NULL};
    char *last[] = {"seed=4", "top_k=5", "openai", NULL};
    struct sampling_defaults d;
    struct sampling off;
    struct err err = {0};

    params_init(&off);
    cr_assert_eq(read_defaults(&d, "qwen3", "Qwen3-8B", some, &err), 0);
    cr_expect_str_eq(d.source, "option");
    cr_expect(d.values.top_k == 5 && d.values.temperature == 0.6 && d.has_seed && d.seed == 9);
    cr_assert_eq(read_defaults(&d, "qwen3", "Qwen3-8B", random, &err), 0);
    cr_expect_not(d.has_seed);
    cr_assert_eq(read_defaults(&d, "qwen3", "Qwen3-8B", openai, &err), 0);
    cr_expect_str_eq(d.source, "openai");
    cr_expect_eq(memcmp(&d.values, &off, sizeof(off)), 0);
    cr_assert_eq(read_defaults(&d, "qwen3", "Qwen3-8B", last, &err), 0);
    cr_expect_str_eq(d.source, "openai");
    cr_expect(memcmp(&d.values, &off, sizeof(off)) == 0 && d.has_seed && d.seed == 4);
    cr_assert_eq(read_defaults(&d, "qwen3", "Qwen3-8B", both, &err), 0);
    cr_expect_str_eq(d.source, "option");
    off.min_p = 0.5;
    cr_expect_eq(memcmp(&d.values, &off, sizeof(off)), 0);
}

/* A number behind a name, or a part of an architecture's name, names another model. */
Test(sampling_defaults, names_of_models_and_architectures_are_whole) {
    static const struct {
        const char *arch, *name, *source;
    } cases[] = {
        {"llama", "llama-30b", "weft"},
        {"llama", "llama_3b", "family:llama-3"},
        {"llama", "llama 3", "family:llama-3"},
        {"llama", "llama--3", "weft"},
        {"llama", "llama-33 llama-3", "family:llama-3"},
        {"llama", "LLAMA-3.1", "family:llama-3"},
        {"llama", "smollm3", "family:smollm3"},
        {"llama", "smollm30", "weft"},
        {"llama", "magistral", "family:magistral"},
        {"llama", "magistra", "weft"},
        {"qwen3next", "x", "family:qwen3"},
        {"qwen3moe", "x", "family:qwen3"},
        {"qwen", "x", "weft"},
        {"wen3", "x", "weft"},
        {"next", "x", "weft"},
        {"qwen3mo", "x", "weft"},
        {"glm4moe", "GLM-4.6", "family:glm-4.6"},
        {"glm4moe", "GLM-4.5", "weft"},
    };
    char *none[] = {NULL};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct sampling_defaults d;
        struct err err = {0};

        cr_assert_eq(read_defaults(&d, cases[i].arch, cases[i].name, none, &err), 0);
        cr_expect_str_eq(d.source, cases[i].source, "%s, %s: %s", cases[i].arch, cases[i].name,
                         d.source);
    }
}

Test(sampling_defaults, an_option_is_a_name_and_a_whole_number) {
    static char *const bad[] = {"",
                                "=5",
                                "top_k=",
                                "top_k=5x",
                                "seed=",
                                "seed",
                                "seed=x",
                                "seed=7x",
                                "speed=1",
                                "min_p=0.5 ",
                                "x=1",
                                "top_p=2",
                                "seed=18446744073709551616",
                                "seed",
                                "top_k",
                                "openai=1"};
    char told[200];
    struct sampling_defaults d;
    struct err err = {0};

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char *option[] = {"top_k=7", bad[i], "top_k=8", NULL};

        err = (struct err){0};
        cr_expect_eq(read_defaults(&d, "qwen3", "m", option, &err), -EINVAL, "%s", bad[i]);
        cr_expect_eq(d.values.top_k, 7, "%s", bad[i]);
        snprintf(told, sizeof(told),
                 "sampling: must be openai, or parameters of requests with numbers, such as "
                 R"(temperature=0.7,top_p=0.9, not "%s")",
                 bad[i]);
        if (strcmp(bad[i], "top_p=2") == 0)
            strcpy(told, "sampling: top_p must be between 0 and 1");
        cr_expect_str_eq(err.message, told);
        cr_expect(strcmp(err.param, "sampling") == 0 && err.status == 0);
    }
    char *good[] = {"seed=18446744073709551615", "top_p=0.5", "top_k=9", "temperature=0", NULL};
    cr_expect_eq(read_defaults(&d, "qwen3", "m", good, &err), 0, "%s", err.message);
    cr_expect(d.has_seed && d.seed == UINT64_MAX);
    cr_expect(d.values.top_p == 0.5 && d.values.top_k == 9 && d.values.temperature == 0);
    char *off[] = {"seed=3", "seed=-1", NULL};
    cr_expect_eq(read_defaults(&d, "qwen3", "m", off, &err), 0, "%s", err.message);
    cr_expect_not(d.has_seed);
}
