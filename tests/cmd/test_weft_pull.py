"""weftctl pull, models and rm, against a hub that is slow, broken, hostile or full of errors."""
import contextlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import fake_hub
import hf_encoder
import hf_folder
import hf_quantise
from fake_hub import Hub
from golden_models import FLAGS, REQUESTS, ask
from weftd import LIMIT_S, Skip, Weftd, main, program, seen, synth, wait_until

MODEL = pathlib.Path(synth("pull", "--shape", "tiny,n_layer=1,n_embd=256", "--format", "Q4_K", "--n-vocab", "512")).read_bytes()
FILES = {
    "README.md": b"hello",
    "Some-Q4_K_M.gguf": MODEL,
    "Some-Q8_0.gguf": MODEL + b"8" * 32,
    "mmproj-Another-F16.gguf": b"not a model",
}
NAME = "hf:" + fake_hub.REPO


def folder_files(n_shards=2):
    """The files of a repository with a folder of safetensors, and some that weft does not read."""
    model = synth("pull-folder", "--arch", "qwen3", "--shape", "tiny,n_layer=1", "--format", "BF16", "--n-vocab", "512")
    with tempfile.TemporaryDirectory() as where:
        folder = pathlib.Path(hf_folder.write_folder(model, where, n_shards))
        files = {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
    return files | {"README.md": b"hello", "onnx/model.safetensors": b"x", "consolidated.safetensors": b"y" * 1000}


FOLDER = folder_files()
FOLDER_TAKEN = sorted(n for n in FOLDER if n not in ("README.md", "onnx/model.safetensors", "consolidated.safetensors"))
SHARD = "model-00002-of-00002.safetensors"


class Home:
    """A folder for models, and for all that the environment points at."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="weft-pull-")
        self.path = pathlib.Path(self.folder.name)
        self.models = self.path / "models"
        self.repo = self.models / fake_hub.REPO
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def env(self, hub=None, **more):
        return {"PATH": os.environ["PATH"], "HOME": str(self.path), "WEFT_MODELS": str(self.models),
                **({"HF_ENDPOINT": hub.url} if hub else {}), **{k: str(v) for k, v in more.items()}}

    def start(self, hub, *args, limit=None, user=None, **env):
        def before():
            if user and os.geteuid() == 0:
                os.setuid(user)
            if limit:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return subprocess.Popen([program("weftctl"), *args], env=self.env(hub, **env), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, preexec_fn=before)

    def run(self, hub, *args, **more):
        p = self.start(hub, *args, **more)
        p.out, p.err = p.communicate(timeout=LIMIT_S)
        return p

    def pull(self, hub, *args, **more):
        return self.run(hub, "pull", *args, **more)

    def files(self):
        return sorted(p.name for p in self.repo.iterdir()) if self.repo.exists() else []

    def parts(self):
        return [p for p in self.repo.iterdir() if p.name.endswith(".part")] if self.repo.exists() else []


@contextlib.contextmanager
def hub_and_home(files=FILES, **options):
    with Hub(dict(files), **options) as hub, Home() as home:
        yield hub, home


def check_loaded(home, p, name="Some-Q4_K_M.gguf", data=MODEL):
    assert p.returncode == 0, (p.returncode, p.out, p.err)
    assert (home.repo / name).read_bytes() == data
    assert not home.parts(), home.files()
    assert p.out.strip() == str(home.repo / name), p.out


def test_default_quant_is_loaded_checked_and_listed():
    with hub_and_home() as (hub, home):
        check_loaded(home, home.pull(hub, NAME))
        assert home.files() == [".Some-Q4_K_M.gguf.sha256", "Some-Q4_K_M.gguf"]
        listed = json.loads(home.run(None, "models", "--json").out)
        assert [m["name"] for m in listed] == ["Some-Q4_K_M"] and listed[0]["architecture"] == "llama", listed
        fit = listed[0]["fit"]
        assert fit["fits"] and fit["context"] == 2048 and "tokens_per_s_at_most" not in fit, fit
        table = home.run(None, "models").out.splitlines()
        assert len(table) == 2 and re.match(r"Some-Q4_K_M +llama .* weft +2048 +-", table[1]), table
        assert "fits: a context of 2048" in home.run(None, "models", "some").out
        assert "no model other" in json.loads(home.run(None, "models", "--json", "other").out)["error"]
        assert home.run(None, "models", "--path", "some").out.strip() == listed[0]["path"]
        n = len(hub.seen)
        check_loaded(home, home.pull(hub, NAME))
        assert len(hub.seen) == n + 1, "what is there was loaded again"


def test_the_first_quant_that_fits_is_taken():
    files = {"Some-Q4_K_M.gguf": MODEL + b"4" * len(MODEL), "Some-Q8_0.gguf": MODEL + b"8" * 3 * len(MODEL), "Some-Q3_K_M.gguf": MODEL}
    with hub_and_home(files) as (hub, home):
        p = home.pull(hub, "--memory", str(3 * len(MODEL)), NAME)
        check_loaded(home, p, "Some-Q4_K_M.gguf", files["Some-Q4_K_M.gguf"])
        assert "memory" not in p.err, p.err
        assert re.search(r"Q3_K_M .*would be downloaded", home.pull(hub, "--list", "--memory", str(2 * len(MODEL)), NAME).out)
        p = home.pull(hub, "--memory", str(2 * len(MODEL)), NAME)
        check_loaded(home, p, "Some-Q3_K_M.gguf")
        assert "that fits into memory" in p.err, p.err
        p = home.pull(hub, "--memory", "1000", NAME)
        check_loaded(home, p, "Some-Q4_K_M.gguf", files["Some-Q4_K_M.gguf"])
        assert "do not fit into 1.0 KiB of free memory" in p.err, p.err
    n = sum(len(FOLDER[name]) for name in FOLDER_TAKEN)
    with hub_and_home(FOLDER | {"Some-Q4_K_M.gguf": bytes(2 * n), "Some-Q8_0.gguf": bytes(4 * n)}) as (hub, home):
        p = home.pull(hub, "--memory", str(2 * n), NAME)
        check_folder(home, p)
        assert "safetensors" in p.err and "no usual quantisation fits into memory" in p.err, p.err


def test_a_quant_a_file_and_what_is_not_there():
    with hub_and_home() as (hub, home):
        check_loaded(home, home.pull(hub, NAME + ":q8_0"), "Some-Q8_0.gguf", FILES["Some-Q8_0.gguf"])
        check_loaded(home, home.pull(hub, NAME + ":Some-Q4_K_M.gguf@main"))
        p = home.pull(hub, NAME + ":Q5_K_M")
        assert p.returncode == 1 and "no Q5_K_M; available: Q4_K_M, Q8_0" in p.err, p.err
        assert "mmproj" not in p.err
        out = home.pull(hub, "--list", NAME).out
        assert re.search(r"Q4_K_M .*would be downloaded", out) and "Q8_0" in out and "mmproj" not in out, out
        for bad in ("owner", "hf:owner", "hf:../x", "hf:a/b:../x.gguf", "hf:a/b/c", "hf:a/b@../x"):
            p = home.pull(hub, bad)
            assert p.returncode == 64 and not p.out and "(try --help)" in p.err, (bad, p.err)
            p = home.pull(hub, "--json", bad)
            last = json.loads(p.out)
            assert p.returncode == 64 and not p.err and last["status"] == "error" and last["code"] == 64, (bad, p.out)
        p = home.pull(hub, "--json", NAME, NAME)
        assert p.returncode == 64 and json.loads(p.out)["error"].startswith("pull needs one hf:OWNER/REPO"), p.out


def test_the_projector_comes_with_the_model():
    files = {name: data for name, data in FILES.items() if "mmproj" not in name}
    files |= {"mmproj-F16.gguf": b"f" * 100, "mmproj-BF16.gguf": b"b" * 100, "mmproj-F32.gguf": b"F" * 200}
    with hub_and_home(files) as (hub, home):
        lines = home.pull(hub, "--json", NAME).out.splitlines()
        assert json.loads(lines[-1])["bytes"] == len(MODEL) + 100, lines
        assert [n for n in home.files() if n[0] != "."] == ["Some-Q4_K_M.gguf", "mmproj-F16.gguf"]
        check_loaded(home, home.pull(hub, NAME + ":Q8_0"), "Some-Q8_0.gguf", files["Some-Q8_0.gguf"])
        assert home.run(None, "rm", "Some-Q8_0").returncode == 0
        assert "mmproj-F16.gguf" in home.files(), "the other model needs it"
        assert home.run(None, "rm", "Some-Q4_K_M").returncode == 0
        assert list(home.models.iterdir()) == []
    deep = {"Q4/Some-Q4_K_M.gguf": MODEL, "mmproj-F16.gguf": b"f" * 100, "x/Some-mmproj-BF16.gguf": b"b" * 100}
    with hub_and_home(deep) as (hub, home):
        p = home.pull(hub, NAME)
        assert p.out.strip() == str(home.repo / "Q4/Some-Q4_K_M.gguf"), p.err
        assert (home.repo / "Q4/Some-mmproj-BF16.gguf").read_bytes() == b"b" * 100


def test_shards_are_one_model():
    files = {f"Q4_K_M/Big-Q4_K_M-0000{i}-of-00003.gguf": bytes([i]) * (1000 + i) for i in (1, 2, 3)}
    with hub_and_home(files) as (hub, home):
        p = home.pull(hub, NAME)
        assert p.returncode == 1 and "GGUF" in p.err or "magic" in p.err, p.err  # made-up bytes, all of them loaded
        for name, data in files.items():
            assert (home.repo / name).read_bytes() == data
        listed = json.loads(home.run(None, "models", "--json").out)
        assert listed[0]["files"] == 3 and listed[0]["bytes"] == 3006, listed
        assert home.run(None, "rm", "Big-Q4_K_M").returncode == 0
        assert list(home.models.iterdir()) == []
    with hub_and_home(dict(list(files.items())[:2])) as (hub, home):
        p = home.pull(hub, NAME)
        assert p.returncode == 1 and "lacks Q4_K_M/Big-Q4_K_M-00003-of-00003.gguf" in p.err, p.err


def check_folder(home, p, files=FOLDER):
    assert p.returncode == 0, (p.returncode, p.out, p.err)
    assert p.out.strip() == str(home.repo), p.out
    assert [n for n in home.files() if n[0] != "."] == FOLDER_TAKEN and not home.parts(), home.files()
    assert all((home.repo / n).read_bytes() == files[n] for n in FOLDER_TAKEN)


def test_a_repository_without_gguf_is_a_folder():
    with hub_and_home(FOLDER) as (hub, home):
        p = home.pull(hub, NAME)
        check_folder(home, p)
        assert "takes" not in p.err and "2 files of weights (safetensors) and 4 others" in p.err, p.err
        assert "no GGUF files" in p.err and "checksum" not in p.err, p.err
        for path, _ in hub.asked("cdn"):
            assert path[1:] in FOLDER_TAKEN, path
        asked = [path[1:] for path, _ in hub.asked("cdn")]
        assert asked.index("config.json") < asked.index(SHARD), "what may be refused comes before the weights"
        listed, = json.loads(home.run(None, "models", "--json").out)
        assert listed["name"] == "Some-GGUF" and listed["architecture"] == "qwen3" and listed["files"] == 2, listed
        assert listed["fit"]["fits"] and listed["repository"] == fake_hub.REPO and listed["path"] == str(home.repo), listed
        assert re.search(r"safetensors .*6  Some-GGUF  <- would be", home.pull(hub, "--list", NAME).out)
        lines = [json.loads(s) for s in home.pull(hub, "--json", NAME).out.splitlines()]
        assert lines[-1]["status"] == "success" and lines[-1]["path"] == str(home.repo), lines
        assert SHARD not in [path[1:] for path, _ in hub.asked("cdn")[len(asked):]], "weights that are there"
        assert home.run(None, "rm", NAME).returncode == 0
        assert list(home.models.iterdir()) == [], home.files()


def test_a_quantised_folder_goes_from_the_hub_to_an_answer():
    model = synth("pull-folder-f32", "--arch", "qwen3", "--shape", "tiny,n_layer=1,n_embd=64,n_ff=128", "--format", "F32", "--n-vocab", "512")
    with tempfile.TemporaryDirectory() as where:
        folder, file = os.path.join(where, "folder"), os.path.join(where, "file.gguf")
        assert hf_quantise.write_pair("packed", model, folder, file) == 7
        files = {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()} | {"processor_config.json": b"{}"}
        assert "model.safetensors.index.json" in files and SHARD in files
        answers = []
        with hub_and_home(files) as (hub, home):
            assert home.pull(hub, NAME).returncode == 0 and [n for n in home.files() if n[0] != "."] == sorted(files)
            for path in (NAME, file):
                with Weftd(*FLAGS, model=path, env=home.env()) as d:
                    answers.append(ask(d, REQUESTS[0], 16))
        assert answers[0] == answers[1]


def test_an_encoder_goes_from_the_hub_to_a_vector():
    """Its pooling and the matrices behind it lie in folders of the model's."""
    with tempfile.TemporaryDirectory() as where:
        folder, file = pathlib.Path(where) / "folder", os.path.join(where, "file.gguf")
        hf_encoder.write_pair("gemma-embedding", None, folder, file)
        files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        assert "1_Pooling/config.json" in files and "3_Dense/model.safetensors" in files
        vectors = []
        with hub_and_home(files | {"2_Dense/pytorch_model.bin": b"x", "onnx/model.safetensors": b"x"}) as (hub, home):
            p = home.pull(hub, NAME)
            assert p.returncode == 0 and "3 files of weights (safetensors) and 5 others" in p.err, p.err
            taken = {str(p.relative_to(home.repo)): p.read_bytes() for p in home.repo.rglob("*") if p.is_file() and p.name[0] != "."}
            assert taken == files, sorted(taken)
            assert [m["name"] for m in json.loads(home.run(None, "models", "--json").out)] == ["Some-GGUF"]
            for path in (NAME, file):
                with Weftd(model=path, env=home.env()) as d:
                    vectors.append(d.request("POST", "/v1/embeddings", {"input": "the red fox", "encoding_format": "base64"})[2]["data"])
            assert vectors[0] == vectors[1]
            assert home.run(None, "rm", NAME).returncode == 0
            assert list(home.models.iterdir()) == [], [*home.models.rglob("*")]
        files["1_Pooling/config.json"] = files["1_Pooling/config.json"].replace(b'"pooling_mode_max_tokens": false', b'"pooling_mode_max_tokens": true')
        with hub_and_home(files) as (hub, home):
            p = home.pull(hub, NAME)
            assert p.returncode == 1 and '1_Pooling/config.json: "pooling_mode_max_tokens" is not supported' in p.err, p.err
            assert not [path for path, _ in hub.asked("cdn") if path.endswith(".safetensors")]


def test_a_small_file_that_has_changed_is_replaced():
    with hub_and_home(FOLDER) as (hub, home):
        check_folder(home, home.pull(hub, NAME))
        config = FOLDER["config.json"].replace(b'"torch_dtype": "bfloat16"', b'"torch_dtype": "BFLOAT16"')
        assert config != FOLDER["config.json"] and len(config) == len(FOLDER["config.json"])
        hub.files["config.json"] = config
        check_folder(home, home.pull(hub, NAME), FOLDER | {"config.json": config})


def test_a_block_drafter_without_a_tokenizer():
    model = synth("pull-folder-f32", "--arch", "qwen3", "--shape", "tiny,n_layer=1,n_embd=64,n_ff=128", "--format", "F32", "--n-vocab", "512")
    with tempfile.TemporaryDirectory() as where:
        drafter = hf_folder.copying_drafter(model, os.path.join(where, "drafter.gguf"))
        folder = hf_folder.write_folder(drafter, os.path.join(where, "folder"))
        files = {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()}
        assert sorted(files) == ["config.json", "model.safetensors"]
        with hub_and_home(files) as (hub, home):
            p = home.pull(hub, NAME)
            assert p.returncode == 0 and [n for n in home.files() if n[0] != "."] == sorted(files), p.err
            assert "cannot serve" not in p.err and f"a draft model, for the option draft-model beside the model for which it drafts: weftd --model MODEL --draft-model {p.out.strip()}\n" in p.err, p.err
            lines = [json.loads(line) for line in home.pull(hub, "--json", NAME).out.splitlines()]
            assert [line["status"] for line in lines[-2:]] == ["drafter", "success"], lines


def test_a_folder_is_continued_and_checked():
    third = len(FOLDER[SHARD]) // 3
    with hub_and_home(FOLDER) as (hub, home):
        n_before = len(FOLDER_TAKEN) - 1
        hub.faults["cdn"] = [None] * n_before + [fake_hub.cut_after(third)] + [fake_hub.status(500)] * 3
        assert home.pull(hub, "--tries", "2", NAME).returncode == 69
        assert len(home.parts()) == 1 and json.loads(home.run(None, "models", "--json").out)[0]["files_missing"] == 1
        assert home.run(None, "models", "--path", "some-gguf").returncode == 1
        hub.faults["cdn"] = []
        check_folder(home, home.pull(hub, NAME))
        assert hub.asked("cdn")[-1][1]["Range"] == f"bytes={third}-", hub.asked("cdn")[-1]
    with hub_and_home(FOLDER) as (hub, home):
        hub.faults["cdn"] = [None] * n_before + [fake_hub.flips_a_bit]
        p = home.pull(hub, NAME)
        assert p.returncode == 1 and "checksum" in p.err and SHARD not in home.files(), p.err
        p = home.pull(hub, NAME, limit=len(FOLDER[SHARD]) // 2)
        assert p.returncode == 1 and "the same command continues" in p.err, p.err
        check_folder(home, home.pull(hub, NAME))


def test_what_cannot_be_served_is_refused_before_its_weights():
    config = json.loads(FOLDER["config.json"])
    cases = [
        ({"config.json": json.dumps(config | {"model_type": "whisper"}).encode()}, '"whisper" is not supported'),
        ({"tokenizer.json": b"{}"}, "tokenizer.json"),
        ({"tokenizer.json": None}, "tokenizer.json is missing"),
        ({SHARD: None}, "has 1 of its 2 weight files"),
        ({"config.json": None}, "has safetensors but no config.json"),
        ({"model-00001-of-00003.safetensors": b"1"}, "in 2 and in 3 shards"),
    ]
    for change, reason in cases:
        files = {n: d for n, d in (FOLDER | change).items() if d is not None}
        with hub_and_home(files) as (hub, home):
            p = home.pull(hub, NAME)
            assert p.returncode == 1 and reason in p.err, (reason, p.err)
            assert not [path for path, _ in hub.asked("cdn") if path.endswith(".safetensors")], reason


def test_names_of_weights_never_leave_the_folder():
    files = {"../model.safetensors": b"1", "a/../model.safetensors": b"1", "/config.json": b"1", "config.json": b"{}"}
    with hub_and_home(files) as (hub, home):
        p = home.pull(hub, NAME)
        assert p.returncode == 1 and "no folder of safetensors" in p.err and not home.models.exists(), p.err


def test_both_forms_in_a_repository():
    with hub_and_home(FOLDER | FILES) as (hub, home):
        assert "the first in weft's order" in home.pull(hub, NAME).err
        p = home.pull(hub, NAME + ":safetensors")
        assert p.returncode == 1 and "in the other form" in p.err, p.err
        assert home.run(None, "rm", "some-q4_k_m").returncode == 0
        check_folder(home, home.pull(hub, NAME + ":safetensors"))
        assert "in the other form" in home.pull(hub, NAME).err


def test_json_tells_every_step():
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.slow(len(MODEL) // 8, 0.2)]
        lines = [json.loads(s) for s in home.pull(hub, "--json", NAME).out.splitlines()]
        loading = [s for s in lines if s["status"] == "downloading"]
        assert len(loading) >= 2 and all(s["total"] == len(MODEL) for s in loading), lines
        assert loading == sorted(loading, key=lambda s: s["completed"])
        assert any("bytes_per_second" in s for s in loading)
        assert lines[-1] == {"status": "success", "path": str(home.repo / "Some-Q4_K_M.gguf"), "name": "Some-Q4_K_M",
                             "bytes": len(MODEL)}
        assert json.loads(home.pull(hub, "--json", NAME + ":Q2_K").out.splitlines()[-1])["status"] == "error"


def test_token_goes_to_the_hub_and_nowhere_else():
    with hub_and_home(token="hf_secret") as (hub, home):
        p = home.pull(hub, NAME)
        assert p.returncode == 77 and "HF_TOKEN" in p.err, (p.returncode, p.err)
        check_loaded(home, home.pull(hub, NAME, HF_TOKEN="hf_secret"))
        assert hub.asked("cdn") and all("Authorization" not in headers for _, headers in hub.asked("cdn"))
        assert "hf_secret" not in p.err
        (home.path / "hf").mkdir()
        (home.path / "hf/token").write_text("hf_secret\n")
        check_loaded(home, home.pull(hub, NAME + ":Q8_0", HF_HOME=home.path / "hf"), "Some-Q8_0.gguf", FILES["Some-Q8_0.gguf"])
        p = home.pull(hub, NAME, HF_TOKEN="wrong")
        assert p.returncode == 77 and "not valid" in p.err, p.err
        for other in ("hub.example", "127.0.0.1.example", "localhost.example", "127.0.0.1@hub.example", "localhost:1@hub.example"):
            p = home.pull(None, NAME, HF_TOKEN="hf_secret", HF_ENDPOINT="http://" + other)
            assert p.returncode == 1 and "not https" in p.err, (other, p.err)


def test_broken_connections_are_continued():
    third = len(MODEL) // 3
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.cut_after(third), fake_hub.cut_after(third), fake_hub.no_answer]
        check_loaded(home, home.pull(hub, NAME))
        ranges = [headers.get("Range") for _, headers in hub.asked("cdn")]
        assert ranges == [None, f"bytes={third}-", f"bytes={2 * third}-", f"bytes={2 * third}-"], ranges


def test_a_truncated_body_without_a_length_is_not_the_end():
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.ends_early(1000)]
        check_loaded(home, home.pull(hub, NAME))


def test_a_stalled_connection_is_given_up_and_continued():
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.stalls_after(5000, 20)]
        start = time.monotonic()
        check_loaded(home, home.pull(hub, "--stall", "1", NAME))
        seen(time.monotonic() - start < 10, "it does not wait for the hub")
        assert hub.asked("cdn")[1][1]["Range"] == "bytes=5000-"


