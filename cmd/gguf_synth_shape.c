#include "cmd/gguf_synth.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "cmd/cli.h"

static const char *const arch_names[] = {
    [SYNTH_LLAMA] = "llama",        [SYNTH_QWEN2] = "qwen2",         [SYNTH_QWEN3] = "qwen3",
    [SYNTH_QWEN3MOE] = "qwen3moe",  [SYNTH_QWEN3NEXT] = "qwen3next", [SYNTH_QWEN35] = "qwen35",
    [SYNTH_QWEN35MOE] = "qwen35moe"};

static const struct {
    const char *name;
    struct synth_shape shape;
} shapes[] = {
    {"tiny",
     {SYNTH_LLAMA, 2, 256, 4, 2, 64, 512, 1024, 2048, 0, 10000, 1e-5, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
    {"tinyllama", {SYNTH_LLAMA, 22, 2048, 32, 4, 64, 5632, 32000, 2048, 0, 10000,
                   1e-5,        0,  0,    0,  0, 0,  0,    0,     0,    0}},
    {"llama3-8b", {SYNTH_LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, 8192, 0, 500000,
                   1e-5,        0,  0,    0,  0, 0,   0,     0,      0,    0}},
    {"qwen2-0.5b", {SYNTH_QWEN2, 24, 896, 14, 2, 64, 4864, 151936, 32768, 1, 1e6,
                    1e-6,        0,  0,   0,  0, 0,  0,    0,      0,     0}},
    {"qwen3-0.6b", {SYNTH_QWEN3, 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1, 1e6,
                    1e-6,        0,  0,    0,  0, 0,   0,    0,      0,     0}},
    {"qwen3-8b", {SYNTH_QWEN3, 36, 4096, 32, 8, 128, 12288, 151936, 40960, 0, 1e6,
                  1e-6,        0,  0,    0,  0, 0,   0,     0,      0,     0}},
    {"qwen3-30b-a3b", {SYNTH_QWEN3MOE, 48,  2048, 32, 4, 128, 768, 151936, 40960, 0, 1e6,
                       1e-6,           128, 8,    0,  0, 0,   0,   0,      0,     0}},
    {"qwen3.6-27b", {SYNTH_QWEN35, 64, 5120, 24, 4, 256, 17408, 248320, 262144, 0, 1e7,
                     1e-6,         0,  0,    64, 0, 16,  48,    128,    0,      0}},
    {"qwen3.6-35b-a3b",
     {SYNTH_QWEN35MOE,
      40,
      2048,
      16,
      2,
      256,
      512,
      248320,
      262144,
      0,
      1e7,
      1e-6,
      256,
      8,
      64,
      512,
      16,
      32,
      128,
      0,
      0}},
    {"qwen3-coder-next",
     {SYNTH_QWEN3NEXT,
      48,
      2048,
      16,
      2,
      256,
      512,
      151936,
      262144,
      0,
      1e7,
      1e-6,
      512,
      10,
      64,
      512,
      16,
      32,
      128,
      0,
      0}},
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
};

const char *synth_arch_name(enum synth_arch arch) {
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
                   "unknown shape \"%s\": tiny, tinyllama, llama3-8b, qwen2-0.5b, qwen3-0.6b, "
                   "qwen3-8b, qwen3-30b-a3b, qwen3.6-27b, qwen3.6-35b-a3b or qwen3-coder-next",
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
    return err_set(err, 0, NULL, "shape: unknown key \"%s\"", key);
}

static int check(const struct synth_shape *s, struct err *err) {
    if (s->n_head % s->n_kv)
        return err_set(err, 0, NULL, "shape: n_head %u is not a multiple of n_kv %u", s->n_head,
                       s->n_kv);
    if (s->head_dim % 2)
        return err_set(err, 0, NULL, "shape: head_dim %u is odd", s->head_dim);
    if (s->arch == SYNTH_QWEN2 && s->n_head * s->head_dim != s->n_embd)
        return err_set(err, 0, NULL, "shape: qwen2 needs n_head * head_dim = n_embd");
    if (s->n_used > s->n_expert || (s->n_expert && !s->n_used))
        return err_set(err, 0, NULL, "shape: %u of %u experts cannot be used", s->n_used,
                       s->n_expert);
    bool never = s->arch == SYNTH_QWEN2 || s->arch == SYNTH_QWEN3 || s->arch == SYNTH_QWEN35;
    bool always =
        s->arch == SYNTH_QWEN3MOE || s->arch == SYNTH_QWEN3NEXT || s->arch == SYNTH_QWEN35MOE;
    if (s->n_expert ? never : always)
        return err_set(err, 0, NULL, "shape: %s with %u experts", synth_arch_name(s->arch),
                       s->n_expert);
    if (!synth_is_hybrid(s))
        return s->n_mtp ? err_set(err, 0, NULL, "shape: %s with n_mtp", synth_arch_name(s->arch))
                        : 0;
    if (s->n_layer < 4 || !s->n_key || s->n_value % s->n_key || s->n_state % 16 || !s->n_state)
        return err_set(
            err, 0, NULL,
            "shape: hybrid models need 4 layers, n_value a multiple of n_key, n_state one "
            "of 16");
    if (s->n_expert && !s->n_shared)
        return err_set(err, 0, NULL, "shape: hybrid models with experts need n_shared");
    return 0;
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
            r = err_set(err, 0, NULL, "shape: \"%s\" is not key=value", part);
        }
    }
    if (r == 0 && arch && synth_arch_find(arch, &s.arch) < 0)
        r = err_set(err, 0, NULL,
                    "unknown architecture \"%s\": llama, qwen2, qwen3, qwen3moe, qwen3next, qwen35 "
                    "or qwen35moe",
                    arch);
    if (r == 0)
        r = check(&s, err);
    if (r == 0)
        *out = s;
    return r;
}
