#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/config/sampling_defaults.h"
#include "tests/support/tiny_model.h"

/* Reads the defaults of a model of architecture @arch that is called @name. */
static int read_defaults(struct sampling_defaults *out, const char *arch, const char *name,
                         char *const *option, struct err *err) {
    struct tiny_model t = {.arch = arch};
    struct gguf *file;
    char path[64];

    tiny_model_temp(&t, path);
    cr_assert_eq(gguf_open(&file, path, err), 0, "%s", err->message);
    int r = sampling_defaults_read(out, file, name, option, err);
    gguf_free(file);
    unlink(path);
    return r;
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

/* The name of the file says nothing, and one of the two keys does. */
Test(sampling_defaults, are_those_of_the_name_in_the_file) {
    struct tiny_model t = {.arch = "qwen3", .n_layer = 1};
    char *none[] = {NULL};
    struct sampling_defaults d;
    struct gguf_writer w;
    struct gguf *file;
    struct err err = {0};
    char path[64];

    gw_init(&w);
    tiny_model_build(&t, &w);
    gw_string(&w, "general.basename", "DeepSeek-R1");
    tiny_model_temp_of(&w, path);
    gw_deinit(&w);
    cr_assert_eq(gguf_open(&file, path, &err), 0, "%s", err.message);
    cr_assert_eq(sampling_defaults_read(&d, file, "model", none, &err), 0);
    cr_expect_str_eq(d.source, "family:deepseek-r1");
    gguf_free(file);
    unlink(path);
}

/* A value that is out of range is left out, and the family's stays. */
Test(sampling_defaults, are_those_of_the_file_if_it_has_any) {
    static const struct {
        float temperature, penalty;
        const char *source;
    } cases[] = {{0.25f, 1.5f, "model-file"}, {0.25f, -1, "model-file"}, {-1, -1, "weft"}};
    char *none[] = {NULL};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tiny_model t = {.n_layer = 1};
        struct sampling_defaults d;
        struct gguf_writer w;
        struct gguf *file;
        struct err err = {0};
        char path[64];

        gw_init(&w);
        tiny_model_build(&t, &w);
        gw_f32(&w, "general.sampling.temp", cases[i].temperature);
        gw_f32(&w, "general.sampling.penalty_repeat", cases[i].penalty);
        tiny_model_temp_of(&w, path);
        gw_deinit(&w);
        cr_assert_eq(gguf_open(&file, path, &err), 0, "%s", err.message);
        cr_assert_eq(sampling_defaults_read(&d, file, "", none, &err), 0);
        cr_expect_str_eq(d.source, cases[i].source);
        cr_expect_eq(d.values.temperature, i < 2 ? 0.25 : 0.8);
        cr_expect_eq(d.values.repetition_penalty, i == 0 ? 1.5 : 1);
        gguf_free(file);
        unlink(path);
    }
}

Test(sampling_defaults, the_option_comes_first) {
    char *some[] = {"top_k=5", "seed=9", NULL}, *openai[] = {"openai", NULL};
    char *both[] = {"openai", "min_p=0.5", NULL}, *bad[] = {"top_k=five", NULL};
    char *random[] = {"seed=-1", NULL}, *bare[] = {"top_k", NULL};
    char *large[] = {"seed=18446744073709551616", NULL};
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
    cr_assert_eq(read_defaults(&d, "qwen3", "Qwen3-8B", both, &err), 0);
    off.min_p = 0.5;
    cr_expect_eq(memcmp(&d.values, &off, sizeof(off)), 0);
    cr_expect_eq(read_defaults(&d, "qwen3", "Qwen3-8B", bad, &err), -EINVAL);
    cr_expect(strstr(err.message, "top_k=five"), "%s", err.message);
    cr_expect_eq(read_defaults(&d, "qwen3", "Qwen3-8B", bare, &err), -EINVAL);
    cr_expect(strstr(err.message, "top_k"), "%s", err.message);
    cr_expect_eq(read_defaults(&d, "qwen3", "Qwen3-8B", large, &err), -EINVAL);
    cr_expect(strstr(err.message, "seed=18446744073709551616"), "%s", err.message);
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
        {"qwen3 qwen3moe", "x", "family:qwen3"},
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
    static char *const bad[] = {"",       "=5",      "top_k=",  "top_k=5x",   "seed=", "seed",
                                "seed=x", "seed=7x", "speed=1", "min_p=0.5 ", "x=1",   "top_p=2"};
    struct sampling_defaults d;
    struct err err = {0};

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char *option[] = {"top_k=7", bad[i], "top_k=8", NULL};

        err = (struct err){0};
        cr_expect_eq(read_defaults(&d, "qwen3", "m", option, &err), -EINVAL, "%s", bad[i]);
        cr_expect_eq(d.values.top_k, 7, "%s", bad[i]);
        cr_expect(*err.message && *err.param, "%s", bad[i]);
    }
    char *good[] = {"seed=18446744073709551615", "top_p=0.5", "top_k=9", "temperature=0", NULL};
    cr_expect_eq(read_defaults(&d, "qwen3", "m", good, &err), 0, "%s", err.message);
    cr_expect(d.has_seed && d.seed == UINT64_MAX);
    cr_expect(d.values.top_p == 0.5 && d.values.top_k == 9 && d.values.temperature == 0);
    char *off[] = {"seed=3", "seed=-1", NULL};
    cr_expect_eq(read_defaults(&d, "qwen3", "m", off, &err), 0, "%s", err.message);
    cr_expect_not(d.has_seed);
}