def test_servers_without_ranges_begin_anew():
    with hub_and_home(ranges=False, redirects=False) as (hub, home):
        hub.faults["api"] = [None, fake_hub.cut_after(3000)]
        check_loaded(home, home.pull(hub, NAME))
        assert hub.asked("api")[-1][1]["Range"] == "bytes=3000-"


def test_a_server_that_refuses_the_rest_is_asked_for_all():
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.cut_after(3000), fake_hub.status(416)]
        check_loaded(home, home.pull(hub, NAME))
        assert [headers.get("Range") for _, headers in hub.asked("cdn")] == [None, "bytes=3000-", None]


def test_a_range_of_an_unknown_total_is_taken():
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.cut_after(3000), fake_hub.unknown_total]
        check_loaded(home, home.pull(hub, NAME))
        assert len(hub.asked("cdn")) == 2, hub.seen


def test_a_head_that_is_too_long_is_the_hubs_fault():
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [lambda h, _: h.send_body(200, MODEL, [("X-Long", "x" * 400000)]) or True]
        p = home.pull(hub, NAME)
        assert p.returncode in (1, 69) and "--models" not in p.err and home.files() == [], p.err


def test_a_wrong_range_or_size_is_refused():
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.cut_after(3000), fake_hub.wrong_range]
        p = home.pull(hub, NAME)
        assert p.returncode == 1 and "byte 3000 was requested, but the hub sent byte 7" in p.err, p.err
        hub.faults["cdn"] = [fake_hub.larger]
        p = home.pull(hub, NAME + ":Q8_0")
        assert p.returncode == 1 and "bytes, but sends" in p.err, p.err
        check_loaded(home, home.pull(hub, NAME))


