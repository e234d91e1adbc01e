#include <assert.h>
#include <stdio.h>

#include "tests/support/synth/gguf_synth.h"

struct key {
    const char *name;
    uint32_t value;
};

/* Writes the keys "<arch>.<name>" that are not 0. */
static void write_u32(struct gguf_write *w, const char *arch, const struct key *key, size_t n) {
    char text[96];

    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof(text), "%s.%s", arch, key[i].name);
        if (key[i].value)
            gguf_write_u32(w, text, key[i].value);
    }
}

static void write_f32(struct gguf_write *w, const char *arch, const char *name, double v) {
    char text[96];

    snprintf(text, sizeof(text), "%s.%s", arch, name);
    gguf_write_f32(w, text, (float)v);
}

/* Writes how many pairs rotate by each of three positions (time, height, width; the fourth is
 * 0), as the original files have it. Readers of these architectures require the key, also for
 * text. */
static void write_sections(struct gguf_write *w, const char *arch, uint32_t n_pairs) {
    char key[64];

    snprintf(key, sizeof(key), "%s.rope.dimension_sections", arch);
    gguf_write_array(w, key, GGUF_I32, 4);
    for (uint32_t i = 0; i < 3; i++)
        gguf_write_item(w, GGUF_I32, (n_pairs + 2 - i) / 3);
    gguf_write_item(w, GGUF_I32, 0);
}

static void write_hybrid(struct gguf_write *w, const struct synth_shape *s, const char *arch) {
    const struct key keys[] = {
        {"expert_shared_feed_forward_length", s->n_shared},
        {"ssm.conv_kernel", 4},
        {"ssm.state_size", s->n_state},
        {"ssm.group_count", s->n_key},
        {"ssm.time_step_rank", s->n_value},
        {"ssm.inner_size", s->n_value * s->n_state},
        {"full_attention_interval", 4},
        {"nextn_predict_layers", s->n_mtp},
    };

    assert(synth_is_hybrid(s));
    write_u32(w, arch, keys, ARRAY_SIZE(keys));
    if (s->arch >= SYNTH_QWEN35)
        write_sections(w, arch, (s->n_rot ? s->n_rot : s->head_dim) / 2);
}

/* Writes an array of whole numbers: first, first + step, and so on. */
static void write_series(struct gguf_write *w, const char *key, uint32_t n, double first,
                         double step) {
    gguf_write_array(w, key, GGUF_U64, n);
    for (uint32_t i = 0; i < n; i++)
        gguf_write_item(w, GGUF_U64, first + step * i);
}

static void write_qwen4exp(struct gguf_write *w, const struct synth_shape *s, const char *arch) {
    const struct key keys[] = {
        {"hyper_connection.count", s->n_stream},
        {"hyper_connection.low_rank", s->n_low},
        {"attention.indexer.head_count", s->n_index},
        {"attention.indexer.key_length", s->index_dim},
        {"attention.indexer.top_k", s->n_chosen},
        {"ple.ngram_size", 3},
        {"ple.heads_per_ngram", 8},
        {"ple.conv_kernel", 4},
        {"ple.eos_token_id", s->n_vocab - 1},
        {"embedding_length_per_layer_input", s->n_embd / 16},
    };

    write_u32(w, arch, keys, ARRAY_SIZE(keys));
    gguf_write_array(w, "qwen4exp.attention.compress_ratios", GGUF_I32, s->n_layer);
    for (uint32_t i = 0; i < s->n_layer; i++)
        gguf_write_item(w, GGUF_I32, (i + 1) % 4 ? 0 : 4);
    gguf_write_array(w, "qwen4exp.ple.layers", GGUF_U32, 1);
    gguf_write_item(w, GGUF_U32, 1);
    write_series(w, "qwen4exp.ple.layer_multipliers", 3, 29790271842017, -5431665848324);
    write_series(w, "qwen4exp.ple.head_offsets", 16, 0, s->n_table);
    write_series(w, "qwen4exp.ple.head_vocab_sizes", 16, s->n_table, -1);
}

/* Writes which layers have a window. */
static void write_windows(struct gguf_write *w, const struct synth_shape *s, const char *arch) {
    char text[96];

    assert(s->period > 0);
    snprintf(text, sizeof(text), "%s.attention.sliding_window_pattern", arch);
    gguf_write_array(w, text, GGUF_BOOL, s->n_layer);
    for (uint32_t i = 0; i < s->n_layer; i++)
        gguf_write_item(w, GGUF_BOOL, synth_in_window(s, i));
}

/* Writes which layers have a window, and how these differ. Readers require the keys of absent
 * features, too. */
