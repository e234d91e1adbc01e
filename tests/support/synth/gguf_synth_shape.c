#include <assert.h>
#include <errno.h>
#include <string.h>

#include "cmd/cli.h"
#include "tests/support/synth/gguf_synth.h"

static const char *const arch_names[] = {
    [SYNTH_LLAMA] = "llama",         [SYNTH_MISTRAL3] = "mistral3",
    [SYNTH_GPT_OSS] = "gpt-oss",     [SYNTH_GEMMA4] = "gemma4",
    [SYNTH_DEEPSEEK2] = "deepseek2", [SYNTH_QWEN2] = "qwen2",
    [SYNTH_QWEN3] = "qwen3",         [SYNTH_QWEN3MOE] = "qwen3moe",
    [SYNTH_QWEN3NEXT] = "qwen3next", [SYNTH_QWEN35] = "qwen35",
    [SYNTH_QWEN35MOE] = "qwen35moe", [SYNTH_ASSISTANT] = "gemma4-assistant",
    [SYNTH_MUSE] = "muse-glimmer",   [SYNTH_STEP35] = "step35",
    [SYNTH_QWEN4EXP] = "qwen4exp",   [SYNTH_DEEPSEEK4] = "deepseek4",
    [SYNTH_MINIMAX] = "minimax-m2",  [SYNTH_BAILING3] = "bailingmoe3",
};