def test_a_wrong_checksum_is_removed():
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.flips_a_bit]
        p = home.pull(hub, NAME)
        assert p.returncode == 1 and "checksum" in p.err and home.files() == [], (p.err, home.files())
        check_loaded(home, home.pull(hub, NAME))
        hub.wrong_sum.add("Some-Q8_0.gguf")
        p = home.pull(hub, NAME + ":Q8_0")
        assert p.returncode == 1 and home.files() == [".Some-Q4_K_M.gguf.sha256", "Some-Q4_K_M.gguf"], (p.err, home.files())


def test_a_bad_part_is_loaded_again_from_the_start():
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.cut_after(4000)] + [fake_hub.status(500)] * 3
        assert home.pull(hub, "--tries", "2", NAME).returncode == 69
        part, = home.parts()
        part.write_bytes(b"x" * 4000)
        hub.faults["cdn"] = []
        p = home.pull(hub, NAME)
        check_loaded(home, p)
        assert "starting over" in p.err, p.err


def test_a_file_that_has_changed_at_the_hub_is_replaced():
    with hub_and_home() as (hub, home):
        check_loaded(home, home.pull(hub, NAME))
        new = MODEL[:-1] + bytes([MODEL[-1] ^ 1])
        hub.files["Some-Q4_K_M.gguf"] = new
        check_loaded(home, home.pull(hub, NAME), data=new)


