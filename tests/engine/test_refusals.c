/*
 * Tests refusals of the readers of qwen4exp, deepseek4, step35, mimo2, bailingmoe3, Nemotron,
 * llama4, gemma3n, jamba, plamo2, glm5-next and minimax-m3, each by one change in a file that is
 * otherwise served: a number out of range, a contradiction between numbers, or a missing name. At
 * the end come files with random damage.
 */

#include <criterion/criterion.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/gguf.h"
#include "tests/support/engine_driver.h"
#include "tests/support/test_data.h"

/* A copy of a file of golden/ that is changed in place. */
struct copy {
    uint8_t *bytes;
    size_t n;
    int fd;
    char path[40];
};

static void copy_open(struct copy *c, const char *name) {
    char from[TEST_DATA_PATH];
    FILE *f = fopen(test_data_file(from, "golden", name, ".gguf"), "rb");

    cr_assert(f && fseek(f, 0, SEEK_END) == 0);
    c->n = (size_t)ftell(f);
    c->bytes = malloc(c->n);
    rewind(f);
    cr_assert(c->bytes && fread(c->bytes, 1, c->n, f) == c->n);
    fclose(f);
    snprintf(c->path, sizeof(c->path), "/tmp/weft-refused-XXXXXX");
    c->fd = mkstemp(c->path);
    cr_assert(c->fd >= 0 && write(c->fd, c->bytes, c->n) == (ssize_t)c->n);
}

static void copy_close(struct copy *c) {
    close(c->fd);
    unlink(c->path);
    free(c->bytes);
}

/* Returns the position after string @s, which is preceded by its length. */
static size_t find(const struct copy *c, const char *s) {
    uint64_t n = strlen(s), found;
    size_t end = 0;

    for (size_t i = 0; i + 8 + n <= c->n && !end; i++) {
        memcpy(&found, c->bytes + i, 8);
        if (found == n && memcmp(c->bytes + i + 8, s, n) == 0)
            end = i + 8 + n;
    }
    cr_assert(end > 0, "the file has no '%s'", s);
    return end;
}

/* Renames @name to @to, of equal length, permanently. */
static void rename_to(struct copy *c, const char *name, const char *to) {
    size_t n = strlen(name), at = find(c, name) - n;

    cr_assert_eq(strlen(to), n);
    memcpy(c->bytes + at, to, n);
    cr_assert(pwrite(c->fd, to, n, (off_t)at) == (ssize_t)n);
}

/* Opens the file with @n bytes at @at replaced. Returns "" if it is accepted, else the reason. */
static const char *reason_with(const struct copy *c, size_t at, const void *bytes, size_t n) {
    const struct driver_opts o = {.path = c->path, .max_rows = 8, .max_seqs = 2, .n_pages = 4};
    static struct err err;
    struct driver d;

    err = (struct err){0};
    cr_assert(at + n <= c->n && pwrite(c->fd, bytes, n, (off_t)at) == (ssize_t)n);
    if (driver_open(&d, &o, &err) == 0)
        driver_close(&d);
    else
        cr_expect(err.message[0] != 0, "refused without a reason");
    cr_assert(pwrite(c->fd, c->bytes + at, n, (off_t)at) == (ssize_t)n);
    return err.message;
}

/* Returns the reason why the model is refused after the last character of @name was replaced. */
static const char *reason_without(const struct copy *c, const char *name) {
    return reason_with(c, find(c, name) - 1, "!", 1);
}

/* Returns the reason why the model is refused with @v as the value of @key, or as element @i of its
 * array. */
static const char *reason_for(const struct copy *c, const char *key, uint32_t i, double v) {
    size_t at = find(c, key), n;
    uint32_t type;
    int64_t whole = v == v ? (int64_t)v : 0;
    float real = (float)v;

    memcpy(&type, c->bytes + at, 4);
    at += 4;
    if (type == GGUF_ARRAY) {
        memcpy(&type, c->bytes + at, 4);
        at += 12;
    }
    n = type == GGUF_BOOL ? 1 : type == GGUF_U64 ? 8 : 4;
    cr_assert(type == GGUF_BOOL || type == GGUF_U64 || type == GGUF_U32 || type == GGUF_I32 ||
              type == GGUF_F32);
    return reason_with(c, at + i * n, type == GGUF_F32 ? (void *)&real : (void *)&whole, n);
}

struct change {
    /* without the architecture */
    const char *key;
    /* index in an array */
    uint32_t i;
    double value;
    const char *reason;
};

/* @arch: architecture of the file @name. */
static void check_arch(const char *name, const char *arch, const struct change *change, size_t n) {
    struct copy c;
    char key[96];

    copy_open(&c, name);
    cr_expect_str_empty(reason_with(&c, 0, c.bytes, 1), "%s is not served as it is", name);
    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "%s.%s", arch, change[i].key);
        const char *why = reason_for(&c, key, change[i].i, change[i].value);

        cr_expect(strstr(why, change[i].reason) != NULL, "%s[%u] = %g: '%s'", key, change[i].i,
                  change[i].value, why);
    }
    copy_close(&c);
}

static void check(const char *name, const struct change *change, size_t n) {
    check_arch(name, name, change, n);
}

