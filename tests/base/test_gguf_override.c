/* Values of metadata that the operator replaces: forms, types, names of architectures, and what a
 * model's readers then see. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/gguf_override.h"
#include "tests/support/gguf_writer.h"

/* Opens a model of architecture mamba with one tensor. */
static struct gguf *open_small(void) {
    static const char *const texts[] = {"a", "b", "c"};
    static const uint64_t ne[] = {32};
    char path[] = "/tmp/weft-test-override-XXXXXX";
    struct gguf *g = NULL;
    struct gguf_writer w;
    struct err err = {0};
    int fd = mkstemp(path);

    cr_assert_geq(fd, 0);
    close(fd);
    gw_init(&w);
    gw_string(&w, "general.architecture", "mamba");
    gw_u32(&w, "mamba.block_count", 2);
    gw_f32(&w, "mamba.rope.freq_base", 10000);
    gw_u32(&w, "llama.context_length", 512);
    gw_u32(&w, "mamba.context_length", 256);
    gw_u32(&w, "mambas.width", 7);
    gw_strings(&w, "tokenizer.ggml.tokens", 3, texts);
    gw_tensor(&w, "t", TENSOR_F32, 1, ne, NULL);
    gw_save(&w, path);
    cr_assert_eq(gguf_open(&g, path, &err), 0, "%s", err.message);
    unlink(path);
    gw_deinit(&w);
    return g;
}

static void apply(struct gguf *g, const char *list) {
    struct err err = {0};

    cr_assert_eq(gguf_override(g, list, &err), 0, "%s: %s", list, err.message);
}

static uint32_t number(const struct gguf *g, const char *key) {
    uint32_t v = UINT32_MAX;

    cr_expect_eq(gguf_u32(g, key, &v), 0, "%s", key);
    return v;
}

Test(gguf_override, each_type_is_read_by_its_reader) {
    struct gguf *g = open_small();
    struct gguf_str s = {0};
    bool b = false;
    float f = 0;

    apply(g, "mamba.block_count=int:3,mamba.rope.freq_base=float:-2.5e3,new.flag=bool:true,"
             "new.text=str:a=b:c");
    cr_expect_eq(number(g, "mamba.block_count"), 3);
    cr_expect_eq(gguf_f32(g, "mamba.rope.freq_base", &f), 0);
    cr_expect_eq(f, -2500);
    cr_expect_eq(gguf_bool(g, "new.flag", &b), 0);
    cr_expect(b);
    cr_expect_eq(gguf_string(g, "new.text", &s), 0);
    cr_expect_eq(s.len, 5);
    cr_expect_eq(memcmp(s.data, "a=b:c", 5), 0);
    cr_expect_eq(gguf_n_kv(g), 9);
    cr_expect_eq(number(g, "mamba.context_length"), 256, "others stay");
    gguf_free(g);
}

Test(gguf_override, later_values_win_and_keep_their_own_type) {
    struct gguf *g = open_small();
    struct gguf_str s;
    float f = 0;

    apply(g, "x=int:1");
    apply(g, "x=str:one,mamba.block_count=str:two,x=float:1.5,");
    cr_expect_eq(gguf_f32(g, "x", &f), 0);
    cr_expect_eq(f, 1.5F);
    cr_expect_eq(gguf_u32(g, "mamba.block_count", &(uint32_t){0}), -EINVAL);
    cr_expect_eq(gguf_string(g, "mamba.block_count", &s), 0);
    gguf_free(g);
}

Test(gguf_override, an_array_becomes_a_value) {
    struct gguf *g = open_small();

    apply(g, "tokenizer.ggml.tokens=int:4");
    cr_expect_null(gguf_array(g, "tokenizer.ggml.tokens"));
    cr_expect_eq(number(g, "tokenizer.ggml.tokens"), 4);
    gguf_free(g);
}

Test(gguf_override, keys_follow_a_new_architecture) {
    struct gguf *g = open_small();

    apply(g, "general.architecture=str:llama");
    cr_expect_eq(number(g, "llama.block_count"), 2);
    cr_expect_not(gguf_has(g, "mamba.block_count"));
    cr_expect_eq(number(g, "llama.context_length"), 512, "the file's own key stays");
    cr_expect_eq(number(g, "mamba.context_length"), 256);
    cr_expect_eq(number(g, "mambas.width"), 7, "the name of another architecture");
    apply(g, "llama.block_count=int:5,general.architecture=str:llama");
    cr_expect_eq(number(g, "llama.block_count"), 5);
    cr_expect_eq(gguf_n_kv(g), 7);
    gguf_free(g);
}