def test_busy_hubs_are_asked_again():
    with hub_and_home() as (hub, home):
        hub.faults["api"] = [fake_hub.status(503), fake_hub.status(429, ("Retry-After", "1"))]
        hub.faults["cdn"] = [fake_hub.status(502)]
        start = time.monotonic()
        p = home.pull(hub, NAME)
        check_loaded(home, p)
        assert time.monotonic() - start >= 2 and p.err.count("next try in") == 3, p.err


def test_a_hub_that_stays_away_is_given_up():
    with hub_and_home() as (hub, home):
        hub.faults["api"] = [fake_hub.status(500)] * 9
        p = home.pull(hub, "--tries", "2", NAME)
        assert p.returncode == 69 and "500" in p.err, (p.returncode, p.err)
        hub.faults["api"] = [fake_hub.status(429, ("Retry-After", "86400"))]
        start = time.monotonic()
        p = home.pull(hub, NAME)
        assert p.returncode == 69, (p.returncode, p.err)
        seen(time.monotonic() - start < 5, "it does not wait")
        url = hub.url
    with Home() as home:
        p = home.pull(None, "--tries", "2", NAME, HF_ENDPOINT=url)
        assert p.returncode == 69 and "connect" in p.err.lower(), p.err
        p = home.pull(None, "--tries", "1", NAME, HF_ENDPOINT="http://" + "a" * 64 + ".example")  # no host name: no request is sent
        assert p.returncode == 69 and "is there a network?" in p.err, p.err


