"""weft-gguf and weft-synth as a user sees them: what they print, what they write, how they fail."""
import hashlib
import json
import os
import pathlib
import re
import struct
import subprocess
import tempfile

from weftd import DATA, every, fewer, main, program

# Values and bytes of a block, typed from the format's description, not from the code.
BLOCKS = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22),
    "Q5_1": (32, 24), "Q8_0": (32, 34), "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176),
    "Q6_K": (256, 210), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "IQ2_XXS": (256, 66), "MXFP4": (32, 17),
    "IQ1_S": (256, 50), "IQ1_M": (256, 56), "IQ2_XS": (256, 74), "IQ2_S": (256, 82), "IQ3_XXS": (256, 98), "IQ3_S": (256, 110),
    "TQ1_0": (256, 54), "TQ2_0": (256, 66), "NVFP4": (64, 36),
}
ARCHS = ("llama", "qwen2", "qwen3")
FOLDER = tempfile.TemporaryDirectory(prefix="weft-gguf-")
SMALL = "n_layer=2,n_embd=256,n_head=4,n_kv=2,head_dim=64,n_ff=512,n_vocab=300"


def path(name):
    return os.path.join(FOLDER.name, name)


def run(*args, stdin=None, code=0):
    """Runs weft-gguf, or weft-synth where args[0] is "synth". Returns (stdout, stderr); the exit code must be @code."""
    tool, args = ("weft-synth", args[1:]) if args[:1] == ("synth",) else ("weft-gguf", args)
    p = subprocess.run([program(tool), *map(str, args)], input=stdin, capture_output=True, timeout=120)
    assert p.returncode == code, (args, p.returncode, p.stderr)
    return p.stdout, p.stderr.decode()


def synth(name, *args):
    run("synth", *args, "-o", path(name))
    return path(name)


def info(file):
    return json.loads(run("info", "--json", "--no-fit", file)[0])


def digest(file):
    return hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()


