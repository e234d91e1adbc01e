"""Writes a GGUF model of F32, F16 or BF16 weights as the folder that Hugging Face's libraries would publish: the same
numbers, other names, order and layout. The names here are transformers', written down independently of
lib/checkpoint."""
import json
import math
import pathlib
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TYPES = {0: ("F32", 4), 1: ("F16", 2), 30: ("BF16", 2)}


class Gguf:
    """Keys and tensors of a GGUF file; a tensor is (type name, dimensions with the innermost first, bytes)."""

    def __init__(self, path):
        self.data = pathlib.Path(path).read_bytes()
        self.at = 8
        n_tensors, n_keys = self.take("QQ")
        self.keys, self.stored = {}, {}  # values, and their types and bytes in the file
        for _ in range(n_keys):
            name, start = self.text(), self.at
            self.keys[name] = self.value(self.take("I")[0])
            self.stored[name] = self.data[start:self.at]
        self.keys_end = self.at
        infos = []
        for _ in range(n_tensors):
            name = self.text()
            dims = self.take("Q" * self.take("I")[0])
            infos.append((name, dims, *self.take("IQ")))
        start = (self.at + 31) // 32 * 32
        self.tensors, self.places = {}, {}
        for name, dims, kind, offset in infos:
            self.places[name] = start + offset
            size = TYPES[kind][1]
            for d in dims:
                size *= d
            self.tensors[name] = (TYPES[kind][0], dims, self.data[start + offset:start + offset + size])

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def text(self):
        n = self.take("Q")[0]
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            of, n = self.take("IQ")
            return [self.value(of) for _ in range(n)]
        return self.take(SCALARS[kind])[0]


# GGUF's name within a layer, without ".weight" and ".bias", and that of transformers
COMMON = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
    "exp_probs_b": "mlp.gate.e_score_correction_bias", "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj", "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj", "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj", "attn_kv_b": "self_attn.kv_b_proj",
}
SPARSE = {
    "ffn_gate_inp": "block_sparse_moe.gate", "exp_probs_b": "block_sparse_moe.e_score_correction_bias",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1", "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
}
SANDWICH = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm"}
# names with an end stand for the whole name of transformers
GEMMA4 = {
    **SANDWICH, "post_ffw_norm_1": "post_feedforward_layernorm_1", "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2", "inp_gate": "per_layer_input_gate", "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm", "layer_output_scale.weight": "layer_scalar", "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale", "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj", "ffn_down_exps.weight": "experts.down_proj",
}
DFLASH = {"attn_conv_base": "attention_conv.base_kernel", "attn_conv_proj": "attention_conv.kernel_projection",
          "ffn_conv_base": "mlp_conv.base_kernel", "ffn_conv_proj": "mlp_conv.kernel_projection"}
# tensors of draft models outside the layers
DRAFTER_ENDS = {"fc.weight": "fc.weight", "enc.output_norm.weight": "hidden_norm.weight",
                "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
                "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
                "selector_successor.weight": "candidate_selector.successor_codebook",
                "markov_w1.weight": "markov_head.markov_w1.weight", "markov_w2.weight": "markov_head.markov_w2.weight",
                "conf_proj.weight": "confidence_head.proj.weight",
                "nextn.pre_projection.weight": "pre_projection.weight", "nextn.post_projection.weight": "post_projection.weight"}