def test_refusals_are_said():
    with hub_and_home() as (hub, home):
        p = home.pull(hub, "hf:owner/nothing")
        assert p.returncode == 1 and "Repository not found" in p.err, p.err
        hub.faults["api"] = [fake_hub.status(403, ("X-Error-Message", "Access to it is restricted"))]
        p = home.pull(hub, NAME)
        assert p.returncode == 77 and "gated" in p.err and "restricted" in p.err, p.err
        hub.faults["cdn"] = [fake_hub.status(404)]
        assert home.pull(hub, NAME).returncode == 1 and home.files() == []
        hub.faults["cdn"] = [fake_hub.status(403)]
        assert home.pull(hub, NAME).returncode == 77


def test_redirects_to_files_and_in_circles_are_refused():
    with hub_and_home() as (hub, home):
        hub.faults["api"] = [None, fake_hub.to_file]
        p = home.pull(hub, NAME)
        assert p.returncode == 1 and "root:" not in p.out + p.err, p.err
        hub.faults["api"] = [None, fake_hub.in_a_circle]
        p = home.pull(hub, NAME)
        assert p.returncode == 1 and "redirects" in p.err, p.err


def test_listings_that_are_none_are_refused():
    for body in (b"", b"[]", b"{", b'{"sha": "x", "siblings": []}', b'{"sha": "%s", "siblings": 7}' % b"a".ljust(40, b"0"), b"\0" * 1000):
        with hub_and_home() as (hub, home):
            hub.faults["api"] = [lambda h, p, body=body: h.send_body(200, body) or True]
            p = home.pull(hub, NAME)
            assert p.returncode == 1 and "listing" in p.err, (body, p.err)