Test(refusals, numbers_of_qwen4exp) {
    static const struct change changes[] = {
        {"hyper_connection.count", 0, 1, "hyper_connection.count' is 1; it must be from 2 to 16"},
        {"hyper_connection.count", 0, 17, "hyper_connection.count' is 17"},
        {"hyper_connection.count", 0, 3, "tensor 'blk.0.hc_attn_"},
        {"hyper_connection.low_rank", 0, 0, "hyper_connection.low_rank' is 0"},
        {"attention.indexer.head_count", 0, 0, "indexer.head_count' is 0"},
        {"attention.indexer.key_length", 0, 24, "keys of 24 values for 16 tokens"},
        {"rope.dimension_count", 0, 24,
         "a multiple of 16 values, of which 24 turn, and at least 4 tokens"},
        {"attention.indexer.top_k", 0, 3, "keys of 16 values for 3 tokens"},
        {"attention.compress_ratios", 3, 3, "blocks of 3 positions in layer 3"},
        {"attention.compress_ratios", 3, 32, "blocks of 32 positions in layer 3"},
        {"attention.compress_ratios", 3, 0, "blocks of 0 positions in layer 3"},
        {"attention.compress_ratios", 7, 2, "blocks of 2 positions in layer 7"},
        {"attention.compress_ratios", 3, -1, "compress_ratios' has -1, which is out of range"},
        {"full_attention_interval", 0, 1, "0 of 8 layers are recurrent"},
        {"ple.layers", 0, 8, "a table before layer 8 with 4 rows of 12 values"},
        {"ple.ngram_size", 0, 1, "ple.ngram_size' is 1"},
        {"ple.heads_per_ngram", 0, 1, "a table before layer 1 with 2 rows of 12 values"},
        {"ple.heads_per_ngram", 0, 3, "ple.head_offsets' has 4 numbers, 6 are needed"},
        {"ple.conv_kernel", 0, 9, "ple.conv_kernel' is 9; it must be from 2 to 8"},
        {"ple.conv_kernel", 0, 3, "'blk.1.ple_conv1d.weight' is 4 x 192"},
        {"ple.eos_token_id", 0, 512, "ple.eos_token_id' is 512; it must be from 0 to 511"},
        {"embedding_length_per_layer_input", 0, 13, "4 rows of 13 values"},
        {"ple.layer_multipliers", 1, 0x1p53, "layer_multipliers' has 9.0072e+15, which is out of"},
        {"ple.head_offsets", 3, 932, "'per_layer_token_embd.weight' is 12 x 1248"},
        {"ple.head_vocab_sizes", 2, 0, "ple.head_vocab_sizes' has 0 as number 2; each must be"},
        {"ple.head_vocab_sizes", 3, 0x1p53, "head_vocab_sizes' has 9.0072e+15, which is out of"},
    };

    check("qwen4exp", changes, ARRAY_SIZE(changes));
}

Test(refusals, numbers_of_deepseek4) {
    static const struct change changes[] = {
        {"attention.sliding_window", 0, 0, "sliding_window' is 0; it must be from 1 to 4096"},
        {"attention.head_count_kv", 0, 2, "4 heads of 32 values in 2 groups with 2 key heads"},
        {"attention.q_lora_rank", 0, 23, "tensor 'blk.0.attn_q_a.weight' is 40 x 24"},
        {"attention.output_group_count", 0, 3, "4 heads of 32 values in 3 groups"},
        {"attention.output_group_count", 0, 4, "tensor 'blk.0.attn_output_a.weight' is 64 x 24"},
        {"attention.output_lora_rank", 0, 13, "tensor 'blk.0.attn_output_a.weight' is 64 x 24"},
        {"attention.indexer.head_count", 0, 5, "tensor 'blk.1.indexer.proj.weight' is 40 x 6"},
        {"attention.indexer.key_length", 0, 72, "an indexer of 72 values are not supported"},
        {"attention.indexer.key_length", 0, 48, "tensor 'blk.1.indexer_compressor_kv.weight' is"},
        {"attention.indexer.top_k", 0, 0, "indexer.top_k' is 0"},
        {"attention.compress_ratios", 1, 8, "compress_ratios' is 8 for layer 1; only 0, 4 and 128"},
        {"attention.compress_ratios", 3, -4, "compress_ratios' is -4 for layer 3"},
        {"attention.compress_ratios", 1, 128,
         "tensor 'blk.1.attn_compressor_kv.weight' is 40 x 64"},
        {"attention.compress_ratios", 1, 0, "tensor 'blk.1.attn_compressor_kv.weight' is unknown"},
        {"hyper_connection.count", 0, 3, "tensor 'blk.0.hc_attn_fn.weight' is 160 x 24"},
        {"hyper_connection.count", 0, 17, "hyper_connection.count' is 17"},
        {"hyper_connection.sinkhorn_iterations", 0, 0, "sinkhorn_iterations' is 0"},
        {"hyper_connection.epsilon", 0, 1, "hyper_connection.epsilon"},
        {"hash_layer_count", 0, 5, "hash_layer_count' is 5; it must be from 0 to 4"},
        {"hash_layer_count", 0, 2, "no tensor 'blk.1.ffn_gate_tid2eid.weight'"},
        {"hash_layer_count", 0, 0, "no tensor 'blk.0.exp_probs_b.bias'"},
        {"expert_gating_func", 0, 2, "expert_gating_func' is 2"},
        {"expert_gating_func", 0, 3, "expert_gating_func' is 3"},
        {"expert_used_count", 0, 3, "tensor 'blk.0.ffn_gate_tid2eid.weight' is 2 x 384"},
        {"expert_shared_count", 0, 65, "expert_shared_count' is 65; it must be from 0 to 64"},
        {"swiglu_clamp_exp", 0, -1, "swiglu_clamp_exp' is -1"},
        {"rope.dimension_count", 0, 7, "RoPE over 7 values; their number must be even"},
    };

    check("deepseek4", changes, ARRAY_SIZE(changes));
}

