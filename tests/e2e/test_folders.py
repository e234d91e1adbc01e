"""Folders of safetensors as Hugging Face's libraries publish them: the same bits as a GGUF file of the same numbers."""
import itertools
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import tempfile

import hf_encoder
import hf_folder
import hf_pictures
import hf_quantise
import pictures
from golden_models import FLAGS, REQUESTS, ask, golden
from manager import wait_end, wait_until
from test_models import models
from upgrading import Daemon, upgrade
from weftd import ANY_TIME, DATA, LIMIT_S, Weftd, assisted_model, every, fewer, main, program, synth, until_accepted

GOLDEN = ("llama-gqa", "llama-mha", "llama-tied", "llama-yarn", "llama-linear", "llama-f16", "llama-bf16", "mistral3",
          "qwen2", "qwen3", "qwen3moe", "phi3", "gemma2", "gemma3", "gemma4", "gemma4-moe", "gemma4-ple", "granite", "olmo2", "glm4moe-mtp", "minimax-m2",
          "lfm2", "lfm2moe", "qwen2moe", "smollm3", "seed-oss", "glm4", "exaone4", "exaone4-window", "ernie4-5",
          "ernie4-5-moe", "gemma", "arcee", "olmoe", "dots1", "deepseek", "granitemoe", "deepseek2-lite",
          "deepseek2-v3", "deepseek2-mtp")
# Decays are stored as logarithms, and the value heads of Qwen 3.5 in another order, which is that of a sum.
HYBRIDS = {"nemotron-h-moe-mtp": True, "qwen3next": True, "qwen35-mtp": False, "qwen35moe-mtp": False}


def digests(model, *flags):
    with Weftd(*FLAGS, *flags, "--threads", 2, "--speculation", "off", model=model) as d:
        return [ask(d, r, 24) for r in REQUESTS[:3]]


def folder_of(name, where, n_shards=2):
    return hf_folder.write_folder(golden(name), pathlib.Path(where) / name, n_shards)


def info(folder):
    """Returns the exit code and the message of weft-gguf info."""
    done = subprocess.run([program("weft-gguf"), "info", "--no-fit", str(folder)], capture_output=True, text=True)
    return done.returncode, done.stderr


def metadata(folder):
    """Returns the keys of GGUF that weft-gguf info shows."""
    done = subprocess.run([program("weft-gguf"), "info", "--no-fit", "--json", folder], capture_output=True, text=True)
    return json.loads(done.stdout)["metadata"]


def test_a_folder_gives_the_bits_of_a_gguf_file():
    for name in every(GOLDEN, ("llama-gqa", "gemma3", "lfm2moe", "granitemoe", "deepseek2-v3")):
        with tempfile.TemporaryDirectory() as where:
            assert digests(folder_of(name, where)) == digests(golden(name)), name


def wrap(folder, change):
    """Makes the folder of a text model that of a model with pictures: the configuration and the names are inside."""
    edit(folder, "config.json", change)
    for path in pathlib.Path(folder).glob("*.safetensors"):
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        text = data[8:8 + n].replace(b'"model.', b'"model.language_model.')
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n:])
    index = pathlib.Path(folder) / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"model.layers', '"model.language_model.layers')
                     .replace('"model.norm', '"model.language_model.norm')
                     .replace('"model.embed', '"model.language_model.embed'))


def model_of(name, where):
    """Returns a golden model, or a copy of it whose numbers a folder can have."""
    if name in HYBRIDS:
        return hf_folder.with_logarithms(golden(name), os.path.join(where, "model.gguf"))
    if name == "mistral4":
        return hf_folder.with_temperature_length(golden(name), os.path.join(where, "model.gguf"))
    if name == "glm4v":
        return pictures.FOLDER / "glm4v.gguf"
    return golden(name)


def test_experts_in_one_tensor_give_the_bits_of_a_gguf_file():
    with tempfile.TemporaryDirectory() as where:
        model = model_of("mistral4", where)
        folder = hf_folder.write_folder(model, os.path.join(where, "folder"), 2)
        assert digests(folder) == digests(model)


def test_hybrids_give_the_tokens_of_a_gguf_file():
    for name, same_bits in every([*HYBRIDS.items()], [*HYBRIDS.items()][::2]):
        with tempfile.TemporaryDirectory() as where:
            model = model_of(name, where)
            folder = hf_folder.write_folder(model, pathlib.Path(where) / name, 2)
            results = []
            for path in (folder, model):
                with Weftd(*FLAGS, "--threads", 2, "--speculation", "off", model=path) as d:
                    results.append([ask(d, {**r, "temperature": 0}, 24) for r in REQUESTS[:3]])
            for (ids, digest), (ids_gguf, digest_gguf) in zip(*results):
                assert ids == ids_gguf and (digest == digest_gguf or not same_bits), name


# A model of each architecture whose folders are published often.
PUBLISHED_IN_BF16 = ("llama-gqa", "mistral3", "qwen2", "qwen3", "qwen3moe", "qwen3next", "qwen35-mtp", "qwen35moe-mtp", "gemma3", "gemma4",
                     "gemma4-moe", "gemma4-ple", "glm4moe-mtp", "phi3", "granite", "olmo2", "nemotron-h-moe-mtp", "lfm2", "lfm2moe",
                     "deepseek2-v3", "mistral4", "minimax-m2", "gpt-oss-f32")


def in_bf16(name, where):
    """Writes the folder and the file of a golden model in BF16. Returns their paths."""
    folder, file = os.path.join(where, name), os.path.join(where, name + ".gguf")
    hf_quantise.write_bf16(model_of(name, where), folder, file)
    return folder, file


def test_a_bf16_folder_of_each_architecture_gives_the_bits_of_a_gguf_file():
    for name in every(PUBLISHED_IN_BF16, ("qwen3moe", "qwen35moe-mtp", "gemma4-ple", "gpt-oss-f32")):
        with tempfile.TemporaryDirectory() as where:
            folder, file = in_bf16(name, where)
            assert digests(folder) == digests(file), name


def test_nemotron_without_experts_gives_the_bits_of_a_gguf_file():
    with tempfile.TemporaryDirectory() as where:
        dense = hf_folder.with_dense_ffns(golden("nemotron-h-moe-mtp"), pathlib.Path(where) / "dense.gguf")
        model = hf_folder.with_logarithms(dense, pathlib.Path(where) / "model.gguf")
        folder = hf_folder.write_folder(model, pathlib.Path(where) / "folder", 2)
        assert digests(folder) == digests(model)
        edit(folder, "config.json", lambda c: c.update(hybrid_override_pattern="M-M*EM"))
        code, message = info(folder)
        assert code == 1 and "block 4 is neither mamba, attention nor mlp" in message, message


def test_blocks_of_multi_token_prediction_are_those_of_a_gguf_file():
    for name in fewer(("glm4moe-mtp", "deepseek2-mtp", "nemotron-h-moe-mtp", "qwen35-mtp", "qwen35moe-mtp")):
        with tempfile.TemporaryDirectory() as where:
            of = [subprocess.run([program("weft-gguf"), "info", "--ops", "cpu", path], capture_output=True, text=True)
                  for path in (folder_of(name, where), golden(name))]
            assert of[0].returncode == 0 and of[0].stdout == of[1].stdout and "draft_in" in of[0].stdout, (name, of[0])


# architecture: what a model of it has beside a block of multi-token prediction
WITH_BLOCKS = {"qwen35": "n_key=2,n_value=2,n_state=16", "qwen3next": "n_key=2,n_value=4,n_state=32,n_rot=16,n_expert=4,n_used=2,n_shared=32"}


def test_a_folder_drafts_with_its_own_block():
    """The blocks of these models are mostly right, so that their drafts are accepted if their numbers are."""
    for arch, more in every([*WITH_BLOCKS.items()], [("qwen3next", WITH_BLOCKS["qwen3next"])]):
        synthetic = synth(f"tiny-mtp-{arch}-f32", "--arch", arch, "--shape", f"tiny,n_layer=4,n_mtp=1,context=1024,n_vocab=512,loud=0.02,{more}",
                          "--format", "F32")
        with tempfile.TemporaryDirectory() as where:
            model = hf_folder.with_logarithms(synthetic, pathlib.Path(where) / "model.gguf")
            folder = hf_folder.write_folder(model, pathlib.Path(where) / "folder", 2)
            ops = [subprocess.run([program("weft-gguf"), "info", "--ops", "cpu", path], capture_output=True, text=True) for path in (folder, model)]
            assert ops[0].returncode == 0 and ops[0].stdout == ops[1].stdout and "draft_in" in ops[0].stdout, (arch, ops)
            request = {**REQUESTS[1], "temperature": 0}
            with Weftd(*FLAGS, "--speculation", "off", model=model) as d:
                should = ask(d, request, 24)
            with Weftd(*FLAGS, *ANY_TIME, "--draft-sources", "mtp", model=folder) as d:
                def turn():
                    assert ask(d, request, 24) == should
                until_accepted(d, "mtp", turn)


def test_ernies_block_drafts_in_a_folder():
    with tempfile.TemporaryDirectory() as where:
        model = hf_folder.with_block(golden("ernie4-5-moe"), os.path.join(where, "model.gguf"))
        folder = hf_folder.write_folder(model, os.path.join(where, "folder"), 2)
        assert "model.mtp_linear_proj.0.weight" in (pathlib.Path(folder) / "model.safetensors.index.json").read_text()
        ops = [subprocess.run([program("weft-gguf"), "info", "--ops", "cpu", path], capture_output=True, text=True) for path in (folder, model)]
        assert ops[0].returncode == 0 and ops[0].stdout == ops[1].stdout and "draft_in" in ops[0].stdout, ops
        request = {**REQUESTS[1], "temperature": 0}
        with Weftd(*FLAGS, "--speculation", "off", model=model) as d:
            should = ask(d, request, 24)
        with Weftd(*FLAGS, *ANY_TIME, "--draft-sources", "mtp", model=folder) as d:
            def turn():
                assert ask(d, request, 24) == should
            until_accepted(d, "mtp", turn)


# draft model: the model for which it drafts
DRAFTERS = {"qwen35-dflash": "qwen35-mtp", "qwen35-dflash2": "qwen35-mtp", "qwen3-dspark": "qwen3", "gemma4-assistant": "gemma4", "gemma4-ple-assistant": "gemma4-ple"}


def drafted(model, drafter):
    """Returns tokens and digests of requests with drafts of @drafter."""
    with Weftd(*FLAGS, *ANY_TIME, "--threads", 2, "--draft-sources", "mtp", "--draft-model", drafter, model=model) as d:
        results = [ask(d, r, 24) for r in REQUESTS[:3]]
        wait_until("a draft", lambda: d.stats()["worker"]["drafts"]["mtp"]["drafted"])
        return results


