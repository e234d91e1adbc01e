/*
 * Tests the checks of a model file: every lack and every contradiction is refused with the name of
 * the tensor or key, and a damaged file is refused at worst.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/archs.h"
#include "engine/backend.h"
#include "engine/experts.h"
#include "engine/op.h"
#include "tests/support/engine_driver.h"
#include "tests/support/tiny_model.h"

static const struct tiny_model small = {
    .arch = "qwen3", .n_embd = 32, .n_ff = 40, .n_vocab = 48, .head_dim = 16, .n_layer = 2};

/* Opens the file of @w with the reference backend. */
static int open_built(struct gguf_writer *w, struct driver *d, struct err *err) {
    struct driver_opts o = {.max_rows = 8, .max_seqs = 2, .n_pages = 4};
    char path[64];

    *err = (struct err){0};
    tiny_model_temp_of(w, path);
    o.path = path;
    int r = driver_open(d, &o, err);
    unlink(path);
    return r;
}

/* Returns "" if the file is accepted, else the reason. */
static const char *refusal(struct gguf_writer *w, struct err *err) {
    struct driver d;

    if (open_built(w, &d, err) == 0) {
        driver_close(&d);
        return "";
    }
    cr_expect(err->message[0] != 0, "refused without a reason");
    return err->message;
}

static const char *refusal_of(const struct tiny_model *t, struct err *err) {
    struct gguf_writer w;

    gw_init(&w);
    tiny_model_build(t, &w);
    const char *s = refusal(&w, err);
    gw_deinit(&w);
    return s;
}

static void expect_refused(const char *why, const char *part) {
    cr_expect(strstr(why, part) != NULL, "expected '%s' in: '%s'", part, why);
}

Test(model, each_of_our_architectures_is_taken) {
    static const char *const archs[] = {"llama",   "qwen2",   "qwen3",     "qwen3moe",
                                        "qwen2vl", "qwen3vl", "qwen3vlmoe"};
    struct tiny_model t = small;
    struct err err;

    for (size_t i = 0; i < ARRAY_SIZE(archs); i++) {
        t.arch = archs[i];
        t.tied = i == 1;
        cr_expect_str_eq(refusal_of(&t, &err), "", "%s", archs[i]);
    }
}

Test(model, experts_are_taken_where_they_are_known) {
    struct tiny_model t = small;
    struct gguf_writer w;
    struct err err;

    t.n_expert = 5;
    t.n_expert_used = 2;
    expect_refused(refusal_of(&t, &err), "qwen3 models with experts (5 here) are not supported");
    t.arch = "llama";
    cr_expect_str_eq(refusal_of(&t, &err), "");
    t.n_expert_used = 6;
    expect_refused(refusal_of(&t, &err), "'llama.expert_used_count' is 6; it must be from 1 to 5");
    t.arch = "qwen3moe";
    t.n_expert_used = 2;
    t.leave_out = "qwen3moe.expert_count";
    expect_refused(refusal_of(&t, &err), "no 'qwen3moe.expert_count'");
    t.leave_out = "blk.1.ffn_down_exps.weight";
    expect_refused(refusal_of(&t, &err), t.leave_out);
    t.leave_out = "blk.0.ffn_gate_inp.weight";
    expect_refused(refusal_of(&t, &err), t.leave_out);
    t.leave_out = NULL;
    gw_init(&w);
    tiny_model_build(&t, &w);
    gw_u32(&w, "qwen3moe.leading_dense_block_count", 1);
    expect_refused(refusal(&w, &err),
                   "'qwen3moe.leading_dense_block_count' is 1, which is not supported");
    gw_deinit(&w);
}

/* Llama 4's queries: 1 + 0.1 ln(1 + floor((position + 1) / 8192)). */
Test(model, a_temperature_may_begin_one_position_ahead) {
    const struct temper t = {.slope = 0.1f, .span = 8192, .ahead = 1};

    cr_assert_eq(temper_at(&t, 8190), 1);
    cr_assert_float_eq(temper_at(&t, 8191), 1 + 0.1 * log(2), 1e-6);
    cr_assert_float_eq(temper_at(&t, 16382), 1 + 0.1 * log(2), 1e-6);
    cr_assert_float_eq(temper_at(&t, 16383), 1 + 0.1 * log(3), 1e-6);
}