/* The first tensor of integers has the number of an expert that does not exist. */
Test(refusals, experts_of_tokens_are_experts_of_the_model) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    const int32_t wrong[] = {6, -1};
    struct err err;
    struct copy c;

    copy_open(&c, "deepseek4");
    cr_assert_eq(gguf_open(&file, c.path, &err), 0);
    const struct tensor *t = gguf_find(file, "blk.0.ffn_gate_tid2eid.weight");
    cr_assert(t != NULL);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        const char *why = reason_with(&c, t->file_offset + 40, &wrong[i], 4);

        cr_expect(strstr(why, "tid2eid.weight' has expert ") != NULL, "'%s'", why);
    }
    copy_close(&c);
}

Test(refusals, numbers_of_step35) {
    static const struct change changes[] = {
        {"attention.head_count", 1, 5, "layer 1: 5 heads cannot share 2 key heads evenly"},
        {"attention.head_count", 1, 8, "'blk.1.attn_q.weight' is 48 x 96"},
        {"rope.dimension_count", 0, 18, "rope.dimension_count' is 18"},
        {"swiglu_clamp_exp", 3, -1,
         "swiglu_clamp_exp' is -1 for layer 3; it must be from 0 to 1e6"},
        {"swiglu_clamp_shexp", 5, 1e7, "swiglu_clamp_shexp' is 1e+07 for layer 5"},
        {"swiglu_clamp_shexp", 0, NAN, "for layer 0"},
    };

    check("step35", changes, ARRAY_SIZE(changes));
}

Test(refusals, numbers_of_mimo2) {
    static const struct change changes[] = {
        {"attention.value_length", 0, 96,
         "keys of 192 and values of 96 numbers are not supported; values of a multiple of 64"},
        {"attention.value_length", 0, 256,
         "keys of 192 and values of 256 numbers are not supported; values of a multiple of 64"},
        {"attention.value_length", 0, 64, "'blk.0.attn_v.weight' is 64 x 128"},
        {"attention.head_count_kv", 2, 3, "layer 2: 4 heads cannot share 3 key heads evenly"},
        {"attention.value_scale", 0, -1, "attention.value_scale' is -1; it must be from 0"},
    };

    check("mimo2", changes, ARRAY_SIZE(changes) - 1);
    check_arch("mimo2-mtp", "mimo2", changes + ARRAY_SIZE(changes) - 1, 1);
}

Test(refusals, numbers_of_bailingmoe3) {
    static const struct change changes[] = {
        {"kda.head_dim", 0, 24, "kda.head_dim' is 24; a multiple of 16 is needed"},
        {"kda.head_dim", 0, 32, "kda.head_dim' is 32; a multiple of 16 is needed, and the values "},
        {"kda.safe_gate", 0, 0, "decays without 'bailingmoe3.kda.gate_lower_bound' are not"},
        {"kda.gate_lower_bound", 0, 0, "decays without 'bailingmoe3.kda.gate_lower_bound' are not"},
        {"kda.gate_lower_bound", 0, 1, "kda.gate_lower_bound"},
        {"ssm.conv_kernel", 0, 9, "ssm.conv_kernel' is 9; it must be from 2 to 8"},
        {"attention.kv_lora_rank", 0, 16, "latent attention needs one key head of 16 + 8 values"},
    };

    check("bailingmoe3", changes, ARRAY_SIZE(changes));
}

Test(refusals, numbers_of_loops_temperatures_and_ranks) {
    static const struct change loops[] = {
        {"num_loops", 0, 0, "num_loops' is 0; it must be from 1 to "},
        {"num_loops", 0, 100000, "num_loops' is 100000; it must be from 1 to "},
    };
    static const struct change length[] = {
        {"attention.temperature_length", 0, 0, "temperature_length' is 0; it must be from 1 to "},
    };
    static const struct change kda[] = {
        {"kda.head_dim", 0, 24, "kda.head_dim' is 24; a multiple of 16 is needed"},
        {"attention.kv_lora_rank", 0, 16, "latent attention needs one key head of 16 + 16 values"},
    };

    check("nanbeige", loops, ARRAY_SIZE(loops));
    check("mistral4", length, ARRAY_SIZE(length));
    check("kimi-linear", kda, ARRAY_SIZE(kda));
}