def test_names_that_lead_out_of_the_folder_are_not_taken():
    files = {"../evil-Q4_K_M.gguf": b"1", "/abs-Q4_K_M.gguf": b"1", "a/../b-Q4_K_M.gguf": b"1", ".hidden-Q4_K_M.gguf": b"1"}
    with hub_and_home(files) as (hub, home):
        p = home.pull(hub, NAME)
        assert p.returncode == 1 and "no GGUF model files" in p.err and not home.models.exists(), p.err


def test_what_a_hub_sends_does_not_move_the_terminal():
    """No file name is taken that could, and texts are escaped."""
    evil = ("\x1b]0;x\x07", "\u009b31m", "\u202e", "\u2028", "\x7f", "\n")
    with hub_and_home({f"{e}m{i}-Q4_K_M.gguf": MODEL for i, e in enumerate(evil)}) as (hub, home):
        p = home.pull(hub, NAME)
        assert p.returncode == 1 and "no GGUF model files" in p.err and not home.models.exists(), p.err
    with hub_and_home() as (hub, home):
        answer = lambda h, p: h.send_body(503, b"", [("X-Error-Message", "\x1b[31mred\x9b31m")]) or True  # noqa: E731
        hub.faults["api"] = [answer] * 4
        for p in (home.pull(hub, "--tries", "2", NAME), home.pull(hub, "--json", "--tries", "2", NAME)):
            assert p.returncode == 69 and "\x1b" not in p.out + p.err and "\x9b" not in p.err, (p.out, p.err)
        last = json.loads(p.out.splitlines()[-1]) # bytes that are not UTF-8 do not cost the message
        assert last["status"] == "error" and "\x1b[31mred" in last["error"], last