NEMOTRON = {
    "attn_norm": "norm", "ssm_in": "mixer.in_proj", "ssm_conv1d": "mixer.conv1d", "ssm_dt.bias": "mixer.dt_bias",
    "ssm_d": "mixer.D", "ssm_norm": "mixer.norm", "ssm_out": "mixer.out_proj", "ffn_gate_inp": "mixer.gate",
    "exp_probs_b": "mixer.gate.e_score_correction_bias", "ffn_up_exps": "mixer.experts.{}.up_proj",
    "ffn_down_exps": "mixer.experts.{}.down_proj", "ffn_up_shexp": "mixer.shared_experts.up_proj",
    "ffn_down_shexp": "mixer.shared_experts.down_proj", "ssm_a": "mixer.A_log", "post_attention_norm": "norm",
    "ffn_up": "mixer.up_proj", "ffn_down": "mixer.down_proj",
    "nextn.shared_head_norm": "final_layernorm", **{f"attn_{to}": f"mixer.{of}_proj" for to, of in
                                                    (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o"))},
}
LFM2 = {
    "attn_norm": "operator_norm", "ffn_norm": "ffn_norm", "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv", "shortconv.out_proj": "conv.out_proj", "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm", "ffn_gate": "feed_forward.w1",
    "ffn_down": "feed_forward.w2", "ffn_up": "feed_forward.w3", "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b": "feed_forward.expert_bias", "ffn_gate_exps": "feed_forward.experts.{}.w1",
    "ffn_down_exps": "feed_forward.experts.{}.w2", "ffn_up_exps": "feed_forward.experts.{}.w3",
}
SHARED = {"ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
          "ffn_down_shexp": "mlp.shared_expert.down_proj", "ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
GLM4 = {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm",
        "ffn_up": "mlp.gate_up_proj"}
LATENT = {"attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm",
          "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
          "attn_kv_a_norm": "self_attn.kv_a_layernorm"}
GRANITEMOE = {"ffn_gate_inp": "block_sparse_moe.router.layer", "ffn_down_exps": "block_sparse_moe.output_linear",
              "ffn_down_shexp": "shared_mlp.output_linear", "ffn_gate_up_exps": "block_sparse_moe.input_linear",
              "ffn_gate_up_shexp": "shared_mlp.input_linear"}
HYBRID = {**SHARED, "post_attention_norm": "post_attention_layernorm", "ssm_qkvz": "linear_attn.in_proj_qkvz",
          "ssm_ba": "linear_attn.in_proj_ba", "attn_qkv": "linear_attn.in_proj_qkv",
          "attn_gate": "linear_attn.in_proj_z", "ssm_beta": "linear_attn.in_proj_b",
          "ssm_alpha": "linear_attn.in_proj_a", "ssm_conv1d": "linear_attn.conv1d", "ssm_dt": "linear_attn.dt_bias",
          "ssm_a": "linear_attn.A_log", "ssm_norm": "linear_attn.norm", "ssm_out": "linear_attn.out_proj"}
FUSED = {"ffn_gate_up_exps": "mlp.experts.gate_up_proj", "ffn_down_exps": "mlp.experts.down_proj"}
NEMOTRON_ENDS = {"token_embd.weight": "backbone.embeddings.weight", "output_norm.weight": "backbone.norm_f.weight",
                 "output.weight": "lm_head.weight"}
# of a block of multi-token prediction: beside the layers, and as Qwen's models have it
MTP = {"nextn.eh_proj": "eh_proj", "nextn.enorm": "enorm", "nextn.hnorm": "hnorm", "nextn.embed_tokens": "embed_tokens",
       "nextn.shared_head_norm": "shared_head.norm", "nextn.shared_head_head": "shared_head.head"}
QWEN_MTP = {"nextn.eh_proj": "mtp.fc", "nextn.enorm": "mtp.pre_fc_norm_embedding", "nextn.hnorm": "mtp.pre_fc_norm_hidden",
            "nextn.shared_head_norm": "mtp.norm"}
ERNIE_MTP = {"nextn.eh_proj": "mtp_linear_proj", "nextn.enorm": "mtp_emb_norm", "nextn.hnorm": "mtp_hidden_norm"}
# architecture of GGUF: model_type, names that differ, whether the rows of q and k are permuted
ARCHS = {
    "llama": ("llama", {}, True), "mistral3": ("ministral3", {}, True), "granite": ("granite", {}, True),
    "qwen2": ("qwen2", {}, False), "qwen3": ("qwen3", {}, False), "qwen3moe": ("qwen3_moe", {}, False),
    "phi3": ("phi3", {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}, False),
    "gemma2": ("gemma2", SANDWICH, False), "gemma3": ("gemma3_text", SANDWICH, False),
    "gemma4": ("gemma4_text", GEMMA4, False),
    "olmo2": ("olmo3", SANDWICH, False),
    "glm4moe": ("glm4_moe", {"post_attention_norm": "post_attention_layernorm"}, False),
    "minimax-m2": ("minimax_m2", SPARSE, False), "lfm2": ("lfm2", LFM2, False), "lfm2moe": ("lfm2_moe", LFM2, False),
    "qwen2moe": ("qwen2_moe", SHARED, False), "smollm3": ("smollm3", {}, True),
    "seed_oss": ("seed_oss", {"post_attention_norm": "post_attention_layernorm"}, False),
    "glm4": ("glm4", GLM4, False), "exaone4": ("exaone4", SANDWICH, False), "ernie4_5": ("ernie4_5", {}, False),
    "ernie4_5-moe": ("ernie4_5_moe", {"exp_probs_b": "mlp.moe_statics.e_score_correction_bias"}, False),
    "gemma": ("gemma", {}, False), "arcee": ("arcee", {}, True), "olmoe": ("olmoe", {}, False),
    "granitemoe": ("granitemoeshared", GRANITEMOE, True), "deepseek2": ("deepseek_v3", LATENT, False),
    "mistral4": ("mistral4", {**LATENT, **FUSED}, False),
    "qwen3next": ("qwen3_next", HYBRID, False), "qwen35": ("qwen3_5_text", HYBRID, False),
    "qwen35moe": ("qwen3_5_moe_text", {**HYBRID, **FUSED}, False),
    "nemotron_h_moe": ("nemotron_h", NEMOTRON, False), "nemotron_h": ("nemotron_h", NEMOTRON, False),
    "gpt-oss": ("gpt_oss", {"attn_sinks": "self_attn.sinks", "ffn_gate_inp": "mlp.router",
                            "post_attention_norm": "post_attention_layernorm"}, False),
    "qwen3vl": ("qwen3_vl_text", {}, False), "qwen2vl": ("qwen2_5_vl_text", {}, False),
    "dflash": ("qwen3", DFLASH, False), "gemma4-assistant": ("gemma4_text", GEMMA4, False),
    "dots1": ("dots1", {}, False), "deepseek": ("deepseek", {}, True),
}
KEYS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "attention.key_length": "head_dim",
    "expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "moe_intermediate_size",
    "rope.freq_base": "rope_theta", "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base_swa": "rope_local_base_freq", "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
    "attention.scale": "attention_multiplier", "shortconv.l_cache": "conv_L_cache",
    "leading_dense_block_count": "first_k_dense_replace", "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor", "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group", "expert_group_used_count": "topk_group",
}
SCALING = {"factor": "factor", "original_context_length": "original_max_position_embeddings",
           "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow", "yarn_log_multiplier": "mscale_all_dim",
           "attn_factor": "attention_factor"}


def rope_of(g, arch):
    """Returns rope_scaling; None: there is none."""
    prefix = arch + ".rope.scaling."
    if prefix + "type" not in g.keys:
        return None
    scaling = {"rope_type": g.keys[prefix + "type"]}
    for key, name in SCALING.items():
        if prefix + key in g.keys:
            scaling[name] = g.keys[prefix + key]
    if arch + ".attention.temperature_scale" in g.keys:
        scaling["llama_4_scaling_beta"] = g.keys[arch + ".attention.temperature_scale"]
    for kind in ("long", "short"):
        if f"rope_factors_{kind}.weight" in g.tensors:
            _, (n,), data = g.tensors[f"rope_factors_{kind}.weight"]
            scaling[kind + "_factor"] = list(struct.unpack(f"<{n}f", data))
    return scaling


def sizes_of(g, arch, n_layer):
    """Returns the sizes of latent attention and of delta nets, under the names of transformers."""
    def key(name):
        return g.keys[arch + "." + name]

    if arch == "granitemoe":
        return {"shared_intermediate_size": key("expert_shared_feed_forward_length")}
    if arch in ("deepseek2", "mistral4"):
        n_rot = key("rope.dimension_count")
        softmax = g.keys.get(arch + ".expert_gating_func") == 1
        return {"model_type": "mistral4" if arch == "mistral4" else "deepseek_v2" if softmax else "deepseek_v3",
                "scoring_func": "softmax" if softmax else "sigmoid",
                "topk_method": "greedy" if softmax else "noaux_tc", "q_lora_rank": g.keys.get(arch + ".attention.q_lora_rank"),
                "kv_lora_rank": key("attention.kv_lora_rank"), "qk_rope_head_dim": n_rot,
                "qk_nope_head_dim": key("attention.key_length_mla") - n_rot, "v_head_dim": key("attention.value_length_mla")}
    if not arch.startswith(("qwen3next", "qwen35")):
        return {}
    interval = key("full_attention_interval")
    return {"linear_conv_kernel_dim": key("ssm.conv_kernel"), "linear_key_head_dim": key("ssm.state_size"),
            "linear_value_head_dim": key("ssm.state_size"), "linear_num_key_heads": key("ssm.group_count"),
            "linear_num_value_heads": key("ssm.time_step_rank"),
            "layer_types": ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(n_layer)]}


def gemma4_config(g, config):
    """Returns what is said otherwise for Gemma 4, whose layers have heads of two sizes."""
    def key(name, usual=None):
        return g.keys.get(f"{g.keys['general.architecture']}.{name}", usual)

    windows, heads, widths = (key(k) for k in ("attention.sliding_window_pattern", "attention.head_count_kv", "feed_forward_length"))
    heads = heads if isinstance(heads, list) else [heads] * len(windows)
    widths = widths if isinstance(widths, list) else [widths] * len(windows)
    full = [n for n, w in zip(heads, windows) if not w]
    same = any(f"blk.{i}.attn_v.weight" not in g.tensors for i in range(len(windows) - key("attention.shared_kv_layers")))
    same = same or len({*heads}) > 1  # an assistant has no keys of its own
    turned = struct.unpack(f"<{len(g.tensors['rope_freqs.weight'][2]) // 4}f", g.tensors["rope_freqs.weight"][2]).count(1)
    return {
        "head_dim": key("attention.key_length_swa"), "global_head_dim": key("attention.key_length"),
        "num_key_value_heads": next(n for n, w in zip(heads, windows) if w),
        "num_global_key_value_heads": full[0] if same else None, "attention_k_eq_v": same,
        "num_kv_shared_layers": key("attention.shared_kv_layers"), "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] != widths[0], "top_k_experts": key("expert_used_count"),
        "hidden_size_per_layer_input": key("embedding_length_per_layer_input", 0), "num_experts": key("expert_count"),
        "layer_types": ["sliding_attention" if w else "full_attention" for w in windows],
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": key("rope.freq_base"),
                               "partial_rotary_factor": 2 * turned / key("attention.key_length")},
            "sliding_attention": {"rope_type": "default", "rope_theta": key("rope.freq_base_swa")}},
        **{name: None for name in ("rope_theta", "rope_local_base_freq", "num_experts_per_tok", "num_local_experts") if name in config},
    }