def in_f32(name, where):
    """Writes the folder of a golden draft model, of which one has clusters of tokens, too. Returns the paths of both."""
    file, more = golden(name), {}
    if name == "gemma4-ple-assistant":
        more = {"masked_embedding.centroids.weight": ("F32", (2, 40), bytes(320)), "masked_embedding.token_ordering": ("I64", (512,), bytes(4096))}
    return hf_folder.write_folder(file, os.path.join(where, "f32"), 2, {**hf_folder.tensors_of(hf_folder.Gguf(file)), **more}), file


def drafter_pair(form, name, where):
    """Writes a folder and a GGUF file of the same numbers. Returns their paths."""
    if form == "f32":
        return in_f32(name, where)
    if form == "bf16":
        return in_bf16(name, where)
    return quantised(form, name, where)


def test_draft_models_in_folders_are_those_of_a_gguf_file_and_change_no_bit():
    plain = {model: digests(golden(model)) for model in set(DRAFTERS.values())}
    few = (*((name, "f32") for name in DRAFTERS), ("qwen35-dflash2", "bf16"), ("qwen35-dflash", "awq"), ("qwen35-dflash2", "fp8-block"),
           ("gemma4-assistant", "nvfp4-modelopt"))
    for name, form in every([*itertools.product(DRAFTERS, ("f32", "bf16", *PAIRED_FORMS))], few):
        with tempfile.TemporaryDirectory() as where:
            pair, model = drafter_pair(form, name, where), DRAFTERS[name]
            ops = [subprocess.run([program("weft-gguf"), "info", "--ops", "cpu", "--draft-model", drafter, golden(model)], capture_output=True,
                                  text=True) for drafter in pair]
            assert ops[0].returncode == 0 and ops[0].stdout == ops[1].stdout, (name, form, ops)
            assert drafted(golden(model), pair[0]) == plain[model], (name, form)


def test_each_tensor_of_a_draft_model_is_that_of_a_gguf_file():
    """Drafts decide no token, so each tensor of the folder in turn begins with NaN, and `verify` names it."""
    for name in DRAFTERS:
        with tempfile.TemporaryDirectory() as where:
            folder = pathlib.Path(folder_of(name, where, 1))
            file, tensors = hf_folder.Gguf(golden(name)), hf_folder.read_safetensors(folder / "model.safetensors")
            assert len(tensors) == len([t for t in file.tensors if not t.startswith("rope_")])
            of_one_layer = [t for t in tensors.items() if not re.search(r"layers\.[1-9]", t[0])]
            for of, (kind, shape, data) in every([*tensors.items()], of_one_layer):
                hf_folder.write_safetensors(folder / "model.safetensors", {**tensors, of: (kind, shape, struct.pack("<f", math.nan) + data[4:])})
                done = subprocess.run([program("weft-gguf"), "verify", str(folder)], capture_output=True, text=True)
                named = re.search(r"tensor (\S+) \(F32\): not finite", done.stderr)
                assert named and file.tensors[named[1]] == (kind, tuple(shape[::-1]), data), (name, of, done.stderr)


def test_drafts_of_draft_models_in_folders_are_accepted():
    target = synth("tiny-qwen3-quiet-f32", "--arch", "qwen3", "--shape", "tiny,n_layer=4,context=1024,n_vocab=512,loud=0.02", "--format", "F32")
    with tempfile.TemporaryDirectory() as where:
        block = hf_folder.copying_drafter(target, os.path.join(where, "drafter.gguf"))
        for model, drafter in fewer(((target, block), assisted_model(0.02, "F32"))):
            folder = hf_folder.write_folder(drafter, os.path.join(where, pathlib.Path(drafter).stem), 2)
            request = {**REQUESTS[1], "temperature": 0}
            with Weftd(*FLAGS, "--speculation", "off", model=model) as d:
                should = ask(d, request, 24)
            with Weftd(*FLAGS, *ANY_TIME, "--draft-sources", "mtp", "--draft-model", folder, model=model) as d:
                def turn():
                    assert ask(d, request, 24) == should
                until_accepted(d, "mtp", turn)


def test_the_text_model_of_a_model_with_pictures():
    def change(config):
        n = config["head_dim"] // 2
        sections = [n - 2 * (n // 3), n // 3, n // 3]
        text = {**config, "model_type": "qwen3_vl_text",
                "rope_scaling": {"rope_type": "default", "mrope_section": sections, "mrope_interleaved": True}}
        config.clear()
        config.update({"model_type": "qwen3_vl", "text_config": text, "vision_config": {"deepstack_visual_indexes": [1]}})
    with tempfile.TemporaryDirectory() as where:
        folder, file = in_bf16("qwen3", where)
        wrap(folder, change)
        done = subprocess.run([program("weft-gguf"), "info", "--no-fit", folder], capture_output=True, text=True)
        assert done.returncode == 0 and "qwen3vl" in done.stdout, done
        # each family has its own top_k and top_p, without which a request may sample other tokens of the same logits
        assert digests(folder, "--sampling", "openai") == digests(file, "--sampling", "openai")


# golden model with pictures: model_type of its folder
SEEING = {"gemma3": "gemma3", "gemma4": "gemma4", "mistral3": "mistral3", "qwen3vl": "qwen3_vl", "qwen25vl": "qwen2_5_vl", "qwen35": "qwen3_5"}


def rows_of(projector, picture, out):
    """Returns the rows of the picture as the projector, a file or a folder, computes them."""
    done = subprocess.run([program("weft-gguf"), "picture", "--projector", projector, "--rows", out, picture], capture_output=True,
                          text=True)
    assert done.returncode == 0, done
    return pathlib.Path(out).read_bytes()


def said_of_picture(model, *flags):
    with pictures.started_at(model, "--speculation", "off", "--threads", "2", *flags) as d:
        marker = d.request("GET", "/props")[2]["media_marker"]
        body = {"prompt": {"prompt_string": f"What is {marker}?", "multimodal_data": [pictures.picture("decode/rgb8.png")]},
                "temperature": 0, "n_predict": 16, "ignore_eos": True, "return_tokens": True}
        answer = pictures.post(d, "/completion", body)
        return answer["tokens"], answer["tokens_evaluated"]


def test_the_encoder_in_a_folder_gives_the_rows_of_a_projector_file():
    for name in every([*SEEING], ("gemma4", "mistral3", "qwen35")):
        kind = SEEING[name]
        with tempfile.TemporaryDirectory() as where:
            model, projector = pictures.FOLDER / f"{name}.gguf", pictures.FOLDER / f"mmproj-{name}.gguf"
            copy = pathlib.Path(where) / f"{name}.gguf"
            os.symlink(projector, pathlib.Path(where) / f"mmproj-{name}.gguf")
            if name == "qwen35":
                model = hf_folder.with_logarithms(model, copy)
            if name == "mistral3":
                model = hf_pictures.with_break(model, projector, copy)
            folder = hf_pictures.write_folder(model, projector, os.path.join(where, "folder", name), kind)
            for picture in ("rgb8.png", "q90-420.jpg"):
                rows = [rows_of(p, pictures.FOLDER / "decode" / picture, os.path.join(where, "rows")) for p in (projector, folder)]
                assert rows[0] == rows[1] and any(rows[0]), (name, picture)
            answers = [said_of_picture(path) for path in (model, folder)]
            assert answers[0] == answers[1] and answers[0][1] > 10, (name, answers)


def test_a_folder_of_glm_with_a_projector_beside_it():
    """RoPE rotates neighbours in the folder, and halves of a head in the file."""
    model, projector = pictures.FOLDER / "glm4v.gguf", pictures.FOLDER / "mmproj-glm4v.gguf"
    with tempfile.TemporaryDirectory() as where:
        folder = hf_pictures.write_folder(model, projector, os.path.join(where, "glm4v"), "glm4v")
        assert digests(folder) == digests(model)
        os.symlink(projector, os.path.join(where, "mmproj-glm4v.gguf"))
        answers = [said_of_picture(path) for path in (model, folder)]
        assert answers[0] == answers[1] and answers[0][1] > 10, answers
        edit(folder, "config.json", lambda c: c["text_config"].pop("rope_scaling"))
        code, message = info(folder)
        assert code == 1 and "config.json: mrope_section" in message, message


def test_backend_reference_computes_pictures_once_the_model_is_loaded():
    with tempfile.TemporaryDirectory() as where:
        model, projector = pictures.FOLDER / "gemma3.gguf", pictures.FOLDER / "mmproj-gemma3.gguf"
        folder = hf_pictures.write_folder(model, projector, os.path.join(where, "folder"), SEEING["gemma3"])
        answers = [said_of_picture(path, "--backend", "reference") for path in (model, folder)]
        assert answers[0] == answers[1] and answers[0][1] > 10, answers


def test_an_encoder_in_bf16_gives_the_rows_of_a_projector_file():
    for name in fewer(("gemma3", "qwen3vl", "qwen25vl")):
        with tempfile.TemporaryDirectory() as where:
            g, file = hf_folder.Gguf(pictures.FOLDER / f"mmproj-{name}.gguf"), os.path.join(where, "mmproj.gguf")
            tensors = {k: hf_quantise.cut(t) if len(t[1]) > 1 and t[0] == "F32" else t for k, t in g.tensors.items()}
            hf_quantise.write_gguf(file, g, tensors)
            folder = hf_pictures.write_folder(pictures.FOLDER / f"{name}.gguf", file, os.path.join(where, "folder"), SEEING[name])
            rows = [rows_of(p, pictures.FOLDER / "decode" / "q90-420.jpg", os.path.join(where, "rows")) for p in (file, folder)]
            assert rows[0] == rows[1] and any(rows[0]), name


def is_of_encoder(name, shape):
    """Returns true for matrices of an encoder's layers."""
    return re.search("vision|visual", name) and re.search(r"(layers|blocks)\.\d+\..*weight$", name) and len(shape) == 2


def test_a_quantised_encoder_gives_the_rows_of_one_in_16_bits():
    for name, form in fewer((("qwen3vl", "fp8-channel"), ("gemma3", "awq"), ("qwen25vl", "mxfp4"), ("gemma4", "gptq-asym"))):
        make, config = hf_quantise.FORMS[form]
        with tempfile.TemporaryDirectory() as where:
            folder = pathlib.Path(hf_pictures.write_folder(pictures.FOLDER / f"{name}.gguf", pictures.FOLDER / f"mmproj-{name}.gguf",
                                                           os.path.join(where, name), SEEING[name]))
            edit(folder, "config.json", lambda c: c.update(quantization_config=config))
            files, rng = [*folder.glob("*.safetensors")], random.Random(name)
            quantised_ones = hf_folder.read_safetensors(*files)
            plain = dict(quantised_ones)
            of = [n for n, (_, shape, _) in plain.items() if is_of_encoder(n, shape) and hf_quantise.can_have(form, shape)]
            for n in of:
                m = make(rng, *plain[n][1])
                kind = "BF16" if m.kind in ("BF16", "MXFP4") else "F16"
                values = [[hf_quantise.f32(v) for v in row] for row in m.values]
                plain[n] = (kind, plain[n][1], b"".join(hf_quantise.float_rows(values, kind)))
                del quantised_ones[n]
                quantised_ones.update({n[:-len("weight")] + end: tensor for end, tensor in m.tensors.items()})
            for path in (*files, folder / "model.safetensors.index.json"):
                path.unlink()
            rows = []
            for tensors in (plain, quantised_ones):
                hf_folder.write_safetensors(folder / "model.safetensors", tensors)
                rows.append(rows_of(folder, pictures.FOLDER / "decode" / "q90-420.jpg", where + "/rows"))
            assert len(of) > 3 and rows[0] == rows[1] and any(rows[0]), (name, form, of)
            # kernels of patches are not quantised
            n = next(n for n, (kind, shape, _) in plain.items() if "patch_embed" in n and len(shape) > 2 or "input_proj" in n)
            kind, shape, data = quantised_ones[n]
            quantised_ones[n] = ("I8", shape, bytes(math.prod(shape)))
            hf_folder.write_safetensors(folder / "model.safetensors", quantised_ones)
            done = subprocess.run([program("weft-gguf"), "picture", "--projector", folder, "--rows", where + "/rows",
                                   pictures.FOLDER / "decode" / "rgb8.png"], capture_output=True, text=True)
            assert done.returncode == 1 and n in done.stderr, (name, done)


def test_the_line_break_of_pictures_is_found_in_the_small_file():
    with tempfile.TemporaryDirectory() as where:
        model, projector = pictures.FOLDER / "mistral3.gguf", pictures.FOLDER / "mmproj-mistral3.gguf"
        model = hf_pictures.with_break(model, projector, pathlib.Path(where) / "mistral3.gguf")
        folder = pathlib.Path(hf_pictures.write_folder(model, projector, os.path.join(where, "folder"), "mistral3"))
        added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        number = next(t["id"] for t in added if t["content"] == "[IMG_BREAK]")
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {str(number): {"content": "[IMG_BREAK]"}}}))
        rows = [rows_of(p, pictures.FOLDER / "decode" / "rgb8.png", where + "/rows") for p in (projector, folder)]
        assert rows[0] == rows[1] and any(rows[0])