Test(refusals, numbers_of_glm5) {
    static const struct change changes[] = {
        {"rope.dimension_count", 0, 8, "rope.dimension_count' is 8; it must be from 0 to 0"},
        {"attention.key_length", 0, 34, "latent attention needs one key head of 32 + 0 values"},
        {"attention.q_lora_rank", 0, 0, "attention.q_lora_rank' is 0, which is not supported"},
        {"kda.head_dim", 0, 24, "kda.head_dim' is 24; a multiple of 16 is needed"},
        {"kda.head_dim", 0, 32, "blk.0.attn_q.weight"},
        {"hyper_connection.count", 0, 1, "hyper_connection.count' is 1; it must be from 2 to 16"},
        {"hyper_connection.count", 0, 3, "tensor 'blk.0.hc_attn_"},
        {"hyper_connection.sinkhorn_iterations", 0, 0, "sinkhorn_iterations' is 0"},
        {"attention.indexer.head_count", 0, 0, "indexer.head_count' is 0"},
        {"attention.indexer.key_length", 0, 24, "keys of 24 values for 16 tokens in blocks of 4"},
        {"attention.indexer.top_k", 0, 18, "keys of 16 values for 18 tokens in blocks of 4"},
        {"attention.indexer.top_k", 0, 0, "indexer.top_k' is 0"},
        {"attention.indexer.kpool", 0, 3, "keys of 16 values for 16 tokens in blocks of 3"},
        {"attention.indexer.kpool", 0, 1, "indexer.kpool' is 1; it must be from 2 to 16"},
        {"attention.indexer.kpool", 0, 2, "blk.2.indexer_compressor_ape.weight"},
        {"attention.indexer.kpool_select_tail", 0, 0, "kpool_select_tail' is false, which is not"},
        {"attention.indexer.types", 2, 0, "layer 2 has no indexer, and no layer before it has"},
        {"attention.indexer.types", 6, 1, "tensor 'blk.6.indexer"},
        {"attention.head_count_kv", 0, 1, "tensor 'blk.0.attn_"},
        {"attention.head_count_kv", 2, 0, "tensor 'blk.2."},
        {"swiglu_clamp_exp", 3, -1, "'glm5-next.swiglu_clamp_exp' is -1 for layer 3"},
        {"leading_dense_block_count", 0, 1, "blk.1.ffn_"},
    };

    check("glm5-next", changes, ARRAY_SIZE(changes));
}

Test(refusals, numbers_of_minimax_m3) {
    static const struct change changes[] = {
        {"attention.indexer.head_count", 0, 1, "an indexer with 1 heads for 2 heads of keys"},
        {"attention.indexer.key_length", 0, 40, "an indexer with keys of 40 values is not supp"},
        {"attention.indexer.key_length", 0, 16, "tensor 'blk.1.indexer.q_proj.weight'"},
        {"attention.indexer.block_size", 0, 16, "blocks of 16 positions are not supported"},
        {"attention.indexer.block_size", 0, 96, "blocks of 96 positions are not supported"},
        {"attention.indexer.block_size", 0, 2048, "block_size' is 2048; it must be from 1 to 1024"},
        {"attention.indexer.top_k", 0, 0, "indexer.top_k' is 0"},
        {"attention.indexer.local_blocks", 0, 4, "local_blocks' is 4; it must be from 0 to 3"},
        {"rope.dimension_count", 0, 34, "rope.dimension_count' is 34"},
        {"leading_dense_block_count", 0, 0, "tensor 'blk.0.indexer.q_proj.weight'"},
        {"leading_dense_block_count", 0, 2, "tensor 'blk.1.ffn_"},
    };

    check("minimax-m3", changes, ARRAY_SIZE(changes));
}

Test(refusals, numbers_of_llama4_and_gemma3n) {
    static const struct change experts[] = {
        {"interleave_moe_layer_step", 0, 0, "'llama4.interleave_moe_layer_step'"},
        {"interleave_moe_layer_step", 0, 7, "'llama4.interleave_moe_layer_step'"},
        {"interleave_moe_layer_step", 0, 3, "blk.1.ffn_gate.weight"},
    };
    static const struct change streams[] = {
        {"feed_forward_length", 0, 1, "'gemma3n.feed_forward_length'"},
        {"attention.sliding_window", 0, 0, "'gemma3n.attention.sliding_window'"},
        {"attention.shared_kv_layers", 0, 4, "4 layers share keys, but the two before"},
        {"attention.shared_kv_layers", 0, 25, "25 layers share keys, but the two before"},
        {"altup.num_inputs", 0, 6, "'gemma3n.altup.num_inputs'"},
        {"altup.num_inputs", 0, 3, "altup_proj.weight"},
        {"altup.active_idx", 0, 1, "'gemma3n.altup.active_idx'"},
        {"activation_sparsity_scale", 2, -1, "is -1 for layer 2, which is out of range"},
        {"activation_sparsity_scale", 2, (double)NAN, "for layer 2, which is out of range"},
        {"embedding_length_per_layer_input", 0, 0, "'gemma3n.embedding_length_per_layer_input'"},
    };

    check("llama4", experts, ARRAY_SIZE(experts));
    check("gemma3n", streams, ARRAY_SIZE(streams));
}

Test(refusals, numbers_of_jamba) {
    static const struct change changes[] = {
        {"ssm.conv_kernel", 0, 9, "'jamba.ssm.conv_kernel'"},
        {"ssm.inner_size", 0, 120, "120 channels of Mamba-1 with states of 8 are not supported"},
        {"ssm.state_size", 0, 6, "128 channels of Mamba-1 with states of 6 are not supported"},
        {"ssm.state_size", 0, 0, "'jamba.ssm.state_size'"},
        {"ssm.time_step_rank", 0, 0, "'jamba.ssm.time_step_rank'"},
        {"ssm.time_step_rank", 0, 17, "blk.0.ssm_x.weight"},
        {"attention.head_count_kv", 2, 0, "blk.2.ssm_in.weight"},
        {"attention.head_count_kv", 2, 3, "4 heads cannot share 3 key heads evenly"},
    };

    check("jamba", changes, ARRAY_SIZE(changes));
}