def test_every_architecture_and_format_is_made_and_is_valid():
    formats = [*BLOCKS, "Q4_K_M", "Q5_K_M"]
    for i, arch in enumerate(ARCHS):
        for fmt in every(formats, formats[i :: len(ARCHS)]):
            file = synth("m.gguf", "--arch", arch, "--shape", SMALL, "--format", fmt)
            out, err = run("verify", file)
            assert b": ok, " in out and not err, (arch, fmt, out, err)
            d = info(file)
            assert d["metadata"]["general.architecture"] == arch
            at = None
            for t in d["tensors"]:
                n = 1
                for k in t["ne"]:
                    n *= k
                block, size = BLOCKS[t["format"]]
                assert t["bytes"] == n // block * size, (arch, fmt, t)
                assert at is None or t["offset"] == at, (arch, fmt, t)
                at = t["offset"] + -(-t["bytes"] // 32) * 32
                if len(t["ne"]) == 2 and fmt in BLOCKS:
                    assert t["format"] == fmt, t
                if len(t["ne"]) == 1:
                    assert t["format"] == "F32", t
            assert os.path.getsize(file) == at == d["bytes"], (arch, fmt)
            names = {t["name"] for t in d["tensors"]}
            assert ("blk.1.attn_q.bias" in names) == (arch == "qwen2")
            assert ("blk.1.attn_k_norm.weight" in names) == (arch == "qwen3")
            assert "output.weight" in names
    assert "output.weight" not in {t["name"] for t in info(synth("t.gguf", "--shape", SMALL + ",tied=1", "--format", "F16"))["tensors"]}


def test_the_k_m_mixes_give_more_bits_where_llama_cpp_does():
    # Per layer of a model of 28: attn_v and ffn_down of layers 0-2, 5, 8, 11, 14, 17, 20, 23, 24-27 are Q6_K.
    shape = SMALL.replace("n_layer=2", "n_layer=28")
    more = {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27}
    for fmt, base in (("Q4_K_M", "Q4_K"), ("Q5_K_M", "Q5_K")):
        formats = {t["name"]: t["format"] for t in info(synth("mix.gguf", "--shape", shape, "--format", fmt))["tensors"]}
        for i in range(28):
            for part in ("attn_v", "ffn_down"):
                assert formats[f"blk.{i}.{part}.weight"] == ("Q6_K" if i in more else base), (fmt, i, part)
            for part in ("attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"):
                assert formats[f"blk.{i}.{part}.weight"] == base
        assert formats["output.weight"] == "Q6_K" and formats["token_embd.weight"] == base
        tied = info(synth("mix.gguf", "--shape", shape + ",tied=1", "--format", fmt))["tensors"]
        assert {t["name"]: t["format"] for t in tied}["token_embd.weight"] == "Q6_K"


def formats_of(*args):
    return {t["name"]: t["format"] for t in info(synth("mix.gguf", *args))["tensors"]}


def test_mixes_of_experts_and_of_hybrid_models_are_llama_cpps():
    hybrid = "qwen3.6-27b,n_layer=8,n_embd=256,n_head=2,n_kv=1,head_dim=64,n_ff=256,n_vocab=300,n_key=1,n_value=2,n_state=128,n_mtp=1"
    formats = formats_of("--shape", hybrid, "--format", "Q4_K_M")
    # The projections of delta nets count with attn_v: of 9 those of layers 0, 3, 6, 7, 8 are Q6_K.
    for i in range(9):
        part = "attn_qkv" if i % 4 != 3 and i < 8 else "attn_v"
        assert formats[f"blk.{i}.{part}.weight"] == ("Q6_K" if i in (0, 3, 6, 7, 8) else "Q4_K"), i
    assert formats["blk.0.ssm_conv1d.weight"] == "F32" and formats["blk.0.ssm_alpha.weight"] == "Q4_K"
    assert formats["blk.8.nextn.eh_proj.weight"] == "Q8_0"
    small = "gpt-oss-20b,n_layer=2,n_embd=96,n_head=3,n_kv=1,head_dim=32,n_ff=64,n_vocab=300,n_expert=4,n_used=2"
    formats = formats_of("--shape", small, "--format", "MXFP4_MOE")
    for name, form in formats.items():
        rule = "MXFP4" if name.endswith("_exps.weight") else "Q8_0"
        assert form == ("F32" if "norm" in name or "bias" in name or "sinks" in name or "inp" in name else rule), name
    latent = ("glm-4.7-flash,n_layer=2,n_embd=256,n_head=2,head_dim=96,n_rot=32,q_rank=256,kv_rank=256,v_dim=64,n_ff=256,n_shared=256,"
              "n_dense=256,n_vocab=300,n_expert=4,n_used=2")
    formats = formats_of("--shape", latent, "--format", "Q4_K_M")
    assert formats["blk.1.attn_k_b.weight"] == "Q5_0" and formats["blk.1.attn_v_b.weight"] == "Q4_K"
    assert formats["blk.0.ffn_down.weight"] == "Q4_K" and formats["blk.1.ffn_down_exps.weight"] == "Q6_K"
    gemma = ("gemma-4-26b-a4b,n_layer=6,n_embd=256,n_head=2,n_kv=1,head_dim=64,n_kv_window=2,window_dim=32,n_ff=64,n_dense=64,"
             "n_vocab=300,n_expert=4,n_used=2")
    formats = formats_of("--shape", gemma, "--format", "Q4_K_M")
    assert [i for i in range(6) if f"blk.{i}.attn_v.weight" not in formats] == [5]
    assert formats["token_embd.weight"] == "Q6_K" and formats["blk.5.ffn_down_exps.weight"] == "Q8_0"
    muse = "muse-glimmer-30b,n_layer=4,n_embd=256,n_head=4,n_kv=1,head_dim=64,n_ff=256,n_vocab=300,window=8"
    formats = formats_of("--shape", muse, "--format", "Q4_K_M")
    assert len(formats) == 3 + 4 * 14 and formats["blk.3.attn_gate.weight"] == "Q4_K"
    step = ("step-3.5-flash,n_layer=5,n_embd=256,n_head=4,n_head_window=6,n_kv=2,head_dim=64,n_ff=256,n_dense=256,n_shared=256,"
            "n_vocab=300,n_expert=4,n_used=2,window=8")
    tensors = {t["name"]: t for t in info(synth("step.gguf", "--shape", step, "--format", "Q4_K_M"))["tensors"]}
    assert [tensors[f"blk.{i}.attn_q.weight"]["ne"][1] // 64 for i in range(5)] == [4, 6, 6, 6, 4]
    assert "blk.2.ffn_gate_inp.weight" not in tensors and "blk.3.exp_probs_b.bias" in tensors
    compressed = ("deepseek-v4-flash,n_layer=5,n_embd=256,n_head=4,head_dim=64,n_rot=16,q_rank=256,n_group=2,out_rank=128,n_ff=256,"
                 "n_shared=256,n_vocab=300,n_expert=4,n_used=2,n_index=2,index_dim=32")
    tensors = {t["name"]: t for t in info(synth("v4.gguf", "--shape", compressed, "--format", "Q4_K_M"))["tensors"]}
    assert [tensors.get(f"blk.{i}.attn_compressor_ape.weight", {}).get("ne") for i in range(5)] == [None, None, [128, 4], [64, 128], [128, 4]]
    assert tensors["blk.2.ffn_gate_tid2eid.weight"]["format"] == "I32" and "blk.3.exp_probs_b.bias" in tensors


def test_rows_that_do_not_fill_a_block_take_another_format():
    shape = "n_layer=1,n_embd=96,n_head=3,n_kv=1,head_dim=32,n_ff=160,n_vocab=300"
    for fmt, narrow in (("Q4_K", "Q5_0"), ("Q6_K", "Q8_0"), ("Q2_K", "Q4_0"), ("IQ4_XS", "IQ4_NL"), ("Q4_0", "Q4_0")):
        for t in info(synth("odd.gguf", "--shape", shape, "--format", fmt))["tensors"]:
            assert t["format"] == ("F32" if len(t["ne"]) == 1 else narrow), (fmt, t)
    shape = "n_layer=1,n_embd=40,n_head=2,n_kv=1,head_dim=20,n_ff=100,n_vocab=300"
    for t in info(synth("odd.gguf", "--shape", shape, "--format", "Q4_K"))["tensors"]:
        assert t["format"] == ("F32" if len(t["ne"]) == 1 else "F16"), t


def test_files_with_three_positions_say_which_pairs_have_which():
    small = "n_layer=4,n_embd=64,n_head=2,n_kv=1,head_dim=64,n_ff=64,n_vocab=300,n_key=1,n_value=2,n_state=16"
    for shape, sections in (("qwen3.6-27b," + small, "11, 11, 10, 0"), ("qwen3.6-27b,n_rot=16," + small, "3, 3, 2, 0"),
                            ("qwen3-coder-next," + small, None)):
        out, _ = run("info", synth("pos.gguf", "--shape", shape, "--format", "F16"))
        line = [l for l in out.decode().split("\n") if "rope.dimension_sections" in l]
        assert (line[0].split("]")[1].strip() if line else None) == sections, (shape, line)


def test_named_shapes_have_the_size_of_the_real_models():
    # Bytes of weights of the real Qwen3-0.6B in Q4_K_M (372.65 MiB measured) and Qwen2-0.5B's number of values.
    d = info(synth("big.gguf", "--shape", "qwen3-0.6b", "--format", "Q4_K_M"))
    assert abs(sum(f["bytes"] for f in d["formats"]) / 2**20 - 372.65) < 0.01
    os.unlink(path("big.gguf"))
    d = info(synth("big.gguf", "--shape", "qwen2-0.5b", "--format", "IQ2_XXS"))
    assert sum(f["values"] for f in d["formats"]) == 494032768
    os.unlink(path("big.gguf"))


def test_the_bytes_depend_on_the_seed_and_nothing_else():
    args = ("--arch", "qwen3", "--shape", SMALL, "--format", "Q4_K_M")
    a = digest(synth("a.gguf", *args, "--seed", 5))
    assert a == digest(synth("b.gguf", *args, "--seed", 5))
    assert a != digest(synth("b.gguf", *args, "--seed", 6))
    # The weights of a split model are those of the whole one.
    whole, parts = pathlib.Path(path("a.gguf")).read_bytes(), {}
    synth("s.gguf", *args, "--seed", 5, "--split", 3)
    assert sorted(p for p in os.listdir(FOLDER.name) if p.startswith("s-")) == [f"s-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    split = info(path("s-00002-of-00003.gguf"))
    assert split["files"] == 3 and b": ok, " in run("verify", path("s-00003-of-00003.gguf"))[0]
    for t in split["tensors"]:
        data = pathlib.Path(path(f"s-0000{t['shard'] + 1}-of-00003.gguf")).read_bytes()
        parts[t["name"]] = data[t["offset"] : t["offset"] + t["bytes"]]
    assert {t["shard"] for t in split["tensors"]} == {0, 1, 2}
    for t in info(path("a.gguf"))["tensors"]:
        assert parts[t["name"]] == whole[t["offset"] : t["offset"] + t["bytes"]], t["name"]


def test_the_generated_vocabulary_is_a_sound_bpe():
    for n in (272, 1024, 40000):
        m = info(synth("v.gguf", "--shape", SMALL, "--n-vocab", n, "--format", "Q4_0"))["metadata"]
        tokens, types, merges = (m["tokenizer.ggml." + k] for k in ("tokens", "token_type", "merges"))
        assert len(tokens) == len(types) == m["llama.vocab_size"] == n
        assert len(set(tokens)) == n
        known = set(tokens[:256])
        assert len(known) == 256 and all(len(t) == 1 for t in known)
        for i, merge in enumerate(merges):
            left, right = merge.split(" ")
            assert left in known and right in known and tokens[256 + i] == left + right, merge
            known.add(left + right)
        special = {t: k for t, k in zip(tokens, types) if k in (3, 4)}
        assert special["<|im_end|>"] == 3 and special["<|im_start|>"] == 3 and special["<tool_call>"] == 4
        assert tokens[m["tokenizer.ggml.eos_token_id"]] == "<|im_end|>"
        assert types.count(5) == n // 1024


def test_a_vocabulary_is_taken_from_another_file():
    source = DATA / "vocab/ggml-vocab-llama-spm.gguf"
    d = info(synth("c.gguf", "--shape", "tiny", "--format", "Q8_0", "--vocab", source))
    want = {k: v for k, v in info(source)["metadata"].items() if k.startswith("tokenizer.")}
    assert {k: v for k, v in d["metadata"].items() if k.startswith("tokenizer.")} == want
    assert d["metadata"]["llama.vocab_size"] == 32000
    assert next(t["ne"] for t in d["tensors"] if t["name"] == "token_embd.weight") == [256, 32000]


def test_info_prints_a_table_and_hides_control_characters():
    file = synth("i.gguf", "--arch", "qwen3", "--shape", SMALL, "--format", "Q4_K", "--seed", 3)
    text = run("info", file)[0].decode()
    for line in (
        '  general.name                                 string "synth qwen3 Q4_K seed 3"',
        "  qwen3.block_count                            u32    2",
        "  blk.1.ffn_down.weight                        Q4_K     512 x 256                     73728",
        "tensors (25)",
    ):
        assert line + "\n" in text, line
    evil = b"evil \x1b[2J\xff\xc2\x9b name"
    data = pathlib.Path(file).read_bytes()
    name = b"synth qwen3 Q4_K seed 3"
    pathlib.Path(path("evil.gguf")).write_bytes(data.replace(name, evil.ljust(len(name), b"_")))
    out = run("info", path("evil.gguf"))[0]
    assert b"\x1b" not in out and b"\xff" not in out and b"\xc2\x9b" not in out and b"evil \\x1b[2J\\xff" in out, out[:400]
    assert "\ufffd" in info(path("evil.gguf"))["metadata"]["general.name"]


def test_info_says_whether_this_machine_can_serve_it():
    file = synth("fit.gguf", "--shape", "tiny,n_layer=4,n_embd=512,n_ff=2048,context=65536", "--format", "Q8_0", "--n-vocab", "512")

    def fit(*args):
        return json.loads(run("info", "--json", *args, file)[0])["fit"]
    large, small = fit("--memory", "8G"), fit("--memory", "80M")
    assert large["fits"] and large["context"] == 65536 and small["fits"] and 1024 <= small["context"] < 65536, (large, small)
    for f, memory in ((large, 8 << 30), (small, 80 << 20)):
        assert f["weight_bytes"] + f["buffer_bytes"] + f["kv_bytes"] <= memory == f["memory_bytes"], f
        assert f["tokens_per_s_at_most"] > f["tokens_per_s_at_most_full"] > 0, f
    none = fit("--memory", "40M")
    assert not none["fits"] and "does not fit: weights" in none["why"] and none["weight_bytes"] == large["weight_bytes"], none
    asked = fit("--memory", "80M", "--max-context", "65536")
    would = int(re.search(r"max-context (\d+) would fit", asked["why"])[1])
    assert not asked["fits"] and fit("--memory", "80M", "--max-context", would)["fits"], asked
    pages = [fit("--memory", "8G", "--kv", t)["page_bytes"] for t in ("f16", "q8_0", "q4_0", "q8_0,q4_0")]
    assert [p / pages[0] * 16 for p in pages] == [16, 8.5, 4.5, 6.5], pages
    assert '"q5_0": formats are' in run("info", "--kv", "q5_0", file, code=64)[1]
    assert b"\nthis machine\nfits: a context of 65536 of the model's 65536 tokens" in run("info", "--memory", "8G", file)[0]


def test_verify_names_the_place_of_what_is_wrong():
    file = synth("w.gguf", "--shape", SMALL, "--format", "Q4_K")
    data = bytearray(pathlib.Path(file).read_bytes())
    tensors = {t["name"]: t for t in info(file)["tensors"]}
    for name, at, value in (
        ("blk.1.ffn_up.weight", 144 * 5, struct.pack("<e", float("inf"))),
        ("blk.1.ffn_up.weight", 144 * 7 + 2, struct.pack("<e", float("nan"))),
        ("blk.0.attn_norm.weight", 4 * 9, struct.pack("<f", float("nan"))),
    ):
        bad, where = bytearray(data), tensors[name]["offset"] + at
        bad[where : where + len(value)] = value
        pathlib.Path(path("bad.gguf")).write_bytes(bad)
        err = run("verify", path("bad.gguf"), code=1)[1]
        offset = int(err.split("offset ")[1].split()[0])
        assert name in err and where <= offset < where + len(value) and err.count("\n") == 1, err
    pathlib.Path(path("bad.gguf")).write_bytes(data[:-100])
    err = run("verify", path("bad.gguf"), code=1)[1]
    assert "offset" in err and err.count("\n") == 1, err


def ids(model, text, *flags):
    return json.loads(run("tokenize", model, *flags, stdin=text)[0])


def test_tokenize_and_detokenize_agree_with_other_implementations():
    vocab = DATA / "vocab"
    for name in ("qwen2", "llama-spm"):
        model = vocab / f"ggml-vocab-{name}.gguf"
        texts = pathlib.Path(str(model) + ".inp").read_bytes().split(b"\n__ggml_vocab_test__\n")
        lines = pathlib.Path(str(model) + ".out").read_text().splitlines()
        for text, line in fewer(list(zip(texts, lines))[::6]):
            want = [int(x) for x in line.split()]
            assert ids(model, text) == want, (name, text)
            if name == "qwen2":
                assert run("detokenize", model, stdin=json.dumps(want).encode())[0] == text
    model = vocab / "ggml-vocab-qwen2.gguf"
    assert ids(model, b"<|im_end|>", "--special") == [151645] and len(ids(model, b"<|im_end|>")) > 1
    assert run("detokenize", model, "--special", stdin=b"[151645]")[0] == b"<|im_end|>"
    assert run("detokenize", model, stdin=b"[151645]")[0] == b""
    assert ids(vocab / "ggml-vocab-llama-spm.gguf", b"a", "--bos")[0] == 1


def test_the_generated_vocabulary_spells_every_text():
    model = synth("v.gguf", "--arch", "qwen3", "--shape", SMALL, "--n-vocab", 5000, "--format", "Q4_0")
    for text in ("the answer of the function", "Grüße, 世界 \U0001f600\n\tx = 3;", " zqxj  0123", ""):
        got = ids(model, text.encode())
        assert run("detokenize", model, stdin=json.dumps(got).encode())[0].decode() == text
    assert len(ids(model, b"the answer of the user")) < 10
    got = ids(model, b"<|im_start|>user\n<|im_end|>", "--special")
    meta = info(model)["metadata"]
    assert got[0] == meta["tokenizer.ggml.tokens"].index("<|im_start|>") and got[-1] == meta["tokenizer.ggml.eos_token_id"]


def test_bad_token_lists_fail_with_one_line():
    model = synth("v.gguf", "--shape", SMALL, "--format", "Q4_0")
    for text in (b"", b"{}", b"[1, -1]", b"[300]", b"[1.5]", b'["a"]', b"[1"):
        out, err = run("detokenize", model, stdin=text, code=1)
        assert not out and err.startswith("weft-gguf: ") and err.count("\n") == 1, (text, err)


def conversation(value):
    file = path("conversation.json")
    pathlib.Path(file).write_text(json.dumps(value))
    return file


def test_render_gives_the_bytes_of_the_reference_environment():
    folder = DATA / "templates"
    c = json.loads((folder / "conversations.json").read_text())
    n_texts = n_errors = 0
    for name in fewer(("meta-llama-Llama-3.1-8B-Instruct", "Qwen-Qwen3-0.6B", "TinyLlama-1.1B-Chat")):
        tokens = dict(c["special_tokens"]["default"])
        tokens.update(next((v for k, v in c["special_tokens"].items() if k in name), {}))
        expected = json.loads((folder / "expected" / f"{name}.json").read_text())
        for case, variables in c["cases"].items():
            want = expected[case].get("relaxed", expected[case])
            file = conversation({**tokens, **variables, "now": c["now"]})
            if "text" in want:
                out, err = run("render", "--template", folder / f"{name}.jinja", file)
                assert out.decode() == want["text"] and not err, (name, case)
                n_texts += 1
            else:
                out, err = run("render", "--template", folder / f"{name}.jinja", file, code=1)
                assert not out and err.count("\n") == 1, (name, case, err)
                assert want["kind"] != "raised" or " ".join(want["error"].split()) in " ".join(err.split()), (want, err)
                n_errors += 1
    assert n_texts > fewer(60) and n_errors > 0, (n_texts, n_errors)


def test_render_takes_template_and_tokens_of_the_model():
    model = synth("r.gguf", "--arch", "qwen3", "--shape", SMALL, "--format", "Q4_0")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1, "é"]}}}
    messages = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "3"},
    ]
    out = run("render", model, conversation({"messages": messages[:2], "add_generation_prompt": True}))[0].decode()
    assert out == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ), out
    out = run("render", model, conversation({"messages": messages, "tools": [tool]}))[0].decode()
    assert out.startswith("<|im_start|>system\nBe brief.\n\nYou can call") and out.count("Be brief.") == 1
    assert json.dumps(tool) in out
    assert '<tool_call>\n{"name": "f", "arguments": {"x": [1, "é"]}}\n</tool_call><|im_end|>' in out
    assert out.endswith("<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n")
    vocab = DATA / "vocab/ggml-vocab-phi-3.gguf"  # its template begins with bos_token
    hi = {"messages": messages[1:2]}
    assert run("render", vocab, conversation(hi))[0].startswith(b"<s><|user|>")
    assert run("render", vocab, conversation({**hi, "bos_token": "B"}))[0].startswith(b"B<|user|>")
    probe = path("probe.jinja")
    pathlib.Path(probe).write_text("{{ eos_token }}|{{ x }}|{{ strftime_now('%d.%m.%Y %H') }}")
    file = conversation({"eos_token": "E", "kwargs": {"x": 7}, "now": "2024-02-29T23:59:58"})
    assert run("render", "--template", probe, file)[0] == b"E|7|29.02.2024 23"
    out = run("render", "--template", probe, "-", stdin=b'{"eos_token": "S"}')[0]
    assert re.fullmatch(rb"S\|\|\d\d\.\d\d\.20\d\d \d\d", out), out
    for value in ([], 3, {"now": "yesterday"}, {"now": 5}):
        out, err = run("render", "--template", probe, conversation(value), code=1)
        assert not out and err.count("\n") == 1, err
    pathlib.Path(probe).write_text("{% if %}")
    assert "line" in run("render", "--template", probe, file, code=1)[1]
    assert run("render", synth_vocab_only(), file, code=1)[1].count("\n") == 1