def test_the_encoder_beside_a_text_model_without_a_part_of_its_own():
    """Older files of Qwen 2.5 VL have the text model's numbers beside vision_config, under names that both may have."""
    def flatten(config):
        config.update({**config.pop("text_config"), "model_type": "qwen2_5_vl"})

    projector = pictures.FOLDER / "mmproj-qwen25vl.gguf"
    with tempfile.TemporaryDirectory() as where:
        folder = hf_pictures.write_folder(pictures.FOLDER / "qwen25vl.gguf", projector, os.path.join(where, "folder"), "qwen2_5_vl")
        edit(folder, "config.json", flatten)
        rows = [rows_of(p, pictures.FOLDER / "decode" / "rgb8.png", where + "/rows") for p in (projector, folder)]
        assert rows[0] == rows[1] and any(rows[0])


ENCODER_REFUSED = [
    ("gemma3", lambda c: c["vision_config"].pop("hidden_size"), "vision_config.hidden_size"),
    ("gemma3", lambda c: c.update(mm_tokens_per_image=5), "config.json: mm_tokens_per_image"),
    ("gemma3", lambda c: c.update(model_type="x"), "the image encoder of a folder of this model_type is not supported"),
    ("gemma3", lambda c: c.pop("vision_config"), "vision_config is missing"),
    ("gemma4", lambda c: c["vision_config"].update(hidden_activation="relu"), "vision_config.hidden_activation"),
    ("gemma4", lambda c: c["vision_config"].update(patch_size=8), "input_proj.weight' has a shape"),
    ("gemma3", lambda c: c["vision_config"].update(num_hidden_layers=9), "v.blk.4.ln1.weight"),
    ("gemma3", lambda c: c["vision_config"].update(num_hidden_layers=3), "config.json: vision_config.num_hidden_layers is 3, but model-00001-of-00002.safetensors has tensor 'vision_tower."),
    ("qwen25vl", lambda c: c["vision_config"].update(depth=1), "config.json: vision_config.depth is 1, but model-00001-of-00002.safetensors has tensor 'visual.blocks.1."),
    ("mistral3", lambda c: c["vision_config"].update(num_attention_heads=3), "has no whole heads"),
    ("qwen3vl", lambda c: c["vision_config"].update(deepstack_visual_indexes=[1]), "vision_config.deepstack_visual_indexes"),
    ("qwen25vl", lambda c: c["vision_config"].update(fullatt_block_indexes=[1, 2]), "vision_config.fullatt_block_indexes"),
]


# model: limits that make a picture as small and as large as can be, and what is refused
PREPARED = {
    "qwen3vl": ({"max_pixels": 1, "min_pixels": 1}, {"max_pixels": 1 << 30, "min_pixels": None}, [("max_pixels", 0)]),
    "qwen25vl": ({"size": {"longest_edge": 1, "shortest_edge": 1}}, {"size": {"max_pixels": 1 << 30}}, [("patch_size", 3)]),
    "mistral3": ({"size": {"longest_edge": 1}}, {"size": {"longest_edge": 1 << 15}}, [("patch_size", {"height": 1, "width": 1})]),
    "gemma4": ({"max_soft_tokens": 1}, {"max_soft_tokens": 1 << 14}, [("pooling_kernel_size", 7), ("max_soft_tokens", "x")]),
}


def test_the_limits_of_a_pictures_size_are_those_of_the_folder():
    for name, (small, large, wrong) in fewer([*PREPARED.items()]):
        with tempfile.TemporaryDirectory() as where:
            folder = hf_pictures.write_folder(pictures.FOLDER / f"{name}.gguf", pictures.FOLDER / f"mmproj-{name}.gguf", os.path.join(where, name), SEEING[name])
            own = pathlib.Path(folder) / "preprocessor_config.json"
            colours = json.loads(own.read_text())

            def n_bytes(limits):
                own.write_text(json.dumps({**colours, **limits}))
                return len(rows_of(folder, pictures.FOLDER / "decode" / "q90-420.jpg", where + "/rows"))
            usual, least = n_bytes({}), n_bytes(small)
            assert usual > 4 * least > 0 and usual == n_bytes(large), (name, usual, least)
            if name.startswith("qwen"):
                assert least == n_bytes({"size": {"max_pixels": 1}}) and n_bytes({"min_pixels": 1 << 19}) > usual, name
            for key, value in wrong:
                own.write_text(json.dumps({**colours, key: value}))
                done = subprocess.run([program("weft-gguf"), "picture", "--projector", folder, "--rows", where + "/rows",
                                       pictures.FOLDER / "decode" / "rgb8.png"], capture_output=True, text=True)
                assert done.returncode == 1 and f"preprocessor_config.json: {key} is wrong" in done.stderr, (name, key, done)
            # newer folders have it in processor_config.json
            own.unlink()
            own.with_name("processor_config.json").write_text(json.dumps({"image_processor": {**colours, **small}}))
            assert len(rows_of(folder, pictures.FOLDER / "decode" / "q90-420.jpg", where + "/rows")) == least, name


def test_what_is_wrong_with_an_encoder_is_named():
    for name, change, reason in ENCODER_REFUSED:
        with tempfile.TemporaryDirectory() as where:
            folder = hf_pictures.write_folder(pictures.FOLDER / f"{name}.gguf", pictures.FOLDER / f"mmproj-{name}.gguf",
                                              os.path.join(where, name), SEEING[name])
            edit(folder, "config.json", change)
            done = subprocess.run([program("weft-gguf"), "picture", "--projector", folder, "--rows", where + "/rows",
                                   pictures.FOLDER / "decode" / "rgb8.png"], capture_output=True, text=True)
            assert done.returncode == 1 and reason in done.stderr and len(done.stderr) < 600, (name, reason, done)


def test_a_folder_has_the_sampling_of_its_generation_config():
    generation = {"do_sample": True, "temperature": 0.5, "top_k": 7, "top_p": 0.75, "min_p": None, "repetition_penalty": 1.5}
    with tempfile.TemporaryDirectory() as where:
        folder = folder_of("qwen3", where)
        (pathlib.Path(folder) / "generation_config.json").write_text(json.dumps(generation))
        with Weftd(*FLAGS, "--threads", 1, model=folder) as d:
            props = d.request("GET", "/props")[2]
            of = props["default_generation_settings"]["params"]
            assert props["sampling_source"] == "model-file", props
            assert [of[k] for k in ("temperature", "top_k", "top_p", "repeat_penalty")] == [0.5, 7, 0.75, 1.5], of


def test_a_window_that_the_architecture_lacks_ends_the_context():
    cases = (("llama-gqa", {"sliding_window": 128}, 128), ("llama-gqa", {"sliding_window": None}, None), ("qwen2", {"sliding_window": 128}, 128),
             ("qwen2", {"sliding_window": 128, "use_sliding_window": False}, None), ("gemma3", {"sliding_window": 16}, None))
    for name, more, most in cases:
        with tempfile.TemporaryDirectory() as where:
            folder = folder_of(name, where)
            edit(folder, "config.json", lambda c: c.update(more))
            said, usual = metadata(folder), hf_folder.Gguf(golden(name)).keys
            key = usual["general.architecture"] + ".context_length"
            assert said[key] == (most or usual[key]), (name, more, said[key])


def test_only_block_drafters_read_use_sliding_window():
    """transformers ignores the key for models whose configuration does not have it."""
    def use(config, used):
        types = ["sliding_attention", "full_attention"] * config["num_hidden_layers"]
        config.update(use_sliding_window=used, layer_types=types[:config["num_hidden_layers"]])

    for name in ("gemma3", "gemma4", "qwen35-dflash"):
        with tempfile.TemporaryDirectory() as where:
            folder = folder_of(name, where)
            patterns = []
            for used in (True, False):
                edit(folder, "config.json", lambda c, used=used: use(c, used))
                said = metadata(folder)
                patterns.append(said.get(said["general.architecture"] + ".attention.sliding_window_pattern"))
            assert patterns[0] and (patterns[0] == patterns[1]) == (name != "qwen35-dflash"), (name, patterns)


def test_backend_reference_reads_scattered_rows():
    with tempfile.TemporaryDirectory() as where:
        for name in ("llama-gqa", "qwen3moe"):
            flags = ("--backend", "reference")
            assert digests(folder_of(name, where), *flags) == digests(golden(name), *flags), name