/* Picks one expert after the other as op.h defines, whatever the numbers are. */
Test(model, experts_are_picked_in_order) {
    float logits[5] = {1, 3, NAN, 3, -INFINITY};
    struct expert_rule rule = {.n = 5, .n_used = 3, .scale = 2, .normalize = true};
    struct expert_pick p[5];

    experts_pick(logits, &rule, p);
    cr_expect(p[0].expert == 1 && p[1].expert == 3 && p[2].expert == 0);
    cr_expect(p[0].weight == p[1].weight);
    double e = exp(-2.0);
    cr_expect(fabs((double)p[0].weight - 2 / (2 + e)) < 1e-6);
    cr_expect(fabs((double)p[2].weight - 2 * e / (2 + e)) < 1e-6);
    for (int i = 0; i < 5; i++)
        logits[i] = NAN;
    rule.n_used = 5;
    rule.scale = 1;
    experts_pick(logits, &rule, p);
    for (uint32_t i = 0; i < 5; i++)
        cr_expect(p[i].expert == i && p[i].weight == 0.2f);
}

/* The bias chooses, the probability weighs. */
Test(model, experts_are_picked_by_biased_probabilities) {
    static const float bias[4] = {0.5f, 0, 0, -1};
    float l[4] = {-1, 2, 1, 5};
    struct expert_rule rule = {
        .n = 4, .n_used = 2, .scale = 2.5f, .gating = GATING_SIGMOID, .bias = bias};
    struct expert_pick p[2];
    double s[4];

    for (int i = 0; i < 4; i++)
        s[i] = 1 / (1 + exp(-(double)l[i]));
    experts_pick(l, &rule, p);
    cr_expect(p[0].expert == 1 && p[1].expert == 0);
    cr_expect(fabs((double)p[0].weight - 2.5 * s[1]) < 1e-6);
    cr_expect(fabs((double)p[1].weight - 2.5 * s[0]) < 1e-6);

    float again[4] = {-1, 2, 1, 5};
    rule.normalize = true;
    experts_pick(again, &rule, p);
    cr_expect(fabs((double)p[1].weight - 2.5 * s[0] / (s[0] + s[1])) < 1e-6);

    float soft[3] = {0, 1, 2};
    double sum = 1 + exp(1) + exp(2);
    rule = (struct expert_rule){.n = 3, .n_used = 1, .scale = 1};
    experts_pick(soft, &rule, p);
    cr_expect(p[0].expert == 2 && fabs((double)p[0].weight - exp(2) / sum) < 1e-6);
}

/* The group of the best expert has the worse pair. */
Test(model, experts_are_picked_from_the_best_groups) {
    float l[6] = {3, -4, 1, 2, -1, -1}, again[6] = {3, -4, 1, 2, -1, -1};
    struct expert_rule rule = {
        .n = 6, .n_used = 2, .scale = 1, .gating = GATING_SIGMOID, .n_group = 3, .n_group_used = 1};
    struct expert_pick p[3];

    experts_pick(l, &rule, p);
    cr_expect(p[0].expert == 3 && p[1].expert == 2);
    rule.n_group_used = 2;
    rule.n_used = 3;
    experts_pick(again, &rule, p);
    cr_expect(p[0].expert == 0 && p[1].expert == 3 && p[2].expert == 2);
}

Test(model, foreign_architectures_are_refused_by_name) {
    struct tiny_model t = small;
    struct err err;

    t.arch = "mamba";
    expect_refused(
        refusal_of(&t, &err),
        "'mamba' is not supported; all its tensors fit 'llama', which may compute something "
        "else: --override-kv general.architecture=str:llama tries it (`weft-gguf info "
        "--nearest` says more)");

    t.arch = "gptoss";
    expect_refused(refusal_of(&t, &err), "a file made for Ollama");

    struct gguf_writer w;
    gw_init(&w);
    gw_string(&w, "general.architecture", "llama\n");
    expect_refused(refusal(&w, &err), "is not a valid name");
    gw_deinit(&w);
}