def synth_vocab_only():
    """A file without tensors and without a template."""
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
    pathlib.Path(path("empty.gguf")).write_bytes(data)
    return path("empty.gguf")


def test_bad_arguments_exit_64_and_failures_exit_1_with_one_line():
    shape = ("synth", "--shape", SMALL)
    for args in (
        ("nonsense",), ("info",), ("info", "a", "b"), ("info", "--nonsense", "a"), ("verify",), ("synth",),
        (*shape, "--format", "Q9_9", "-o", path("x")), (*shape, "--format", "Q4_0"), (*shape, "-o", path("x")),
        (*shape, "--format", "Q4_0", "--seed", "x", "-o", path("x")),
        (*shape, "--format", "Q4_0", "--arch", "gpt9", "-o", path("x")),
        (*shape, "--format", "Q4_0", "--split", "0", "-o", path("x")),
        (*shape, "--format", "Q4_0", "--split", "400", "-o", path("x")),
        (*shape, "--format", "Q4_0", "--n-vocab", "5", "-o", path("x")),
        (*shape, "--format", "Q4_0", "--n-vocab", "500", "--vocab", "f", "-o", path("x")),
        ("synth", "--shape", "huge", "--format", "Q4_0", "-o", path("x")),
        ("synth", "--shape", "tiny,n_head=3", "--format", "Q4_0", "-o", path("x")),
        ("synth", "--shape", "tiny,n_layer=0", "--format", "Q4_0", "-o", path("x")),
        ("synth", "--shape", "tiny,colour=3", "--format", "Q4_0", "-o", path("x")),
        ("tokenize",), ("tokenize", "a", "b"), ("detokenize",), ("tokenize", "a", "--nonsense"),
        ("picture",), ("picture", "-o", "x", "a", "b"), ("render",), ("render", "a"), ("render", "--template", "a"), ("render", "--template", "a", "b", "c"),
    ):
        out, err = run(*args, code=64)
        assert not out and err.startswith(("weft-gguf: ", "weft-synth: ")) and err.count("\n") == 1, (args, err)
    assert "from 1 to 67108864" in run("info", "a", "--max-context", "0", code=64)[1]
    assert run(code=64)[1].startswith("usage: ")
    os.symlink("/dev/full", path("full"))  # not the device itself: a bug could replace it
    for args in (
        ("info", path("absent")), ("verify", path("absent")), ("tokenize", path("absent")), ("info", "/dev/null"),
        (*shape, "--format", "Q4_0", "-o", "/absent/x"), (*shape, "--format", "Q4_0", "-o", path("full")),
        (*shape, "--format", "Q4_0", "--vocab", path("absent"), "-o", path("x")),
    ):
        out, err = run(*args, code=1)
        assert not out and err.startswith(("weft-gguf: ", "weft-synth: ")) and err.count("\n") == 1, (args, err)
    assert not [f for f in os.listdir(FOLDER.name) if f.endswith(".part")]
    assert not os.path.exists(path("x")) and os.path.islink(path("full"))
    assert run("synth", "--help")[0].startswith(b"usage: weft-synth ")
    for command in ("info", "verify", "tokenize", "detokenize", "picture", "render"):
        assert run(command, "--help")[0].startswith(b"usage: weft-gguf " + command.encode())