static void write_gemma4(struct gguf_write *w, const struct synth_shape *s, const char *arch) {
    bool assistant = s->arch == SYNTH_ASSISTANT;
    const struct key keys[] = {
        {"attention.key_length_swa", s->window_dim},
        {"attention.value_length_swa", s->window_dim},
        {"rope.dimension_count_swa", s->window_dim},
        {"embedding_length_out", s->n_embd_out},
        {"nextn_predict_layers", assistant ? s->n_layer : 0},
    };
    char text[96];

    assert(s->period > 0);
    write_u32(w, arch, keys, ARRAY_SIZE(keys));
    snprintf(text, sizeof(text), "%s.attention.head_count_kv", arch);
    gguf_write_array(w, text, GGUF_I32, s->n_layer);
    for (uint32_t i = 0; i < s->n_layer; i++)
        gguf_write_item(w, GGUF_I32, synth_in_window(s, i) ? s->n_kv_window : s->n_kv);
    write_windows(w, s, arch);
    snprintf(text, sizeof(text), "%s.attention.shared_kv_layers", arch);
    gguf_write_u32(w, text, assistant ? s->n_layer : 0);
    write_f32(w, arch, "rope.freq_base_swa", 10000);
    if (assistant)
        return;
    gguf_write_u32(w, "gemma4.embedding_length_per_layer_input", 0);
    write_f32(w, arch, "final_logit_softcapping", 30);
}

/* Writes what models with latent attention and experts have in common. */
static void write_latent(struct gguf_write *w, const struct synth_shape *s, const char *arch) {
    const struct key keys[] = {
        {"attention.q_lora_rank", s->q_rank},
        {"attention.kv_lora_rank", s->kv_rank},
        {"attention.key_length_mla", s->head_dim},
        {"attention.value_length_mla", s->v_dim},
        {"leading_dense_block_count", s->n_lead},
        {"expert_shared_count", 1},
        {"expert_shared_feed_forward_length", s->n_shared},
        {"expert_gating_func", 2},
        {"expert_group_count", s->n_group},
        {"expert_group_used_count", s->n_group / 2},
        {"nextn_predict_layers", s->n_mtp},
    };
    char text[96];

    write_u32(w, arch, keys, ARRAY_SIZE(keys));
    write_f32(w, arch, "expert_weights_scale", 1.8);
    snprintf(text, sizeof(text), "%s.expert_weights_norm", arch);
    gguf_write_bool(w, text, true);
}

/* Writes which layers have latent attention, and the sizes of the others. */
static void write_bailing3(struct gguf_write *w, const struct synth_shape *s) {
    const struct key keys[] = {
        {"ssm.conv_kernel", 4},
        {"kda.head_dim", s->v_dim},
    };

    write_latent(w, s, "bailingmoe3");
    write_u32(w, "bailingmoe3", keys, ARRAY_SIZE(keys));
    gguf_write_array(w, "bailingmoe3.attention.head_count_kv", GGUF_I32, s->n_layer + s->n_mtp);
    for (uint32_t i = 0; i < s->n_layer + s->n_mtp; i++)
        gguf_write_item(w, GGUF_I32, !synth_has_kda(s, i));
    write_f32(w, "bailingmoe3", "kda.gate_lower_bound", -5);
    gguf_write_bool(w, "bailingmoe3.kda.safe_gate", true);
}

static void write_deepseek4(struct gguf_write *w, const struct synth_shape *s) {
    static const char arch[] = "deepseek4";
    const struct key keys[] = {
        {"attention.q_lora_rank", s->q_rank},
        {"attention.output_group_count", s->n_group},
        {"attention.output_lora_rank", s->out_rank},
        {"attention.indexer.head_count", s->n_index},
        {"attention.indexer.key_length", s->index_dim},
        {"attention.indexer.top_k", s->n_chosen},
        {"hyper_connection.count", s->n_stream},
        {"hyper_connection.sinkhorn_iterations", 20},
        {"hash_layer_count", SYNTH_BY_TOKEN},
        {"expert_shared_count", 1},
        {"expert_gating_func", 4},
        {"nextn_predict_layers", s->n_mtp},
    };

    write_u32(w, arch, keys, ARRAY_SIZE(keys));
    gguf_write_array(w, "deepseek4.attention.compress_ratios", GGUF_I32, s->n_layer + s->n_mtp);
    for (uint32_t i = 0; i < s->n_layer + s->n_mtp; i++)
        gguf_write_item(w, GGUF_I32, synth_block(s, i));
    write_f32(w, arch, "attention.compress_rope_freq_base", 160000);
    write_f32(w, arch, "hyper_connection.epsilon", 1e-6);
    write_f32(w, arch, "swiglu_clamp_exp", 10);
    write_f32(w, arch, "swiglu_clamp_shexp", 10);
    write_f32(w, arch, "expert_weights_scale", 1.5);
    gguf_write_bool(w, "deepseek4.expert_weights_norm", true);
}