Test(refusals, numbers_of_plamo2) {
    static const struct change changes[] = {
        {"ssm.conv_kernel", 0, 9, "'plamo2.ssm.conv_kernel'"},
        {"ssm.inner_size", 0, 120, "120 channels of Mamba-1 in 8 heads with states of 16 are not"},
        {"ssm.inner_size", 0, 256, "blk.0.ssm_in.weight"},
        {"ssm.state_size", 0, 18, "128 channels of Mamba-1 in 8 heads with states of 18 are not"},
        {"ssm.time_step_rank", 0, 0, "'plamo2.ssm.time_step_rank'"},
        {"ssm.time_step_rank", 0, 4, "blk.0.ssm_dt.weight"},
        {"attention.head_count_kv", 1, 0, "blk.1.ssm_in.weight"},
        {"attention.head_count_kv", 1, 4, "blk.1.attn_k_norm.weight"},
        {"attention.head_count_kv", 1, 3, "4 heads cannot share 3 key heads evenly"},
    };

    check("plamo2", changes, ARRAY_SIZE(changes));
}

Test(refusals, numbers_of_sections) {
    static const struct change changes[] = {
        {"rope.dimension_sections", 0, -1, "dimension_sections' must be three numbers of pairs"},
        {"rope.dimension_sections", 1, 1025, "dimension_sections' must be three numbers of pairs"},
        {"rope.dimension_sections", 3, 1, "dimension_sections' must be three numbers of pairs"},
    };

    check_arch("qwen35-mtp", "qwen35", changes, ARRAY_SIZE(changes));
}

Test(refusals, numbers_of_nemotron) {
    static const struct change changes[] = {
        {"ssm.inner_size", 0, 48,
         "ssm.inner_size' is 48; a multiple of 16 for each of the 4 heads"},
        {"ssm.time_step_rank", 0, 3, "for each of the 3 heads of 'nemotron_h_moe.ssm.time_step_r"},
        {"ssm.group_count", 0, 3, "4 heads of Mamba-2 in 3 groups with states of 16 are not"},
        {"ssm.state_size", 0, 18, "states of a multiple of 4 and 136 channels that are a multiple"},
        {"attention.value_length", 0, 8,
         "keys of 16 and values of 8 numbers are not supported; bo"},
        {"attention.head_count_kv", 2, 3, "4 heads cannot share 3 key heads evenly"},
    };

    check_arch("nemotron-h-moe-mtp", "nemotron_h_moe", changes, ARRAY_SIZE(changes));
}

Test(refusals, numbers_of_nemotron_puzzle) {
    static const struct change changes[] = {
        {"expert_used_count", 1, 9, "expert_used_count' must have 7 integers from 0 to 8"},
        {"expert_used_count", 4, 0, "layer 4 has experts, but 'nemotron_h_moe.expert_used_count'"},
        {"expert_feed_forward_length", 1, 16, "'blk.1.ffn_up_exps.weight' is 32 x 24"},
        {"moe_latent_size", 0, 16, "'blk.1.ffn_latent_down.weight' is 48 x 32"},
        {"moe_latent_size", 0, 64, "moe_latent_size' is 64"},
        {"moe_latent_size", 0, 0, "'blk.1.ffn_up_exps.weight' is 32 x 24"},
    };

    check_arch("nemotron-h-puzzle", "nemotron_h_moe", changes, ARRAY_SIZE(changes));
}

/* -- one limit for all layers ------------------------------------------------------------------ */

static const char limits[] = "step35.swiglu_clamp_shexp", base[] = "step35.rope.freq_base_swa";

/* Returns the sample after @n of twelve tokens. */
static struct driver_out sample(const struct copy *c, const char *backend, uint32_t n) {
    static const int32_t token[] = {7, 300, 41, 8, 92, 5, 17, 201, 66, 2, 33, 118};
    const struct driver_opts o = {
        .backend = backend, .path = c->path, .max_rows = 12, .max_seqs = 2, .n_pages = 4};
    struct driver d;
    struct err err;

    cr_assert_eq(driver_open(&d, &o, &err), 0, "%s", err.message);
    struct driver_seq *s = driver_add(&d, token, n, 1, NULL);
    driver_prefill(&d, s, 0);
    cr_assert_eq(s->n_out, 1);
    struct driver_out out = s->out[0];
    driver_drop(&d, s);
    driver_close(&d);
    return out;
}

/* Returns a digest of the logits after three tokens. */
static uint64_t digest(const struct copy *c) {
    return sample(c, NULL, 3).digest;
}

static void put_u32(struct copy *c, size_t at, uint32_t v) {
    memcpy(c->bytes + at, &v, sizeof(v));
    cr_assert(pwrite(c->fd, &v, sizeof(v), (off_t)at) == sizeof(v));
}

static void put_f32(struct copy *c, size_t at, float v) {
    uint32_t bits;

    memcpy(&bits, &v, sizeof(bits));
    put_u32(c, at, bits);
}