def picture(name):
    return os.path.join(DATA, "golden-vision", "decode", name)


def test_pictures_are_decoded_resized_and_refused():
    out, err = run("picture", picture("exif-6.jpg"), picture("plain.gif"))
    assert out.decode().split("\n")[0].endswith("exif-6.jpg: JPEG, 47 x 61 pixels") and b"GIF, 61 x 47 pixels\n" in out
    run("picture", "--size", "20x10", "--filter", "lanczos", "-o", path("p.ppm"), picture("rgb8.png"))
    pixels = pathlib.Path(path("p.ppm")).read_bytes()
    assert pixels.startswith(b"P6\n20 10\n255\n") and len(pixels) == 13 + 600
    for args, why in (
        ((picture("bomb-30000x30000-1bit.png"),), "30000 x 30000 pixels; at most"), ((picture("cut.jpg"),), "Premature end"),
        ((picture("text.png"),), "no PNG, JPEG, WebP or GIF"), ((path("absent"),), "No such file"), ((os.path.dirname(path("absent")),), "Is a directory"),
        (("--size", "5", picture("rgb8.png")), "--size 5 is not WxH"),
        (("--size", "5x5", "--filter", "box", picture("rgb8.png")), "--filter box is not known"),
    ):
        out, err = run("picture", *args, code=1)
        assert why in err and err.count("\n") == 1, (args, err)