static const struct {
    const char *name;
    struct synth_shape shape;
} shapes[] = {
    {"tiny",
     {SYNTH_LLAMA, .n_layer = 2, .n_embd = 256, .n_head = 4, .n_kv = 2, .head_dim = 64, .n_ff = 512,
      .n_vocab = 1024, .context = 2048, .theta = 10000, .eps = 1e-5}},
    {"tinyllama",
     {SYNTH_LLAMA, .n_layer = 22, .n_embd = 2048, .n_head = 32, .n_kv = 4, .head_dim = 64,
      .n_ff = 5632, .n_vocab = 32000, .context = 2048, .theta = 10000, .eps = 1e-5}},
    {"llama3-8b",
     {SYNTH_LLAMA, .n_layer = 32, .n_embd = 4096, .n_head = 32, .n_kv = 8, .head_dim = 128,
      .n_ff = 14336, .n_vocab = 128256, .context = 8192, .theta = 500000, .eps = 1e-5}},
    {"devstral-24b",
     {SYNTH_MISTRAL3, .n_layer = 40, .n_embd = 5120, .n_head = 32, .n_kv = 8, .head_dim = 128,
      .n_ff = 32768, .n_vocab = 131072, .context = 393216, .theta = 1e8, .eps = 1e-5, .factor = 48,
      .original = 8192}},
    {"gpt-oss-20b",
     {SYNTH_GPT_OSS, .n_layer = 24, .n_embd = 2880, .n_head = 64, .n_kv = 8, .head_dim = 64,
      .n_ff = 2880, .n_vocab = 201088, .context = 131072, .theta = 150000, .eps = 1e-5,
      .n_expert = 32, .n_used = 4, .window = 128, .period = 2, .factor = 32, .original = 4096}},
    {"gemma-4-26b-a4b",
     {SYNTH_GEMMA4, .n_layer = 30, .n_embd = 2816, .n_head = 16, .n_kv = 2, .head_dim = 512,
      .n_ff = 704, .n_vocab = 262144, .context = 262144, .tied = 1, .theta = 1e6, .eps = 1e-6,
      .n_expert = 128, .n_used = 8, .n_dense = 2112, .window = 1024, .period = 6, .n_kv_window = 8,
      .window_dim = 256}},
    {"gemma-4-26b-a4b-assistant",
     {SYNTH_ASSISTANT, .n_layer = 4, .n_embd = 1024, .n_head = 16, .n_kv = 2, .head_dim = 512,
      .n_ff = 8192, .n_vocab = 262144, .context = 262144, .tied = 1, .theta = 1e6, .eps = 1e-6,
      .window = 1024, .period = 4, .n_kv_window = 8, .window_dim = 256, .n_embd_out = 2816}},
    {"glm-4.7-flash",
     {SYNTH_DEEPSEEK2, .n_layer = 47,  .n_embd = 2048,    .n_head = 20,      .n_kv = 1,
      .head_dim = 256, .n_ff = 1536,   .n_vocab = 154880, .context = 202752, .theta = 1e6,
      .eps = 1e-5,     .n_expert = 64, .n_used = 4,       .n_shared = 1536,  .n_dense = 10240,
      .n_lead = 1,     .n_rot = 64,    .q_rank = 768,     .kv_rank = 512,    .v_dim = 256}},
    {"deepseek-v4-flash",
     {SYNTH_DEEPSEEK4, .n_layer = 43,   .n_embd = 4096,    .n_head = 64,       .n_kv = 1,
      .head_dim = 512, .n_ff = 2048,    .n_vocab = 129280, .context = 1048576, .theta = 10000,
      .eps = 1e-6,     .n_expert = 256, .n_used = 6,       .n_shared = 2048,   .n_rot = 64,
      .q_rank = 1024,  .window = 128,   .n_stream = 4,     .n_index = 64,      .index_dim = 128,
      .n_chosen = 512, .n_group = 8,    .out_rank = 1024,  .factor = 16,       .original = 65536}},
    {"minimax-m2.7",
     {SYNTH_MINIMAX, .n_layer = 62, .n_embd = 3072, .n_head = 48, .n_kv = 8, .head_dim = 128,
      .n_ff = 1536, .n_vocab = 200064, .context = 196608, .theta = 5e6, .eps = 1e-6,
      .n_expert = 256, .n_used = 8, .n_rot = 64}},
    {"muse-glimmer-30b",
     {SYNTH_MUSE, .n_layer = 52, .n_embd = 6656, .n_head = 32, .n_kv = 2, .head_dim = 128,
      .n_ff = 19968, .n_vocab = 202048, .context = 131072, .theta = 500000, .eps = 1e-5,
      .window = 2048, .period = 4}},
    {"step-3.5-flash",
     {SYNTH_STEP35, .n_layer = 45, .n_embd = 4096, .n_head = 64, .n_kv = 8, .head_dim = 128,
      .n_ff = 1280, .n_vocab = 128896, .context = 262144, .theta = 5e6, .eps = 1e-5,
      .n_expert = 288, .n_used = 8, .n_shared = 1280, .n_dense = 11264, .n_lead = 3, .window = 512,
      .period = 4, .n_head_window = 96}},
    {"ling-3.0-flash",
     {SYNTH_BAILING3,  .n_layer = 42,   .n_embd = 2560,    .n_head = 32,      .n_kv = 1,
      .head_dim = 192, .n_ff = 768,     .n_vocab = 157184, .context = 131072, .theta = 6e6,
      .eps = 1e-6,     .n_expert = 512, .n_used = 8,       .n_shared = 768,   .n_dense = 6144,
      .n_lead = 2,     .n_rot = 64,     .kv_rank = 512,    .v_dim = 128,      .period = 6,
      .n_group = 8,    .n_mtp = 1}},
    {"qwen2-0.5b",
     {SYNTH_QWEN2, .n_layer = 24, .n_embd = 896, .n_head = 14, .n_kv = 2, .head_dim = 64,
      .n_ff = 4864, .n_vocab = 151936, .context = 32768, .tied = 1, .theta = 1e6, .eps = 1e-6}},
    {"qwen3-0.6b",
     {SYNTH_QWEN3, .n_layer = 28, .n_embd = 1024, .n_head = 16, .n_kv = 8, .head_dim = 128,
      .n_ff = 3072, .n_vocab = 151936, .context = 40960, .tied = 1, .theta = 1e6, .eps = 1e-6}},
    {"qwen3-8b",
     {SYNTH_QWEN3, .n_layer = 36, .n_embd = 4096, .n_head = 32, .n_kv = 8, .head_dim = 128,
      .n_ff = 12288, .n_vocab = 151936, .context = 40960, .theta = 1e6, .eps = 1e-6}},
    {"qwen3-30b-a3b",
     {SYNTH_QWEN3MOE, .n_layer = 48, .n_embd = 2048, .n_head = 32, .n_kv = 4, .head_dim = 128,
      .n_ff = 768, .n_vocab = 151936, .context = 40960, .theta = 1e6, .eps = 1e-6, .n_expert = 128,
      .n_used = 8}},
    {"qwen3.6-27b",
     {SYNTH_QWEN35, .n_layer = 64, .n_embd = 5120, .n_head = 24, .n_kv = 4, .head_dim = 256,
      .n_ff = 17408, .n_vocab = 248320, .context = 262144, .theta = 1e7, .eps = 1e-6, .n_rot = 64,
      .n_key = 16, .n_state = 128, .n_value = 48}},
    {"qwen3.6-35b-a3b",
     {SYNTH_QWEN35MOE, .n_layer = 40, .n_embd = 2048, .n_head = 16, .n_kv = 2, .head_dim = 256,
      .n_ff = 512, .n_vocab = 248320, .context = 262144, .theta = 1e7, .eps = 1e-6, .n_expert = 256,
      .n_used = 8, .n_shared = 512, .n_rot = 64, .n_key = 16, .n_state = 128, .n_value = 32}},
    {"qwen3.8-flash-next",
     {SYNTH_QWEN4EXP,  .n_layer = 48,    .n_embd = 2560,    .n_head = 24,       .n_kv = 2,
      .head_dim = 256, .n_ff = 640,      .n_vocab = 248320, .context = 262144,  .theta = 1e7,
      .eps = 1e-6,     .n_expert = 512,  .n_used = 10,      .n_shared = 640,    .n_rot = 64,
      .n_key = 16,     .n_state = 128,   .n_value = 48,     .n_stream = 4,      .n_low = 320,
      .n_index = 4,    .index_dim = 128, .n_chosen = 2048,  .n_table = 20000000}},
    {"qwen3-coder-next",
     {SYNTH_QWEN3NEXT, .n_layer = 48, .n_embd = 2048, .n_head = 16, .n_kv = 2, .head_dim = 256,
      .n_ff = 512, .n_vocab = 151936, .context = 262144, .theta = 1e7, .eps = 1e-6, .n_expert = 512,
      .n_used = 10, .n_shared = 512, .n_rot = 64, .n_key = 16, .n_state = 128, .n_value = 32}},
};