Test(model, what_is_missing_is_named) {
    static const char *const needed[] = {
        "block_count",         "context_length",       "embedding_length",
        "feed_forward_length", "attention.head_count", "attention.layer_norm_rms_epsilon"};
    struct tiny_model t = small;
    struct err err;
    char path[64], name[96];
    struct gguf *file;

    for (size_t i = 0; i < ARRAY_SIZE(needed); i++) {
        snprintf(name, sizeof(name), "qwen3.%s", needed[i]);
        t.leave_out = name;
        expect_refused(refusal_of(&t, &err), name);
    }
    t.leave_out = NULL;
    tiny_model_temp(&t, path);
    cr_assert_eq(gguf_open(&file, path, &err), 0);
    for (uint64_t i = 0; i < gguf_n_tensors(file); i++) {
        t.leave_out = gguf_tensor(file, i)->name;
        const char *why = refusal_of(&t, &err);
        if (strcmp(t.leave_out, "output.weight") == 0)
            cr_expect_str_eq(why, "", "a model without output.weight is tied");
        else
            expect_refused(why, t.leave_out);
    }
    gguf_free(file);
    unlink(path);
}

Test(model, contradictions_are_named) {
    static const struct {
        const char *key;
        uint32_t value;
        const char *reason;
    } wrong[] = {
        {"block_count", 0, "block_count"},
        {"block_count", 1, "blk.1.attn_norm.weight"},
        {"block_count", 3, "blk.2.attn_norm.weight"},
        {"block_count", 100000, "block_count"},
        {"embedding_length", 64, "token_embd.weight"},
        {"feed_forward_length", 41, "blk.0.ffn_gate.weight"},
        {"attention.head_count", 8, "blk.0.attn_q.weight"},
        {"attention.head_count_kv", 3, "4 heads cannot share 3 key heads"},
        {"attention.head_count_kv", 0, "head_count_kv"},
        {"attention.key_length", 15, "heads have 15 values"},
        {"attention.value_length", 8, "keys of 16 and values of 8"},
        {"rope.dimension_count", 18, "rope.dimension_count"},
        {"rope.dimension_count", 7, "RoPE over 7"},
        {"expert_count", 8, "experts"},
        {"context_length", 0, "context_length"},
    };
    struct err err;

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct tiny_model t = small;
        struct gguf_writer w;
        char key[96];

        snprintf(key, sizeof(key), "qwen3.%s", wrong[i].key);
        t.leave_out = key;
        gw_init(&w);
        gw_u32(&w, key, wrong[i].value);
        tiny_model_build(&t, &w);
        expect_refused(refusal(&w, &err), wrong[i].reason);
        gw_deinit(&w);
    }
}

/* Without a key, heads share the width of the model. */
Test(model, heads_that_are_too_wide_are_refused) {
    struct tiny_model t = small;
    struct err err;

    t.n_embd = 2 * 1026;
    t.n_head = 2;
    t.leave_out = "qwen3.attention.key_length";
    expect_refused(refusal_of(&t, &err),
                   "heads have 1026 values; an even number from 2 to 1024 is needed");
}

Test(model, lengths_may_be_given_by_layer) {
    static const uint32_t equal[] = {40, 40}, unequal[] = {40, 80};
    struct err err;

    for (int i = 0; i < 2; i++) {
        struct tiny_model t = small;
        struct gguf_writer w;

        t.leave_out = "qwen3.feed_forward_length";
        gw_init(&w);
        gw_array(&w, t.leave_out, GGUF_U32, 2, i ? unequal : equal, 8);
        tiny_model_build(&t, &w);
        const char *why = refusal(&w, &err);
        if (i)
            expect_refused(why, t.leave_out);
        else
            cr_expect_str_eq(why, "");
        gw_deinit(&w);
    }
}

Test(model, unknown_scalings_are_refused) {
    struct gguf_writer w;
    struct err err;

    gw_init(&w);
    gw_string(&w, "qwen3.rope.scaling.type", "longrope");
    tiny_model_build(&small, &w);
    expect_refused(refusal(&w, &err), "'longrope' is not supported");
    gw_deinit(&w);
}