def test_links_in_place_of_the_part_are_not_followed():
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.cut_after(4000)] + [fake_hub.status(500)] * 3
        assert home.pull(hub, "--tries", "2", NAME).returncode == 69
        part, = home.parts()
        other = home.path / "other"
        for link in (part.symlink_to, lambda to: os.link(to, part)):
            part.unlink()
            other.write_bytes(b"theirs")
            link(other)
            hub.faults["cdn"] = []
            p = home.pull(hub, NAME)
            assert p.returncode == 1 and "is not a regular file" in p.err, (p.returncode, p.err)
            assert other.read_bytes() == b"theirs" and "Some-Q4_K_M.gguf" not in home.files()
        part.unlink()
        sum_file = home.repo / ".Some-Q4_K_M.gguf.sha256"
        sum_file.symlink_to(other)
        check_loaded(home, home.pull(hub, NAME))
        assert other.read_bytes() == b"theirs" and not sum_file.is_symlink()


def test_sizes_that_are_none_are_not_taken():
    for size in (-1, 1.5, 2**63, "7", None):
        with hub_and_home() as (hub, home):
            files = [{"rfilename": "Some-Q4_K_M.gguf", "size": size, "lfs": {"sha256": "0" * 64, "size": size}}]
            body = json.dumps({"sha": fake_hub.COMMIT, "siblings": files}).encode()
            hub.faults["api"] = [lambda h, p, body=body: h.send_body(200, body) or True]
            p = home.pull(hub, NAME)
            assert p.returncode == 1 and "does not say how large" in p.err, (size, p.err)


def test_a_folder_that_may_not_be_written_names_the_option():
    with hub_and_home() as (hub, home):
        home.path.chmod(0o755)
        for folder in (home.repo, home.repo.parent):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o555)
            p = home.pull(hub, NAME, user=65534)
            assert p.returncode == 1 and "Permission denied; --models DIR takes another folder\n" in p.err, p.err
            folder.rmdir()
            folder.parent.chmod(0o755)


def test_nothing_is_printed_into_files():
    """Programs that close descriptors 0 to 2 before they start another."""
    for closed in ((2,), (0, 1, 2)):
        with hub_and_home() as (hub, home):
            hub.faults["cdn"] = [fake_hub.cut_after(4000), fake_hub.status(500)]
            p = subprocess.Popen([program("weftctl"), "pull", NAME], env=home.env(hub), stdout=subprocess.DEVNULL,
                                 preexec_fn=lambda closed=closed: [os.close(fd) for fd in closed])
            assert p.wait(LIMIT_S) == (1 if 1 in closed else 0), p.returncode
            assert (home.repo / "Some-Q4_K_M.gguf").read_bytes() == MODEL and not home.parts(), home.files()


def test_a_full_disk_keeps_the_part():
    with hub_and_home() as (hub, home):
        p = home.pull(hub, NAME, limit=8192)
        assert p.returncode == 1 and "is kept" in p.err, p.err
        part, = home.parts()
        assert part.stat().st_size == 8192
        check_loaded(home, home.pull(hub, NAME))
        assert hub.asked("cdn")[-1][1]["Range"] == "bytes=8192-"


def test_what_the_disk_has_no_room_for_is_not_begun():
    if os.geteuid() != 0:
        raise Skip("a file system is mounted by root only")
    with hub_and_home({"Huge-Q4_K_M.gguf": b"x" * (3 << 20)}) as (hub, home):
        home.models.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", home.models], capture_output=True).returncode:
            raise Skip("tmpfs cannot be mounted here")
        try:
            p = home.pull(hub, NAME)
            assert p.returncode == 1 and "needs 3.0 MiB more" in p.err and not hub.asked("cdn"), p.err
        finally:
            subprocess.run(["umount", home.models], check=True)


def wait_for_part(home, size):
    wait_until("nothing arrives", lambda: any(p.stat().st_size >= size for p in home.parts()))


def wait_for_wait(p):
    """Returns when @p waits for another process."""
    said = []
    while not said or "another process" not in said[-1]:
        said.append(p.stderr.readline())
        assert said[-1], said


def test_a_pull_whose_reader_is_gone_ends():
    """A daemon that was killed leaves its pull behind, which would hold the file and load the rest of it."""
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.slow(100, 0.3)]
        p = home.start(hub, "pull", "--json", NAME)
        while '"completed"' not in p.stdout.readline():
            pass
        p.stdout.close()
        assert p.wait(LIMIT_S) == 130, p.returncode
        assert home.parts(), "what has arrived is lost"
        p.stderr.close()