def quantised(form, name, where):
    """Returns the folder and the GGUF file of the same numbers."""
    os.makedirs(where, exist_ok=True)
    folder, file = os.path.join(where, name), os.path.join(where, name + ".gguf")
    if form == "gpt-oss":
        hf_quantise.write_gpt_oss(golden("gpt-oss-f32"), folder, file)
        return folder, file
    assert hf_quantise.write_pair(form, model_of(name, where), folder, file) > 0 or (name == "phi3" and form.startswith("nvfp4")), (form, name)
    return folder, file


def test_quantised_folders_give_the_bits_of_a_gguf_file():
    for form in every(hf_quantise.FORMS, ("mxfp4", "gptq-act-order", "packed")):
        with tempfile.TemporaryDirectory() as where:
            folder, file = quantised(form, "llama-gqa", where)
            assert digests(folder) == digests(file), form


def test_quantised_experts_give_the_bits_of_a_gguf_file():
    for form in every(("fp8-channel", "mxfp4", "nvfp4-modelopt", "awq", "gptq-asym", "packed-8"), ("nvfp4-modelopt", "awq")):
        with tempfile.TemporaryDirectory() as where:
            folder, file = quantised(form, "lfm2moe", where)
            assert digests(folder) == digests(file), form


# A model of each type, and the forms of the page of measurements.
PAIRED = ("llama-gqa", "mistral3", "mistral4", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "qwen3next", "qwen35-mtp",
          "qwen35moe-mtp", "gemma", "gemma2", "gemma3", "gemma4", "gemma4-moe", "gemma4-ple", "phi3", "granitemoe", "olmoe",
          "glm4", "glm4v", "glm4moe-mtp", "lfm2", "lfm2moe", "smollm3", "seed-oss", "exaone4", "ernie4-5", "ernie4-5-moe",
          "arcee", "dots1", "deepseek", "deepseek2-lite", "deepseek2-v3", "nemotron-h-moe-mtp")
PAIRED_FORMS = ("fp8-tensor", "fp8-channel", "fp8-block", "nvfp4-modelopt", "nvfp4-compressed", "mxfp4", "awq", "gptq-sym", "gptq-asym",
                "gptq-act-order", "gptq-8", "packed", "int8")


def test_each_form_gives_the_bits_of_a_gguf_file_in_each_architecture():
    """FP8 with a scale for blocks of 128 columns is rounded to BF16 by the backend `reference` alone."""
    few = (("qwen3next", "awq"), ("qwen35moe-mtp", "fp8-block"), ("gemma4-moe", "fp8-channel"), ("mistral4", "fp8-channel"),
           ("glm4v", "gptq-asym"))
    for name, form in every([*itertools.product(PAIRED, PAIRED_FORMS)], few):
        with tempfile.TemporaryDirectory() as where:
            folder, file = quantised(form, name, where)
            flags = ("--backend", "reference") if form.startswith("fp8") else ()
            assert digests(folder, *flags) == digests(file, *flags), (name, form)


def test_the_page_names_the_forms_and_architectures_that_are_compared():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "measurements" / "checkpoints.md").read_text()
    table = page[page.index("## Formats and architectures"):page.index("## Tokenizers")]
    assert [name for name in PAIRED + PAIRED_FORMS if f"`{name}`" not in table] == []
    assert f"{len(PAIRED)} models, {len(PAIRED_FORMS)} forms" in table


STACK = "experts.down_proj"
STACK_REFUSED = [
    (lambda t, name: t.pop(name + "_scale"), "has no '", "down_proj_scale'"),
    (lambda t, name: t.update({name + "_scale": ("F32", [3, 1, 1], bytes(12))}), "down_proj_scale'", "does not fit the matrices"),
    (lambda t, name: t.update({name: ("I8", *t[name][1:])}), "down_proj'", "has type I8, which is not supported there"),
    (lambda t, name: t.update({name: (t[name][0], [0, *t[name][1][1:]], b"")}), "down_proj'", "has a shape that is not supported"),
]


def test_damaged_stacks_of_experts_name_file_and_key():
    with tempfile.TemporaryDirectory() as where:
        whole = quantised("fp8-tensor", "qwen35moe-mtp", os.path.join(where, "whole"))[0]
        for i, (change, *reasons) in enumerate(STACK_REFUSED):
            folder = pathlib.Path(shutil.copytree(whole, os.path.join(where, str(i))))
            damage(folder, lambda t: change(t, next(name for name in t if name.endswith(STACK))))
            code, message = info(folder)
            assert code == 1 and all(r in message for r in reasons) and ".safetensors: tensor" in message, (i, message)


def test_gpt_oss_gives_the_bits_of_a_gguf_file():
    with tempfile.TemporaryDirectory() as where:
        folder, file = quantised("gpt-oss", "gpt-oss", where)
        for flags in ((), ("--backend", "reference")):
            assert digests(folder, *flags) == digests(file, *flags), flags
        verified = subprocess.run([program("weft-gguf"), "verify", folder], capture_output=True, text=True)
        assert verified.returncode == 0 and "ok, 79 tensors" in verified.stdout, verified


def test_backend_reference_reads_quantised_folders():
    for form in every(hf_quantise.FORMS, ("nvfp4-compressed", "gptq-asym")):
        with tempfile.TemporaryDirectory() as where:
            folder, file = quantised(form, "llama-gqa", where)
            assert digests(folder, "--backend", "reference") == digests(file, "--backend", "reference"), form


def test_a_bf16_folder_of_a_vocabulary_that_speaks():
    model = synth("tiny-bf16", "--arch", "qwen3", "--shape", "tiny", "--format", "BF16")
    with tempfile.TemporaryDirectory() as where:
        folder = hf_folder.write_folder(model, pathlib.Path(where) / "speaks", 3)
        texts = ["The weft is the thread that passes.", "  tabs\tand\nlines", "naïve café 12345"]
        chat = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 16, "temperature": 0}
        results = []
        for path in (model, folder):
            with Weftd(*FLAGS, model=path) as d:
                ids = [d.request("POST", "/tokenize", {"prompt": t})[2]["tokens"] for t in texts]
                answer = d.request("POST", "/v1/chat/completions", chat)[2]
                results.append((ids, answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]))
                d.kill_worker()
                assert d.request("POST", "/v1/chat/completions", chat)[2]["choices"] == answer["choices"]
        assert results[0] == results[1], results


SPOKEN = ["The weft is the thread that passes.", "  two  spaces", "tabs\tand\nlines", "naïve café 12345", "日本語 \U0001F9F5", "", " ",
          "<s>[INST] a </s>", "<0x41>", "\u2581 mark"]


def test_a_vocabulary_of_sentencepiece_has_the_ids_of_a_gguf_file():
    """The folder has tokenizer.model and no tokenizer.json."""
    model = golden("llama-gqa")
    with tempfile.TemporaryDirectory() as where:
        folder = pathlib.Path(folder_of("llama-gqa", where))
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer.model").write_bytes(hf_folder.sentencepiece_of(hf_folder.Gguf(model)))
        results = []
        for path in (model, folder):
            with Weftd(*FLAGS, "--threads", 1, model=path) as d:
                ids = [d.request("POST", "/tokenize", {"content": t, "add_special": True, "parse_special": special})[2]["tokens"]
                       for t in SPOKEN for special in (False, True)]
                texts = [d.request("POST", "/detokenize", {"tokens": i})[2]["content"] for i in ids]
                results.append((ids, texts))
        assert results[0] == results[1] and len({tuple(i) for i in results[0][0]}) > len(SPOKEN) - 2, results
        bad = ((b"\x0a\xff", "cut off behind piece 0"), (b"", "has no pieces"), (hf_folder.proto(1, b"\x0a\x05ab"), "piece 0 is damaged"),
               (hf_folder.proto(1, hf_folder.proto(3, 9)), "piece 0 has the unknown type 9"),
               (hf_folder.sentencepiece_of(hf_folder.Gguf(model), model_type=3), "model_type 3 is not supported"),
               (hf_folder.sentencepiece_of(hf_folder.Gguf(model), extra=1), "remove_extra_whitespaces"),
               (hf_folder.sentencepiece_of(hf_folder.Gguf(model), map=b"abcd"), "precompiled_charsmap"),
               (hf_folder.sentencepiece_of(hf_folder.Gguf(model), model_type=1), "byte_fallback"))
        for content, reason in bad:
            (folder / "tokenizer.model").write_bytes(content)
            code, message = info(folder)
            assert code == 1 and "tokenizer.model: " in message and reason in message, (reason, message)
        (folder / "tokenizer.model").write_bytes(hf_folder.sentencepiece_of(hf_folder.Gguf(model)))
        n = hf_folder.Gguf(model).tensors["token_embd.weight"][1][1]
        (folder / "added_tokens.json").write_text(json.dumps({"<|tool|>": n - 1, "<|word|>": n - 2, "</s>": 2}))
        (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["<|tool|>"]}))
        for i in (n - 1, n - 2):  # the vocabulary ends before them
            content = hf_folder.sentencepiece_of(hf_folder.Gguf(model), n_pieces=n - 2)
            (folder / "tokenizer.model").write_bytes(content)
            text = "<|tool|>" if i == n - 1 else "<|word|>"
            done = subprocess.run([program("weft-gguf"), "tokenize", folder, "--special"], input=text.encode(), capture_output=True)
            assert i in json.loads(done.stdout), (text, done)
        for added, reason in (({"x": "7"}, '"x" is no text with an id'), ({"x": 2}, '"x" has the id of another piece')):
            (folder / "added_tokens.json").write_text(json.dumps(added))
            code, message = info(folder)
            assert code == 1 and "added_tokens.json: " + reason in message, message
        for name in ("added_tokens.json", "special_tokens_map.json"):
            (folder / name).unlink()
        (folder / "tokenizer.model").write_bytes(hf_folder.sentencepiece_of(hf_folder.Gguf(model)))
        for token, reason in (({"content": "</s>", "rstrip": True}, "added_tokens_decoder.2: rstrip is not supported"),
                              ({"content": "<|end|>"}, "added_tokens_decoder.2 is another piece")):
            (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"2": token}}))
            code, message = info(folder)
            assert code == 1 and "tokenizer_config.json: " + reason in message, (reason, message)


def test_a_tokenizer_model_beside_tokenizer_json_is_not_read():
    with tempfile.TemporaryDirectory() as where:
        folder = pathlib.Path(folder_of("llama-gqa", where))
        (folder / "tokenizer.model").symlink_to("/etc/hostname")
        assert info(folder)[0] == 0