Test(refusals, a_model_without_blocks_of_keys) {
    static const char key[] = "deepseek4.attention.compress_ratios";
    struct copy c;

    copy_open(&c, "deepseek4");
    for (uint32_t l = 1; l < 4; l++)
        put_u32(&c, find(&c, key) + 16 + 4 * l, 0);
    const char *why = reason_for(&c, key, 0, 0);
    cr_expect(strstr(why, "compress_ratios' is 0 for all layers") != NULL, "'%s'", why);
    copy_close(&c);
}

/* Streams are divided into vectors of 16 values. */
Test(refusals, streams_whose_values_are_no_multiple_of_16) {
    struct copy c;

    copy_open(&c, "qwen4exp");
    put_u32(&c, find(&c, "qwen4exp.embedding_length") + 4, 52);
    put_u32(&c, find(&c, "qwen4exp.embedding_length_per_layer_input") + 4, 13);
    const char *why = reason_for(&c, "qwen4exp.hyper_connection.count", 0, 2);
    cr_expect(strstr(why, "2 streams of 52 values are not supported") != NULL, "'%s'", why);
    copy_close(&c);
}

Test(refusals, the_first_reason_is_given) {
    static const char key[] = "qwen4exp.ple.layer_multipliers";
    struct copy c;

    copy_open(&c, "qwen4exp");
    put_u32(&c, find(&c, key) + 16 + 8 + 4, 1 << 22); /* the second number: 2^54 or more */
    const char *why = reason_for(&c, key, 0, 0x1p53);
    cr_expect(strstr(why, "layer_multipliers' has 9.0072e+15") != NULL, "'%s'", why);
    copy_close(&c);
}

/* The key of the windows' rotary base replaces the array; neither file has that base. */
Test(refusals, one_limit_is_that_of_all_layers) {
    struct copy by_layer, one;

    copy_open(&by_layer, "step35");
    for (uint32_t l = 0; l < 6; l++)
        put_f32(&by_layer, find(&by_layer, limits) + 16 + 4 * l, 0.5f);
    rename_to(&by_layer, base, "step35.rope.freq_base_sw!");
    copy_open(&one, "step35");
    rename_to(&one, limits, "step35.swiglu_clamp_shex!");
    rename_to(&one, base, limits);
    size_t at = find(&one, limits) + 4;
    cr_expect(strstr(reason_for(&one, limits, 0, -1), "swiglu_clamp_shexp' is -1") != NULL);
    put_f32(&one, at, 0.5f);
    uint64_t right = digest(&by_layer);
    cr_expect_eq(digest(&one), right);
    put_f32(&one, at, 0);
    cr_expect_neq(digest(&one), right);
    copy_close(&one);
    copy_close(&by_layer);
}

Test(refusals, the_limit_of_experts_is_that_of_the_shared_one_without_its_own) {
    static const char own[] = "deepseek4.swiglu_clamp_shexp";
    struct copy c;

    copy_open(&c, "deepseek4");
    put_f32(&c, find(&c, "deepseek4.swiglu_clamp_exp") + 4, 0.5f);
    uint64_t other = digest(&c);
    put_f32(&c, find(&c, own) + 4, 0.5f);
    uint64_t right = digest(&c);
    cr_expect_neq(other, right);
    put_f32(&c, find(&c, own) + 4, 1e6f);
    uint64_t none = digest(&c);
    put_f32(&c, find(&c, own) + 4, 0);
    cr_expect_eq(digest(&c), none);
    rename_to(&c, own, "deepseek4.swiglu_clamp_shex!");
    cr_expect_eq(digest(&c), right);
    copy_close(&c);
}

/* Keys of a block are weighed by a softmax, which does not change when all of its inputs grow. */
Test(refusals, large_places_in_a_block_weigh_like_small_ones) {
    static const char *const backends[] = {"reference", "cpu"};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct err err;
    struct copy c;

    copy_open(&c, "deepseek4");
    cr_assert_eq(gguf_open(&file, c.path, &err), 0);
    const struct tensor *t = gguf_find(file, "blk.1.attn_compressor_ape.weight");
    cr_assert(t && t->format->type == TENSOR_F32);
    for (size_t i = 0; i < ARRAY_SIZE(backends); i++) {
        float logprob[2];

        for (int large = 0; large < 2; large++) {
            for (size_t k = 0; k < t->n_bytes; k += 4)
                put_f32(&c, t->file_offset + k, large ? 100 : 0);
            logprob[large] = sample(&c, backends[i], 12).logprob;
        }
        cr_expect_float_eq(logprob[0], logprob[1], 1e-3f, "%s: %g", backends[i],
                           (double)logprob[1]);
    }
    copy_close(&c);
}

/* The streams of an embedding that is nearly zero are as short as it is. */
Test(refusals, a_short_embedding_has_short_streams) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct err err;
    struct copy c;

    copy_open(&c, "gemma3n");
    cr_assert_eq(gguf_open(&file, c.path, &err), 0);
    const struct tensor *t = gguf_find(file, "token_embd.weight");
    cr_assert(t && t->format->type == TENSOR_F32);
    for (size_t k = 0; k < t->row_bytes; k += 4) /* of token 7, the first */
        put_f32(&c, t->file_offset + 7 * t->row_bytes + k, k % 8 ? 1e-5f : -2e-5f);
    struct driver_out plain = sample(&c, "reference", 1), fast = sample(&c, "cpu", 1);

    cr_expect_eq(plain.token, fast.token);
    cr_expect_float_eq(plain.logprob, fast.logprob, 1e-3f, "%g, %g", (double)plain.logprob,
                       (double)fast.logprob);
    copy_close(&c);
}