def test_projectors_are_made_described_and_used():
    for kind in ("qwen3vl_merger", "qwen2.5vl_merger", "gemma3", "gemma4v", "gemma4uv", "pixtral", "lfm2", "idefics3", "internvl",
                 "kimivl", "glm4v", "hunyuanvl"):
        file = path("mmproj.gguf")
        run("synth", "--projector", kind, "--shape", "tiny,n_layer=2", "--format", "Q8_0", "-o", file)
        assert b": ok, " in run("verify", file)[0]
        assert info(file)["projector"]["kind"] == kind and kind in run("info", file)[0].decode().split("\nprojector\n")[1]
        out = run("picture", "--projector", file, "--rows", path("rows"), "--threads", 1, picture("rgb8.png"))[0].decode()
        rows = int(re.search(r"(\d+) rows, \d+ positions, encoded in", out)[1])
        assert os.path.getsize(path("rows")) == rows * info(file)["projector"]["row_values"] * 4 > 0
    out, err = run("picture", "--projector", path("mmproj.gguf"), "--backend", "abacus", picture("rgb8.png"), code=1)
    assert "no backend 'abacus' (known: cpu, reference)" in err, err
    model = synth("m.gguf", "--shape", SMALL, "--format", "F16")
    out, err = run("picture", "--projector", model, picture("rgb8.png"), code=1)
    assert "the file is no projector" in err, err
    for args in (("--shape", "huge"), ("--shape", "tiny,n_embd=7"), ("--shape", "tiny,n_embd=36"), ("--shape", "tiny,colour=1")):
        assert run("synth", "--projector", "pixtral", *args, "--format", "F16", "-o", path("x"), code=64)[1].count("\n") == 1
    run("synth", "--projector", "abacus", "--shape", "tiny", "--format", "F16", "-o", path("x"), code=64)
    run("synth", "--projector", "pixtral", "--shape", "tiny", "--format", "Q4_K", "-o", path("x"), code=64)