/* A matrix stays below 2^32 values and the sums of sizes far from overflow. */
static const struct {
    const char *name;
    size_t offset;
    uint32_t min, max;
} fields[] = {
    {"n_layer", offsetof(struct synth_shape, n_layer), 1, SYNTH_LAYERS_MAX},
    {"n_embd", offsetof(struct synth_shape, n_embd), 32, 65536},
    {"n_head", offsetof(struct synth_shape, n_head), 1, 1024},
    {"n_kv", offsetof(struct synth_shape, n_kv), 1, 1024},
    {"head_dim", offsetof(struct synth_shape, head_dim), 2, 1024},
    {"n_ff", offsetof(struct synth_shape, n_ff), 32, 262144},
    {"n_vocab", offsetof(struct synth_shape, n_vocab), SYNTH_VOCAB_MIN, SYNTH_VOCAB_MAX},
    {"context", offsetof(struct synth_shape, context), 16, 16777216},
    {"tied", offsetof(struct synth_shape, tied), 0, 1},
    {"n_expert", offsetof(struct synth_shape, n_expert), 0, 1024},
    {"n_used", offsetof(struct synth_shape, n_used), 0, 1024},
    {"n_rot", offsetof(struct synth_shape, n_rot), 0, 1024},
    {"n_shared", offsetof(struct synth_shape, n_shared), 0, 262144},
    {"n_key", offsetof(struct synth_shape, n_key), 1, 1024},
    {"n_value", offsetof(struct synth_shape, n_value), 1, 1024},
    {"n_state", offsetof(struct synth_shape, n_state), 16, 512},
    {"n_mtp", offsetof(struct synth_shape, n_mtp), 0, 1},
    {"n_dense", offsetof(struct synth_shape, n_dense), 0, 262144},
    {"n_lead", offsetof(struct synth_shape, n_lead), 0, SYNTH_LAYERS_MAX},
    {"q_rank", offsetof(struct synth_shape, q_rank), 0, 65536},
    {"kv_rank", offsetof(struct synth_shape, kv_rank), 1, 1024},
    {"v_dim", offsetof(struct synth_shape, v_dim), 1, 1024},
    {"window", offsetof(struct synth_shape, window), 1, 16777216},
    {"period", offsetof(struct synth_shape, period), 1, SYNTH_LAYERS_MAX},
    {"n_kv_window", offsetof(struct synth_shape, n_kv_window), 1, 1024},
    {"n_stream", offsetof(struct synth_shape, n_stream), 2, 16},
    {"n_low", offsetof(struct synth_shape, n_low), 1, 65536},
    {"n_index", offsetof(struct synth_shape, n_index), 1, 256},
    {"index_dim", offsetof(struct synth_shape, index_dim), 16, 1024},
    {"n_chosen", offsetof(struct synth_shape, n_chosen), 4, 16777216},
    {"n_table", offsetof(struct synth_shape, n_table), 32, 100000000},
    {"n_group", offsetof(struct synth_shape, n_group), 1, 256},
    {"out_rank", offsetof(struct synth_shape, out_rank), 1, 65536},
    {"n_head_window", offsetof(struct synth_shape, n_head_window), 1, 1024},
    {"window_dim", offsetof(struct synth_shape, window_dim), 2, 1024},
    {"n_embd_out", offsetof(struct synth_shape, n_embd_out), 32, 65536},
    {"factor", offsetof(struct synth_shape, factor), 0, 65536},
    {"original", offsetof(struct synth_shape, original), 0, 16777216},
};

