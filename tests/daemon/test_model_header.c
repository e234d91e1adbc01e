#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/config.h"
#include "daemon/models/model_header.h"
#include "tests/support/gguf_writer.h"

static char path[64];
static struct gguf_writer w;

static void start(void) {
    strcpy(path, "/tmp/weft-header-XXXXXX");
    close(mkstemp(path));
    gw_init(&w);
}

static struct model_header read_file(void) {
    struct model_header h;

    gw_save(&w, path);
    cr_assert_eq(model_header_open(&h, path), 0);
    gw_deinit(&w);
    unlink(path);
    return h;
}

Test(model_header, has_the_numbers_of_the_file) {
    static const char *const tokens[] = {"a", "b", "c"};
    static const uint64_t table[] = {64, 3}, weights[] = {64, 2, 5}, norm[] = {7};

    start();
    gw_string(&w, "general.architecture", "some");
    gw_u32(&w, "some.context_length", 4096);
    gw_u32(&w, "some.embedding_length", 64);
    gw_u32(&w, "other.context_length", 1);
    gw_strings(&w, "tokenizer.ggml.tokens", 3, tokens);
    gw_tensor(&w, "token_embd.weight", TENSOR_F32, 2, table, NULL);
    gw_tensor(&w, "experts", TENSOR_F16, 3, weights, NULL);
    gw_tensor(&w, "norm", TENSOR_F32, 1, norm, NULL);
    struct model_header h = read_file();

    cr_expect_str_eq(h.arch, "some");
    cr_expect_eq(h.n_ctx_train, 4096);
    cr_expect_not(h.reasons);
    cr_expect_eq(h.n_embd, 64);
    cr_expect_eq(h.n_vocab, 3);
    cr_expect_eq(h.n_params, 64 * 3 + 64 * 2 * 5 + 7);
    cr_expect_eq(h.tensor_bytes, 64 * 3 * 4 + 64 * 2 * 5 * 2 + 7 * 4);
}

Test(model_header, tells_reasoning_by_the_template) {
    start();
    gw_string(&w, "tokenizer.chat_template", "{{ messages[0].content.split('</think>')[-1] }}");
    cr_expect(read_file().reasons);
}

Test(model_header, names_the_kind_of_vocabulary) {
    static const struct {
        const char *name;
        enum vocab_type type;
    } cases[] = {
        {"llama", VOCAB_SPM},  {"gemma4", VOCAB_BPE}, {"gpt2", VOCAB_BPE},      {"bert", VOCAB_WPM},
        {"t5", VOCAB_UGM},     {"rwkv", VOCAB_RWKV},  {"plamo2", VOCAB_PLAMO2}, {"gpt", VOCAB_NONE},
        {"gpt22", VOCAB_NONE}, {"", VOCAB_NONE},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        start();
        gw_string(&w, "tokenizer.ggml.model", cases[i].name);
        cr_expect_eq(read_file().vocab_type, cases[i].type, "%s", cases[i].name);
    }
}

Test(model_header, lacks_what_the_file_lacks) {
    static const struct model_header none;
    char arch[101];
    struct model_header h;

    start();
    h = read_file();
    cr_expect_eq(memcmp(&h, &none, sizeof(h)), 0);
    memset(arch, 'a', 100);
    arch[100] = 0;
    start();
    gw_string(&w, "general.architecture", arch);
    h = read_file();
    cr_expect_eq(strlen(h.arch), sizeof(h.arch) - 1);
    memset(&h, 1, sizeof(h));
    cr_expect_eq(model_header_open(&h, path), -ENOENT);
    cr_expect_eq(memcmp(&h, &none, sizeof(h)), 0);
}

Test(model_header, context_is_the_lesser_of_the_options_and_the_models) {
    struct model_header h = {.n_ctx_train = 4096};
    static struct config c;

    cr_expect_eq(model_header_context(&h, &c), 4096);
    c.engine.max_context = 1024;
    cr_expect_eq(model_header_context(&h, &c), 1024);
    c.engine.max_context = 8192;
    cr_expect_eq(model_header_context(&h, &c), 4096);
}

Test(model_header, small_models_and_coarse_files_need_a_loop_breaker) {
    static const struct {
        uint64_t n_params, tensor_bytes;
        uint32_t loops;
    } cases[] = {
        {600000000, 640000000, REPEATS_DEFAULT},   /* Qwen3-0.6B, Q8_0 */
        {1700000000, 3400000000, REPEATS_DEFAULT}, /* Qwen3-1.7B, BF16 */
        {4000000000, 2500000000, 0},               /* Qwen3-4B, Q4_K_M */
        {8000000000, 3400000000, 0},               /* 3.4 bits: Q3_K_S */
        {8030000000, 3180000000, REPEATS_DEFAULT}, /* Llama 3.1 8B, Q2_K */
        {70000000000, 19000000000, REPEATS_DEFAULT},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct model_header h = {.n_params = cases[i].n_params,
                                 .tensor_bytes = cases[i].tensor_bytes};

        cr_expect_eq(model_header_loops(&h), cases[i].loops, "%zu", i);
    }
}