def nemotron_config(g, arch, n_layer):
    """Returns what is said otherwise for Nemotron, whose blocks are of three kinds."""
    def key(name):
        return g.keys[f"{arch}.{name}"]

    dense = arch == "nemotron_h"
    kinds = {(True, False): "*", (False, True): "-" if dense else "E", (False, False): "M"}
    layers = [*zip(key("attention.head_count_kv"), key("feed_forward_length"))][:n_layer]
    letters = "".join(kinds[kv > 0, ff > 0] for kv, ff in layers)
    heads = key("ssm.time_step_rank")
    return {"hybrid_override_pattern": letters, "num_key_value_heads": max(key("attention.head_count_kv")),
            "intermediate_size": max(key("feed_forward_length")), "layer_norm_epsilon": key("attention.layer_norm_epsilon"),
            "mlp_hidden_act": "relu2", "mamba_num_heads": heads, "mamba_head_dim": key("ssm.inner_size") // heads,
            "conv_kernel": key("ssm.conv_kernel"), "ssm_state_size": key("ssm.state_size"), "n_groups": key("ssm.group_count"),
            **({} if dense else {"moe_shared_expert_intermediate_size": key("expert_shared_feed_forward_length")}),
            "time_step_limit": [0.0, math.inf], "layer_types": None}