/* llama.cpp uses the factor without asking for a type, which files of 2024 lack. */
Test(model, rotations_have_a_factor_without_a_type) {
    struct gguf_writer w;
    struct model m;
    struct err err;
    char path[64];

    gw_init(&w);
    gw_f32(&w, "qwen3.rope.scaling.attn_factor", 1.25f);
    tiny_model_build(&small, &w);
    tiny_model_temp_of(&w, path);
    struct gguf *file = NULL;
    cr_assert(gguf_open(&file, path, &err) == 0);
    const struct engine_opts o = {.file = file};
    cr_assert(arch_read(&m, &o, false, &err) == 0, "%s", err.message);
    cr_expect_float_eq(m.shape.rope[0].mscale, 1.25f, 0);
    model_deinit(&m);
    gguf_free(file);
    unlink(path);
    gw_deinit(&w);
}

Test(model, odd_tensors_are_refused) {
    static const struct odd {
        const char *name;
        uint32_t type;
        uint64_t ne;
        const char *reason;
    } odd[] = {
        {"blk.0.attn_q.scale", TENSOR_F32, 1, "'blk.0.attn_q.scale' is unknown for qwen3 models"},
        {"blk.0.attn_q.bias", TENSOR_F16, 64, "'blk.0.attn_q.bias' has type F16"},
        {"blk.0.attn_k.bias", TENSOR_F32, 64, "'blk.0.attn_k.bias' is 64 x 1"},
        {"rope_freqs.weight", TENSOR_F32, 16, "'rope_freqs.weight': 8 values"},
        {"rope_freqs.weight", TENSOR_F32, 8,
         "'rope_freqs.weight': value"}, /* they are no factors */
    };
    struct err err;

    for (size_t i = 0; i < 2 * ARRAY_SIZE(odd); i++) {
        const struct odd *o = &odd[i % ARRAY_SIZE(odd)];
        struct gguf_writer w;
        bool first = i >= ARRAY_SIZE(odd); /* in the file */

        gw_init(&w);
        if (!first)
            tiny_model_build(&small, &w);
        gw_tensor(&w, o->name, o->type, 1, &o->ne, NULL);
        if (first)
            tiny_model_build(&small, &w);
        expect_refused(refusal(&w, &err), o->reason);
        gw_deinit(&w);
    }
}

/* A matrix of NVFP4 has one scale beside it; a tensor of experts has one for each expert. */
Test(model, scales_of_other_shapes_are_refused) {
    static const struct {
        const char *name;
        uint64_t n;
        uint32_t type;
        const char *reason;
    } odd[] = {
        {"blk.0.attn_q.scale", 1, TENSOR_F32, ""},
        {"blk.0.attn_q.scale", 2, TENSOR_F32, "'blk.0.attn_q.scale' is 2 x 1"},
        {"blk.0.attn_q.scale", 1, TENSOR_F16, "'blk.0.attn_q.scale' has type F16"},
        {"blk.1.ffn_up_exps.scale", 3, TENSOR_F32, ""},
        {"blk.1.ffn_up_exps.scale", 1, TENSOR_F32, "'blk.1.ffn_up_exps.scale' is 1 x 1"},
        {"blk.1.ffn_up_exps.input_scale", 3, TENSOR_F32, ""},
        {"token_embd.scale", 1, TENSOR_F32, "'token_embd.scale' is unknown"},
        {"blk.0.attn_norm.scale", 1, TENSOR_F32, "'blk.0.attn_norm.scale' is unknown"},
    };
    struct tiny_model t = {.arch = "qwen3moe",
                           .type = TENSOR_NVFP4,
                           .n_embd = 64,
                           .n_ff = 64,
                           .n_vocab = 48,
                           .n_expert = 3,
                           .n_expert_used = 2};
    struct err err;

    for (size_t i = 0; i < ARRAY_SIZE(odd); i++) {
        struct gguf_writer w;

        gw_init(&w);
        t.leave_out = odd[i].name;
        tiny_model_build(&t, &w);
        gw_tensor(&w, odd[i].name, odd[i].type, 1, &odd[i].n, NULL);
        const char *why = refusal(&w, &err);
        cr_expect(odd[i].reason[0] != 0 || why[0] == 0, "'%s'", why);
        expect_refused(why, odd[i].reason);
        gw_deinit(&w);
    }
}