const char *synth_arch_name(enum synth_arch arch) {
    assert((size_t)arch < ARRAY_SIZE(arch_names));
    return arch_names[arch];
}

int synth_arch_find(const char *name, enum synth_arch *out) {
    for (size_t i = 0; i < ARRAY_SIZE(arch_names); i++)
        if (strcmp(arch_names[i], name) == 0) {
            *out = (enum synth_arch)i;
            return 0;
        }
    return -EINVAL;
}

static int set_name(struct synth_shape *s, const char *name, struct err *err) {
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
        if (strcmp(shapes[i].name, name) == 0) {
            *s = shapes[i].shape;
            return 0;
        }
    return err_set(err, 0, NULL,
                   R"(unknown shape "%s": tiny, tinyllama, llama3-8b, devstral-24b, gpt-oss-20b, )"
                   "gemma-4-26b-a4b, gemma-4-26b-a4b-assistant, glm-4.7-flash, "
                   "deepseek-v4-flash, minimax-m2.7, "
                   "muse-glimmer-30b, step-3.5-flash, ling-3.0-flash, qwen2-0.5b, qwen3-0.6b, "
                   "qwen3-8b, qwen3-30b-a3b, qwen3.6-27b, qwen3.6-35b-a3b, qwen3.8-flash-next or "
                   "qwen3-coder-next",
                   name);
}

static int set_field(struct synth_shape *s, const char *key, const char *value, struct err *err) {
    if (strcmp(key, "theta") == 0 || strcmp(key, "eps") == 0 || strcmp(key, "loud") == 0) {
        double *p = *key == 't' ? &s->theta : *key == 'e' ? &s->eps : &s->loud;

        if (cli_double(value, 1e-12, 1e12, p))
            return 0;
        return err_set(err, 0, NULL, "shape: %s=%s is not a positive number", key, value);
    }
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        if (strcmp(fields[i].name, key) == 0) {
            uint32_t *p = (uint32_t *)((char *)s + fields[i].offset);

            if (cli_u32(value, fields[i].min, fields[i].max, p))
                return 0;
            return err_set(err, 0, NULL, "shape: %s=%s is not in [%u, %u]", key, value,
                           fields[i].min, fields[i].max);
        }
    return err_set(err, 0, NULL, R"(shape: unknown key "%s")", key);
}