/* The key replaces another one; without that, all of a head is rotated. */
Test(refusals, a_layer_is_no_block_that_the_file_does_not_have) {
    static const char key[] = "deepseek4.rope.dimension_count";
    static const char n_blocks[] = "deepseek4.nextn_predict_layers";
    struct copy without, with;

    copy_open(&without, "deepseek4");
    rename_to(&without, key, "deepseek4.nextn_predict_layer!");
    copy_open(&with, "deepseek4");
    rename_to(&with, key, n_blocks);
    put_u32(&with, find(&with, n_blocks) + 4, 1);
    cr_expect_eq(digest(&with), digest(&without));
    copy_close(&with);
    copy_close(&without);
}

/* The model's norm does not replace it. */
Test(refusals, a_block_without_its_norm_is_left_out) {
    static const char norm[] = "blk.6.layer_output_norm.weight";
    struct driver d;
    struct err err = {0};
    struct copy c;

    copy_open(&c, "bailingmoe3-mtp");
    rename_to(&c, norm, "blk.6.layer_output_norm.weigh!");
    const struct driver_opts o = {.path = c.path, .drafts = true};
    cr_assert_eq(driver_open(&d, &o, &err), 0, "%s", err.message);
    cr_expect_eq(d.info->n_slots, 0);
    cr_expect(strstr(d.info->note, norm) != NULL, "'%s'", d.info->note);
    driver_close(&d);
    copy_close(&c);
}

/* -- names ------------------------------------------------------------------------------------- */

/* Keys without which these models cannot be read. */
Test(refusals, missing_keys_are_named) {
    static const char *const keys[] = {
        "qwen4exp.hyper_connection.count",
        "qwen4exp.hyper_connection.low_rank",
        "qwen4exp.attention.indexer.head_count",
        "qwen4exp.attention.indexer.key_length",
        "qwen4exp.attention.indexer.top_k",
        "qwen4exp.attention.compress_ratios",
        "qwen4exp.ple.ngram_size",
        "qwen4exp.ple.heads_per_ngram",
        "qwen4exp.ple.conv_kernel",
        "qwen4exp.ple.eos_token_id",
        "qwen4exp.ple.layer_multipliers",
        "qwen4exp.ple.head_offsets",
        "qwen4exp.ple.head_vocab_sizes",
        "qwen4exp.embedding_length_per_layer_input",
        "deepseek4.attention.sliding_window",
        "deepseek4.attention.q_lora_rank",
        "deepseek4.attention.output_group_count",
        "deepseek4.attention.output_lora_rank",
        "deepseek4.attention.indexer.head_count",
        "deepseek4.attention.indexer.key_length",
        "deepseek4.attention.indexer.top_k",
        "deepseek4.attention.compress_ratios",
        "deepseek4.hyper_connection.count",
        "deepseek4.hyper_connection.sinkhorn_iterations",
        "deepseek4.expert_gating_func",
        "step35.attention.sliding_window",
        "bailingmoe3.kda.head_dim",
        "bailingmoe3.kda.gate_lower_bound",
        "bailingmoe3.attention.key_length_mla",
        "glm5-next.rope.dimension_count",
        "glm5-next.kda.head_dim",
        "glm5-next.attention.indexer.head_count",
        "glm5-next.attention.indexer.key_length",
        "glm5-next.attention.indexer.top_k",
        "glm5-next.attention.indexer.kpool",
        "glm5-next.hyper_connection.count",
        "minimax-m3.attention.indexer.head_count",
        "minimax-m3.attention.indexer.key_length",
        "minimax-m3.attention.indexer.block_size",
        "minimax-m3.attention.indexer.top_k",
    };

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        struct copy c;
        char name[32];

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(keys[i], "."), keys[i]);
        copy_open(&c, name);
        const char *why = reason_without(&c, keys[i]);
        cr_expect(strstr(why, keys[i]) != NULL, "%s: '%s'", keys[i], why);
        copy_close(&c);
    }
}

/* A layer of each kind, and the tensors before and after the layers. Without output matrix the
 * model uses the embedding; divisors of rotary positions and biases of the choice of experts may be
 * missing, and then only the other name is unknown. */
Test(refusals, missing_tensors_are_named) {
    static const char *const names[] = {"qwen4exp",    "deepseek4", "step35",
                                        "bailingmoe3", "glm5-next", "minimax-m3"};
    static const char *const optional[] = {"rope_freqs", "probs_b"};

    for (size_t f = 0; f < ARRAY_SIZE(names); f++) {
        CLEANUP(gguf_freep) struct gguf *file = NULL;
        struct err err;
        struct copy c;
        uint32_t n = 0;

        copy_open(&c, names[f]);
        cr_assert_eq(gguf_open(&file, c.path, &err), 0);
        for (uint64_t i = 0; i < gguf_n_tensors(file); i++) {
            const char *name = gguf_tensor(file, i)->name;
            unsigned l = 0;
            bool skip =
                strcmp(name, "output.weight") == 0 || (sscanf(name, "blk.%u.", &l) == 1 && l > 3);

            for (size_t k = 0; k < ARRAY_SIZE(optional); k++)
                skip |= strstr(name, optional[k]) != NULL;
            if (skip)
                continue;
            const char *why = reason_without(&c, name);
            cr_expect(strstr(why, name) != NULL, "%s without %s: '%s'", names[f], name, why);
            n++;
        }
        cr_expect(n > 50, "%s: %u tensors", names[f], n);
        copy_close(&c);
    }
}

