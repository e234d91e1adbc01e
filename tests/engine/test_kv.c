/*
 * Tests keys and values in blocks against values of another implementation: kv/NAME.json of the
 * test data (tests/data/README.md). The reference backend, like that implementation, rounds only
 * keys and values, so that a Hadamard matrix of another size, or none, fails.
 */

#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "tests/support/engine_driver.h"
#include "tests/support/test_data.h"

enum { N_PROMPT = 256 };

/* The largest difference of logits. With q8_0, the last bit of a key or value may move a code by
 * one. The scale of q4_0 is rounded before the codes are computed, which is more exact; llama.cpp
 * rounds it afterwards. Without the matrices the difference is 1.9 to 6. The CPU also rounds its
 * activations to 8 bits. */
static const struct judge {
    const char *backend;
    /* q8_0, q4_0 */
    double limit[2];
} judges[] = {
#ifdef BACKEND
    {BACKEND, {0.3, 1}},
#else
    {"reference", {0.05, 1}},
    {"cpu", {1, 2.5}},
#endif
};

/* Returns the logits after a prompt. */
struct seen {
    yyjson_val *expected;
    uint32_t last;
    double worst;
};

static void look(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct seen *seen = ctx;

    if (pos != seen->last)
        return;
    for (size_t i = 0; i < yyjson_arr_size(seen->expected); i++) {
        double d = fabs(yyjson_get_num(yyjson_arr_get(seen->expected, i)) - (double)logits[i]);

        seen->worst = d <= seen->worst ? seen->worst : d; /* NaN too */
    }
}

static void check_case(const struct judge *judge, const char *model, enum engine_kv_type type,
                       yyjson_val *v) {
    yyjson_val *prompt = yyjson_obj_get(v, "prompt");
    struct seen seen = {.expected = yyjson_obj_get(v, "f64_last_logits")};
    struct driver_opts o = {.backend = judge->backend,
                            .path = model,
                            .kv_type = kv_both(type),
                            .max_rows = 64,
                            .on_out = look,
                            .ctx = &seen};
    double limit = judge->limit[type - ENGINE_KV_Q8_0];
    uint32_t n = (uint32_t)yyjson_arr_size(prompt);
    int32_t token[N_PROMPT];
    struct driver d;
    struct err err;

    cr_assert(n > 0 && n <= N_PROMPT && yyjson_arr_size(seen.expected) > 0);
    for (uint32_t i = 0; i < n; i++)
        token[i] = (int32_t)yyjson_get_int(yyjson_arr_get(prompt, i));
    seen.last = n - 1;
    cr_assert_eq(driver_open(&d, &o, &err), 0, "%s", err.message);
    struct driver_seq *s = driver_add(&d, token, n, 1, NULL);
    cr_assert(s != NULL);
    driver_prefill(&d, s, 50);
    driver_drop(&d, s);
    driver_close(&d);
    printf("# %s %s %s, %u tokens: %.2g\n", judge->backend, strrchr(model, '/') + 1,
           kv_types[type].name, n, seen.worst);
    cr_expect(seen.worst <= limit, "%s %s, %u tokens: %g", model, kv_types[type].name, n,
              seen.worst);
}

static void check_file(const char *name) {
    char path[TEST_DATA_PATH], model[TEST_DATA_PATH];

    test_data_file(path, "kv", name, ".json");
    test_data_file(model, "golden", name, ".gguf");
    yyjson_doc *doc = yyjson_read_file(path, 0, NULL, NULL);
    cr_assert(doc != NULL, "%s", path);
    for (int t = ENGINE_KV_Q8_0; t <= ENGINE_KV_Q4_0; t++) {
        yyjson_val *types = yyjson_obj_get(yyjson_doc_get_root(doc), "types");
        yyjson_val *cases = yyjson_obj_get(types, kv_types[t].name);
        cr_assert(yyjson_arr_size(cases) > 0, "%s lacks %s", path, kv_types[t].name);
        for (size_t i = 0; i < yyjson_arr_size(cases); i++)
            for (size_t j = 0; j < ARRAY_SIZE(judges); j++)
                check_case(&judges[j], model, (enum engine_kv_type)t, yyjson_arr_get(cases, i));
    }
    yyjson_doc_free(doc);
}

Test(kv, blocks_are_what_another_implementation_has) {
    char dir[TEST_DATA_PATH];
    uint32_t n_files = 0;

    snprintf(dir, sizeof(dir), "%s/kv", test_data());
    DIR *list = opendir(dir);
    cr_assert(list != NULL, "%s", dir);
    for (struct dirent *e; (e = readdir(list));) {
        size_t n = strlen(e->d_name);

        if (n < 6 || strcmp(e->d_name + n - 5, ".json") != 0)
            continue;
        e->d_name[n - 5] = 0;
        check_file(e->d_name);
        n_files++;
    }
    closedir(list);
    cr_expect(n_files >= 2);
}