Test(gguf_override, many_new_keys_are_all_found) {
    struct gguf *g = open_small();
    char text[64];

    for (uint32_t i = 0; i < 300; i++) {
        snprintf(text, sizeof(text), "mamba.k%u=int:%u", i, i);
        apply(g, text);
    }
    apply(g, "general.architecture=str:x");
    for (uint32_t i = 0; i < 300; i++) {
        snprintf(text, sizeof(text), "x.k%u", i);
        cr_expect_eq(number(g, text), i);
    }
    gguf_free(g);
}

Test(gguf_override, another_value_is_another_model) {
    static const char *const lists[] = {"",        "x=int:1", "x=int:2",    "y=int:1",
                                        "x=str:1", "x=str:2", "x=bool:true"};
    uint8_t print[ARRAY_SIZE(lists)][16];

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
        struct gguf *g = open_small(), *again = open_small();
        uint8_t second[16];

        apply(g, lists[i]);
        apply(again, lists[i]);
        gguf_fingerprint(g, print[i]);
        gguf_fingerprint(again, second);
        cr_expect_eq(memcmp(print[i], second, 16), 0, "%s", lists[i]);
        for (size_t k = 0; k < i; k++)
            cr_expect_neq(memcmp(print[i], print[k], 16), 0, "%s, %s", lists[i], lists[k]);
        gguf_free(g);
        gguf_free(again);
    }
}

Test(gguf_override, wrong_forms_are_refused_by_key) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"x", "must be KEY=TYPE:VALUE"},
        {"x=int", "must be KEY=TYPE:VALUE"},
        {"=int:1", "a key has 1 to 127 printable characters"},
        {"a b=int:1", "a key has 1 to 127 printable characters"},
        {"x=uint:1", "x: the type must be int, float, bool or str"},
        {"x=int:", "x: int: must be a whole number"},
        {"x=int:1.5", "x: int: must be a whole number"},
        {"x=int: 1", "x: int: must be a whole number"},
        {"x=int:9223372036854775808", "x: int: must be a whole number of 64 bits"},
        {"x=float:0x10", "x: float: must be a decimal number"},
        {"x=float:nan", "x: float: must be a decimal number"},
        {"x=float:1e400", "x: float: must be a decimal number in range"},
        {"x=float:.", "x: float: must be a decimal number"},
        {"x=bool:yes", "x: bool: must be true or false"},
        {"general.alignment=int:64", "general.alignment: the layout of the file depends on it"},
        {"split.count=int:2", "split.count: the layout of the file depends on it"},
    };
    struct gguf *g = open_small();
    char long_key[200], long_text[1100] = "x=str:";

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct err err = {0};

        cr_expect_eq(gguf_override_check(cases[i].text, &err), -EINVAL, "%s", cases[i].text);
        cr_expect(strstr(err.message, cases[i].part), "%s: %s", cases[i].text, err.message);
        cr_expect_eq(strncmp(err.message, "override-kv: ", 13), 0);
        cr_expect_eq(gguf_override(g, cases[i].text, &err), -EINVAL, "%s", cases[i].text);
    }
    memset(long_key, 'k', sizeof(long_key));
    strcpy(long_key + 127, "=int:1");
    cr_expect_eq(gguf_override_check(long_key, NULL), 0);
    memcpy(long_key + 127, "k=int:1", 8);
    cr_expect_eq(gguf_override_check(long_key, NULL), -EINVAL);
    memset(long_text + 6, 't', 1024);
    cr_expect_eq(gguf_override_check(long_text, NULL), 0);
    long_text[6 + 1024] = 't';
    cr_expect_eq(gguf_override_check(long_text, NULL), -EINVAL);
    cr_expect_eq(gguf_n_kv(g), 7, "nothing has changed");
    gguf_free(g);
}

Test(gguf_override, name_of_an_architecture_is_a_name) {
    static const char *const texts[] = {"general.architecture=int:1",
                                        "general.architecture=str:", "general.architecture=str:a b",
                                        "general.architecture=str:a\n"};
    struct gguf *g = open_small();

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct err err = {0};

        cr_expect_eq(gguf_override(g, texts[i], &err), -EINVAL, "%s", texts[i]);
        cr_expect(strstr(err.message, "general.architecture: must be the name"), "%s", err.message);
    }
    gguf_free(g);
}