def test_a_folder_that_changes_is_noticed():
    with tempfile.TemporaryDirectory() as where:
        folder = folder_of("llama-gqa", where)
        with Weftd(*FLAGS, model=folder) as d:
            before = ask(d, REQUESTS[0], 8)
            shard = pathlib.Path(folder) / "model-00002-of-00002.safetensors"
            with open(shard, "r+b") as f:
                f.truncate(0)
            assert ask(d, REQUESTS[0], 8) == before
            d.kill_worker()
            status, _, value = d.request("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 4})
            assert status == 503 and "was changed" in value["error"]["message"], value


def test_folders_are_models_of_models_dir_with_presets_and_swaps():
    flags = ("--max-context", "512", "--kv-pages", "128", "--threads", "1", "--speculation", "off")
    with tempfile.TemporaryDirectory() as where, tempfile.TemporaryDirectory() as presets:
        for name, path in (("llama-gqa", "org/A"), ("qwen3", "org/B")):
            hf_folder.write_folder(golden(name), pathlib.Path(where) / path, 2)
        pathlib.Path(presets, "named.conf").write_text("model = org/b\nmax-context = 256\n")
        pathlib.Path(presets, "placed.conf").write_text(f"model = {where}/org/A\n")
        with Weftd("--models-dir", where, "--models", presets, *flags, model="") as d:
            assert {m["id"] for m in d.request("GET", "/v1/models")[2]["data"]} == {"A", "B", "named", "placed"}
            body = {**REQUESTS[0], "max_tokens": 8, "ignore_eos": True, "temperature": 0, "return_token_ids": True}

            def tokens(name):
                status, _, value = d.request("POST", "/v1/completions", {**body, "model": name})
                assert status == 200, (name, value)
                return value["choices"][0]["token_ids"]

            of_a, of_b = tokens("A"), tokens("B")
            assert tokens("placed") == of_a and tokens("named") == of_b and of_a != of_b
            status, value = d.admin_request("POST", "/models/A/swap?file=" + f"{where}/org/B")
            assert status == 200, value
            wait_until("the swap", lambda: models(d)["A"].get("swap") not in (None, "under way", "old"))
            assert tokens("A") == of_b, models(d)


def test_the_next_daemon_packs_a_folder_no_more():
    with tempfile.TemporaryDirectory() as where:
        folder = folder_of("llama-gqa", where)
        with Daemon(*FLAGS, "--threads", 2, "--speculation", "off", model=folder) as d:
            before = ask(d, REQUESTS[0], 8)
            pid = upgrade(d)
            assert d.process.wait(LIMIT_S) == 0 and ask(d, REQUESTS[0], 8) == before
            starts = [line for line in d.log.splitlines() if " worker_ready " in line]
            assert [s.split(" weights=")[1].split()[0] for s in starts] == ["packed", "kept"], starts
            os.kill(pid, signal.SIGTERM)
            assert wait_end(pid) == 0


def edit(folder, name, change):
    """Changes the JSON file @name of the folder."""
    path = pathlib.Path(folder) / name
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def no_key(key):
    return lambda f: edit(f, "config.json", lambda c: c.pop(key))


def set_key(key, value):
    return lambda f: edit(f, "config.json", lambda c: c.update({key: value}))


def replace_by(name, content):
    return lambda f: (pathlib.Path(f) / name).write_bytes(content)


def link(name, target):
    def change(f):
        path = pathlib.Path(f) / name
        path.unlink()
        os.symlink(target, path)
    return change


def pickles(f):
    for path in pathlib.Path(f).glob("*.safetensors*"):
        path.unlink()
    (pathlib.Path(f) / "pytorch_model.bin").write_bytes(b"PK")


def cut(f):
    path = pathlib.Path(f) / "model-00001-of-00002.safetensors"
    os.truncate(path, path.stat().st_size - 100)


def huge_norm(f):
    """Makes the norm a vector of 5 GiB, all of which the file has, as a hole."""
    for path in pathlib.Path(f).glob("*.safetensors"):
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        header, end = json.loads(data[8:8 + n]), len(data) - 8 - n
        if "model.norm.weight" in header:
            header["vision.gap"] = header["model.norm.weight"]
            header["model.norm.weight"] = {"dtype": "F32", "shape": [5 << 28], "data_offsets": [end, end + (5 << 30)]}
            text = json.dumps(header).encode()
            path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n:])
            os.truncate(path, 8 + len(text) + end + (5 << 30))


SHARD = "model-00001-of-00002.safetensors"


def header(change, pad=0):
    """Changes the header of the first shard, which has @pad blanks more then."""
    def apply(f):
        path = pathlib.Path(f) / SHARD
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        value = json.loads(data[8:8 + n])
        text = (change(value) or json.dumps(value)).encode() + b" " * pad
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n:])
    return apply


def two_of(value):
    """Returns the objects of the first tensor, and of another one of its size."""
    tensors = [t for t in value.values() if "shape" in t]
    sizes = [t["data_offsets"][1] - t["data_offsets"][0] for t in tensors]
    return next((a, b) for (i, a), b in itertools.product(enumerate(tensors), tensors[1:]) if a is not b and sizes[i] == b["data_offsets"][1] - b["data_offsets"][0])


def overlap(value):
    first, second = sorted(two_of(value), key=lambda t: t["data_offsets"])
    second["data_offsets"] = first["data_offsets"]


def overflow(key, number):
    def change(value):
        a, _ = two_of(value)
        a[key] = [number] * len(a[key])
    return change


def many(value):
    """Returns a header with more empty tensors than a model may have, which is of 28 MB."""
    empty = '"model.layers.%d.nothing.of.any.use.to.any.one.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'
    return json.dumps(value)[:-1] + ", " + ", ".join(empty % i for i in range(1 << 18)) + "}"


def large(name, n_bytes):
    """Makes a file larger than it may be, with a hole."""
    return lambda f: os.truncate(pathlib.Path(f) / name, n_bytes)


def no_file(name, make):
    """Puts something else in the place of a file."""
    def change(f):
        path = pathlib.Path(f) / name
        path.unlink(missing_ok=True)
        make(path)
    return change


def gap(value):
    """Moves the last tensor away from the one before it."""
    last = max((t for t in value.values() if "shape" in t), key=lambda t: t["data_offsets"])
    last["shape"], last["data_offsets"][0] = [1], last["data_offsets"][1] - 4
    last["dtype"] = "F32"


def in_two_shards(f):
    """Gives the second shard a tensor that the first one has, too."""
    first, second = sorted(pathlib.Path(f).glob("*.safetensors"))
    name, tensor = next(iter(hf_folder.read_safetensors(first).items()))
    hf_folder.write_safetensors(second, {**hf_folder.read_safetensors(second), name: tensor})


def other_shard(f):
    edit(f, "model.safetensors.index.json", lambda i: i["weight_map"].update({"model.norm.weight": "model-00009.safetensors"}))