def test_info_counts_what_drafts():
    small = "tiny,n_embd=512,n_ff=2048,context=4096"
    model = synth("drafted.gguf", "--shape", small + ",n_layer=4", "--format", "Q8_0", "--n-vocab", "512")
    drafter = synth("drafter.gguf", "--shape", small + ",n_layer=2", "--format", "Q8_0", "--n-vocab", "512")
    alone = json.loads(run("info", "--json", "--memory", "2G", model)[0])["fit"]
    both = json.loads(run("info", "--json", "--memory", "2G", "--draft-model", drafter, model)[0])["fit"]
    assert alone["draft_bytes"] == 0 and both["weight_bytes"] == alone["weight_bytes"], (alone, both)
    # A sixteenth of the memory for its keys and values.
    assert os.path.getsize(drafter) + (120 << 20) < both["draft_bytes"] < 512 << 20, both
    assert both["kv_bytes"] <= alone["kv_bytes"], (alone, both)
    assert b"the draft model takes" in run("info", "--memory", "2G", "--draft-model", drafter, model)[0]
    none = json.loads(run("info", "--json", "--memory", "40M", "--draft-model", drafter, model)[0])["fit"]
    assert not none["fits"], none

    # A block of the model's own is counted as weftd uses it: with its weights, keys and hidden states.
    sizes = [tiny_mtp(n) for n in (0, 1)]
    assert sizes[1]["weight_bytes"] > sizes[0]["weight_bytes"] and sizes[1]["page_bytes"] > sizes[0]["page_bytes"], sizes


