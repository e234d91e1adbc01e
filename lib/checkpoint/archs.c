#include "checkpoint/archs.h"

#include <string.h>

#include "base/err.h"

/* The prefix of the text model ("model.", "model.language_model.") is taken off before. */
const struct arch_name arch_names[] = {
    {"embed_tokens.weight", "token_embd.weight", NAME_PLAIN},
    {"norm.weight", "output_norm.weight", NAME_GAIN},
    {"lm_head.weight", "output.weight", NAME_PLAIN},
    {"layers.#.input_layernorm.weight", "blk.#.attn_norm.weight", NAME_GAIN},
    {"layers.#.post_attention_layernorm.weight", "blk.#.ffn_norm.weight", NAME_GAIN},
    {"layers.#.self_attn.q_proj.weight", "blk.#.attn_q.weight", NAME_ROTATED},
    {"layers.#.self_attn.k_proj.weight", "blk.#.attn_k.weight", NAME_ROTATED},
    {"layers.#.self_attn.v_proj.weight", "blk.#.attn_v.weight", NAME_PLAIN},
    {"layers.#.self_attn.o_proj.weight", "blk.#.attn_output.weight", NAME_PLAIN},
    {"layers.#.self_attn.q_proj.bias", "blk.#.attn_q.bias", NAME_ROTATED},
    {"layers.#.self_attn.k_proj.bias", "blk.#.attn_k.bias", NAME_ROTATED},
    {"layers.#.self_attn.v_proj.bias", "blk.#.attn_v.bias", NAME_FLOATS},
    {"layers.#.self_attn.o_proj.bias", "blk.#.attn_output.bias", NAME_FLOATS},
    {"layers.#.self_attn.q_norm.weight", "blk.#.attn_q_norm.weight", NAME_GAIN},
    {"layers.#.self_attn.k_norm.weight", "blk.#.attn_k_norm.weight", NAME_GAIN},
    {"layers.#.self_attn.rotary_emb.inv_freq", "", NAME_LEFT_OUT},
    {"layers.#.mlp.gate_proj.weight", "blk.#.ffn_gate.weight", NAME_PLAIN},
    {"layers.#.mlp.up_proj.weight", "blk.#.ffn_up.weight", NAME_PLAIN},
    {"layers.#.mlp.down_proj.weight", "blk.#.ffn_down.weight", NAME_PLAIN},
    {"layers.#.mlp.gate_proj.bias", "blk.#.ffn_gate.bias", NAME_FLOATS},
    {"layers.#.mlp.up_proj.bias", "blk.#.ffn_up.bias", NAME_FLOATS},
    {"layers.#.mlp.down_proj.bias", "blk.#.ffn_down.bias", NAME_FLOATS},
    {"layers.#.mlp.gate.weight", "blk.#.ffn_gate_inp.weight", NAME_FLOATS},
    {"layers.#.mlp.gate.e_score_correction_bias", "blk.#.exp_probs_b.bias", NAME_FLOATS},
    {"layers.#.mlp.experts.@.gate_proj.weight", "blk.#.ffn_gate_exps.weight", NAME_EXPERT},
    {"layers.#.mlp.experts.@.up_proj.weight", "blk.#.ffn_up_exps.weight", NAME_EXPERT},
    {"layers.#.mlp.experts.@.down_proj.weight", "blk.#.ffn_down_exps.weight", NAME_EXPERT},
    {"layers.#.mlp.shared_experts.gate_proj.weight", "blk.#.ffn_gate_shexp.weight", NAME_PLAIN},
    {"layers.#.mlp.shared_experts.up_proj.weight", "blk.#.ffn_up_shexp.weight", NAME_PLAIN},
    {"layers.#.mlp.shared_experts.down_proj.weight", "blk.#.ffn_down_shexp.weight", NAME_PLAIN},
    /* of blocks of multi-token prediction */
    {"layers.#.eh_proj.weight", "blk.#.nextn.eh_proj.weight", NAME_PLAIN},
    {"layers.#.enorm.weight", "blk.#.nextn.enorm.weight", NAME_GAIN},
    {"layers.#.hnorm.weight", "blk.#.nextn.hnorm.weight", NAME_GAIN},
    {"layers.#.embed_tokens.weight", "blk.#.nextn.embed_tokens.weight", NAME_PLAIN},
    {"layers.#.shared_head.norm.weight", "blk.#.nextn.shared_head_norm.weight", NAME_GAIN},
    {"layers.#.shared_head.head.weight", "blk.#.nextn.shared_head_head.weight", NAME_PLAIN},
    {0},
};

const struct arch_key arch_keys[] = {
    {"hidden_size n_embd", "embedding_length", KEY_U32, true},
    {"num_attention_heads n_head", "attention.head_count", KEY_U32, true},
    {"rms_norm_eps norm_eps layer_norm_epsilon layer_norm_eps", "attention.layer_norm_rms_epsilon",
     KEY_F32, true},
    {"vocab_size", "vocab_size", KEY_U32, true},
    {"num_local_experts num_experts n_routed_experts", "expert_count", KEY_U32, false},
    {"num_experts_per_tok top_k_experts", "expert_used_count", KEY_U32, false},
    {"moe_intermediate_size", "expert_feed_forward_length", KEY_U32, false},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", KEY_U32, false},
    {0},
};

/* The Mixtral way to name experts. */
#define NAMES_BLOCK_SPARSE                                                                         \
    {"layers.#.block_sparse_moe.gate.weight", "blk.#.ffn_gate_inp.weight", NAME_FLOATS},           \
        {"layers.#.block_sparse_moe.e_score_correction_bias", "blk.#.exp_probs_b.bias",            \
         NAME_FLOATS},                                                                             \
        {"layers.#.block_sparse_moe.experts.@.w1.weight", "blk.#.ffn_gate_exps.weight",            \
         NAME_EXPERT},                                                                             \
        {"layers.#.block_sparse_moe.experts.@.w2.weight", "blk.#.ffn_down_exps.weight",            \
         NAME_EXPERT},                                                                             \
    {                                                                                              \
        "layers.#.block_sparse_moe.experts.@.w3.weight", "blk.#.ffn_up_exps.weight", NAME_EXPERT   \
    }