def test_ctrl_c_leaves_a_part_that_is_continued():
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with hub_and_home() as (hub, home):
            over = threading.Event()
            hub.faults["cdn"] = [fake_hub.held(3000, over)]
            p = home.start(hub, "pull", NAME)
            wait_for_part(home, 3000)
            p.send_signal(sig)
            _, err = p.communicate(timeout=LIMIT_S)
            over.set()
            assert sig == signal.SIGKILL or (p.returncode == 130 and "is kept" in err), (p.returncode, err)
            part, = home.parts()
            size = part.stat().st_size
            check_loaded(home, home.pull(hub, NAME))
            assert hub.asked("cdn")[-1][1]["Range"] == f"bytes={size}-"


def test_two_pulls_at_once_load_it_once():
    with hub_and_home() as (hub, home):
        all_wait = threading.Event()
        hub.faults["cdn"] = [fake_hub.held(1000, all_wait)]
        first = home.start(hub, "pull", NAME)
        wait_for_part(home, 1000)
        others = [home.start(hub, "pull", NAME) for _ in range(3)]
        for p in others:
            wait_for_wait(p)
        all_wait.set()
        for p in (first, *others):
            p.out, p.err = p.communicate(timeout=LIMIT_S)
            check_loaded(home, p)
        assert len(hub.asked("cdn")) == 1


def test_a_second_pull_goes_on_when_the_first_dies():
    with hub_and_home() as (hub, home):
        over = threading.Event()
        hub.faults["cdn"] = [fake_hub.held(3000, over)]
        first = home.start(hub, "pull", NAME)
        wait_for_part(home, 3000)
        second = home.start(hub, "pull", NAME)
        wait_for_wait(second)
        first.kill()
        first.communicate()
        over.set()
        second.out, second.err = second.communicate(timeout=LIMIT_S)
        check_loaded(home, second)
        assert hub.asked("cdn")[-1][1]["Range"].startswith("bytes=")


def test_the_hubs_own_cache_is_used_in_place():
    with hub_and_home() as (hub, home):
        snapshot = home.path / ".cache/huggingface/hub/models--owner--Some-GGUF/snapshots" / fake_hub.COMMIT
        snapshot.mkdir(parents=True)
        (snapshot / "Some-Q4_K_M.gguf").write_bytes(MODEL)
        p = home.pull(hub, NAME)
        assert p.returncode == 0 and p.out.strip() == str(snapshot / "Some-Q4_K_M.gguf"), (p.out, p.err)
        assert not hub.asked("cdn") and not home.models.exists()
        listed = json.loads(home.run(None, "models", "--json").out)
        assert [(m["name"], m["store"]) for m in listed] == [("Some-Q4_K_M", "hub")], listed
        p = home.run(None, "rm", "Some-Q4_K_M")
        assert p.returncode == 1 and "removes nothing" in p.err and snapshot.exists(), p.err


def test_rm_removes_models_and_parts():
    with hub_and_home() as (hub, home):
        check_loaded(home, home.pull(hub, NAME))
        hub.faults["cdn"] = [fake_hub.cut_after(4000)] + [fake_hub.status(500)] * 3
        assert home.pull(hub, "--tries", "2", NAME + ":Q8_0").returncode == 69
        assert home.parts()
        assert "3.9 KiB" in home.run(None, "rm", "--partial").out
        assert not home.parts()
        assert home.run(None, "rm", "Some-Q4_K_M").returncode == 0
        assert home.models.exists() and not list(home.models.iterdir())
        assert home.run(None, "rm", "Some-Q4_K_M").returncode == 1


def on_terminal(command, **env):
    """The exit code, and what a terminal is sent."""
    primary, secondary = os.openpty()
    p = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=secondary)
    os.close(secondary)
    seen = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(primary, 4096):
            seen += chunk
    os.close(primary)
    p.communicate(timeout=LIMIT_S)
    return p.returncode, seen


def test_terminals_get_a_line_that_is_drawn_again():
    with hub_and_home() as (hub, home):
        hub.faults["cdn"] = [fake_hub.slow(len(MODEL) // 8, 0.15)]
        code, seen = on_terminal([program("weftctl"), "pull", NAME], **home.env(hub))
        assert code == 0 and b"\r\033[K" in seen and re.search(rb"\d+ %  \[=* *\]  \S+ \S+ of ", seen), seen
        assert b"/s  0:0" in seen, seen


def test_dumb_terminals_get_lines():
    with hub_and_home() as (hub, home):
        code, seen = on_terminal([program("weftctl"), "pull", NAME], **home.env(hub, TERM="dumb"))
        assert code == 0 and b"left to download" in seen and b"\033" not in seen, seen
    script = pathlib.Path(__file__).parents[2] / "packaging/setup/progress.sh"
    work = "work() { [ $TERM = dumb ] && sleep 1.5 || until [ -e $progress_drawn ]; do sleep 0.1; done; }"
    for kind, draws in (("dumb", False), ("xterm", True)):
        code, seen = on_terminal(["bash", "-c", f". {script}; {work}; progress working true work"], PATH=os.environ["PATH"], TERM=kind)
        assert code == 0 and b"working" in seen and (b"\033" in seen) == draws, (kind, seen)


main(globals())