/* Experts: as many as @s says, for an architecture that never, may or must have them. */
static int check_experts(const struct synth_shape *s, struct err *err) {
    bool may = s->arch == SYNTH_LLAMA,
         must = s->arch == SYNTH_QWEN3MOE || s->arch == SYNTH_QWEN3NEXT ||
                s->arch == SYNTH_QWEN35MOE || s->arch == SYNTH_QWEN4EXP ||
                s->arch == SYNTH_STEP35 || s->arch == SYNTH_MINIMAX || s->arch == SYNTH_BAILING3 ||
                (s->arch >= SYNTH_GPT_OSS && s->arch < SYNTH_QWEN2);

    if (s->n_used > s->n_expert || (s->n_expert && !s->n_used))
        return err_set(err, 0, NULL, "shape: %u of %u experts cannot be used", s->n_used,
                       s->n_expert);
    if (!may && must != (s->n_expert > 0))
        return err_set(err, 0, NULL, "shape: %s with %u experts", synth_arch_name(s->arch),
                       s->n_expert);
    if (s->n_expert && synth_is_hybrid(s) && !s->n_shared)
        return err_set(err, 0, NULL, "shape: hybrid models with experts need n_shared");
    return 0;
}

static int check_deepseek4(const struct synth_shape *s, struct err *err) {
    bool sizes = s->n_kv == 1 && s->n_layer >= SYNTH_BY_TOKEN && s->head_dim % 16 == 0 &&
                 s->n_embd % 16 == 0 && s->n_rot && s->n_rot <= MIN(s->index_dim, s->head_dim) &&
                 s->q_rank && s->window;
    bool parts = s->n_group && s->n_head % s->n_group == 0 && s->out_rank && s->n_shared == s->n_ff;
    bool index = s->n_index && s->index_dim % 16 == 0 && s->n_chosen && s->n_stream;

    if (sizes && parts && index)
        return 0;
    return err_set(err, 0, NULL,
                   "shape: deepseek4 needs n_kv 1, 3 layers, n_embd, head_dim and index_dim "
                   "multiples of 16, n_rot at most these, q_rank, window, n_group that divides "
                   "n_head, out_rank, n_shared = n_ff, n_index, n_chosen and n_stream");
}

static int check_latent(const struct synth_shape *s, struct err *err) {
    const char *name = synth_arch_name(s->arch);

    if (s->n_kv != 1 || !s->kv_rank || !s->v_dim || !s->n_shared || !s->n_rot ||
        s->n_rot >= s->head_dim || (s->n_lead && !s->n_dense))
        return err_set(err, 0, NULL,
                       "shape: %s needs n_kv 1, kv_rank, v_dim, n_shared, n_rot below "
                       "head_dim, and n_dense for n_lead",
                       name);
    if (s->n_group && (s->n_group % 2 || s->n_expert % s->n_group || s->n_used > s->n_expert / 2))
        return err_set(err, 0, NULL,
                       "shape: %s needs n_group even, a divisor of n_expert, with n_used experts "
                       "in half of them",
                       name);
    if (s->arch == SYNTH_BAILING3 && (!s->period || s->period > s->n_layer || s->v_dim % 16))
        return err_set(err, 0, NULL,
                       "shape: %s needs period at most n_layer, and v_dim a multiple of 16", name);
    return 0;
}

