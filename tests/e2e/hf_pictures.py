"""Writes a text model and its projector, both in GGUF, as the folder of a model with pictures. The names here are
transformers', written down independently of lib/checkpoint."""
import json
import pathlib

import hf_folder

SIGLIP = {"v.patch_embd": "embeddings.patch_embedding", "v.position_embd": "embeddings.position_embedding",
          "v.post_ln": "post_layernorm", "ln1": "layer_norm1", "ln2": "layer_norm2", "attn_q": "self_attn.q_proj",
          "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.out_proj", "ffn_up": "mlp.fc1",
          "ffn_down": "mlp.fc2"}
QWEN3 = {"v.patch_embd": "patch_embed.proj", "v.position_embd": "pos_embed", "v.post_ln": "merger.norm",
         "mm.0": "merger.linear_fc1", "mm.2": "merger.linear_fc2", "ln1": "norm1", "ln2": "norm2", "attn_qkv": "attn.qkv",
         "attn_out": "attn.proj", "ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2", "fc1": "linear_fc1", "fc2": "linear_fc2",
         "norm": "norm"}
QWEN25 = {**QWEN3, "v.post_ln": "merger.ln_q", "mm.0": "merger.mlp.0", "mm.2": "merger.mlp.2", "ffn_gate": "mlp.gate_proj",
          "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
PIXTRAL = {"v.patch_embd": "patch_conv", "v.pre_ln": "ln_pre", "ln1": "attention_norm", "ln2": "ffn_norm",
           **{f"attn_{to}": f"attention.{of}_proj" for to, of in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o"))},
           **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}}
GEMMA4 = {"ln1": "input_layernorm", "attn_post_norm": "post_attention_layernorm", "ln2": "pre_feedforward_layernorm",
          "ffn_post_norm": "post_feedforward_layernorm", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
          **{f"attn_{to}": f"self_attn.{of}_proj.linear" for to, of in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o"))},
          **{f"ffn_{part}": f"mlp.{part}_proj.linear" for part in ("gate", "up", "down")}}
GEMMA4_WHOLE = {"v.patch_embd.weight": "vision_tower.patch_embedder.input_proj.weight", "v.std_bias": "vision_tower.std_bias",
                "v.position_embd.weight": "vision_tower.patch_embedder.position_embedding_table",
                "v.std_scale": "vision_tower.std_scale", "mm.input_projection.weight": "embed_vision.embedding_projection.weight"}
PROJECTOR = {"mm.input_norm.weight": "norm.weight", "mm.patch_merger.weight": "patch_merger.merging_layer.weight",
             "mm.1.weight": "linear_1.weight", "mm.2.weight": "linear_2.weight"}
# kind: names, prefix, where the layers are, names of the configuration's sizes
KINDS = {
    "gemma3": (SIGLIP, "vision_tower.vision_model.", "encoder.layers", {}),
    "gemma4v": (GEMMA4, "model.vision_tower.", "encoder.layers", {}),
    "pixtral": (PIXTRAL, "vision_tower.", "transformer.layers", {}),
    "qwen3vl_merger": (QWEN3, "model.visual.", "blocks", {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}),
    "qwen2.5vl_merger": (QWEN25, "visual.", "blocks", {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}),
}
SIZES = {"embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "block_count": "num_hidden_layers",
         "attention.head_count": "num_attention_heads", "patch_size": "patch_size"}


def frames(first, second):
    """Returns the kernels of two frames in one tensor, [rows][colours][2][side][side]."""
    kind, dims, data = first
    n = len(data) // (dims[2] * dims[3])
    parts = [part[i:i + n] for i in range(0, len(data), n) for part in (data, second[2])]
    return kind, (dims[0], dims[1], 2, dims[2], dims[3]), b"".join(parts)


def flat(kernel):
    """Returns kernels as a matrix, in which the colours of a pixel follow each other."""
    kind, (side, _, colours, rows), data = kernel
    size, n = len(data) // (side * side * colours * rows), side * side
    values = [data[i:i + size] for i in range(0, len(data), size)]
    out = [values[(r * colours + c) * n + i] for r in range(rows) for i in range(n) for c in range(colours)]
    return kind, (colours * n, rows), b"".join(out)


def kind_of(mm):
    return mm.keys.get("clip.projector_type") or mm.keys["clip.vision.projector_type"]


def fused(parts):
    """Returns q, k and v in one tensor."""
    kind, dims, _ = parts[0]
    return kind, (*dims[:-1], 3 * dims[-1]), b"".join(p[2] for p in parts)


def stored(tensors):
    """Returns the tensors in the layout of transformers, still under names of GGUF."""
    out = dict(tensors)
    if "v.patch_embd.weight.1" in out:
        out["v.patch_embd.weight"] = frames(out["v.patch_embd.weight"], out.pop("v.patch_embd.weight.1"))
        for name in list(tensors):
            if name.endswith(("attn_q.weight", "attn_q.bias")):
                parts = [out.pop(name.replace("attn_q", "attn_" + part)) for part in "qkv"]
                out[name.replace("attn_q", "attn_qkv")] = fused(parts)
    return out


def encoder_of(mm):
    """Returns the tensors of the projector file, dimensions with the outermost first."""
    kind = kind_of(mm)
    names, prefix, layers, _ = KINDS[kind]
    deep = [i for i, there in enumerate(mm.keys.get("clip.vision.is_deepstack_layers", [])) if there]
    out = {}
    for name, tensor in stored(mm.tensors).items():
        if name == "v.token_embd.img_break":
            continue
        if kind == "pixtral" and name.endswith(("attn_q.weight", "attn_k.weight")):
            tensor = hf_folder.unpermuted(tensor, tensor[1][1] // mm.keys["clip.vision.attention.head_count"])
        if kind == "gemma4v" and name == "v.patch_embd.weight":
            tensor = flat(tensor)
        if kind == "gemma4v" and name in GEMMA4_WHOLE:
            to = "model." + GEMMA4_WHOLE[name]
        elif kind == "pixtral" and name in PROJECTOR:
            to = "multi_modal_projector." + PROJECTOR[name]
        elif name == "mm.input_projection.weight":
            to = "multi_modal_projector.mm_input_projection_weight"
        elif name == "mm.soft_emb_norm.weight":
            to, tensor = "multi_modal_projector.mm_soft_emb_norm.weight", hf_folder.minus_one(tensor)
        else:
            role, end = name.rsplit(".", 1)
            if role in names:
                to = f"{prefix}{names[role]}.{end}"
            else:
                _, where, number, part = role.split(".", 3)
                place = f"{layers}.{number}" if where == "blk" else f"deepstack_merger_list.{deep.index(int(number))}"
                to = f"{prefix}{place}.{names[part]}.{end}"
        out[to] = (tensor[0], tensor[1][::-1], tensor[2])
    return out


def vision_config_of(mm):
    kind = kind_of(mm)
    key = lambda name, usual=None: mm.keys.get("clip.vision." + name, usual)
    config = {KINDS[kind][3].get(to, to): key(of) for of, to in SIZES.items()}
    if kind == "gemma3":
        config["image_size"] = key("image_size")
    elif kind == "qwen3vl_merger":
        config["deepstack_visual_indexes"] = [i for i, there in enumerate(key("is_deepstack_layers", [])) if there]
    elif kind == "gemma4v":
        config.update(pooling_kernel_size=key("projector.scale_factor", 3), hidden_activation="quick_gelu", rms_norm_eps=1e-6)
    elif kind != "pixtral":
        period = key("n_wa_pattern")
        config.update(window_size=112, fullatt_block_indexes=[*range(period - 1, key("block_count"), period)])
    return config


def with_break(gguf, projector, out):
    """Copies a text model; its row of [IMG_BREAK] becomes that of the projector file, so that a folder can have the same."""
    g, row = hf_folder.Gguf(gguf), hf_folder.Gguf(projector).tensors["v.token_embd.img_break"][2]
    data = bytearray(g.data)
    at = g.places["token_embd.weight"] + g.keys["tokenizer.ggml.tokens"].index("[IMG_BREAK]") * len(row)
    data[at:at + len(row)] = row
    pathlib.Path(out).write_bytes(data)
    return str(out)


def write_folder(gguf, projector, folder, model_type):
    """Writes the folder of a model with pictures, with its weights in two files; without the encoder if its kind is none of
    KINDS."""
    g, mm = hf_folder.Gguf(gguf), hf_folder.Gguf(projector)
    prefix = "language_model.model." if model_type in ("gemma3", "mistral3") else "model.language_model."
    tensors = {name.replace("model.", prefix, 1): t for name, t in hf_folder.tensors_of(g).items()}
    own = kind_of(mm) in KINDS
    hf_folder.write_folder(gguf, folder, 2, {**tensors, **(encoder_of(mm) if own else {})})
    folder = pathlib.Path(folder)
    text = json.loads((folder / "config.json").read_text())
    arch = g.keys["general.architecture"]
    sections = g.keys.get(arch + ".rope.dimension_sections")
    if sections:
        text["rope_scaling"] = {"rope_type": "default", "mrope_section": sections[:3]}
    config = {"model_type": model_type, "text_config": text, "vision_config": vision_config_of(mm) if own else {}}
    if model_type == "gemma3":
        rows = mm.keys["clip.vision.image_size"] // mm.keys["clip.vision.patch_size"] // mm.keys["clip.vision.projector.scale_factor"]
        config["mm_tokens_per_image"] = rows * rows
    if model_type == "mistral3":
        config["spatial_merge_size"] = mm.keys["clip.vision.spatial_merge_size"]
    (folder / "config.json").write_text(json.dumps(config))
    if g.keys.get("tokenizer.ggml.add_bos_token"):
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        bos = g.keys["tokenizer.ggml.tokens"][g.keys["tokenizer.ggml.bos_token_id"]]
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": True, "bos_token": bos}))
    if g.keys["tokenizer.ggml.model"] == "llama":
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer.model").write_bytes(hf_folder.sentencepiece_of(g))
    colours = {to: list(mm.keys["clip.vision." + to]) for to in ("image_mean", "image_std")}
    (folder / "preprocessor_config.json").write_text(json.dumps(colours))
    return str(folder)