Test(model, a_tokenizer_may_not_know_more_tokens) {
    const char *tokens[49];
    struct gguf_writer w;
    struct err err;

    for (size_t i = 0; i < ARRAY_SIZE(tokens); i++)
        tokens[i] = "x";
    for (uint64_t n = 48; n <= 49; n++) {
        gw_init(&w);
        gw_strings(&w, "tokenizer.ggml.tokens", n, tokens);
        tiny_model_build(&small, &w);
        const char *why = refusal(&w, &err);
        if (n == 49)
            expect_refused(why, "the tokenizer has 49 tokens, the model 48");
        else
            cr_expect_str_eq(why, "");
        gw_deinit(&w);
    }
}

/* Hyperparameters of one layer of width 16 that all architectures have. */
static void add_shape(struct gguf_writer *w, const char *arch, uint32_t n_head) {
    static const struct {
        const char *key;
        uint32_t value;
    } of[] = {{"block_count", 1},         {"embedding_length", 16}, {"feed_forward_length", 16},
              {"context_length", 32},     {"expert_count", 1},      {"expert_used_count", 1},
              {"rope.dimension_count", 2}};
    char key[96];

    gw_string(w, "general.architecture", arch);
    for (size_t i = 0; i < ARRAY_SIZE(of); i++) {
        snprintf(key, sizeof(key), "%s.%s", arch, of[i].key);
        if (strcmp(arch, "lfm2") != 0 || strncmp(of[i].key, "expert", 6) != 0)
            gw_u32(w, key, of[i].value);
    }
    snprintf(key, sizeof(key), "%s.attention.head_count", arch);
    gw_u32(w, key, n_head);
    snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", arch);
    gw_f32(w, key, 1e-5f);
}

struct part {
    const char *name;
    uint64_t ne[2];
};

/* Writes F32 tensors; one without a second dimension is a vector. */
static void add_parts(struct gguf_writer *w, const struct part *part, size_t n) {
    for (size_t i = 0; i < n; i++)
        gw_tensor(w, part[i].name, TENSOR_F32, part[i].ne[1] ? 2 : 1, part[i].ne, NULL);
}

Test(model, heads_of_each_layer_are_looked_at) {
    static const struct part part[] = {{"token_embd.weight", {16, 8}},
                                       {"output_norm.weight", {16}}};
    struct gguf_writer w;
    struct err err;

    gw_init(&w);
    add_shape(&w, "laguna", 6);
    gw_u32(&w, "laguna.attention.head_count_kv", 4);
    gw_u32(&w, "laguna.attention.key_length", 16);
    gw_u32(&w, "laguna.attention.sliding_window", 8);
    add_parts(&w, part, ARRAY_SIZE(part));
    expect_refused(refusal(&w, &err), "6 heads cannot share 4 key heads");
    gw_deinit(&w);
}

Test(model, one_without_attention_is_refused) {
    static const struct part part[] = {
        {"token_embd.weight", {16, 8}},           {"token_embd_norm.weight", {16}},
        {"blk.0.attn_norm.weight", {16}},         {"blk.0.shortconv.in_proj.weight", {16, 48}},
        {"blk.0.shortconv.conv.weight", {3, 16}}, {"blk.0.shortconv.out_proj.weight", {16, 16}},
        {"blk.0.ffn_norm.weight", {16}},          {"blk.0.ffn_gate.weight", {16, 16}},
        {"blk.0.ffn_up.weight", {16, 16}},        {"blk.0.ffn_down.weight", {16, 16}},
    };
    static const uint32_t none[] = {0};
    struct gguf_writer w;
    struct err err;

    gw_init(&w);
    add_shape(&w, "lfm2", 2);
    gw_array(&w, "lfm2.attention.head_count_kv", GGUF_U32, 1, none, sizeof(none));
    add_parts(&w, part, ARRAY_SIZE(part));
    expect_refused(refusal(&w, &err), "models without attention are not supported");
    gw_deinit(&w);
}