/* -- damage ------------------------------------------------------------------------------------ */

static uint32_t draw(uint64_t *seed, uint32_t n) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % n);
}

/* A number among the keys of an architecture. */
struct number {
    size_t at;
    enum gguf_type type;
};

static uint32_t find_numbers(const struct copy *c, struct number out[512]) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    uint32_t n = 0;
    struct err err;

    cr_assert_eq(gguf_open(&file, c->path, &err), 0);
    for (uint64_t i = 0; i < gguf_n_kv(file); i++) {
        enum gguf_type type;
        struct gguf_str name = gguf_key(file, i, &type);
        uint64_t n_values = 1;
        char key[96];

        snprintf(key, sizeof(key), "%.*s", (int)name.len, name.data);
        if (strncmp(key, "general.", 8) == 0 || strncmp(key, "tokenizer.", 10) == 0)
            continue;
        size_t at = find(c, key) + 4;
        if (type == GGUF_ARRAY) {
            type = gguf_array_type(gguf_array(file, key));
            n_values = gguf_array_n(gguf_array(file, key));
            at += 12;
        }
        size_t size = type == GGUF_BOOL ? 1 : type == GGUF_U64 || type == GGUF_I64 ? 8 : 4;
        for (uint64_t k = 0; k < n_values && type != GGUF_STRING; k++) {
            cr_assert_lt(n, 512);
            out[n++] = (struct number){at + k * size, type};
        }
    }
    return n;
}

/* Changes a number, or any byte of the keys, or of the 12 KB of tensors after @tensors. */
static void damage(const struct copy *c, const struct number *number, uint32_t n, size_t tensors,
                   uint64_t *seed) {
    static const uint64_t whole[] = {0,  1,  2,   3,    5,     7,       8,         16,
                                     24, 64, 255, 4096, 65535, 1 << 24, INT32_MAX, UINT32_MAX};
    static const float real[] = {0, -1, 1e-30f, 0.3f, 1e6f, 3e38f, NAN, INFINITY};
    size_t at, size = 1, end = number[n - 1].at;
    uint8_t byte = (uint8_t)draw(seed, 256);
    const void *bytes = &byte;

    if (draw(seed, 4)) {
        const struct number *v = &number[draw(seed, n)];

        at = v->at;
        size = v->type == GGUF_BOOL ? 1 : v->type == GGUF_U64 || v->type == GGUF_I64 ? 8 : 4;
        bytes = v->type == GGUF_F32 ? (const void *)&real[draw(seed, ARRAY_SIZE(real))]
                                    : &whole[draw(seed, ARRAY_SIZE(whole))];
    } else {
        do
            at = draw(seed, 2) ? draw(seed, (uint32_t)end) : tensors + draw(seed, 12 << 10);
        while (isgraph(c->bytes[at])); /* a changed number is worse than a changed name */
    }
    cr_assert(at + size <= c->n && pwrite(c->fd, bytes, size, (off_t)at) == (ssize_t)size);
}

/* Opens the file, and computes a prompt if it is accepted. */
static bool serves(const struct copy *c, struct err *err) {
    const struct driver_opts o = {
        .path = c->path, .max_rows = 8, .max_seqs = 2, .n_pages = 4, .drafts = true};
    struct driver d;

    if (driver_open(&d, &o, err) < 0)
        return false;
    struct driver_seq *s = driver_add(&d, (const int32_t[]){7, 300, 41}, 3, 1, NULL);
    if (s) { /* the context may be too short */
        driver_prefill(&d, s, 0);
        driver_drop(&d, s);
    }
    driver_close(&d);
    return true;
}

/* A damaged file is refused with a reason, or served, whatever it contains. */
Test(refusals, damaged_files_do_no_harm) {
    static const char *const names[] = {
        "bailingmoe3-mtp", "deepseek4-mtp", "step35-mtp", "nemotron-h-moe-mtp",
        "qwen4exp",        "llama4",        "gemma3n",    "jamba",
        "phimoe",          "plamo2",        "plamo3",     "glm5-next-mtp",
        "mimo2-mtp",       "minimax-m3"};
    uint32_t n_open = 0, n_refused = 0;
    uint64_t seed = 1;

    for (size_t f = 0; f < ARRAY_SIZE(names); f++) {
        struct number number[512];
        struct copy c;

        copy_open(&c, names[f]);
        uint32_t n = find_numbers(&c, number);
        size_t tensors = find(&c, "token_embd.weight"), header = tensors + (size_t)(13 << 10);
        for (uint32_t i = 0; i < 80; i++) {
            struct err err = {0};

            for (uint32_t k = draw(&seed, 2) + 1; k; k--)
                damage(&c, number, n, tensors, &seed);
            bool ok = serves(&c, &err);
            n_open += ok;
            n_refused += !ok;
            cr_expect(ok || err.message[0], "%s, %u: refused without a reason", names[f], i);
            cr_assert(pwrite(c.fd, c.bytes, header, 0) == (ssize_t)header);
        }
        copy_close(&c);
    }
    cr_expect(n_open > 40 && n_refused > 40, "%u opened, %u refused", n_open, n_refused);
}