static const struct arch_name names_sparse[] = {NAMES_BLOCK_SPARSE, {0}};

static const struct arch_name names_phi3[] = {
    {"layers.#.self_attn.qkv_proj.weight", "blk.#.attn_qkv.weight", NAME_PLAIN},
    {"layers.#.mlp.gate_up_proj.weight", "blk.#.ffn_up.weight", NAME_PLAIN},
    {0},
};

/* Norms on both sides of each block. */
static const struct arch_name names_gemma[] = {
    {"layers.#.post_attention_layernorm.weight", "blk.#.post_attention_norm.weight", NAME_GAIN},
    {"layers.#.pre_feedforward_layernorm.weight", "blk.#.ffn_norm.weight", NAME_GAIN},
    {"layers.#.post_feedforward_layernorm.weight", "blk.#.post_ffw_norm.weight", NAME_GAIN},
    {0},
};

/* Gemma 4: experts beside the dense FFN, and parts of the inputs that each layer reads. Only its
 * assistant has projections and the table of clusters, which is left out. */
static const struct arch_name names_gemma4[] = {
    {"pre_projection.weight", "nextn.pre_projection.weight", NAME_PLAIN},
    {"post_projection.weight", "nextn.post_projection.weight", NAME_PLAIN},
    {"masked_embedding.centroids.weight", "", NAME_LEFT_OUT},
    {"masked_embedding.token_ordering", "", NAME_LEFT_OUT},
    {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight", NAME_PLAIN},
    {"per_layer_model_projection.weight", "per_layer_model_proj.weight", NAME_PLAIN},
    {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight", NAME_GAIN},
    {"layers.#.post_attention_layernorm.weight", "blk.#.post_attention_norm.weight", NAME_GAIN},
    {"layers.#.pre_feedforward_layernorm.weight", "blk.#.ffn_norm.weight", NAME_GAIN},
    {"layers.#.pre_feedforward_layernorm_2.weight", "blk.#.pre_ffw_norm_2.weight", NAME_GAIN},
    {"layers.#.post_feedforward_layernorm.weight", "blk.#.post_ffw_norm.weight", NAME_GAIN},
    {"layers.#.post_feedforward_layernorm_1.weight", "blk.#.post_ffw_norm_1.weight", NAME_GAIN},
    {"layers.#.post_feedforward_layernorm_2.weight", "blk.#.post_ffw_norm_2.weight", NAME_GAIN},
    {"layers.#.post_per_layer_input_norm.weight", "blk.#.post_norm.weight", NAME_GAIN},
    {"layers.#.per_layer_input_gate.weight", "blk.#.inp_gate.weight", NAME_PLAIN},
    {"layers.#.per_layer_projection.weight", "blk.#.proj.weight", NAME_PLAIN},
    {"layers.#.layer_scalar", "blk.#.layer_output_scale.weight", NAME_FLOATS},
    {"layers.#.router.proj.weight", "blk.#.ffn_gate_inp.weight", NAME_FLOATS},
    {"layers.#.router.scale", "blk.#.ffn_gate_inp.scale", NAME_FLOATS},
    {"layers.#.router.per_expert_scale", "blk.#.ffn_down_exps.scale", NAME_FLOATS},
    {"layers.#.experts.gate_up_proj", "blk.#.ffn_gate_up_exps.weight", NAME_PLAIN},
    {"layers.#.experts.down_proj", "blk.#.ffn_down_exps.weight", NAME_PLAIN},
    {0},
};

/* Block drafters; convolutions and a selector are those of DFlash2, the Markov head and the
 * estimate of what will be accepted those of DSpark. */
static const struct arch_name names_dflash[] = {
    {"fc.weight", "fc.weight", NAME_PLAIN},
    {"hidden_norm.weight", "enc.output_norm.weight", NAME_GAIN},
    {"layers.#.attention_conv.base_kernel", "blk.#.attn_conv_base", NAME_FLOATS},
    {"layers.#.attention_conv.kernel_projection.weight", "blk.#.attn_conv_proj.weight", NAME_PLAIN},
    {"layers.#.mlp_conv.base_kernel", "blk.#.ffn_conv_base", NAME_FLOATS},
    {"layers.#.mlp_conv.kernel_projection.weight", "blk.#.ffn_conv_proj.weight", NAME_PLAIN},
    {"candidate_selector.hidden_projection.weight", "selector_hidden.weight", NAME_PLAIN},
    {"candidate_selector.predecessor_codebook", "selector_predecessor.weight", NAME_PLAIN},
    {"candidate_selector.successor_codebook", "selector_successor.weight", NAME_PLAIN},
    {"markov_head.markov_w1.weight", "markov_w1.weight", NAME_PLAIN},
    {"markov_head.markov_w2.weight", "markov_w2.weight", NAME_PLAIN},
    {"confidence_head.proj.weight", "conf_proj.weight", NAME_PLAIN},
    {"confidence_head.proj.bias", "", NAME_LEFT_OUT},
    {0},
};

/* Nemotron: each block has a norm and a mixer. Of multi-token prediction two blocks are one here,
 * attention and experts, and the norm of the second is post_norm. */
static const struct arch_name names_nemotron[] = {
    {"embeddings.weight", "token_embd.weight", NAME_PLAIN},
    {"norm_f.weight", "output_norm.weight", NAME_GAIN},
    {"layers.#.norm.weight", "blk.#.attn_norm.weight", NAME_GAIN},
    {"layers.#.post_norm.weight", "blk.#.post_attention_norm.weight", NAME_GAIN},
    {"layers.#.final_layernorm.weight", "blk.#.nextn.shared_head_norm.weight", NAME_GAIN},
    {"layers.#.mixer.in_proj.weight", "blk.#.ssm_in.weight", NAME_PLAIN},
    {"layers.#.mixer.conv1d.weight", "blk.#.ssm_conv1d.weight", NAME_FLOATS},
    {"layers.#.mixer.conv1d.bias", "blk.#.ssm_conv1d.bias", NAME_FLOATS},
    {"layers.#.mixer.dt_bias", "blk.#.ssm_dt.bias", NAME_FLOATS},
    {"layers.#.mixer.A_log", "blk.#.ssm_a", NAME_HEADS_NEG_EXP},
    {"layers.#.mixer.D", "blk.#.ssm_d", NAME_HEADS},
    {"layers.#.mixer.norm.weight", "blk.#.ssm_norm.weight", NAME_GROUPS},
    {"layers.#.mixer.out_proj.weight", "blk.#.ssm_out.weight", NAME_PLAIN},
    {"layers.#.mixer.q_proj.weight", "blk.#.attn_q.weight", NAME_PLAIN},
    {"layers.#.mixer.k_proj.weight", "blk.#.attn_k.weight", NAME_PLAIN},
    {"layers.#.mixer.v_proj.weight", "blk.#.attn_v.weight", NAME_PLAIN},
    {"layers.#.mixer.o_proj.weight", "blk.#.attn_output.weight", NAME_PLAIN},
    {"layers.#.mixer.gate.weight", "blk.#.ffn_gate_inp.weight", NAME_FLOATS},
    {"layers.#.mixer.gate.e_score_correction_bias", "blk.#.exp_probs_b.bias", NAME_FLOATS},
    {"layers.#.mixer.experts.@.up_proj.weight", "blk.#.ffn_up_exps.weight", NAME_EXPERT},
    {"layers.#.mixer.experts.@.down_proj.weight", "blk.#.ffn_down_exps.weight", NAME_EXPERT},
    {"layers.#.mixer.up_proj.weight", "blk.#.ffn_up.weight", NAME_PLAIN},
    {"layers.#.mixer.down_proj.weight", "blk.#.ffn_down.weight", NAME_PLAIN},
    {"layers.#.mixer.shared_experts.up_proj.weight", "blk.#.ffn_up_shexp.weight", NAME_PLAIN},
    {"layers.#.mixer.shared_experts.down_proj.weight", "blk.#.ffn_down_shexp.weight", NAME_PLAIN},
    {0},
};

static const struct arch_name names_late_norm[] = {
    {"layers.#.post_attention_layernorm.weight", "blk.#.post_attention_norm.weight", NAME_GAIN},
    {0},
};

/* Norms on both sides of each block under GLM's names. */
static const struct arch_name names_glm4[] = {
    {"layers.#.post_self_attn_layernorm.weight", "blk.#.post_attention_norm.weight", NAME_GAIN},
    {"layers.#.post_mlp_layernorm.weight", "blk.#.post_ffw_norm.weight", NAME_GAIN},
    {"layers.#.mlp.gate_up_proj.weight", "blk.#.ffn_up.weight", NAME_PLAIN},
    {0},
};

/* An expert that all tokens use, with a gate. */
static const struct arch_name names_gated_shared[] = {
    {"layers.#.mlp.shared_expert.gate_proj.weight", "blk.#.ffn_gate_shexp.weight", NAME_PLAIN},
    {"layers.#.mlp.shared_expert.up_proj.weight", "blk.#.ffn_up_shexp.weight", NAME_PLAIN},
    {"layers.#.mlp.shared_expert.down_proj.weight", "blk.#.ffn_down_shexp.weight", NAME_PLAIN},
    {"layers.#.mlp.shared_expert_gate.weight", "blk.#.ffn_gate_inp_shexp.weight", NAME_FLOATS},
    {0},
};

static const struct arch_name names_ernie[] = {
    {"layers.#.mlp.moe_statics.e_score_correction_bias", "blk.#.exp_probs_b.bias", NAME_FLOATS},
    {0},
};

static const struct arch_name names_granitemoe[] = {
    {"layers.#.block_sparse_moe.router.layer.weight", "blk.#.ffn_gate_inp.weight", NAME_FLOATS},
    {"layers.#.block_sparse_moe.input_linear.weight", "", NAME_GATE_UP},
    {"layers.#.block_sparse_moe.output_linear.weight", "blk.#.ffn_down_exps.weight", NAME_PLAIN},
    {"layers.#.shared_mlp.input_linear.weight", "", NAME_SHARED_GATE_UP},
    {"layers.#.shared_mlp.output_linear.weight", "blk.#.ffn_down_shexp.weight", NAME_PLAIN},
    {0},
};

static const struct arch_name names_latent[] = {
    {"layers.#.self_attn.q_proj.weight", "blk.#.attn_q.weight", NAME_PLAIN},
    {"layers.#.self_attn.q_a_proj.weight", "blk.#.attn_q_a.weight", NAME_PLAIN},
    {"layers.#.self_attn.q_a_layernorm.weight", "blk.#.attn_q_a_norm.weight", NAME_GAIN},
    {"layers.#.self_attn.q_b_proj.weight", "blk.#.attn_q_b.weight", NAME_PLAIN},
    {"layers.#.self_attn.kv_a_proj_with_mqa.weight", "blk.#.attn_kv_a_mqa.weight", NAME_PLAIN},
    {"layers.#.self_attn.kv_a_layernorm.weight", "blk.#.attn_kv_a_norm.weight", NAME_GAIN},
    {"layers.#.self_attn.kv_b_proj.weight", "", NAME_KV_B},
    {"layers.#.mlp.experts.gate_up_proj", "", NAME_GATE_UP},
    {"layers.#.mlp.experts.down_proj", "blk.#.ffn_down_exps.weight", NAME_PLAIN},
    {0},
};

/* Delta nets, and experts of which all tokens use one; names with and without fused projections. */
static const struct arch_name names_hybrid[] = {
    {"layers.#.post_attention_layernorm.weight", "blk.#.post_attention_norm.weight", NAME_GAIN},
    {"layers.#.linear_attn.in_proj_qkvz.weight", "", NAME_QKVZ},
    {"layers.#.linear_attn.in_proj_ba.weight", "blk.#.ssm_ba.weight", NAME_PLAIN},
    {"layers.#.linear_attn.in_proj_qkv.weight", "blk.#.attn_qkv.weight", NAME_PLAIN},
    {"layers.#.linear_attn.in_proj_z.weight", "blk.#.attn_gate.weight", NAME_PLAIN},
    {"layers.#.linear_attn.in_proj_b.weight", "blk.#.ssm_beta.weight", NAME_PLAIN},
    {"layers.#.linear_attn.in_proj_a.weight", "blk.#.ssm_alpha.weight", NAME_PLAIN},
    {"layers.#.linear_attn.conv1d.weight", "blk.#.ssm_conv1d.weight", NAME_FLOATS},
    {"layers.#.linear_attn.dt_bias", "blk.#.ssm_dt.bias", NAME_FLOATS},
    {"layers.#.linear_attn.A_log", "blk.#.ssm_a", NAME_NEG_EXP},
    {"layers.#.linear_attn.norm.weight", "blk.#.ssm_norm.weight", NAME_FLOATS},
    {"layers.#.linear_attn.out_proj.weight", "blk.#.ssm_out.weight", NAME_PLAIN},
    {"layers.#.mlp.shared_expert.gate_proj.weight", "blk.#.ffn_gate_shexp.weight", NAME_PLAIN},
    {"layers.#.mlp.shared_expert.up_proj.weight", "blk.#.ffn_up_shexp.weight", NAME_PLAIN},
    {"layers.#.mlp.shared_expert.down_proj.weight", "blk.#.ffn_down_shexp.weight", NAME_PLAIN},
    {"layers.#.mlp.shared_expert_gate.weight", "blk.#.ffn_gate_inp_shexp.weight", NAME_FLOATS},
    {"layers.#.mlp.experts.gate_up_proj", "", NAME_GATE_UP},
    {"layers.#.mlp.experts.down_proj", "blk.#.ffn_down_exps.weight", NAME_PLAIN},
    {0},
};

static const struct arch_name names_lfm2[] = {
    {"embedding_norm.weight", "token_embd_norm.weight", NAME_GAIN},
    {"layers.#.operator_norm.weight", "blk.#.attn_norm.weight", NAME_GAIN},
    {"layers.#.ffn_norm.weight", "blk.#.ffn_norm.weight", NAME_GAIN},
    {"layers.#.conv.in_proj.weight", "blk.#.shortconv.in_proj.weight", NAME_PLAIN},
    {"layers.#.conv.out_proj.weight", "blk.#.shortconv.out_proj.weight", NAME_PLAIN},
    {"layers.#.conv.conv.weight", "blk.#.shortconv.conv.weight", NAME_FLOATS},
    {"layers.#.self_attn.out_proj.weight", "blk.#.attn_output.weight", NAME_PLAIN},
    {"layers.#.self_attn.q_layernorm.weight", "blk.#.attn_q_norm.weight", NAME_GAIN},
    {"layers.#.self_attn.k_layernorm.weight", "blk.#.attn_k_norm.weight", NAME_GAIN},
    {"layers.#.feed_forward.w1.weight", "blk.#.ffn_gate.weight", NAME_PLAIN},
    {"layers.#.feed_forward.w2.weight", "blk.#.ffn_down.weight", NAME_PLAIN},
    {"layers.#.feed_forward.w3.weight", "blk.#.ffn_up.weight", NAME_PLAIN},
    {"layers.#.feed_forward.gate.weight", "blk.#.ffn_gate_inp.weight", NAME_FLOATS},
    {"layers.#.feed_forward.expert_bias", "blk.#.exp_probs_b.bias", NAME_FLOATS},
    {"layers.#.feed_forward.experts.@.w1.weight", "blk.#.ffn_gate_exps.weight", NAME_EXPERT},
    {"layers.#.feed_forward.experts.@.w2.weight", "blk.#.ffn_down_exps.weight", NAME_EXPERT},
    {"layers.#.feed_forward.experts.@.w3.weight", "blk.#.ffn_up_exps.weight", NAME_EXPERT},
    {0},
};

/* Experts of MXFP4 or in 16 bits, whose rows of gate and up projections take turns. */
static const struct arch_name names_gpt_oss[] = {
    {"layers.#.post_attention_layernorm.weight", "blk.#.post_attention_norm.weight", NAME_GAIN},
    {"layers.#.self_attn.sinks", "blk.#.attn_sinks.weight", NAME_FLOATS},
    {"layers.#.mlp.router.weight", "blk.#.ffn_gate_inp.weight", NAME_FLOATS},
    {"layers.#.mlp.router.bias", "blk.#.ffn_gate_inp.bias", NAME_FLOATS},
    {"layers.#.mlp.experts.gate_up_proj_blocks", "", NAME_BLOCKS_GATE_UP},
    {"layers.#.mlp.experts.gate_up_proj_scales", "", NAME_LEFT_OUT},
    {"layers.#.mlp.experts.gate_up_proj_bias", "", NAME_GATE_UP_BIAS},
    {"layers.#.mlp.experts.gate_up_proj", "", NAME_TURNED_GATE_UP},
    {"layers.#.mlp.experts.down_proj", "", NAME_TURNED_DOWN},
    {"layers.#.mlp.experts.down_proj_blocks", "", NAME_BLOCKS_DOWN},
    {"layers.#.mlp.experts.down_proj_scales", "", NAME_LEFT_OUT},
    {"layers.#.mlp.experts.down_proj_bias", "blk.#.ffn_down_exps.bias", NAME_FLOATS},
    {0},
};

static const struct arch_key keys_gpt_oss[] = {
    {"sliding_window", "attention.sliding_window", KEY_U32, true},
    {"intermediate_size", "expert_feed_forward_length", KEY_U32, true},
    {0},
};

static const struct arch_key keys_window[] = {
    {"sliding_window", "attention.sliding_window", KEY_U32, false},
    {"attn_logit_softcapping", "attn_logit_softcapping", KEY_F32, false},
    {"final_logit_softcapping", "final_logit_softcapping", KEY_F32, false},
    {"rope_local_base_freq", "rope.freq_base_swa", KEY_F32, false},
    {0},
};

static const struct arch_key keys_gemma4[] = {
    {"sliding_window", "attention.sliding_window", KEY_U32, true},
    {"final_logit_softcapping", "final_logit_softcapping", KEY_F32, false},
    {"hidden_size_per_layer_input", "embedding_length_per_layer_input", KEY_U32, true},
    {"num_kv_shared_layers", "attention.shared_kv_layers", KEY_U32, true},
    {0},
};

static const struct arch_key keys_assistant[] = {
    {"sliding_window", "attention.sliding_window", KEY_U32, true},
    {"backbone_hidden_size", "embedding_length_out", KEY_U32, true},
    {0},
};

#define KEYS_DFLASH                                                                                \
    {"block_size", "block_size", KEY_U32, true},                                                   \
        {"sliding_window", "attention.sliding_window", KEY_U32, false},                            \
        {"causal is_causal", "attention.causal", KEY_BOOL, false},                                 \
        {"sample_from_anchor", "sample_from_anchor", KEY_BOOL, false},                             \
        {"final_logit_softcapping", "final_logit_softcapping", KEY_F32, false}, {                  \
        "output_multiplier", "logit_scale", KEY_F32, false                                         \
    }

static const struct arch_key keys_dflash[] = {KEYS_DFLASH, {0}};
static const struct arch_key keys_dflash2[] = {
    KEYS_DFLASH,
    {"conv_kernel_size", "conv_kernel_size", KEY_U32, true},
    {"conv_group_size", "conv_group_size", KEY_U32, true},
    {"selector_rank", "selector_rank", KEY_U32, true},
    {"selector_top_k", "selector_top_k", KEY_U32, true},
    {0},
};

static const struct arch_key keys_granite[] = {
    {"embedding_multiplier", "embedding_scale", KEY_F32, true},
    {"residual_multiplier", "residual_scale", KEY_F32, true},
    {"logits_scaling", "logit_scale", KEY_F32, true},
    {"attention_multiplier", "attention.scale", KEY_F32, true},
    {0},
};

/* Rule by which experts are picked, for architectures that read it from the file. */
#define KEYS_ROUTING                                                                               \
    {"first_k_dense_replace num_dense_layers", "leading_dense_block_count", KEY_U32, false},       \
        {"n_shared_experts", "expert_shared_count", KEY_U32, false},                               \
        {"routed_scaling_factor", "expert_weights_scale", KEY_F32, false},                         \
        {"norm_topk_prob", "expert_weights_norm", KEY_BOOL, false},                                \
        {"n_group", "expert_group_count", KEY_U32, false}, {                                       \
        "topk_group", "expert_group_used_count", KEY_U32, false                                    \
    }

static const struct arch_key keys_routing[] = {KEYS_ROUTING, {0}};
static const struct arch_key keys_lfm2[] = {
    KEYS_ROUTING,
    {"conv_L_cache", "shortconv.l_cache", KEY_U32, true},
    {0},
};

static const struct arch_key keys_nemotron[] = {
    KEYS_ROUTING,
    {"layer_norm_epsilon norm_eps", "attention.layer_norm_epsilon", KEY_F32, true},
    {"moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length", KEY_U32, false},
    {"conv_kernel", "ssm.conv_kernel", KEY_U32, true},
    {"ssm_state_size", "ssm.state_size", KEY_U32, true},
    {"n_groups", "ssm.group_count", KEY_U32, true},
    {"mamba_num_heads", "ssm.time_step_rank", KEY_U32, true},
    {0},
};

static const struct arch_key keys_granitemoe[] = {
    {"embedding_multiplier", "embedding_scale", KEY_F32, true},
    {"residual_multiplier", "residual_scale", KEY_F32, true},
    {"logits_scaling", "logit_scale", KEY_F32, true},
    {"attention_multiplier", "attention.scale", KEY_F32, true},
    {"shared_intermediate_size", "expert_shared_feed_forward_length", KEY_U32, false},
    {0},
};

static const struct arch_key keys_latent[] = {
    KEYS_ROUTING,
    {"q_lora_rank", "attention.q_lora_rank", KEY_U32, false},
    {"kv_lora_rank", "attention.kv_lora_rank", KEY_U32, true},
    {0},
};

static const struct arch_key keys_hybrid[] = {
    {"linear_conv_kernel_dim", "ssm.conv_kernel", KEY_U32, true},
    {"linear_key_head_dim", "ssm.state_size", KEY_U32, true},
    {"linear_num_key_heads", "ssm.group_count", KEY_U32, true},
    {"linear_num_value_heads", "ssm.time_step_rank", KEY_U32, true},
    {"full_attention_interval", "full_attention_interval", KEY_U32, false},
    {0},
};

static const struct arch_key keys_ernie[] = {
    {"moe_num_experts", "expert_count", KEY_U32, true},
    {"moe_k", "expert_used_count", KEY_U32, true},
    {"moe_num_shared_experts", "expert_shared_count", KEY_U32, false},
    {"moe_layer_start_index", "leading_dense_block_count", KEY_U32, false},
    {"moe_layer_interval", "interleave_moe_layer_step", KEY_U32, false},
    {0},
};

/* BERT and RoBERTa: what both have. The heads of masked tokens are left out. */
#define NAMES_BERT                                                                                 \
    {"embeddings.word_embeddings.weight", "token_embd.weight", NAME_PLAIN},                        \
        {"embeddings.position_embeddings.weight", "position_embd.weight", NAME_POSITIONS},         \
        {"embeddings.token_type_embeddings.weight", "token_types.weight", NAME_FLOATS},            \
        {"embeddings.position_ids", "", NAME_LEFT_OUT},                                            \
        {"embeddings.LayerNorm.weight", "token_embd_norm.weight", NAME_GAIN},                      \
        {"embeddings.LayerNorm.bias", "token_embd_norm.bias", NAME_FLOATS},                        \
        BERT_BOTH("attention.self.query", "attn_q"), BERT_BOTH("attention.self.key", "attn_k"),    \
        BERT_BOTH("attention.self.value", "attn_v"),                                               \
        BERT_BOTH("attention.output.dense", "attn_output"),                                        \
        BERT_BOTH("attention.output.LayerNorm", "attn_output_norm"),                               \
        BERT_BOTH("intermediate.dense", "ffn_up"), BERT_BOTH("output.dense", "ffn_down"),          \
        BERT_BOTH("output.LayerNorm", "layer_output_norm")

/* A matrix or a norm with its bias. */
#define BERT_BOTH(of, to)                                                                          \
    {"encoder.layer.#." of ".weight", "blk.#." to ".weight", NAME_PLAIN}, {                        \
        "encoder.layer.#." of ".bias", "blk.#." to ".bias", NAME_FLOATS                            \
    }

static const struct arch_name names_bert[] = {
    NAMES_BERT,
    {"pooler.dense.weight", "cls.weight", NAME_POOLER},
    {"pooler.dense.bias", "cls.bias", NAME_POOLER},
    {"classifier.weight", "cls.output.weight", NAME_PLAIN},
    {"classifier.bias", "cls.output.bias", NAME_FLOATS},
    {"cls.predictions.bias", "", NAME_LEFT_OUT},
    {"cls.predictions.decoder.weight", "", NAME_LEFT_OUT},
    {"cls.predictions.decoder.bias", "", NAME_LEFT_OUT},
    {"cls.predictions.transform.dense.weight", "", NAME_LEFT_OUT},
    {"cls.predictions.transform.dense.bias", "", NAME_LEFT_OUT},
    {"cls.predictions.transform.LayerNorm.weight", "", NAME_LEFT_OUT},
    {"cls.predictions.transform.LayerNorm.bias", "", NAME_LEFT_OUT},
    {"cls.seq_relationship.weight", "", NAME_LEFT_OUT},
    {"cls.seq_relationship.bias", "", NAME_LEFT_OUT},
    {0},
};

static const struct arch_name names_roberta[] = {
    NAMES_BERT,
    {"pooler.dense.weight", "", NAME_LEFT_OUT},
    {"pooler.dense.bias", "", NAME_LEFT_OUT},
    {"classifier.dense.weight", "cls.weight", NAME_PLAIN},
    {"classifier.dense.bias", "cls.bias", NAME_FLOATS},
    {"classifier.out_proj.weight", "cls.output.weight", NAME_PLAIN},
    {"classifier.out_proj.bias", "cls.output.bias", NAME_FLOATS},
    {"lm_head.bias", "", NAME_LEFT_OUT},
    {"lm_head.dense.weight", "", NAME_LEFT_OUT},
    {"lm_head.dense.bias", "", NAME_LEFT_OUT},
    {"lm_head.layer_norm.weight", "", NAME_LEFT_OUT},
    {"lm_head.layer_norm.bias", "", NAME_LEFT_OUT},
    {"lm_head.decoder.weight", "", NAME_LEFT_OUT},
    {"lm_head.decoder.bias", "", NAME_LEFT_OUT},
    {0},
};

static const struct arch_name names_nomic[] = {
    {"embeddings.word_embeddings.weight", "token_embd.weight", NAME_PLAIN},
    {"embeddings.token_type_embeddings.weight", "token_types.weight", NAME_FLOATS},
    {"emb_ln.weight", "token_embd_norm.weight", NAME_GAIN},
    {"emb_ln.bias", "token_embd_norm.bias", NAME_FLOATS},
    {"encoder.layers.#.attn.Wqkv.weight", "blk.#.attn_qkv.weight", NAME_PLAIN},
    {"encoder.layers.#.attn.out_proj.weight", "blk.#.attn_output.weight", NAME_PLAIN},
    {"encoder.layers.#.norm1.weight", "blk.#.attn_output_norm.weight", NAME_GAIN},
    {"encoder.layers.#.norm1.bias", "blk.#.attn_output_norm.bias", NAME_FLOATS},
    {"encoder.layers.#.mlp.fc11.weight", "blk.#.ffn_up.weight", NAME_PLAIN},
    {"encoder.layers.#.mlp.fc12.weight", "blk.#.ffn_gate.weight", NAME_PLAIN},
    {"encoder.layers.#.mlp.fc2.weight", "blk.#.ffn_down.weight", NAME_PLAIN},
    {"encoder.layers.#.norm2.weight", "blk.#.layer_output_norm.weight", NAME_GAIN},
    {"encoder.layers.#.norm2.bias", "blk.#.layer_output_norm.bias", NAME_FLOATS},
    {0},
};

/* The head of masked tokens is left out. */
static const struct arch_name names_modernbert[] = {
    {"embeddings.tok_embeddings.weight", "token_embd.weight", NAME_PLAIN},
    {"embeddings.norm.weight", "token_embd_norm.weight", NAME_GAIN},
    {"final_norm.weight", "output_norm.weight", NAME_GAIN},
    {"layers.#.attn_norm.weight", "blk.#.attn_norm.weight", NAME_GAIN},
    {"layers.#.attn.Wqkv.weight", "blk.#.attn_qkv.weight", NAME_PLAIN},
    {"layers.#.attn.Wo.weight", "blk.#.attn_output.weight", NAME_PLAIN},
    {"layers.#.mlp_norm.weight", "blk.#.ffn_norm.weight", NAME_GAIN},
    {"layers.#.mlp.Wi.weight", "blk.#.ffn_up.weight", NAME_PLAIN},
    {"layers.#.mlp.Wo.weight", "blk.#.ffn_down.weight", NAME_PLAIN},
    {"head.dense.weight", "", NAME_LEFT_OUT},
    {"head.norm.weight", "", NAME_LEFT_OUT},
    {"decoder.weight", "", NAME_LEFT_OUT},
    {"decoder.bias", "", NAME_LEFT_OUT},
    {0},
};

static const struct arch_key keys_layer_norm[] = {
    {"layer_norm_eps layer_norm_epsilon norm_eps", "attention.layer_norm_epsilon", KEY_F32, true},
    {0},
};

static const struct arch_key keys_modernbert[] = {
    {"norm_eps layer_norm_eps", "attention.layer_norm_epsilon", KEY_F32, true},
    {"local_attention", "attention.sliding_window", KEY_U32, true},
    {"local_rope_theta", "rope.freq_base_swa", KEY_F32, false},
    {0},
};

static const struct arch_default defaults_modernbert[] = {
    {"norm_eps", 1e-5},
    {"local_attention", 128},
    {"global_rope_theta", 160000},
    {0},
};

static const struct arch_default defaults_gemma3[] = {
    {"num_attention_heads", 8},
    {"num_key_value_heads", 4},
    {"head_dim", 256},
    {"vocab_size", 262208},
    {"max_position_embeddings", 131072},
    {"rms_norm_eps", 1e-6},
    {"rope_theta", 1000000},
    {"rope_local_base_freq", 10000},
    {"sliding_window", 4096},
    {0},
};

static const struct arch_default defaults_gemma[] = {
    {"num_key_value_heads", 16}, {"head_dim", 256},     {"vocab_size", 256000},
    {"rms_norm_eps", 1e-6},      {"rope_theta", 10000}, {0},
};

static const struct arch_row rows[] = {
    {.model_type = "llama", .arch = "llama", .permuted = true},
    {.model_type = "mistral", .arch = "llama", .permuted = true},
    {.model_type = "mixtral",
     .arch = "llama",
     .names = names_sparse,
     .permuted = true,
     .sums_picks = true},
    {.model_type = "ministral3", .arch = "mistral3", .permuted = true},
    {.model_type = "qwen2", .arch = "qwen2"},
    {.model_type = "qwen3",
     .drafter = "DFlashDraftModel",
     .arch = "dflash",
     .names = names_dflash,
     .keys = keys_dflash,
     .window_pattern = true,
     .taps = true},
    {.model_type = "qwen3",
     .drafter = "DFlash2DraftModel",
     .arch = "dflash",
     .names = names_dflash,
     .keys = keys_dflash2,
     .window_pattern = true,
     .taps = true},
    {.model_type = "qwen3",
     .drafter = "Qwen3DSparkModel",
     .arch = "dflash",
     .names = names_dflash,
     .keys = keys_dflash,
     .window_pattern = true,
     .taps = true},
    {.model_type = "qwen3", .arch = "qwen3"},
    {.model_type = "qwen3_moe", .arch = "qwen3moe", .sums_picks = true},
    {.model_type = "phi3", .arch = "phi3", .names = names_phi3},
    {.model_type = "gemma2",
     .arch = "gemma2",
     .names = names_gemma,
     .keys = keys_window,
     .gains_minus_one = true},
    {.model_type = "gemma3_text",
     .arch = "gemma-embedding",
     .names = names_gemma,
     .keys = keys_window,
     .defaults = defaults_gemma3,
     .gains_minus_one = true,
     .encoder = true,
     .two_way = true,
     .activation = "gelu_pytorch_tanh",
     .window_pattern = true},
    {.model_type = "gemma3_text",
     .arch = "gemma3",
     .names = names_gemma,
     .keys = keys_window,
     .defaults = defaults_gemma3,
     .gains_minus_one = true,
     .window_pattern = true},
    {.model_type = "gemma4_text",
     .drafter = "Gemma4AssistantForCausalLM",
     .arch = "gemma4-assistant",
     .names = names_gemma4,
     .keys = keys_assistant,
     .two_heads = true,
     .window_pattern = true},
    {.model_type = "gemma4_text",
     .arch = "gemma4",
     .names = names_gemma4,
     .keys = keys_gemma4,
     .sums_picks = true,
     .two_heads = true,
     .window_pattern = true},
    {.model_type = "nemotron_h",
     .arch = "nemotron_h",
     .names = names_nemotron,
     .keys = keys_nemotron,
     .blocks = true,
     .dense = true},
    {.model_type = "nemotron_h",
     .arch = "nemotron_h_moe",
     .names = names_nemotron,
     .keys = keys_nemotron,
     .blocks = true,
     .mtp = true,
     .gating = 2},
    {.model_type = "granite", .arch = "granite", .keys = keys_granite, .permuted = true},
    {.model_type = "olmo2", .arch = "olmo2", .names = names_gemma},
    {.model_type = "olmo3",
     .arch = "olmo2",
     .names = names_gemma,
     .keys = keys_window,
     .window_pattern = true},
    {.model_type = "glm4_moe",
     .arch = "glm4moe",
     .names = names_late_norm,
     .keys = keys_routing,
     .mtp = true,
     .gating = 2},
    {.model_type = "minimax_m2",
     .arch = "minimax-m2",
     .names = names_sparse,
     .keys = keys_routing,
     .gating = 2},
    {.model_type = "lfm2",
     .arch = "lfm2",
     .names = names_lfm2,
     .keys = keys_lfm2,
     .by_layer_kv = true,
     .adjusts_ff = true},
    {.model_type = "lfm2_moe",
     .arch = "lfm2moe",
     .names = names_lfm2,
     .keys = keys_lfm2,
     .by_layer_kv = true,
     .gating = 2},
    {.model_type = "qwen2_moe",
     .arch = "qwen2moe",
     .names = names_gated_shared,
     .plain_picks = true},
    {.model_type = "qwen2_vl", .arch = "qwen2vl"},
    {.model_type = "qwen2_vl_text", .arch = "qwen2vl"},
    {.model_type = "qwen2_5_vl", .arch = "qwen2vl"},
    {.model_type = "qwen2_5_vl_text", .arch = "qwen2vl"},
    {.model_type = "qwen3_vl_text", .arch = "qwen3vl"},
    {.model_type = "smollm3", .arch = "smollm3", .permuted = true, .plain_period = 4},
    {.model_type = "seed_oss", .arch = "seed_oss", .names = names_late_norm},
    {.model_type = "glm4", .arch = "glm4", .names = names_glm4},
    {.model_type = "glm4v_text", .arch = "glm4", .names = names_glm4, .halved = true},
    {.model_type = "glm4v_moe_text",
     .arch = "glm4moe",
     .names = names_late_norm,
     .keys = keys_routing,
     .gating = 2},
    {.model_type = "exaone4", .arch = "exaone4", .names = names_gemma, .keys = keys_window},
    {.model_type = "ernie4_5", .arch = "ernie4_5"},
    {.model_type = "ernie4_5_moe",
     .arch = "ernie4_5-moe",
     .names = names_ernie,
     .keys = keys_ernie,
     .mtp = true},
    {.model_type = "gemma", .arch = "gemma", .defaults = defaults_gemma, .gains_minus_one = true},
    {.model_type = "granitemoe",
     .arch = "granitemoe",
     .names = names_granitemoe,
     .keys = keys_granitemoe,
     .permuted = true},
    {.model_type = "granitemoeshared",
     .arch = "granitemoe",
     .names = names_granitemoe,
     .keys = keys_granitemoe,
     .permuted = true},
    {.model_type = "deepseek_v2",
     .arch = "deepseek2",
     .names = names_latent,
     .keys = keys_latent,
     .latent = true,
     .mtp = true,
     .gating = 1},
    {.model_type = "deepseek_v3",
     .arch = "deepseek2",
     .names = names_latent,
     .keys = keys_latent,
     .latent = true,
     .mtp = true,
     .gating = 2},
    {.model_type = "glm4_moe_lite",
     .arch = "deepseek2",
     .names = names_latent,
     .keys = keys_latent,
     .latent = true,
     .mtp = true,
     .gating = 2},
    {.model_type = "mistral4",
     .arch = "mistral4",
     .names = names_latent,
     .keys = keys_latent,
     .latent = true,
     .gating = 1},
    {.model_type = "kimi_k2",
     .arch = "deepseek2",
     .names = names_latent,
     .keys = keys_latent,
     .latent = true,
     .mtp = true,
     .gating = 2},
    {.model_type = "qwen3_next",
     .arch = "qwen3next",
     .names = names_hybrid,
     .keys = keys_hybrid,
     .gains_minus_one = true,
     .sums_picks = true,
     .mtp = true,
     .hybrid = true},
    {.model_type = "qwen3_5_text",
     .arch = "qwen35",
     .names = names_hybrid,
     .keys = keys_hybrid,
     .gains_minus_one = true,
     .mtp = true,
     .hybrid = true,
     .grouped_heads = true},
    {.model_type = "qwen3_5_moe_text",
     .arch = "qwen35moe",
     .names = names_hybrid,
     .keys = keys_hybrid,
     .gains_minus_one = true,
     .mtp = true,
     .hybrid = true,
     .grouped_heads = true},
    {.model_type = "gpt_oss",
     .arch = "gpt-oss",
     .names = names_gpt_oss,
     .keys = keys_gpt_oss,
     .window_pattern = true},
    {.model_type = "arcee", .arch = "arcee", .permuted = true},
    {.model_type = "olmoe", .arch = "olmoe", .plain_picks = true},
    {.model_type = "dots1", .arch = "dots1", .keys = keys_routing, .gating = 2},
    {.model_type = "deepseek", .arch = "deepseek", .keys = keys_routing, .permuted = true},
    {.model_type = "bert",
     .arch = "bert",
     .names = names_bert,
     .keys = keys_layer_norm,
     .encoder = true,
     .learned_positions = true,
     .activation = "gelu gelu_new gelu_pytorch_tanh"},
    {.model_type = "xlm-roberta",
     .arch = "bert",
     .names = names_roberta,
     .keys = keys_layer_norm,
     .encoder = true,
     .learned_positions = true,
     .padded_positions = true,
     .activation = "gelu gelu_new gelu_pytorch_tanh"},
    {.model_type = "roberta",
     .arch = "bert",
     .names = names_roberta,
     .keys = keys_layer_norm,
     .encoder = true,
     .learned_positions = true,
     .padded_positions = true,
     .activation = "gelu gelu_new gelu_pytorch_tanh"},
    {.model_type = "nomic_bert",
     .arch = "nomic-bert",
     .names = names_nomic,
     .keys = keys_layer_norm,
     .encoder = true,
     .activation = "swiglu silu"},
    {.model_type = "modernbert",
     .arch = "modern-bert",
     .names = names_modernbert,
     .keys = keys_modernbert,
     .defaults = defaults_modernbert,
     .encoder = true,
     .window_pattern = true,
     .activation = "gelu gelu_new gelu_pytorch_tanh"},
    {.model_type = "eurobert", .arch = "eurobert", .encoder = true, .activation = "silu"},
};

const struct arch_row *arch_find(const char *model_type, const char *architecture, bool experts,
                                 bool two_way) {
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const char *drafter = rows[i].drafter;
        bool other = (rows[i].dense && experts) || (rows[i].two_way && !two_way);

        if (drafter)
            other = !architecture || strcmp(drafter, architecture) != 0;
        if (strcmp(rows[i].model_type, model_type) == 0 && !other)
            return &rows[i];
    }
    return NULL;
}

void arch_list(char *out, unsigned size) {
    *out = 0;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (!rows[i].dense && !rows[i].two_way && !rows[i].drafter)
            note_add(out, size, ", ", "%s", rows[i].model_type);
}