/* rows of 512 weights, while all else is 16 wide */
Test(model, latent_queries_may_be_wider_than_all_else) {
    static const struct part part[] = {
        {"token_embd.weight", {16, 8}},          {"output_norm.weight", {16}},
        {"blk.0.attn_norm.weight", {16}},        {"blk.0.attn_q_a.weight", {16, 512}},
        {"blk.0.attn_q_a_norm.weight", {512}},   {"blk.0.attn_q_b.weight", {512, 8}},
        {"blk.0.attn_kv_a_mqa.weight", {16, 4}}, {"blk.0.attn_kv_a_norm.weight", {2}},
        {"blk.0.attn_k_b.weight", {6, 2}},       {"blk.0.attn_v_b.weight", {2, 4}},
        {"blk.0.attn_output.weight", {4, 16}},   {"blk.0.ffn_norm.weight", {16}},
        {"blk.0.ffn_gate.weight", {16, 16}},     {"blk.0.ffn_up.weight", {16, 16}},
        {"blk.0.ffn_down.weight", {16, 16}},
    };
    static const struct {
        const char *key;
        uint32_t value;
    } more[] = {{"leading_dense_block_count", 1}, {"attention.head_count_kv", 1},
                {"attention.kv_lora_rank", 2},    {"attention.q_lora_rank", 512},
                {"attention.key_length", 4},      {"attention.value_length", 2},
                {"attention.key_length_mla", 8},  {"attention.value_length_mla", 4}};
    struct gguf_writer w;
    struct driver d;
    struct err err;
    char key[96];

    gw_init(&w);
    add_shape(&w, "deepseek2", 1);
    for (size_t i = 0; i < ARRAY_SIZE(more); i++) {
        snprintf(key, sizeof(key), "deepseek2.%s", more[i].key);
        gw_u32(&w, key, more[i].value);
    }
    add_parts(&w, part, ARRAY_SIZE(part));
    cr_assert_eq(open_built(&w, &d, &err), 0, "%s", err.message);
    gw_deinit(&w);
    struct driver_seq *s = driver_add(&d, (const int32_t[]){0}, 1, 1, NULL);
    cr_assert(s != NULL);
    driver_prefill(&d, s, 0);
    cr_expect_eq(s->n_out, 1);
    driver_drop(&d, s);
    driver_close(&d);
}

/* Sets every integer that the reader uses to other values: the file is refused, or it runs. */
Test(model, damaged_files_are_refused_or_run) {
    static const uint64_t values[] = {0, 1, 2, 31, 0x7FFFFFFF, 0xFFFFFFFF, UINT64_MAX};
    struct tiny_model t = small;
    struct gguf_writer w;
    uint32_t n_run = 0, n_refused = 0;

    t.n_layer = 1;
    gw_init(&w);
    tiny_model_build(&t, &w);
    gw_finish(&w);
    for (size_t i = 0; i < w.n_fields; i++)
        for (size_t v = 0; v < ARRAY_SIZE(values); v++) {
            struct driver_opts o = {.max_rows = 8, .max_seqs = 2, .n_pages = 4};
            struct driver d;
            struct err err = {0};
            uint8_t saved[8];
            char path[] = "/tmp/weft-model-XXXXXX";

            memcpy(saved, w.file.data + w.field[i].at, w.field[i].bytes);
            memcpy(w.file.data + w.field[i].at, &values[v], w.field[i].bytes);
            close(mkstemp(path));
            gw_save_bytes(path, w.file.data, w.file.len);
            memcpy(w.file.data + w.field[i].at, saved, w.field[i].bytes);
            o.path = path;
            if (driver_open(&d, &o, &err) < 0) {
                cr_expect(err.message[0] != 0, "field '%s' = %llx: no reason", w.field[i].what,
                          (unsigned long long)values[v]);
                n_refused++;
            } else {
                struct driver_seq *s = driver_add(&d, (const int32_t[]){0}, 1, 0, NULL);

                if (s)
                    driver_prefill(&d, s, 0);
                driver_drop(&d, s);
                driver_close(&d);
                n_run++;
            }
            unlink(path);
        }
    gw_deinit(&w);
    cr_expect(n_refused > 500 && n_run > 20, "%u refused, %u ran", n_refused, n_run);
}