def config_of(g):
    arch = g.keys["general.architecture"]
    n_layer = g.keys[arch + ".block_count"]
    if arch != "gemma4-assistant":
        n_layer -= g.keys.get(arch + ".nextn_predict_layers", 0)
    config = {"model_type": ARCHS[arch][0], "num_hidden_layers": n_layer, "torch_dtype": "bfloat16",
              "vocab_size": g.tensors["token_embd.weight"][1][1] if "token_embd.weight" in g.tensors else g.keys[arch + ".vocab_size"],
              "tie_word_embeddings": "output.weight" not in g.tensors}
    for key, name in KEYS.items():
        if arch + "." + key in g.keys:
            config[name] = g.keys[arch + "." + key]
    if isinstance(config["num_attention_heads"], list):
        config["num_attention_heads"], = {*config["num_attention_heads"]}
    if arch.startswith("lfm2"):
        config["num_dense_layers"] = config.pop("first_k_dense_replace", None)
    if arch + ".expert_count" in g.keys:
        config["num_experts" if arch.startswith(("qwen", "lfm", "olmoe")) else
               "n_routed_experts" if arch.startswith(("glm", "dots", "deepseek", "nemotron", "mistral4")) else "num_local_experts"] = g.keys[arch + ".expert_count"]
    if arch == "gpt-oss":
        config["num_local_experts"] = g.keys["gpt-oss.expert_count"]
        config["layer_types"] = ["full_attention" if i % 2 else "sliding_attention" for i in range(n_layer)]
        del config["moe_intermediate_size"]
    if arch == "lfm2":
        config["block_auto_adjust_ff_dim"] = False
    if arch == "ernie4_5-moe":
        for name, key in (("moe_num_experts", "num_local_experts"), ("moe_k", "num_experts_per_tok"),
                          ("moe_num_shared_experts", "n_shared_experts"),
                          ("moe_layer_start_index", "first_k_dense_replace")):
            config[name] = config.pop(key)
    if arch == "smollm3":
        config["no_rope_layers"] = [int((i + 1) % 4 != 0) for i in range(n_layer)]
    if arch + ".expert_shared_feed_forward_length" in g.keys and "ffn_gate_inp_shexp" in str(list(g.tensors)):
        config["shared_expert_intermediate_size"] = g.keys[arch + ".expert_shared_feed_forward_length"]
    config.update(sizes_of(g, arch, n_layer))
    heads_kv = g.keys.get(arch + ".attention.head_count_kv", config["num_attention_heads"])
    pattern = g.keys.get(arch + ".attention.sliding_window_pattern")
    if isinstance(heads_kv, list):
        config["layer_types"] = ["full_attention" if n else "conv" for n in heads_kv]
        heads_kv = max(heads_kv)
    elif isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if w else "full_attention" for w in pattern]
    config["num_key_value_heads"] = heads_kv
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    n_rot = g.keys.get(arch + ".rope.dimension_count", head_dim)
    if n_rot != head_dim:
        config["partial_rotary_factor"] = n_rot / head_dim
    scaling = rope_of(g, arch)
    if scaling and arch in ("deepseek2", "mistral4") and "mscale_all_dim" in scaling:
        scaling["mscale_all_dim"] /= 0.1
    if scaling:
        config["rope_scaling"] = scaling
    if arch == "glm4" and "glm4.rope.dimension_sections" in g.keys:
        sections = g.keys["glm4.rope.dimension_sections"]
        config.update(model_type="glm4v_text", rope_scaling={"rope_type": "default", "mrope_section": sections[:3]})
    if arch in ("gemma4", "gemma4-assistant"):
        config.update(gemma4_config(g, config))
    if arch.startswith("nemotron_h"):
        config.update(nemotron_config(g, arch, n_layer))
    if arch in ("deepseek2", "mistral4"):
        config.pop("head_dim"), config.pop("partial_rotary_factor", None)
    return config


def published_config(g):
    """Returns config.json, in which draft models have parts of their own."""
    arch, config = g.keys["general.architecture"], config_of(g)

    def keys(*names):
        return {name: g.keys[f"{arch}.{name}"] for name in names if f"{arch}.{name}" in g.keys}

    if arch == "gemma4-assistant":
        return {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "tie_word_embeddings": True,
                "backbone_hidden_size": g.keys[arch + ".embedding_length_out"], "text_config": config}
    if arch != "dflash":
        return config
    second = keys("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    own = {"mask_token_id": g.keys["tokenizer.ggml.mask_token_id"], "target_layer_ids": [i - 1 for i in g.keys["dflash.target_layers"]]}
    block = keys("block_size")  # beside dflash_config in DFlash, in it in DFlash2
    if "markov_w1.weight" in g.tensors:  # DSpark
        return {**config, **own, **block, **keys("sample_from_anchor"), "architectures": ["Qwen3DSparkModel"], "use_sliding_window": False}
    if second:
        config |= {"is_causal": False, "sliding_window": None, "layer_types": ["full_attention"] * config["num_hidden_layers"]}
    return {**config, "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"], "hidden_act": "silu",
            "use_sliding_window": not second and "sliding_window" in config, **({} if second else block),
            "dflash_config": {**own, **({**block, **second} if second else {})}}


def unpermuted(tensor, head_dim):
    """Undoes the order of rows in which RoPE rotates neighbours: row 2 i + k of a head is row k * head_dim / 2 + i."""
    kind, dims, data = tensor
    row = len(data) // (dims[1] if len(dims) > 1 else dims[0])
    rows = [data[i:i + row] for i in range(0, len(data), row)]
    half = head_dim // 2
    out = [rows[h + 2 * i + k] for h in range(0, len(rows), head_dim) for k in range(2) for i in range(half)]
    return kind, dims, b"".join(out)