SHARDS = (SHARD, "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


def zeros(f):
    path = pathlib.Path(f) / SHARD
    path.write_bytes(bytes(path.stat().st_size))


def remove(*names):
    def change(f):
        for name in names:
            (pathlib.Path(f) / name).unlink()
    return change


def rename(name, to):
    return lambda f: (pathlib.Path(f) / name).rename(pathlib.Path(f) / to)


def both(*changes):
    def change(f):
        for c in changes:
            c(f)
    return change


def dangling(name):
    return no_file(name, lambda path: path.symlink_to("../../blobs/0123abc")), name + ": its symbolic link names a file that is missing"


def twice(key, value):
    """Appends a member that is there already, as people do who follow the instructions of a model."""
    def change(f):
        path = pathlib.Path(f) / "config.json"
        path.write_text(path.read_text().rstrip().removesuffix("}") + f', "{key}": {json.dumps(value)}}}')
    return change


def in_the_cache(f):
    (pathlib.Path(f) / "snapshots").mkdir()
    for path in list(pathlib.Path(f).iterdir()):
        if path.is_file():
            path.unlink()


REFUSED = [
    (remove(SHARD), SHARD + " is missing: was the folder downloaded whole?"),
    (rename(SHARD, SHARD + ".incomplete"), SHARD + " is missing: was the folder downloaded whole?"),
    (zeros, SHARD + ": a header of 0 bytes"),
    (replace_by(SHARD, b""), SHARD + ": 0 bytes are no safetensors file"),
    (replace_by(SHARD, b"<!DOCTYPE html><html>"), SHARD + ": a header of "),
    (replace_by(SHARD + ".aria2", b""), f"{SHARD} is not downloaded whole: {SHARD}.aria2 is there, too"),
    *(dangling(name) for name in (SHARD, INDEX, "config.json", "tokenizer.json", "chat_template.jinja")),
    *((replace_by(name, POINTER), name + ": a pointer of Git LFS: run git lfs pull") for name in (INDEX, "config.json", "tokenizer.json")),
    (remove(INDEX), "2 safetensors files and no model.safetensors.index.json, which says what they are: download it, too"),
    (lambda f: edit(f, INDEX, lambda i: i["weight_map"].update({"x.weight": SHARD})), SHARD + " has no tensor \"x.weight\", which model.safetensors.index.json names"),
    (lambda f: edit(f, INDEX, lambda i: i.clear()), "model.safetensors.index.json: weight_map is empty"),
    (remove(INDEX, *SHARDS), "no *.safetensors file: was the folder downloaded whole?"),
    (remove("config.json"), "config.json is missing: was the folder downloaded whole?"),
    (both(remove("tokenizer.json"), replace_by("vocab.json", b"{}")), "tokenizer.json is missing, and vocab.json is not read"),
    (both(remove("tokenizer.json"), replace_by("tekken.json", b"{}")), "tokenizer.json is missing, and tekken.json is not read"),
    (both(remove(INDEX, SHARDS[0]), rename(SHARDS[1], "adapter_model.safetensors")), "adapter_model.* is a LoRA adapter"),
    (both(remove(INDEX, SHARDS[0], "config.json"), rename(SHARDS[1], "adapter_model.safetensors")), "adapter_model.* is a LoRA adapter"),
    (both(remove(INDEX, SHARDS[0], "config.json"), rename(SHARDS[1], "adapter_model.bin")), "adapter_model.* is a LoRA adapter"),
    (both(remove(INDEX, SHARDS[0], "config.json"), rename(SHARDS[1], "pytorch_model.bin")), "the weights are pickle files"),
    (both(remove(INDEX, SHARDS[0]), rename(SHARDS[1], "consolidated.safetensors")), "names of Mistral's own format"),
    (both(remove(INDEX, "config.json"), rename(SHARDS[0], "consolidated-00001-of-00002.safetensors"),
          rename(SHARDS[1], "consolidated-00002-of-00002.safetensors")), "names of Mistral's own format"),
    (both(remove("config.json"), replace_by("model_index.json", b"{}")), "model_index.json is that of a diffusion model"),
    (both(no_key("model_type"), set_key("_class_name", "FluxTransformer2DModel")), "config.json: _class_name \"FluxTransformer2DModel\""),
    (lambda f: edit(f, INDEX, lambda i: i["weight_map"].update({"x": "a\n\x1b[2J.safetensors"})), 'has the name "a\\n\\x1b[2J.safetensors", which'),
    (in_the_cache, "give its snapshots/COMMIT"),
    (set_key("quantization", {"group_size": 64, "bits": 4}), "config.json: quantization is that of MLX"),
    (twice("rms_norm_eps", 1e-6), "config.json: \"rms_norm_eps\" appears twice"),
    (lambda f: edit(f, "config.json", lambda c: c.update({f"x{i}": 0 for i in range(2000)})), "config.json: more than 1024 members"),
    (replace_by("config.json", b""), "config.json: not JSON"),
    (replace_by("config.json", b"{\n  // a comment\n}"), "config.json: not JSON (line 2: "),
    (replace_by("tokenizer_config.json", b"{\n\n"), "tokenizer_config.json is not a JSON object (line 3: "),
    (replace_by("generation_config.json", b'{"temperature": NaN}'), "generation_config.json: temperature is no number"),
    (replace_by("config.json", b"{"), "config.json: not JSON"),
    (replace_by("config.json", b"[" * 100000), "config.json"),
    (no_key("model_type"), "model_type is missing"),
    (set_key("model_type", "whisper"), "model_type \"whisper\" is not supported"),
    (no_key("hidden_size"), "hidden_size"),
    (set_key("num_hidden_layers", 1e9), "num_hidden_layers"),
    (set_key("num_hidden_layers", 1), f"config.json: num_hidden_layers is 1, but {SHARD} has tensor 'model.layers.1."),
    (set_key("num_attention_heads", 0), "num_attention_heads"),
    (set_key("hidden_size", "64"), "hidden_size"),
    (set_key("use_bidirectional_attention", True), "config.json: use_bidirectional_attention is not supported for llama models"),
    (set_key("rms_norm_eps", "small"), "rms_norm_eps"),
    (set_key("rope_scaling", {"rope_type": "dynamic", "factor": 2}), "dynamic"),
    (set_key("quantization_config", {"quant_method": "bitsandbytes"}), "bitsandbytes"),
    (set_key("rope_scaling", {"type": "longrope", "original_max_position_embeddings": 1e300, "short_factor": [1], "long_factor": [1]}),
     "original_max_position_embeddings is missing or has a wrong value"),
    (replace_by("tokenizer.json", b"{}"), "tokenizer.json"),
    (replace_by("generation_config.json", b'{"top_p": "high"}'), "generation_config.json: top_p"),
    (replace_by("generation_config.json", b"[]"), "generation_config.json is not a JSON object"),
    (lambda f: (pathlib.Path(f) / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    (pickles, "pickle files"),
    (cut, "downloaded whole"),
    (huge_norm, "model.norm.weight' has 5368709120 bytes"),
    (other_shard, "model-00009.safetensors"),
    (replace_by("model-00001-of-00002.safetensors", b"version https://git-lfs.github.com/spec/v1\n"), "Git LFS"),
    (link("model-00001-of-00002.safetensors", "/etc/passwd"), "symbolic link out of the folder"),
    (link("model-00001-of-00002.safetensors", "../../blobs/../secret"), "symbolic link out of the folder"),
    (link("config.json", "../other/config.json"), "symbolic link out of the folder"),
    (header(overlap), SHARD + ": tensor '"),
    (header(overlap), "overlaps another one"),
    (header(overflow("shape", 1 << 62)), "is too large"),
    (header(overflow("data_offsets", 1 << 62)), "' has bytes 4611686018427387904 to"),
    (header(overflow("data_offsets", 1 << 64)), SHARD + ": byte "),
    (header(overflow("data_offsets", 1 << 64)), "a number is too large"),
    (header(many), " of the header: more than 262144 tensors"),
    (header(lambda h: "[" * 10000000), SHARD + ": byte 0 of the header: '{' is missing"),
    (header(lambda h: '{"a":' * 2000000), SHARD + ": byte 10 of the header: tensor 'a' has the unknown member 'a'"),
    (replace_by(SHARD, (1 << 63).to_bytes(8, "little") + b"{}"), SHARD + ": a header of 9223372036854775808 bytes"),
    (replace_by("model.safetensors.index.json", b"[" * 1000000), "model.safetensors.index.json: not JSON"),
    (replace_by("model.safetensors.index.json", b'{"weight_map": {"x": "../secret.safetensors"}}'), 'model.safetensors.index.json: weight_map."x"'),
    (replace_by("model.safetensors.index.json", b'{"weight_map": {"x": {}}}'), 'weight_map."x"'),
    (replace_by("tokenizer.json", b'{"model": ' * 100000), "tokenizer.json is not a JSON object"),
    (replace_by("tokenizer.json", b'{"normalizer": {"type": "Sequence", "normalizers": [' * 100000), "tokenizer.json is not a JSON object"),
    (replace_by("tokenizer_config.json", b"[" * 100000), "tokenizer_config.json is not a JSON object"),
    (replace_by("generation_config.json", b'{"a":' * 100000), "generation_config.json is not a JSON object"),
    (replace_by("special_tokens_map.json", b'{"a":' * 100000), "special_tokens_map.json is not a JSON object"),
    (header(gap), "follows a gap"),
    (header(lambda h: h["__metadata__"].update({"a": {"b": {}}})), SHARD + ": byte "),
    (in_two_shards, "model-00002-of-00002.safetensors: byte "),
    (in_two_shards, "' appears twice"),
    (large("config.json", 5 << 20), "config.json: 5242880 bytes; at most"),
    (large("tokenizer.json", 65 << 20), "tokenizer.json: 68157440 bytes; at most"),
    (large("model.safetensors.index.json", 65 << 20), "model.safetensors.index.json: 68157440 bytes; at most"),
    (no_file("config.json", os.mkfifo), "config.json: not a regular file"),
    (no_file("tokenizer_config.json", os.mkdir), "tokenizer_config.json: not a regular file"),
    (no_file("model.safetensors.index.json", os.mkfifo), "model.safetensors.index.json: not a regular file"),
    (no_file(SHARD, os.mkfifo), SHARD + ": not a regular file"),
    (no_file(SHARD, lambda path: path.symlink_to(SHARD)), SHARD + ": "),
    *((no_file(name, lambda path: path.symlink_to("/etc/hostname")), name + ": a symbolic link out of the folder")
      for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja",
                   "model.safetensors.index.json")),
]


def check_refused(cases):
    """Checks for each (golden model, change, reason) that its folder is refused for the reason once it is changed."""
    with tempfile.TemporaryDirectory() as where:
        whole = {name: folder_of(name, where) for name in {case[0] for case in cases}}
        for folder in whole.values():
            assert info(folder)[0] == 0, info(folder)
        for i, (name, change, reason) in enumerate(cases):
            folder = shutil.copytree(whole[name], os.path.join(where, str(i), name))
            change(folder)
            code, message = info(folder)
            shutil.rmtree(folder)
            assert code == 1 and reason in message and len(message) < 600, (i, name, reason, code, message)


def test_a_header_of_10_mb_is_read():
    with tempfile.TemporaryDirectory() as where:
        folder = folder_of("llama-gqa", where)
        header(lambda h: None, 10 << 20)(folder)
        assert info(folder)[0] == 0, info(folder)


ACCEPTED = [
    set_key("initializer_range", math.nan),
    replace_by("generation_config.json", b'{"length_penalty": NaN, "max_time": Infinity}'),
    replace_by("tokenizer_config.json", b'{"model_max_length": Infinity}'),
    replace_by("adapter_model.safetensors", b""),
    replace_by("consolidated.safetensors", b""),
    replace_by("consolidated.safetensors.index.json", b""),
    replace_by("model.safetensors.index.fp16.json", b""),
    replace_by("model-00003-of-00003.safetensors", b""),
    replace_by("." + SHARD, b""),
    replace_by("pytorch_model.bin", b""),
]


def test_what_other_programs_leave_beside_a_model_does_not_matter():
    for i, change in enumerate(ACCEPTED):
        with tempfile.TemporaryDirectory() as where:
            folder = folder_of("llama-gqa", where)
            change(folder)
            assert info(folder)[0] == 0, (i, info(folder))


def test_one_weight_file_beside_files_of_attributes():
    with tempfile.TemporaryDirectory() as where:
        folder = folder_of("llama-gqa", where, 1)
        for name in ("weights.safetensors", "._weights.safetensors", "adapter_model.safetensors", "consolidated.safetensors"):
            shutil.copy(pathlib.Path(folder) / "model.safetensors", pathlib.Path(folder) / name)
        (pathlib.Path(folder) / "model.safetensors").unlink()
        assert info(folder)[0] == 0, info(folder)


def test_what_is_wrong_with_a_folder_is_named():
    check_refused([("llama-gqa", change, reason) for change, reason in fewer(REFUSED)])


JOINED_REFUSED = [
    ("deepseek2-v3", set_key("qk_nope_head_dim", 23), "kv_b_proj.weight' has another shape"),
    ("deepseek2-v3", set_key("v_head_dim", 1e9), "v_head_dim"),
    ("deepseek2-v3", set_key("topk_method", "group_limited_greedy"), "topk_method"),
    ("deepseek2-v3", set_key("scoring_func", "softmax"), "scoring_func"),
    ("qwen3next", set_key("linear_num_key_heads", 3), "in_proj_qkvz.weight' has another shape"),
    ("qwen3next", set_key("linear_value_head_dim", 8), "linear_value_head_dim"),
    ("qwen3next", set_key("layer_types", ["full_attention"]), "layer_types"),
    ("smollm3", set_key("no_rope_layers", [0, 1, 1, 1, 1]), "no_rope_layers[0]"),
    ("olmoe", set_key("norm_topk_prob", True), "norm_topk_prob true"),
    ("nemotron-h-moe-mtp", set_key("hybrid_override_pattern", "MEM-EM"), "block 3 is neither"),
    ("nemotron-h-moe-mtp", set_key("hybrid_override_pattern", "MEM*E"), "hybrid_override_pattern"),
    ("nemotron-h-moe-mtp", set_key("time_step_limit", [0.001, 0.1]), "time_step_limit"),
    ("nemotron-h-moe-mtp", set_key("moe_latent_size", 16), "moe_latent_size"),
    ("nemotron-h-moe-mtp", set_key("mlp_hidden_act", "silu"), "mlp_hidden_act"),
    ("nemotron-h-moe-mtp", set_key("n_groups", 3), "mixer.norm.weight' has a shape"),
    ("gemma4", no_key("layer_types"), "layer_types"),
    ("gemma4", set_key("rope_parameters", {"rope_theta": 1e6}), "rope_parameters"),
    ("gemma4", set_key("num_global_key_value_heads", 0), "num_global_key_value_heads"),
    ("gemma4-ple", set_key("num_kv_shared_layers", 10), "num_kv_shared_layers"),
]


def of_drafter(change):
    return lambda f: edit(f, "config.json", lambda c: change(c["dflash_config"]))


DRAFTERS_REFUSED = [
    ("qwen35-dflash", set_key("architectures", ["Qwen3OtherModel"]), "architectures: the block drafter \"Qwen3OtherModel\" of model_type qwen3"),
    ("qwen35-dflash", set_key("model_type", "llama"), "architectures: the block drafter \"DFlashDraftModel\" of model_type llama"),
    ("qwen35-dflash", no_key("block_size"), "block_size is missing"),
    ("qwen35-dflash", no_key("layer_types"), "layer_types is missing"),
    ("qwen35-dflash", of_drafter(lambda c: c.pop("mask_token_id")), "mask_token_id is missing"),
    ("qwen35-dflash", of_drafter(lambda c: c.update(mask_token_id=512)), "mask_token_id is missing or has a wrong value"),
    *(("qwen35-dflash", of_drafter(lambda c, v=v: c.update(target_layer_ids=v)), "target_layer_ids is missing or has a wrong value")
      for v in (None, {}, [], [-1], ["1"], [1.5], [1 << 40], [1] * 2000)),
    ("qwen35-dflash2", of_drafter(lambda c: c.pop("selector_rank")), "selector_rank is missing"),
    ("qwen35-dflash2", of_drafter(lambda c: c.update(causal="no")), "causal is missing or has a wrong value"),
    ("gemma4-assistant", no_key("backbone_hidden_size"), "backbone_hidden_size is missing"),
    ("gemma4-assistant", lambda f: edit(f, "config.json", lambda c: c["text_config"].pop("layer_types")), "layer_types is missing"),
]


def test_what_is_wrong_with_a_draft_model_is_named():
    check_refused([(name, change, "config.json: " + reason) for name, change, reason in DRAFTERS_REFUSED])


def test_joined_tensors_of_another_shape_are_refused():
    check_refused(fewer(JOINED_REFUSED))


ENCODED = ["the red fox", "a fox jumps, 12 times.", "JUMPED \u00e9 jumping foxes", "\u4e2d a"]


def encodings(model, *flags):
    """Returns the ids, the vectors bit by bit and, of a model with a classifier, the scores of texts."""
    with Weftd(*flags, "--threads", 2, model=model) as d:
        ids = [d.request("POST", "/tokenize", {"content": t, "add_special": True})[2]["tokens"] for t in ENCODED]
        out = [ids]
        for how in ({}, {"pooling": "none"}):
            status, _, answer = d.request("POST", "/v1/embeddings", {"input": ENCODED, "encoding_format": "base64", **how})
            assert status == 200, answer
            out.append([row["embedding"] for row in answer["data"]])
        status, _, answer = d.request("POST", "/v1/rerank", {"query": ENCODED[0], "documents": ENCODED[1:], "raw_scores": True})
        return out, answer["results"] if status == 200 else status


def test_encoders_give_the_bits_of_a_gguf_file():
    for name in every(hf_encoder.KINDS, ("roberta-classifier", "xlm-roberta", "eurobert")):
        with tempfile.TemporaryDirectory() as where:
            folder, file = os.path.join(where, name), os.path.join(where, name + ".gguf")
            hf_encoder.write_pair(name, None, folder, file)
            of_folder, of_file = encodings(folder), encodings(file)
            assert of_folder == of_file, (name, of_folder, of_file)
            assert (of_file[1] == 400) == ("classifier" not in name) and len(set(of_file[0][1])) == len(ENCODED), (name, of_file)


def test_each_form_gives_the_bits_of_a_gguf_file_in_each_encoder():
    few = (("bert-classifier", "awq"), ("modern-bert", "fp8-block"), ("nomic-bert", "gptq-act-order"), ("gemma-embedding", "mxfp4"))
    for name, form in every([*itertools.product(hf_encoder.KINDS, PAIRED_FORMS)], few):
        with tempfile.TemporaryDirectory() as where:
            folder, file = os.path.join(where, name), os.path.join(where, name + ".gguf")
            assert hf_encoder.write_pair(name, form, folder, file) >= 4 * hf_encoder.N_LAYER, (name, form)
            flags = ("--backend", "reference") if form.startswith("fp8") else ()
            assert encodings(folder, *flags) == encodings(file, *flags), (name, form)


def pooling(change):
    return lambda f: edit(f, "1_Pooling/config.json", change)


def dense(change):
    return lambda f: edit(f, "2_Dense/config.json", change)


def other_place(name):
    """Moves a folder out of the model's, and links to it."""
    def change(f):
        where = pathlib.Path(f)
        (where / name).rename(where.with_name("secret"))
        (where / name).symlink_to("../secret")
    return change


TEXT_ENCODER_REFUSED = [
    ("bert", set_key("position_embedding_type", "relative_key"), "config.json: position_embedding_type \"relative_key\""),
    ("bert", set_key("hidden_act", "relu"), "config.json: the activation \"relu\""),
    ("bert", set_key("is_decoder", True), "config.json: is_decoder is not supported for bert models"),
    ("bert", set_key("num_hidden_layers", 1), "config.json: num_hidden_layers is 1, but model.safetensors has tensor 'encoder.layer.1."),
    ("bert", no_key("layer_norm_eps"), "config.json: layer_norm_eps is missing or has a wrong value"),
    ("bert", set_key("max_position_embeddings", 63), "position_embd.weight"),
    ("bert", pooling(lambda c: c.update(pooling_mode_cls_token=True)), "1_Pooling/config.json: several ways of pooling"),
    ("bert", pooling(lambda c: c.update(pooling_mode_max_tokens=True, pooling_mode_mean_tokens=False)), "1_Pooling/config.json: \"pooling_mode_max_tokens\""),
    ("bert", pooling(lambda c: c.update(pooling_mode_mean_tokens=False)), "1_Pooling/config.json: no pooling_mode is true"),
    ("bert", pooling(lambda c: c.update(pooling_mode="max", pooling_mode_mean_tokens=False)), "1_Pooling/config.json: \"max\""),
    ("bert", lambda f: (pathlib.Path(f) / "1_Pooling/config.json").write_text("["), "1_Pooling/config.json: not JSON"),
    ("bert", link("1_Pooling/config.json", "/etc/hostname"), "1_Pooling/config.json: a symbolic link out of the folder"),
    ("bert", link("1_Pooling/config.json", "../../secret"), "1_Pooling/config.json: a symbolic link out of the folder"),
    ("bert", other_place("1_Pooling"), "1_Pooling/config.json: 1_Pooling is no folder"),
    ("xlm-roberta", set_key("pad_token_id", -1), "config.json: pad_token_id"),
    ("xlm-roberta", set_key("max_position_embeddings", 2), "config.json: max_position_embeddings"),
    ("nomic-bert", set_key("n_layer", 1), "config.json: n_layer is 1, but model.safetensors has tensor 'encoder.layers.1."),
    ("nomic-bert", set_key("prenorm", True), "config.json: prenorm is not supported for nomic_bert models"),
    ("nomic-bert", set_key("rotary_emb_fraction", 0.5), "config.json: rotary_emb_fraction"),
    ("modern-bert", set_key("global_attn_every_n_layers", 0), "config.json: global_attn_every_n_layers"),
    ("modern-bert", set_key("layer_types", ["full_attention"]), "config.json: layer_types"),
    ("gemma-embedding", dense(lambda c: c.update(bias=True)), "2_Dense/config.json: bias is not supported"),
    ("gemma-embedding", dense(lambda c: c.update(activation_function="torch.nn.modules.activation.Tanh")), "2_Dense/config.json: activation_function"),
    ("gemma-embedding", lambda f: (pathlib.Path(f) / "3_Dense/model.safetensors").unlink(), "3_Dense/model.safetensors is missing"),
    ("gemma-embedding", replace_by("3_Dense/model.safetensors", b"\x08" + bytes(7) + b'{"a":{}}'), "3_Dense/model.safetensors: byte "),
    ("gemma-embedding", link("3_Dense/model.safetensors", "../2_Dense/model.safetensors"), "3_Dense/model.safetensors: a symbolic link out of the folder"),
    ("gemma-embedding", lambda f: shutil.rmtree(pathlib.Path(f) / "3_Dense"), "dense_3.weight"),
]


def test_what_is_wrong_with_an_encoder_of_texts_is_named():
    with tempfile.TemporaryDirectory() as where:
        cases = fewer(TEXT_ENCODER_REFUSED)
        for name in {case[0] for case in cases}:
            hf_encoder.write_pair(name, None, os.path.join(where, name), os.path.join(where, name + ".gguf"))
            assert info(os.path.join(where, name))[0] == 0, info(os.path.join(where, name))
        for i, (name, change, reason) in enumerate(cases):
            folder = pathlib.Path(shutil.copytree(os.path.join(where, name), os.path.join(where, str(i), "folder")))
            change(folder)
            code, message = bound(folder)
            assert code == 1 and reason in message and len(message) < 600, (i, reason, code, message)


Q_PROJ = "model.layers.1.self_attn.q_proj."
EXPERTS = "model.layers.1.mlp.experts."


def without(end):
    return lambda t: t.pop(Q_PROJ + end)


def shaped(end, *shape):
    """Gives a tensor another shape, cut or filled up with zeros."""
    def change(t):
        kind, old, data = t[Q_PROJ + end]
        n = len(data) // max(math.prod(old), 1) * math.prod(shape)
        t[Q_PROJ + end] = (kind, shape, data[:n].ljust(n, b"\0"))
    return change


def typed(end, kind):
    return lambda t: t.update({Q_PROJ + end: (kind, *t[Q_PROJ + end][1:])})


def filled(end, data):
    """Writes @data to the end of a tensor."""
    def change(t):
        kind, shape, old = t[Q_PROJ + end]
        t[Q_PROJ + end] = (kind, shape, old[:-len(data)] + data)
    return change


def quantisation(key, value):
    return lambda f: edit(f, "config.json", lambda c: c["quantization_config"].update({key: value}))


# form, what is changed in the tensors or in the folder, the tensor or key that is named, the reason
QUANTISED_REFUSED = [
    ("fp8-block", without("weight_scale_inv"), "q_proj.weight'", "has no 'model.layers.1.self_attn.q_proj.weight_scale'"),
    ("fp8-block", shaped("weight_scale_inv", 2, 1), "q_proj.weight_scale_inv'", "does not fit the matrix"),
    ("fp8-block", typed("weight_scale_inv", "I32"), "q_proj.weight_scale_inv'", "not supported for scales"),
    ("fp8-channel", shaped("weight_scale", 5, 1), "q_proj.weight_scale'", "does not fit the matrix"),
    ("int8", lambda t: t.update({Q_PROJ + "weight_zero_point": ("I8", (64, 1), bytes(64))}), "q_proj.weight'", "has zero points"),
    ("mxfp4", without("weight_scale"), "q_proj.weight_packed'", "q_proj.weight_scale'"),
    ("mxfp4", shaped("weight_scale", 128, 1), "q_proj.weight_scale'", "not of shape [128, 2]"),
    ("nvfp4-modelopt", without("weight_scale_2"), "q_proj.weight'", "q_proj.weight_global_scale'"),
    ("nvfp4-modelopt", filled("weight_scale_2", struct.pack("<f", -1)), "q_proj.weight_scale_2'", "no positive number"),
    ("nvfp4-modelopt", filled("weight_scale_2", struct.pack("<f", math.nan)), "q_proj.weight_scale_2'", "no positive number"),
    ("nvfp4-modelopt", typed("weight_scale", "F8_E5M2"), "q_proj.weight_scale'", "not supported there"),
    ("nvfp4-compressed", filled("weight_global_scale", struct.pack("<f", 0)), "q_proj.weight_global_scale'", "no positive number"),
    ("awq", without("qzeros"), "q_proj.qweight'", "has no 'model.layers.1.self_attn.q_proj.qzeros'"),
    ("awq", shaped("qzeros", 2, 15), "q_proj.qzeros'", "not of shape [2, 16]"),
    ("awq", shaped("scales", 1, 128), "q_proj.scales'", "not of shape [2, 128]"),
    ("gptq-asym", without("scales"), "q_proj.qweight'", "q_proj.scales'"),
    ("gptq-asym", shaped("qzeros", 1, 16), "q_proj.qzeros'", "not of shape [2, 16]"),
    ("gptq-asym", lambda t: t.update({Q_PROJ + "scales": ("F32", (2, 128), bytes(1024))}), "q_proj.scales'", "F32"),
    ("gptq-act-order", without("g_idx"), "q_proj.qweight'", "q_proj.g_idx'"),
    ("gptq-act-order", filled("g_idx", struct.pack("<i", 2)), "q_proj.g_idx'", "names a group that is not there"),
    ("gptq-act-order", filled("g_idx", struct.pack("<i", -1)), "q_proj.g_idx'", "names a group that is not there"),
    ("gptq-act-order", shaped("g_idx", 63), "q_proj.g_idx'", "not one number for each column"),
    ("gptq-act-order", typed("g_idx", "F32"), "q_proj.g_idx'", "not supported there"),
    ("packed", without("weight_shape"), "q_proj.weight_packed'", "q_proj.weight_shape'"),
    ("packed", filled("weight_shape", struct.pack("<q", 128)), "q_proj.weight_packed'", "not of shape"),
    ("packed", filled("weight_shape", struct.pack("<q", -1)), "q_proj.weight_packed'", "shape that is not supported"),
    ("packed-asym", shaped("weight_zero_point", 16, 1), "q_proj.weight_zero_point'", "not of shape [16, 2]"),
    ("packed-act-order", filled("weight_g_idx", struct.pack("<i", 9)), "q_proj.weight_g_idx'", "names a group that is not there"),
    ("gpt-oss", lambda t: t.pop(EXPERTS + "gate_up_proj_scales"), "gate_up_proj_blocks'", "has no '" + EXPERTS + "gate_up_proj_scales'"),
    ("gpt-oss", lambda t: t.update({EXPERTS + "down_proj_scales": ("U8", (6, 96, 2), bytes(1152))}), "down_proj_scales'", "do not fit"),
    ("gpt-oss", lambda t: t.update({EXPERTS + "gate_up_proj_bias": ("F32", (6, 63), bytes(1512))}), "gate_up_proj_bias'", "shape"),
    ("gptq-asym", quantisation("group_size", 64), ".scales'", "not of shape [3, 64]"),
    ("gptq-asym", quantisation("group_size", 0), "quantization_config.group_size", "0"),
    ("gptq-asym", quantisation("bits", 3), "quantization_config.bits", "3"),
    ("gptq-asym", quantisation("checkpoint_format", "marlin"), "quantization_config.checkpoint_format", "marlin"),
    ("gptq-asym", quantisation("dynamic", {"-:.*": {}}), "quantization_config.dynamic", "not supported"),
    ("awq", quantisation("version", "gemv"), "quantization_config.version", "gemv"),
    ("fp8-block", quantisation("weight_block_size", [0, 32]), "quantization_config.weight_block_size", "not supported"),
    ("packed", quantisation("format", "marlin-24"), "quantization_config.format", "marlin-24"),
    ("nvfp4-modelopt", quantisation("quant_algo", "W4A8_AWQ"), "quantization_config.quant_algo", "W4A8_AWQ"),
]


def damage(folder, change):
    """Calls @change with the folder, or with its tensors, which are then written to it."""
    if change.__code__.co_varnames[0] == "f":
        change(folder)
        return
    files = [*folder.glob("*.safetensors")]
    tensors = hf_folder.read_safetensors(*files)
    change(tensors)
    for path in (*files, folder / "model.safetensors.index.json"):
        path.unlink()
    hf_folder.write_safetensors(folder / "model.safetensors", tensors)


def test_damaged_quantised_folders_name_file_and_key():
    with tempfile.TemporaryDirectory() as where:
        cases = every(QUANTISED_REFUSED, QUANTISED_REFUSED[::3])
        whole = {form: quantised(form, "llama-gqa", os.path.join(where, form))[0] for form in {case[0] for case in cases}}
        for i, (form, change, key, reason) in enumerate(cases):
            folder = pathlib.Path(shutil.copytree(whole[form], os.path.join(where, str(i))))
            damage(folder, change)
            code, message = info(folder)
            of_config = key.startswith("quantization_config")
            assert ("config.json" if of_config else ".safetensors: tensor") in message, (i, form, message)
            assert code == 1 and key in message and reason in message and len(message) < 600, (i, form, key, reason, code, message)


def spread(pattern):
    """Returns the names of a pattern, in which {0,1} stands for 0 and for 1."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(c) for c in itertools.product(*choices)]


def write_published(row, folder, left_out=""):
    """Writes a folder with the names and shapes of @row, whose values are zeros that take no room; single values, which
    may be factors, are 1."""
    sizes, at, header = {"BF16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1}, 0, {}
    for pattern, shape in row["tensors"].items():
        kind = row.get("types", {}).get(pattern, "BF16")
        for name in spread(pattern):
            if left_out and name.startswith(left_out.removesuffix("weight")):
                continue
            n = math.prod(shape) * sizes[kind]
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + n]}
            at += n
    text = json.dumps(header).encode()
    folder = pathlib.Path(folder)
    (folder / "config.json").write_text(json.dumps(row["config"]))
    (folder / "tokenizer.json").write_text(json.dumps(hf_folder.tokenizer_of(hf_folder.Gguf(golden("llama-gqa")))))
    with open(folder / "model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + at)
        for t in header.values():
            if t["shape"] == [1]:
                f.seek(8 + len(text) + t["data_offsets"][0])
                f.write(struct.pack("<H", 0x3F80))


def bound(folder):
    """Returns the exit code and the message of binding the tensors to the operations of a step."""
    done = subprocess.run([program("weft-gguf"), "info", "--ops", "cpu", str(folder)], capture_output=True, text=True)
    return done.returncode, done.stderr


def test_published_names_and_shapes_are_those_of_the_architectures():
    """published.json has one model of each type: the names of its index file, or of other programs' tables where no index
    file was found, its shapes and its config.json; all cut to 2 layers, 4 experts and a small vocabulary."""
    rows = fewer(json.loads((pathlib.Path(__file__).parent / "published.json").read_text()))
    damaged = every(rows, rows[::6])
    for row in rows:
        with tempfile.TemporaryDirectory() as where:
            write_published(row, where)
            assert bound(where) == (0, ""), row["source"]
            if row not in damaged:
                continue
            names = [n for pattern in row["tensors"] for n in spread(pattern)]
            gone = next(n for n in names if re.search(r"layers?\.1\..*(o_proj|out_proj|attn.Wo|attention.output.dense).weight$", n))
            write_published(row, where, left_out=gone)
            code, message = bound(where)
            assert code == 1 and "blk.1." in message, (row["source"], gone, message)


def test_the_vocabulary_of_llama_2_as_sentencepiece_has_the_ids_of_llama_cpp():
    vocabulary = DATA / "vocab" / "ggml-vocab-llama-spm.gguf"
    texts = (DATA / "vocab" / "ggml-vocab-llama-spm.gguf.inp").read_text().split("\n__ggml_vocab_test__\n")
    expected = (DATA / "vocab" / "ggml-vocab-llama-spm.gguf.out").read_text().split("\n")
    row = {"config": {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 32000,
                      "num_attention_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5},
           "tensors": {"model.embed_tokens.weight": [32000, 64]}}
    with tempfile.TemporaryDirectory() as where:
        write_published(row, where)
        (pathlib.Path(where) / "tokenizer.json").unlink()
        (pathlib.Path(where) / "tokenizer.model").write_bytes(hf_folder.sentencepiece_of(hf_folder.Gguf(vocabulary)))
        for text, line in every([*zip(texts, expected)], [*zip(texts, expected)][::6]):
            done = subprocess.run([program("weft-gguf"), "tokenize", where], input=text.encode(), capture_output=True)
            ids = json.loads(done.stdout)
            assert ids == [int(i) for i in line.split()], (text, ids, line, done.stderr)
        assert len(texts) > 40


def test_the_cache_of_the_hub_is_used_in_place():
    with tempfile.TemporaryDirectory() as where:
        root = pathlib.Path(where)
        folder = pathlib.Path(folder_of("llama-gqa", where + "/cache/snapshots"))
        (root / "cache" / "blobs").mkdir()
        for path in list(folder.iterdir()):
            path.rename(root / "cache" / "blobs" / path.name)
            os.symlink("../../blobs/" + path.name, path)
        assert info(folder)[0] == 0, info(folder)


def test_a_model_has_the_name_of_its_folder():
    with tempfile.TemporaryDirectory() as where:
        for path in ("Tiny-1B/", "models--org--Tiny-1B/snapshots/0123abc"):
            folder = hf_folder.write_folder(golden("llama-gqa"), pathlib.Path(where) / path)
            with Weftd(*FLAGS, model=folder + "/") as d:
                assert d.request("GET", "/v1/models")[2]["data"][0]["id"] == "Tiny-1B", path


def test_a_folder_with_a_gguf_file_too_asks_which_one():
    with tempfile.TemporaryDirectory() as where:
        folder = folder_of("llama-gqa", where)
        os.symlink(golden("llama-gqa"), os.path.join(folder, "model.gguf"))
        code, message = info(folder)
        assert code == 1 and "safetensors and a GGUF file" in message, message
        done = subprocess.run([program("weftd"), "--model", folder, "--check-config"], capture_output=True, text=True)
        assert done.returncode != 0 and "safetensors and a GGUF file" in done.stderr + done.stdout, done


def test_a_folder_is_verified():
    with tempfile.TemporaryDirectory() as where:
        folder = folder_of("qwen3moe", where)
        done = subprocess.run([program("weft-gguf"), "verify", folder], capture_output=True, text=True)
        assert done.returncode == 0 and "ok, 27 tensors" in done.stdout, done


if __name__ == "__main__":
    main(globals())