def tiny_mtp(n_mtp):
    shape = f"tiny,n_layer=4,n_key=2,n_value=4,n_state=16,n_mtp={n_mtp},context=8192"
    file = synth(f"mtp{n_mtp}.gguf", "--arch", "qwen35", "--shape", shape, "--format", "Q8_0", "--n-vocab", "512")
    return json.loads(run("info", "--json", "--memory", "2G", file)[0])["fit"]


def test_info_says_whether_a_projector_fits_a_model():
    def data(name):
        return os.path.join(DATA, "golden-vision", name + ".gguf")
    fit = json.loads(run("info", "--json", "--projector", data("mmproj-qwen3vl"), data("qwen3vl"))[0])["fit"]
    assert fit["fits"] and (fit["picture_rows"], fit["picture_row_values"]) == (4096, 192), fit
    assert fit["encoder_bytes"] > os.path.getsize(data("mmproj-qwen3vl")), fit
    out = run("info", "--projector", data("mmproj-gemma4u"), data("gemma4u"))[0].decode()
    assert "sees pictures of up to 512 rows of 48 values" in out, out  # of a step: they see each other
    out = run("info", "--projector", data("mmproj-gemma3"), data("qwen3vl"))[0].decode()
    assert "is of kind gemma3, which belongs to models of architecture gemma3; this one is qwen3vl" in out, out
    assert "picture_rows" not in json.loads(run("info", "--json", data("qwen3vl"))[0])["fit"]