def neighbours(tensor, head_dim, n_rot):
    """Returns the rows of q or k in the order in which RoPE rotates neighbours: of the first @n_rot of a head, row i and
    row i + n_rot / 2 follow each other."""
    pairs = [i + k * (n_rot // 2) for i in range(n_rot // 2) for k in range(2)]
    order = pairs + [*range(n_rot, head_dim)]
    dims = tensor[1]
    n = dims[1] if len(dims) > 1 else dims[0]
    return taken(tensor, [h + i for h in range(0, n, head_dim) for i in order])


def minus_one(tensor):
    kind, dims, data = tensor
    assert kind == "F32"
    values = struct.unpack(f"<{len(data) // 4}f", data)
    out = struct.pack(f"<{len(values)}f", *(v - 1 for v in values))
    again = struct.pack(f"<{len(values)}f", *(v + 1 for v in struct.unpack(f"<{len(values)}f", out)))
    assert again == data, "a norm that does not survive - 1 + 1"
    return kind, dims, out


def rows_of(tensor):
    """Returns the rows of a tensor."""
    _, dims, data = tensor
    n = len(data) // (len(data) // dims[0] // 4 if len(dims) == 1 else math.prod(dims[1:]))
    return [data[i:i + n] for i in range(0, len(data), n)]


def joined(parts):
    """Returns the parts' rows behind each other, in each of the matrices of a stack."""
    kind, dims, _ = parts[0]
    n = dims[2] if len(dims) == 3 else 1
    data = b"".join(p[2][i * len(p[2]) // n:(i + 1) * len(p[2]) // n] for i in range(n) for p in parts)
    return kind, (dims[0], sum(p[1][1] for p in parts), *dims[2:]), data


def taken(tensor, order, size=1):
    """Returns the tensor with its rows in another order, that of groups of @size."""
    kind, dims, data = tensor
    n = len(data) // (len(order) * size)
    return kind, dims, b"".join(data[i * n * size:(i + 1) * n * size] for i in order)


def latent_kv(g, layer):
    """Returns kv_b_proj: each head's keys, turned, and values."""
    kind, (nope, rank, heads), data = g.tensors[f"blk.{layer}.attn_k_b.weight"]
    size = TYPES[{"F32": 0, "F16": 1, "BF16": 30}[kind]][1]
    values = g.tensors[f"blk.{layer}.attn_v_b.weight"]
    each, out = len(values[2]) // heads, b""
    for h in range(heads):
        for i in range(nope):
            out += b"".join(data[((h * rank + c) * nope + i) * size:][:size] for c in range(rank))
        out += values[2][h * each:(h + 1) * each]
    return kind, (rank, heads * (nope + values[1][1])), out


def grouped(g, arch, name, tensor):
    """Undoes the order of value heads that GGUF has for Qwen 3.5: head j of key head k is at j * keys + k there."""
    keys, values, dim = (g.keys[arch + "." + k] for k in ("ssm.group_count", "ssm.time_step_rank", "ssm.state_size"))
    order = [j * keys + k for k in range(keys) for j in range(values // keys)]
    role = name.split(".")[2]
    if role in ("attn_gate",):
        return taken(tensor, [h * dim + i for h in order for i in range(dim)])
    if role in ("ssm_beta", "ssm_alpha", "ssm_dt", "ssm_a"):
        return taken(tensor, order)
    if role in ("attn_qkv", "ssm_conv1d"):
        first = 2 * keys * dim
        return taken(tensor, [*range(first), *(first + h * dim + i for h in order for i in range(dim))])
    if role == "ssm_out":
        kind, dims, data = tensor
        rows = rows_of(tensor)
        n = len(rows[0]) // values
        return kind, dims, b"".join(row[h * n:(h + 1) * n] for row in rows for h in order)
    return tensor


def hybrid_qkvz(g, layer):
    """Returns in_proj_qkvz: by key head its q, k, and the v and z of its value heads."""
    arch = g.keys["general.architecture"]
    keys, values, dim = (g.keys[arch + "." + k] for k in ("ssm.group_count", "ssm.time_step_rank", "ssm.state_size"))
    rows, z = rows_of(g.tensors[f"blk.{layer}.attn_qkv.weight"]), rows_of(g.tensors[f"blk.{layer}.attn_gate.weight"])
    each, out = values // keys * dim, []
    for k in range(keys):
        out += rows[k * dim:(k + 1) * dim] + rows[(keys + k) * dim:(keys + k + 1) * dim]
        out += rows[2 * keys * dim + k * each:2 * keys * dim + (k + 1) * each] + z[k * each:(k + 1) * each]
    kind, dims, _ = g.tensors[f"blk.{layer}.attn_qkv.weight"]
    return kind, (dims[0], len(out)), b"".join(out)


def logarithm(tensor):
    """Returns log(-v) of a tensor, in F32."""
    kind, dims, data = tensor
    values = struct.unpack(f"<{len(data) // 4}f", data)
    return kind, dims, struct.pack(f"<{len(values)}f", *(math.log(-v) for v in values))


def with_logarithms(gguf, out):
    """Copies a GGUF file; its decays become those whose logarithms F32 has, so that a folder can have the same."""
    g = Gguf(gguf)
    data = bytearray(g.data)
    for name, tensor in g.tensors.items():
        if name.endswith(".ssm_a"):
            logs = struct.unpack(f"<{len(tensor[2]) // 4}f", logarithm(tensor)[2])
            data[g.places[name]:g.places[name] + len(tensor[2])] = struct.pack(f"<{len(logs)}f", *(-math.exp(v) for v in logs))
    pathlib.Path(out).write_bytes(data)
    return str(out)


def with_temperature_length(gguf, out):
    """Copies Mistral 4's golden model; the temperature of queries rises from the original context on, as in a folder."""
    g = Gguf(gguf)
    data = bytearray(g.data)
    key = b"mistral4.attention.temperature_length"
    at = data.index(key) + len(key) + 4
    data[at:at + 4] = struct.pack("<I", g.keys["mistral4.rope.scaling.original_context_length"])
    pathlib.Path(out).write_bytes(data)
    return str(out)


def numbers(values):
    """Returns the type and the bytes of a key with an array of whole numbers."""
    return struct.pack("<IIQ", 9, 4, len(values)) + struct.pack(f"<{len(values)}I", *values)


def with_dense_ffns(gguf, out):
    """Copies Nemotron's golden model as one without experts: the expert that all tokens use is the FFN. The block of
    multi-token prediction is left out."""
    g = Gguf(gguf)
    old, new = "nemotron_h_moe.", "nemotron_h."
    n, width = g.keys[old + "block_count"] - 1, g.keys[old + "expert_shared_feed_forward_length"]
    stored = {key.replace(old, new): value for key, value in g.stored.items() if "expert_" not in key and "nextn" not in key}
    stored["general.architecture"] = struct.pack("<IQ", 8, len(new) - 1) + new[:-1].encode()
    stored[new + "block_count"] = struct.pack("<II", 4, n)
    stored[new + "attention.head_count_kv"] = numbers(g.keys[old + "attention.head_count_kv"][:n])
    stored[new + "feed_forward_length"] = numbers([width * (ff > 0) for ff in g.keys[old + "feed_forward_length"][:n]])
    tensors = {name.replace("_shexp", ""): tensor for name, tensor in g.tensors.items()
               if not name.startswith(f"blk.{n}.") and not any(part in name for part in ("_exps", "ffn_gate_inp", "exp_probs"))}
    return write_gguf(out, g, stored, tensors)


def write_gguf(out, g, stored, tensors):
    """Writes a GGUF file of the keys @stored and of @tensors, which is otherwise like @g."""
    kinds = {name: number for number, (name, _) in TYPES.items()}
    head = g.data[:8] + struct.pack("<QQ", len(tensors), len(stored))
    head += b"".join(struct.pack("<Q", len(key)) + key.encode() + value for key, value in stored.items())
    data = b""
    for name, (kind, dims, content) in tensors.items():
        head += struct.pack("<Q", len(name)) + name.encode() + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        head += struct.pack("<IQ", kinds[kind], len(data))
        data += content + b"\0" * (-len(content) % 32)
    pathlib.Path(out).write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return str(out)


def with_block(gguf, out):
    """Copies ERNIE's golden model with a block of multi-token prediction, whose layer is the first of the model. Layers
    add little, and the block takes the embedding of the token alone, so that it predicts what the model does."""
    g = Gguf(gguf)
    arch = "ernie4_5-moe."
    n, width = g.keys[arch + "block_count"], g.keys[arch + "embedding_length"]
    tensors = {}
    for name, (kind, dims, data) in g.tensors.items():
        if name.endswith((".attn_output.weight", ".ffn_down.weight", ".ffn_down_exps.weight", ".ffn_down_shexp.weight")):
            data = struct.pack(f"<{len(data) // 4}f", *(v * 0.02 for v in struct.unpack(f"<{len(data) // 4}f", data)))
        tensors[name] = (kind, dims, data)
    block = {name.replace("blk.0.", f"blk.{n}.", 1): tensor for name, tensor in tensors.items() if name.startswith("blk.0.")}
    one = ("F32", (width,), struct.pack(f"<{width}f", *[1] * width))
    tokens = [float(i == row) for row in range(width) for i in range(2 * width)]
    block[f"blk.{n}.nextn.enorm.weight"] = block[f"blk.{n}.nextn.hnorm.weight"] = one
    block[f"blk.{n}.nextn.eh_proj.weight"] = ("F32", (2 * width, width), struct.pack(f"<{len(tokens)}f", *tokens))
    stored = {**g.stored, arch + "block_count": struct.pack("<II", 4, n + 1), arch + "nextn_predict_layers": struct.pack("<II", 4, 1)}
    return write_gguf(out, g, stored, {**tensors, **block})


def copying_drafter(model, out):
    """Writes a block drafter of one layer for the qwen3 model: the first mask gets the embedding of the token before it,
    of all others nothing. It is right where the layers of the model add little."""
    g = Gguf(model)
    (n, n_vocab), table = g.tensors["token_embd.weight"][1], rows_of(g.tensors["token_embd.weight"])
    mask = struct.unpack(f"<{n}f", table[-1])
    length = sum(v * v for v in mask)

    def floats(*dims, value=lambda row, i: 0.0):
        return "F32", dims, struct.pack(f"<{math.prod(dims)}f", *(value(k // dims[0], k % dims[0]) for k in range(math.prod(dims))))

    ones = floats(n, value=lambda row, i: 1.0)
    tensors = {
        "fc.weight": floats(2 * n, n), "enc.output_norm.weight": ones, "output_norm.weight": g.tensors["output_norm.weight"],
        "blk.0.attn_norm.weight": ones, "blk.0.ffn_norm.weight": ones, "blk.0.attn_q_norm.weight": ones, "blk.0.attn_k_norm.weight": ones,
        "blk.0.attn_q.weight": floats(n, n), "blk.0.attn_k.weight": floats(n, n),
        "blk.0.attn_v.weight": floats(n, n, value=lambda row, i: (row == i) - mask[row] * mask[i] / length),
        "blk.0.attn_output.weight": floats(n, n, value=lambda row, i: 1e5 * (row == i)),
        "blk.0.ffn_gate.weight": floats(n, 32), "blk.0.ffn_up.weight": floats(n, 32), "blk.0.ffn_down.weight": floats(32, n)}
    whole = {"context_length": 1024, "embedding_length": n, "block_count": 1, "feed_forward_length": 32, "attention.head_count": 1,
             "attention.head_count_kv": 1, "attention.key_length": n, "attention.value_length": n, "block_size": 4, "vocab_size": n_vocab}
    stored = {"general.architecture": struct.pack("<IQ", 8, 6) + b"dflash", "dflash.target_layers": numbers([1, 3]),
              "tokenizer.ggml.mask_token_id": struct.pack("<II", 4, n_vocab - 1),
              "dflash.attention.layer_norm_rms_epsilon": g.stored["qwen3.attention.layer_norm_rms_epsilon"],
              "dflash.rope.freq_base": struct.pack("<If", 6, 10000),
              **{"dflash." + key: struct.pack("<II", 4, value) for key, value in whole.items()}}
    return write_gguf(out, g, stored, tensors)


def joined_tensors(g):
    """Returns the tensors in the layouts of transformers, still under names of GGUF."""
    arch, out = g.keys["general.architecture"], dict(g.tensors)
    for name in g.tensors:
        layer = name.split(".")[1]
        if arch in ("deepseek2", "mistral4") and name.endswith("attn_k_b.weight"):
            out[f"blk.{layer}.attn_kv_b.weight"] = latent_kv(g, layer)
            del out[name], out[f"blk.{layer}.attn_v_b.weight"]
        if arch == "qwen3next" and name.endswith("attn_gate.weight"):
            out[f"blk.{layer}.ssm_qkvz.weight"] = hybrid_qkvz(g, layer)
            del out[name], out[f"blk.{layer}.attn_qkv.weight"]
        if arch.startswith("qwen35") and name.startswith("blk.") and name in out:
            out[name] = grouped(g, arch, name, g.tensors[name])
        for kind in ("exps", "shexp") if arch == "granitemoe" else ("exps",) if arch in ("qwen35moe", "mistral4") else ():
            if name.endswith(f"ffn_gate_{kind}.weight"):
                up = f"blk.{layer}.ffn_up_{kind}.weight"
                out[f"blk.{layer}.ffn_gate_up_{kind}.weight"] = joined([g.tensors[name], g.tensors[up]])
                del out[name], out[up]
    return out


def tensors_of(g):
    """Returns the tensors by the names of transformers; dimensions with the outermost first."""
    arch = g.keys["general.architecture"]
    config = config_of(g)
    _, own, permuted = ARCHS[arch]
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    names = {**COMMON, **MTP, **own}
    ends = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
            "output.weight": "lm_head.weight", "token_embd_norm.weight": "model.embedding_norm.weight",
            "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
            "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
            "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight", **DRAFTER_ENDS}
    out = {}
    for name, tensor in joined_tensors(g).items():
        if name.startswith("rope_f") or (arch == "gpt-oss" and "_exps." in name):
            continue  # experts of gpt-oss: hf_quantise.write_gpt_oss()
        if arch.startswith(("gemma", "qwen3next", "qwen35")) and not arch.startswith("gemma4") and "norm" in name and "ssm_norm" not in name:
            tensor = minus_one(tensor)
        if name in ends:
            to = NEMOTRON_ENDS[name] if arch.startswith("nemotron_h") else ends[name]
            out[to] = (tensor[0], tensor[1][::-1], tensor[2])
            continue
        _, layer, rest = name.split(".", 2)
        role, end = rest.rsplit(".", 1) if "." in rest else (rest, "")
        block = int(layer) - config["num_hidden_layers"]
        place = f"mtp.layers.{block}" if block >= 0 and arch.startswith("qwen") else f"model.layers.{layer}"
        if block >= 0 and arch == "ernie4_5-moe":
            place = f"model.mtp_block.{block}"
        if permuted and role in ("attn_q", "attn_k"):
            tensor = unpermuted(tensor, head_dim)
        if arch == "glm4" and "glm4.rope.dimension_sections" in g.keys and role in ("attn_q", "attn_k"):
            tensor = neighbours(tensor, head_dim, g.keys["glm4.rope.dimension_count"])
        kind, dims, data = tensor
        if role == "ssm_a":
            kind, dims, data = logarithm(tensor)
        if role in ("shortconv.conv", "ssm_conv1d") and end == "weight":
            dims = (dims[0], 1, dims[1])
        if role == "ffn_gate_inp_shexp" or (role == "exp_probs_b" and arch == "ernie4_5-moe"):
            dims = (dims[0], 1)
        fused = arch in ("qwen35moe", "mistral4") and role.endswith("_exps")
        suffix = "" if role in ("exp_probs_b", "ssm_a", "ssm_d", "ssm_dt", "attn_sinks") or fused or not end else "." + end
        if arch.startswith("nemotron_h"):
            second = block >= 0 and role.startswith(("ffn_", "exp_", "post_attention_norm", "nextn.shared"))
            place = f"mtp.layers.{2 * block + second}" if block >= 0 else f"backbone.layers.{layer}"
            dims = (math.prod(dims),) if role in ("ssm_a", "ssm_d", "ssm_norm") else dims
        to = f"{place}.{names[rest]}" if rest in names and "." in rest else f"{place}.{names[role]}{suffix}"
        if role in QWEN_MTP and place.startswith("mtp."):
            to = f"{QWEN_MTP[role]}.{end}"
        if role in ERNIE_MTP and place.startswith("model.mtp_"):
            to = f"model.{ERNIE_MTP[role]}.{block}.{end}"
        if "{}" in to:
            each = len(data) // dims[2]
            for e in range(dims[2]):
                out[to.format(e)] = (kind, dims[1::-1], data[e * each:(e + 1) * each])
        else:
            out[to] = (kind, dims[::-1], data)
    if arch == "dflash":  # without a prefix
        return {name.removeprefix("model."): tensor for name, tensor in out.items()}
    return out


def byte_letters():
    """Returns the letters that stand for the 256 bytes in byte-level vocabularies."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in kept]
    return [chr(b) for b in kept] + [chr(256 + i) for i in range(len(rest))]


def chars_tokenizer_of(g):
    """Returns tokenizer.json of Gemma 4's vocabulary: merges of letters, bytes for letters that it lacks."""
    tokens, kinds = g.keys["tokenizer.ggml.tokens"], g.keys["tokenizer.ggml.token_type"]
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": kinds[i] != 4} for i, t in enumerate(tokens) if kinds[i] in (2, 3, 4)]
    decoders = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": None, "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": g.keys["tokenizer.ggml.merges"]},
    }


def tokenizer_of(g):
    """Returns tokenizer.json of a byte-level vocabulary: the file's own, or one of the same size."""
    keys = g.keys
    n = g.tensors["token_embd.weight"][1][1]
    if keys["tokenizer.ggml.model"] == "gemma4":
        return chars_tokenizer_of(g)
    own = keys["tokenizer.ggml.model"] == "gpt2"
    tokens = keys["tokenizer.ggml.tokens"] if own else byte_letters() + [f"<{i}>" for i in range(256, n)]
    kinds = keys["tokenizer.ggml.token_type"] if own else [1] * 256 + [3] * (n - 256)
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": kinds[i] == 3} for i, t in enumerate(tokens) if kinds[i] in (3, 4)]
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": split, "post_processor": None, "decoder": split,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": keys.get("tokenizer.ggml.merges", []) if own else []},
    }


def varint(v):
    out = b""
    while v > 127:
        out += bytes([v & 127 | 128])
        v >>= 7
    return out + bytes([v])


def proto(number, value):
    """Returns a field of a message of Protocol Buffers: of a number, a float or bytes."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value % (1 << 64))
    return varint(number << 3 | 2) + varint(len(value)) + value


def sentencepiece_of(g, n_pieces=None, **changes):
    """Returns tokenizer.model of a vocabulary with scores, as SentencePiece writes it, or of its first pieces."""
    keys, out = g.keys, b""
    for text, score, kind in zip(*(keys["tokenizer.ggml." + k][:n_pieces] for k in ("tokens", "scores", "token_type"))):
        out += proto(1, proto(1, text.encode()) + proto(2, float(score)) + (proto(3, kind) if kind != 1 else b""))
    settings = {"model_type": 2, "byte_fallback": 1, "unk": 0, "bos": 1, "eos": 2, "pad": -1, "prefix": 1, "extra": 0, "map": b"", **changes}
    trainer = b"".join(proto(n, settings[k]) for n, k in ((3, "model_type"), (35, "byte_fallback"), (40, "unk"), (41, "bos"),
                                                          (42, "eos"), (43, "pad")))
    normalizer = proto(1, b"identity") + b"".join(proto(n, settings[k]) for n, k in ((2, "map"), (3, "prefix"), (4, "extra")))
    return out + proto(2, proto(1, b"corpus.txt") + trainer) + proto(3, normalizer)


def write_safetensors(path, tensors):
    """Writes a weight file: header and data in the order of sizes of values and of names, as Hugging Face's library does."""
    at, header, data = 0, {"__metadata__": {"format": "pt"}}, []
    size = {"I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}
    for name in sorted(tensors, key=lambda name: (-size.get(tensors[name][0], 1), name)):
        kind, shape, content = tensors[name]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(content)]}
        at += len(content)
        data.append(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def read_safetensors(*paths):
    """Returns the tensors of weight files: type name, dimensions, bytes."""
    out = {}
    for path in paths:
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        for name, t in json.loads(data[8:8 + n]).items():
            if name != "__metadata__":
                start, end = t["data_offsets"]
                out[name] = (t["dtype"], t["shape"], data[8 + n + start:8 + n + end])
    return out


def write_folder(gguf, folder, n_shards=1, tensors=None, more=None):
    """Writes the folder of the GGUF file at @gguf, with its weights in @n_shards files: @tensors in place of its own,
    and the members @more in config.json. Block drafters have no tokenizer."""
    g = Gguf(gguf)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**published_config(g), **(more or {})}))
    settings = {}
    if "tokenizer.chat_template" in g.keys:
        settings["chat_template"] = g.keys["tokenizer.chat_template"]
    if "tokenizer.ggml.eos_token_id" in g.keys and g.keys["tokenizer.ggml.model"] == "gpt2":
        settings["eos_token"] = g.keys["tokenizer.ggml.tokens"][g.keys["tokenizer.ggml.eos_token_id"]]
    if g.keys["general.architecture"] != "dflash":
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_of(g)))
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tensors = tensors or tensors_of(g)
    if n_shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return str(folder)
    place = {}
    for i in range(n_shards):
        name = f"model-{i + 1:05}-of-{n_shards:05}.safetensors"
        part = {k: v for j, (k, v) in enumerate(tensors.items()) if j % n_shards == i}
        write_safetensors(folder / name, part)
        place.update({k: name for k in part})
    index = {"metadata": {"total_size": sum(len(v[2]) for v in tensors.values())}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)


if __name__ == "__main__":
    import sys
    write_folder(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1)
