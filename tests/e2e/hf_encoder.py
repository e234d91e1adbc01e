"""Writes encoders of texts as folders and as GGUF files of the same numbers. Tables of tokens and vectors are random, and
so are matrices, in F32 or in a form of hf_quantise.py. The names of the folders are transformers', written down
independently of lib/checkpoint."""
import json
import math
import pathlib
import random
import struct

import hf_folder
import hf_quantise

N, N_HEAD, N_FF, N_LAYER, N_CONTEXT, N_VOCAB, PADDED = 128, 2, 192, 3, 64, 160, 2
MARK = "\u2581"
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
PACK = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MEAN, CLS, LAST = 1, 2, 3

# names of GGUF and of transformers for the layers, with the rows and columns of matrices; (n,) is a vector
BERT = [(f"attn_{to}", f"attention.{of}", N, N) for to, of in (("q", "self.query"), ("k", "self.key"), ("v", "self.value"),
                                                               ("output", "output.dense"))]
BERT += [("ffn_up", "intermediate.dense", N_FF, N), ("ffn_down", "output.dense", N, N_FF)]
BERT_NORMS = [("attn_output_norm", "attention.output.LayerNorm"), ("layer_output_norm", "output.LayerNorm")]


def bert(prefix, padded):
    rows = [("token_embd.weight", "embeddings.word_embeddings.weight", (N_VOCAB, N)),
            ("position_embd.weight", "embeddings.position_embeddings.weight", (N_CONTEXT + padded, N)),
            ("token_types.weight", "embeddings.token_type_embeddings.weight", (1 if padded else 2, N)),
            ("token_embd_norm.weight", "embeddings.LayerNorm.weight", (N,)), ("token_embd_norm.bias", "embeddings.LayerNorm.bias", (N,))]
    for i in range(N_LAYER):
        for to, of, n_rows, n_in in BERT:
            rows += [(f"blk.{i}.{to}.weight", f"encoder.layer.{i}.{of}.weight", (n_rows, n_in)),
                     (f"blk.{i}.{to}.bias", f"encoder.layer.{i}.{of}.bias", (n_rows,))]
        rows += [(f"blk.{i}.{to}.{end}", f"encoder.layer.{i}.{of}.{end}", (N,)) for to, of in BERT_NORMS for end in ("weight", "bias")]
    return [(to, prefix + of, shape) for to, of, shape in rows]


def classifier(names):
    sizes = ((N, N), (N,), (1, N), (1,))
    return [(to, of, shape) for to, of, shape in zip(("cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"), names, sizes)]


def nomic():
    rows = [("token_embd.weight", "embeddings.word_embeddings.weight", (N_VOCAB, N)),
            ("token_types.weight", "embeddings.token_type_embeddings.weight", (2, N)),
            ("token_embd_norm.weight", "emb_ln.weight", (N,)), ("token_embd_norm.bias", "emb_ln.bias", (N,))]
    for i in range(N_LAYER):
        at = f"encoder.layers.{i}."
        rows += [(f"blk.{i}.{to}.weight", f"{at}{of}.weight", shape) for to, of, shape in (
            ("attn_qkv", "attn.Wqkv", (3 * N, N)), ("attn_output", "attn.out_proj", (N, N)), ("ffn_up", "mlp.fc11", (N_FF, N)),
            ("ffn_gate", "mlp.fc12", (N_FF, N)), ("ffn_down", "mlp.fc2", (N, N_FF)))]
        rows += [(f"blk.{i}.{to}.{end}", f"{at}{of}.{end}", (N,)) for to, of in (("attn_output_norm", "norm1"), ("layer_output_norm", "norm2"))
                 for end in ("weight", "bias")]
    return rows


def modern():
    rows = [("token_embd.weight", "model.embeddings.tok_embeddings.weight", (N_VOCAB, N)), ("token_embd_norm.weight", "model.embeddings.norm.weight", (N,)),
            ("output_norm.weight", "model.final_norm.weight", (N,))]
    for i in range(N_LAYER):
        if i:
            rows.append((f"blk.{i}.attn_norm.weight", f"model.layers.{i}.attn_norm.weight", (N,)))
        rows += [(f"blk.{i}.{to}.weight", f"model.layers.{i}.{of}.weight", shape) for to, of, shape in (
            ("attn_qkv", "attn.Wqkv", (3 * N, N)), ("attn_output", "attn.Wo", (N, N)), ("ffn_norm", "mlp_norm", (N,)),
            ("ffn_up", "mlp.Wi", (2 * N_FF, N)), ("ffn_down", "mlp.Wo", (N, N_FF)))]
    return rows