/* Checks the rules of single architectures. */
static int check_arch(const struct synth_shape *s, struct err *err) {
    const char *name = synth_arch_name(s->arch);

    if (s->arch == SYNTH_QWEN2 && s->n_head * s->head_dim != s->n_embd)
        return err_set(err, 0, NULL, "shape: qwen2 needs n_head * head_dim = n_embd");
    if ((s->arch == SYNTH_GPT_OSS || s->arch == SYNTH_MUSE || s->arch == SYNTH_STEP35 ||
         synth_is_gemma4(s)) &&
        (!s->window || !s->period))
        return err_set(err, 0, NULL, "shape: %s needs window and period", name);
    if (synth_is_gemma4(s) &&
        (!s->n_kv_window || !s->window_dim || s->window_dim % 2 || s->n_head % s->n_kv_window))
        return err_set(err, 0, NULL,
                       "shape: %s needs window_dim, and n_kv_window that divides n_head", name);
    if (s->arch == SYNTH_GEMMA4 && !s->n_dense)
        return err_set(err, 0, NULL, "shape: gemma4 needs n_dense");
    if (s->arch == SYNTH_STEP35 && (!s->n_shared || !s->n_dense || !s->n_head_window ||
                                    s->n_head_window % s->n_kv || s->head_dim % 4))
        return err_set(err, 0, NULL,
                       "shape: step35 needs n_shared, n_dense, n_head_window a multiple of n_kv, "
                       "and head_dim one of 4");
    if ((s->arch == SYNTH_ASSISTANT) != (s->n_embd_out > 0) || s->n_embd_out > 65536 / 2)
        return err_set(err, 0, NULL, "shape: gemma4-assistant, and nothing else, needs n_embd_out");
    if (s->n_embd_out && s->n_embd > s->n_embd_out)
        return err_set(err, 0, NULL, "shape: gemma4-assistant is at most n_embd_out wide");
    int r = synth_is_latent(s) ? check_latent(s, err) : 0;
    if (r < 0 || s->arch == SYNTH_BAILING3)
        return r;
    if (s->arch == SYNTH_DEEPSEEK4)
        return check_deepseek4(s, err);
    if (!synth_is_hybrid(s))
        return s->n_mtp ? err_set(err, 0, NULL, "shape: %s with n_mtp", name) : 0;
    if (s->arch == SYNTH_QWEN4EXP &&
        (s->n_mtp || !s->n_stream || !s->n_index || s->index_dim % 16 || s->n_embd % 16 ||
         (s->n_rot ? s->n_rot : s->head_dim) > s->index_dim || !s->n_chosen || !s->n_table))
        return err_set(err, 0, NULL,
                       "shape: qwen4exp needs n_stream, n_low, n_index, index_dim and n_embd "
                       "multiples of 16, n_rot at most index_dim, n_chosen and n_table");
    if (s->n_layer < 4 || !s->n_key || s->n_value % s->n_key || s->n_state % 16 || !s->n_state)
        return err_set(
            err, 0, NULL,
            "shape: hybrid models need 4 layers, n_value a multiple of n_key, n_state one "
            "of 16");
    return 0;
}

static int check(const struct synth_shape *s, struct err *err) {
    if (s->n_head % s->n_kv)
        return err_set(err, 0, NULL, "shape: n_head %u is not a multiple of n_kv %u", s->n_head,
                       s->n_kv);
    if (s->head_dim % 2)
        return err_set(err, 0, NULL, "shape: head_dim %u is odd", s->head_dim);
    int r = check_experts(s, err);
    return r < 0 ? r : check_arch(s, err);
}

int synth_shape_parse(struct synth_shape *out, const char *arch, const char *text,
                      struct err *err) {
    struct synth_shape s = shapes[0].shape;
    CLEANUP(freep) char *copy = strdup(text);
    char *rest = copy, *part;
    int r = 0;

    if (!copy)
        return -ENOMEM;
    for (bool first = true; r == 0 && (part = strsep(&rest, ",")); first = false) {
        char *value = strchr(part, '=');

        if (value) {
            *value++ = 0;
            r = set_field(&s, part, value, err);
        } else if (first) {
            r = set_name(&s, part, err);
        } else {
            r = err_set(err, 0, NULL, R"(shape: "%s" is not key=value)", part);
        }
    }
    if (r == 0 && arch && synth_arch_find(arch, &s.arch) < 0)
        r = err_set(err, 0, NULL,
                    R"(unknown architecture "%s": llama, mistral3, gpt-oss, gemma4, )"
                    "gemma4-assistant, deepseek2, deepseek4, minimax-m2, muse-glimmer, step35, "
                    "bailingmoe3, qwen2, qwen3, qwen3moe, qwen3next, qwen35, qwen35moe or qwen4exp",
                    arch);
    if (r == 0)
        r = check(&s, err);
    if (r == 0)
        *out = s;
    return r;
}