static void write_muse(struct gguf_write *w, const struct synth_shape *s, const char *arch) {
    const struct key period = {"attention.sliding_window_pattern", s->period};

    write_u32(w, arch, &period, 1);
    write_f32(w, arch, "logit_scale", 1);
    write_f32(w, arch, "final_logit_softcapping", 20);
}

/* Writes what differs by layer, and the rule that picks experts. */
static void write_step35(struct gguf_write *w, const struct synth_shape *s, const char *arch) {
    const struct key keys[] = {
        {"leading_dense_block_count", s->n_lead},
        {"expert_shared_feed_forward_length", s->n_shared},
        {"expert_gating_func", 2},
    };
    char text[96];

    write_u32(w, arch, keys, ARRAY_SIZE(keys));
    snprintf(text, sizeof(text), "%s.attention.head_count", arch);
    gguf_write_array(w, text, GGUF_I32, s->n_layer);
    for (uint32_t i = 0; i < s->n_layer; i++)
        gguf_write_item(w, GGUF_I32, synth_n_head(s, i));
    write_windows(w, s, arch);
    write_f32(w, arch, "rope.freq_base_swa", 10000);
    write_f32(w, arch, "expert_weights_scale", 3);
    gguf_write_bool(w, "step35.expert_weights_norm", true);
}

static void write_yarn(struct gguf_write *w, const struct synth_shape *s, const char *arch) {
    const struct key original = {"rope.scaling.original_context_length", s->original};
    char text[96];

    snprintf(text, sizeof(text), "%s.rope.scaling.type", arch);
    gguf_write_text(w, text, "yarn");
    write_f32(w, arch, "rope.scaling.factor", s->factor);
    write_u32(w, arch, &original, 1);
    if (s->arch == SYNTH_MISTRAL3) {
        write_f32(w, arch, "rope.scaling.yarn_log_multiplier", 1);
        write_f32(w, arch, "attention.temperature_scale", 0.1);
    }
}

void synth_keys_write(struct gguf_write *w, const struct synth_shape *s, const struct synth_plan *p,
                      const char *name) {
    const char *arch = synth_arch_name(s->arch);
    bool latent = synth_is_latent(s), by_layer = synth_is_gemma4(s) || s->arch == SYNTH_BAILING3;
    uint32_t key_length = latent ? s->kv_rank + s->n_rot : s->head_dim;
    const struct key keys[] = {
        {"context_length", s->context},
        {"embedding_length", s->n_embd},
        {"block_count", s->n_layer + s->n_mtp},
        {"feed_forward_length", s->n_dense ? s->n_dense : s->n_ff},
        {"attention.head_count", s->arch == SYNTH_STEP35 ? 0 : s->n_head},
        {"attention.head_count_kv", by_layer ? 0 : s->n_kv},
        {"attention.key_length", key_length},
        {"attention.value_length", latent ? s->kv_rank : s->head_dim},
        {"attention.sliding_window", s->window},
        {"rope.dimension_count", s->n_rot ? s->n_rot : s->head_dim},
        {"vocab_size", s->n_vocab},
        {"expert_count", s->n_expert},
        {"expert_used_count", s->n_used},
        {"expert_feed_forward_length", s->n_expert ? s->n_ff : 0},
    };

    gguf_write_text(w, "general.architecture", arch);
    gguf_write_text(w, "general.type", "model");
    gguf_write_text(w, "general.name", name);
    gguf_write_u32(w, "general.file_type", p->file_type);
    gguf_write_u32(w, "general.quantization_version", 2);
    write_u32(w, arch, keys, ARRAY_SIZE(keys));
    if (s->arch == SYNTH_QWEN4EXP)
        write_qwen4exp(w, s, arch);
    if (synth_is_hybrid(s))
        write_hybrid(w, s, arch);
    else if (synth_is_gemma4(s))
        write_gemma4(w, s, arch);
    else if (s->arch == SYNTH_BAILING3)
        write_bailing3(w, s);
    else if (latent)
        write_latent(w, s, arch);
    else if (s->arch == SYNTH_DEEPSEEK4)
        write_deepseek4(w, s);
    else if (s->arch == SYNTH_MUSE)
        write_muse(w, s, arch);
    else if (s->arch == SYNTH_STEP35)
        write_step35(w, s, arch);
    else if (s->arch == SYNTH_MINIMAX)
        gguf_write_u32(w, "minimax-m2.expert_gating_func", 2);
    if (s->factor)
        write_yarn(w, s, arch);
    write_f32(w, arch, "attention.layer_norm_rms_epsilon", s->eps);
    write_f32(w, arch, "rope.freq_base", s->theta);
}