def llama_like(prefix, gemma):
    rows = [("token_embd.weight", prefix + "embed_tokens.weight", (N_VOCAB, N)), ("output_norm.weight", prefix + "norm.weight", (N,))]
    own = {**hf_folder.COMMON, **(hf_folder.SANDWICH if gemma else {})}
    parts = [("attn_norm", (N,)), ("attn_q", (N, N)), ("attn_k", (N // 2, N)), ("attn_v", (N // 2, N)), ("attn_output", (N, N)), ("ffn_norm", (N,)),
             ("ffn_gate", (N_FF, N)), ("ffn_up", (N_FF, N)), ("ffn_down", (N, N_FF))]
    if gemma:
        parts += [("attn_q_norm", (N // N_HEAD,)), ("attn_k_norm", (N // N_HEAD,)), ("post_attention_norm", (N,)), ("post_ffw_norm", (N,))]
    return rows + [(f"blk.{i}.{to}.weight", f"{prefix}layers.{i}.{own[to]}.weight", shape) for i in range(N_LAYER) for to, shape in parts]


SIZES = {"hidden_size": N, "num_attention_heads": N_HEAD, "num_hidden_layers": N_LAYER, "intermediate_size": N_FF, "vocab_size": N_VOCAB}
NOMIC = {"n_embd": N, "n_head": N_HEAD, "n_layer": N_LAYER, "n_inner": N_FF, "vocab_size": N_VOCAB, "n_positions": 4 * N_CONTEXT,
         "max_trained_positions": N_CONTEXT, "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
         "activation_function": "swiglu", "prenorm": False}
ROBERTA_CLASSIFIER = ("classifier.dense.weight", "classifier.dense.bias", "classifier.out_proj.weight", "classifier.out_proj.bias")
LAYER_NORM, RMS = "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"
# name: architecture of GGUF, its keys, config.json, tensors, tokenizer, pooling (None: no file says it)
KINDS = {
    "bert": ("bert", {LAYER_NORM: 1e-12}, {"model_type": "bert", **SIZES, "max_position_embeddings": N_CONTEXT, "layer_norm_eps": 1e-12,
                                           "hidden_act": "gelu", "position_embedding_type": "absolute"}, bert("", 0), "bert", MEAN),
    "bert-classifier": ("bert", {LAYER_NORM: 1e-12},
                        {"model_type": "bert", **SIZES, "max_position_embeddings": N_CONTEXT, "layer_norm_eps": 1e-12, "hidden_act": "gelu"},
                        bert("bert.", 0) + classifier(("bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias")), "bert", None),
    "xlm-roberta": ("bert", {LAYER_NORM: 1e-5}, {"model_type": "xlm-roberta", **SIZES, "max_position_embeddings": N_CONTEXT + PADDED, "layer_norm_eps": 1e-5,
                                                 "hidden_act": "gelu", "pad_token_id": 1}, bert("", PADDED), "roberta", CLS),
    "roberta-classifier": ("bert", {LAYER_NORM: 1e-5},
                           {"model_type": "roberta", **SIZES, "max_position_embeddings": N_CONTEXT + PADDED, "layer_norm_eps": 1e-5, "hidden_act": "gelu"},
                           bert("roberta.", PADDED) + classifier(ROBERTA_CLASSIFIER), "roberta", None),
    "nomic-bert": ("nomic-bert", {LAYER_NORM: 1e-12, "rope.freq_base": 1000.0}, {"model_type": "nomic_bert", **NOMIC}, nomic(), "bert", MEAN),
    "modern-bert": ("modern-bert", {LAYER_NORM: 1e-5, "rope.freq_base": 160000.0, "rope.freq_base_swa": 10000.0, "attention.sliding_window": 8,
                                    "attention.sliding_window_pattern": 3},
                    {"model_type": "modernbert", **SIZES, "max_position_embeddings": N_CONTEXT, "norm_eps": 1e-5, "local_attention": 8,
                     "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "hidden_activation": "gelu"}, modern(), "bert", MEAN),
    "eurobert": ("eurobert", {RMS: 1e-5, "rope.freq_base": 250000.0, "attention.head_count_kv": 1},
                 {"model_type": "eurobert", **SIZES, "num_key_value_heads": 1, "max_position_embeddings": N_CONTEXT, "rms_norm_eps": 1e-5,
                  "rope_theta": 250000.0, "hidden_act": "silu"}, llama_like("model.", False), "bert", LAST),
    "gemma-embedding": ("gemma-embedding", {RMS: 1e-6, "rope.freq_base": 1000000.0, "rope.freq_base_swa": 10000.0, "attention.head_count_kv": 1,
                                            "attention.sliding_window": 8, "attention.sliding_window_pattern": 2},
                        {"model_type": "gemma3_text", **SIZES, "num_key_value_heads": 1, "head_dim": N // N_HEAD, "max_position_embeddings": N_CONTEXT,
                         "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 8,
                         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "use_bidirectional_attention": True,
                         "hidden_activation": "gelu_pytorch_tanh"}, llama_like("", True), "bert", MEAN),
}
POOLING = {MEAN: "pooling_mode_mean_tokens", CLS: "pooling_mode_cls_token", LAST: "pooling_mode_lasttoken"}


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value(kind, v):
    if kind == ARRAY:
        return struct.pack("<IQ", v[0], len(v[1])) + b"".join(value(v[0], x) for x in v[1])
    return string(v) if kind == STRING else struct.pack(PACK[kind], v)


def pieces():
    """Returns the tokens of WordPiece: begins of words, and parts behind them as "##x"."""
    words = [*LETTERS, *"0123456789", ".", ",", "the", "fox", "red", "jump", *("##" + c for c in LETTERS), "##s", "##ed", "##ing"]
    words = [*dict.fromkeys(words)]
    return SPECIAL + words + [f"[unused{i}]" for i in range(N_VOCAB - len(SPECIAL) - len(words))]


def unigram():
    """Returns the tokens of Unigram with their scores."""
    words = [MARK + w for w in ("the", "fox", "red", "jump", "a")] + [MARK, "s", "ed", "ing", "ump"] + [*LETTERS] + [*"0123456789.,"]
    words = [*dict.fromkeys(words)]
    words += [f"{MARK}w{i}x" for i in range(N_VOCAB - len(ROBERTA) - len(words))]
    return [(t, 0.0) for t in ROBERTA] + [(t, -1.0 - i / 8) for i, t in enumerate(words)]


def tokenizer_of(kind):
    """Returns the keys of GGUF for a vocabulary, and its tokenizer.json."""
    if kind == "bert":
        tokens = pieces()
        texts = [t[2:] if t.startswith("##") else MARK + t if i >= len(SPECIAL) else t for i, t in enumerate(tokens)]
        keys = [("tokenizer.ggml.model", STRING, "bert"), ("tokenizer.ggml.tokens", ARRAY, (STRING, texts)),
                ("tokenizer.ggml.token_type", ARRAY, (I32, [3] * len(SPECIAL) + [1] * (N_VOCAB - len(SPECIAL)))),
                ("tokenizer.ggml.cls_token_id", U32, 2), ("tokenizer.ggml.seperator_token_id", U32, 3), ("tokenizer.ggml.unknown_token_id", U32, 1)]
        model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                 "vocab": {t: i for i, t in enumerate(tokens)}}
        around = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
        special, normalizer = SPECIAL, {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
        split, decoder = {"type": "BertPreTokenizer"}, {"type": "WordPiece", "prefix": "##", "cleanup": True}
    else:
        scored = unigram()
        keys = [("tokenizer.ggml.model", STRING, "t5"), ("tokenizer.ggml.tokens", ARRAY, (STRING, [t for t, _ in scored])),
                ("tokenizer.ggml.scores", ARRAY, (F32, [s for _, s in scored])),
                ("tokenizer.ggml.token_type", ARRAY, (I32, [3, 3, 3, 2] + [1] * (N_VOCAB - 4))),
                ("tokenizer.ggml.bos_token_id", U32, 0), ("tokenizer.ggml.eos_token_id", U32, 2), ("tokenizer.ggml.unknown_token_id", U32, 3),
                ("tokenizer.ggml.add_bos_token", BOOL, True), ("tokenizer.ggml.add_eos_token", BOOL, True),
                ("tokenizer.ggml.add_space_prefix", BOOL, True), ("tokenizer.ggml.remove_extra_whitespaces", BOOL, True)]
        model = {"type": "Unigram", "unk_id": 3, "vocab": [[t, s] for t, s in scored], "byte_fallback": False}
        around = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": True}
        meta = {"type": "Metaspace", "replacement": MARK, "add_prefix_space": True, "prepend_scheme": "always"}
        special, normalizer = ROBERTA, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
        split, decoder = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, meta]}, meta
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, t in enumerate(special)]
    return keys, {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": split,
                  "post_processor": around, "decoder": decoder, "model": model}


def values(rng, name, shape, gains_minus_one):
    """Returns random values in F32, as they are in the folder and in the GGUF file."""
    gain = "norm" in name and name.endswith("weight")
    own = [hf_quantise.f32(rng.gauss(0, 0.1) + (0 if gains_minus_one else gain)) for _ in range(math.prod(shape))]
    theirs = [hf_quantise.f32(v + 1) for v in own] if gain and gains_minus_one else own
    return [struct.pack(f"<{len(own)}f", *v) for v in (own, theirs)]


def with_dense(rng, folder, tensors):
    """Adds the two matrices behind the pooling."""
    for k, shape in ((2, (2 * N, N)), (3, (N, 2 * N))):
        part = folder / f"{k}_Dense"
        part.mkdir()
        (part / "config.json").write_text(json.dumps({"in_features": shape[1], "out_features": shape[0], "bias": False,
                                                      "activation_function": "torch.nn.modules.linear.Identity"}))
        data, _ = values(rng, "linear", shape, False)
        hf_folder.write_safetensors(part / "model.safetensors", {"linear.weight": ("F32", shape, data)})
        tensors[f"dense_{k}.weight"] = ("F32", shape[::-1], data)


def write_pair(name, form, folder, file):
    """Writes the folder and the GGUF file of an encoder. @form: None for F32, or that of its matrices. Returns the number
    of quantised matrices."""
    arch, own_keys, config, rows, vocabulary, pooling = KINDS[name]
    rng, folder, n = random.Random(f"{name} {form}"), pathlib.Path(folder), 0
    make, rule = hf_quantise.FORMS[form] if form else (None, None)
    minus_one = name == "gemma-embedding"
    theirs, published = {}, {}
    for to, of, shape in rows:
        linear = len(shape) == 2 and "embd" not in to and "token_types" not in to and to != "cls.output.weight"
        if linear and make and hf_quantise.can_have(form, shape):
            m, n = make(rng, *shape), n + 1
            hf_quantise.check_values(m)
            published.update({of[:-len("weight")] + end: t for end, t in m.tensors.items()})
            theirs[to] = (m.kind, shape[::-1], b"".join(m.rows))
            if m.factor:
                theirs[to[:-len("weight")] + "scale"] = ("F32", (1,), struct.pack("<f", m.factor))
            continue
        data, data_gguf = values(rng, to, shape, minus_one)
        published[of] = ("F32", shape, data)
        if to == "position_embd.weight" and shape[0] > N_CONTEXT:
            shape, data_gguf = (N_CONTEXT, N), data_gguf[4 * N * PADDED:]
        theirs[to] = ("F32", shape[::-1], data_gguf)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, **({"quantization_config": rule} if form else {})}))
    keys, tokenizer = tokenizer_of(vocabulary)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if pooling:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": N, **{key: k == pooling for k, key in POOLING.items()},
                                                                      "pooling_mode_max_tokens": False, "include_prompt": True}))
    if minus_one:
        with_dense(rng, folder, theirs)
    hf_folder.write_safetensors(folder / "model.safetensors", published)
    meta = [("general.architecture", STRING, arch), (f"{arch}.context_length", U32, N_CONTEXT), (f"{arch}.embedding_length", U32, N),
            (f"{arch}.feed_forward_length", U32, N_FF), (f"{arch}.block_count", U32, N_LAYER), (f"{arch}.attention.head_count", U32, N_HEAD),
            (f"{arch}.attention.causal", BOOL, False), *((f"{arch}.{k}", F32 if isinstance(v, float) else U32, v) for k, v in own_keys.items())]
    meta += [(f"{arch}.pooling_type", U32, pooling)] if pooling else []
    meta += [(f"{arch}.dense_{k}_feat_{d}", U32, v) for k, d, v in ((2, "in", N), (2, "out", 2 * N), (3, "in", 2 * N), (3, "out", N)) if minus_one]
    write_gguf(file, meta + keys, theirs)
    return n


def write_gguf(path, meta, tensors):
    head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(meta)) + b"".join(string(k) + struct.pack("<I", t) + value(t, v) for k, t, v in meta)
    data = b""
    for name, (kind, dims, content) in tensors.items():
        head += string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims) + struct.pack("<IQ", hf_quantise.TYPE[kind], len(data))
        data += content + b"\0" * (-len(content) % 32)
    pathlib.Path(path).write_bytes(head + b"\0" * (-len(head) % 32) + data)