def renamed(name, arch):
    """A copy of a golden model whose architecture, and the prefix of its keys, is @arch with "z" as its last letter."""
    data = (DATA / "golden" / f"{name}.gguf").read_bytes()
    end = data.index(b"tokenizer.ggml.model"), data.rindex(arch.encode() + b".") + len(arch) + 1
    head = data[: max(end)].replace(arch.encode(), arch[:-1].encode() + b"z")
    pathlib.Path(path("renamed.gguf")).write_bytes(head + data[max(end) :])
    return path("renamed.gguf")


def test_nearest_finds_the_architecture_of_a_file_with_another_name():
    for name, arch in (("glm4", "glm4"), ("afmoe", "afmoe"), ("granitehybrid", "granitehybrid"), ("arcee", "arcee"),
                       ("deepseek2-lite", "deepseek2"), ("gpt-oss-f32", "gpt-oss"), ("lfm2", "lfm2"), ("olmoe", "olmoe")):
        file = renamed(name, arch)
        out = run("info", "--nearest", file)[0].decode()
        assert f"architecture {arch[:-1]}z." in out and f"\n{arch}\n  has all tensors of the file" in out, (name, out)
        fit = info_text(file)
        assert f"architecture '{arch[:-1]}z' is not supported; all its tensors fit '" in fit, (name, fit)
        own = ops_text(str(DATA / "golden" / f"{name}.gguf"))
        assert own and ops_text("--override-kv", f"general.architecture=str:{arch}", file) == own, name


def ops_text(*args):
    return run("info", "--ops", "reference", *args)[0].decode()


def test_values_are_replaced_where_a_reader_takes_them():
    file = str(DATA / "golden" / "qwen3.gguf")
    out = json.loads(run("info", "--json", "--override-kv", "qwen3.rope.freq_base=float:5,a.b=str:c d", file)[0])
    assert (out["metadata"]["qwen3.rope.freq_base"], out["metadata"]["a.b"]) == (5, "c d"), out["metadata"]
    assert "override-kv: a: the type must be" in run("info", "--override-kv", "a=text:c", file, code=1)[1]


def info_text(file):
    return run("info", file)[0].decode()


def test_nearest_names_the_differences():
    out = run("info", "--nearest", str(DATA / "golden" / "glm4.gguf"))[0].decode()
    first = out.split("\n\n")[1]
    assert "tensors that it needs and the file lacks:\n    ffn_gate.weight\n" in first, out
    assert "tensors of the file that it does not have:\n    post_attention_norm.weight\n    post_ffw_norm.weight" in first, out
    file = pathlib.Path(path("bare.gguf"))
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(64))
    assert "names no architecture" in run("info", "--nearest", str(file), code=1)[1]


main(globals())
