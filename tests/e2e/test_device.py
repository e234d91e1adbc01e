"""NVML values of a device, from the worker to metrics, weftctl and weft-bench, on the emulated CUDA backend with an
NVML of the tests."""
import itertools
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

import hf_quantise
from golden_models import REQUESTS, ask, golden, random_tokens
from test_folders import PAIRED, PAIRED_FORMS, PUBLISHED_IN_BF16, folder_of, in_bf16, quantised
from weftd import ANY_TIME, BUILD, Weftd, copy_daemon, every, main, open_files, program, synth, tiny_model, wait_until


def metrics(d):
    return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in d.request("GET", "/metrics")[2].splitlines()
            if line.startswith("weft_device_")}


def test_the_device_in_metrics_and_programs():
    nvml = BUILD / "tests" / "daemon" / "nvml"
    with tempfile.TemporaryDirectory(prefix="weft-device-") as folder:
        copy_daemon(folder)
        with Weftd("--backend", "cuda", "--kv-memory", "64M", "--max-context", "2048", path=os.path.join(folder, "weftd"),
                   env={"LD_LIBRARY_PATH": str(nvml)}) as d:
            wait_until("the first reading", lambda: metrics(d).get("weft_device_memory_bytes", 0) > 0)
            m = metrics(d)
            assert m["weft_device_memory_bytes"] == 2 ** 37 and m["weft_device_memory_used_bytes"] == 2 ** 36, m
            assert m["weft_device_power_watts"] == 312 and m["weft_device_clock_hertz"] == 1.98e9, m
            assert m["weft_device_temperature_celsius"] == 54 and m["weft_device_throttled"] == 0, m
            out = pathlib.Path(folder) / "result.json"
            subprocess.run([program("weft-bench"), "serve", "--url", f"http://127.0.0.1:{d.port}", "--clients", "2", "--duration", "4",
                            "--prompt-tokens", "8", "--output-tokens", "8", "--json", out], check=True, stdout=subprocess.DEVNULL)
            r = json.loads(out.read_text())
            assert r["energy_joules"] > 0 and r["energy_joules"] % 300 == 0, r
            assert abs(r["joules_per_output_token"] * r["output_tokens"] - r["energy_joules"]) < 1e-6, r
            text = subprocess.run([program("weftctl"), "--socket", d.admin, "stats"], check=True, capture_output=True, text=True).stdout
            assert "device    64.0 of 128.0 GiB used; 312 W, 1980 MHz, 54 C" in text and "J a token of output" in text, text


def test_each_device_in_metrics_and_programs():
    nvml = BUILD / "tests" / "daemon" / "nvml"
    with tempfile.TemporaryDirectory(prefix="weft-device-") as folder:
        copy_daemon(folder)
        with Weftd("--backend", "cuda", "--devices", "1,0", "--kv-memory", "64M", "--max-context", "2048", path=os.path.join(folder, "weftd"),
                   env={"LD_LIBRARY_PATH": str(nvml), "WEFT_CUDA_FAKE_DEVICES": "2"}) as d:
            wait_until("the first reading", lambda: metrics(d))
            power = [line for line in d.request("GET", "/metrics")[2].splitlines() if line.startswith("weft_device_power_watts")]
            assert len(power) == 2 and 'device="1"} 312' in power[0] and 'device="0"} 312' in power[1], power
            text = subprocess.run([program("weftctl"), "--socket", d.admin, "stats"], check=True, capture_output=True, text=True).stdout
            lines = [line for line in text.splitlines() if line.startswith("device ")]
            assert [line[:20] for line in lines] == ["device 1  64.0 of 12", "device 0  64.0 of 12"], text
            assert "J a token" not in lines[0], text


def test_what_fits_on_two_devices():
    with tempfile.TemporaryDirectory(prefix="weft-device-") as folder:
        copy_daemon(folder)
        shutil.copy(program("weft-gguf"), folder)

        def info(*flags):
            return subprocess.run([os.path.join(folder, "weft-gguf"), "info", *flags, tiny_model()], capture_output=True, text=True,
                                  env={**os.environ, "WEFT_CUDA_FAKE_DEVICES": "2"}).stdout.split("this machine\n")[1]

        assert "by the cuda backend" in info("--devices", "1,0") and "on CUDA's device 1,0" in info("--devices", "1,0")
        assert "CUDA device 9: there are 2" in info("--devices", "0,9")


def test_what_is_told_of_fetched_experts():
    """A device of 420 MB has room for a quarter of the experts; the host keeps all experts of these layers, not only
    the remaining ones."""
    model = synth("experts-50m", "--arch", "qwen3moe", "--shape", "tiny,n_expert=64,n_used=2,n_ff=512,n_embd=256", "--format", "Q8_0")
    with tempfile.TemporaryDirectory(prefix="weft-device-") as folder:
        copy_daemon(folder)
        shutil.copy(program("weft-gguf"), folder)

        def info(*flags, memory=420_000_000):
            return subprocess.run([os.path.join(folder, "weft-gguf"), "info", "--devices", "0", "--max-context", "1024", *flags, model],
                                  check=True, capture_output=True, text=True, env={**os.environ, "WEFT_CUDA_FAKE_BYTES": str(memory)}).stdout

        computed, fetched = (json.loads(info("--json", *f))["fit"] for f in ((), ("--fetch-experts",)))
        assert not computed["fetch_experts"] and fetched["fetch_experts"], (computed, fetched)
        for f in (computed, fetched):
            assert 0 < f["host_experts"] < f["experts"] == 128 and f["host_expert_layers"] == 2, f
            assert f["device_weight_bytes"] < f["weight_bytes"] // 2, f
        experts = 128 * 3 * 512 * 256 // 32 * 34
        assert fetched["host_expert_bytes"] == experts > computed["host_expert_bytes"], (computed, fetched)
        assert fetched["weight_bytes"] - fetched["device_weight_bytes"] == experts // 128 * fetched["host_experts"], fetched
        assert "the device, which reads them over PCIe when they are picked: host memory has 51 MiB" in info("--fetch-experts")
        assert not json.loads(info("--json", "--fetch-experts", memory=2 ** 32))["fit"]["fetch_experts"]


def test_no_device_is_no_line():
    with Weftd() as d:
        d.complete("a", max_tokens=1)
        assert not metrics(d)
        text = subprocess.run([program("weftctl"), "--socket", d.admin, "stats"], check=True, capture_output=True, text=True).stdout
        assert "device" not in text, text


def test_devices_that_share_a_model_give_what_one_gives():
    flags = ("--backend", "cuda", "--kv-memory", "64M", "--max-context", "2048")
    text = {"prompt": "Once upon a time", "max_tokens": 24, "ignore_eos": True, "temperature": 0}
    with tempfile.TemporaryDirectory(prefix="weft-device-") as folder:
        copy_daemon(folder)
        start = dict(path=os.path.join(folder, "weftd"), env={"WEFT_CUDA_FAKE_DEVICES": "2"})
        with Weftd(*flags, **start) as d:
            one = d.complete(**text)["token_ids"]
        with Weftd(*flags, "--devices", "0,1", **start) as d:
            events = d.stream("/v1/completions", {**text, "return_token_ids": True})
            several = next(events)["choices"][0]["token_ids"]
            d.kill_worker()
            for event in events:
                several += event["choices"][0].get("token_ids", []) if event["choices"] else []
            assert several == one, (several, one)
            assert " x2" in d.log, d.log


def test_dense_ffns_of_the_host_stay_when_a_worker_dies():
    flags = ("--backend", "cuda", "--kv-memory", "64M", "--max-context", "2048", "--threads", "1")
    text = {"prompt": "Once upon a time", "max_tokens": 24, "ignore_eos": True, "temperature": 0}
    with tempfile.TemporaryDirectory(prefix="weft-device-") as folder:
        copy_daemon(folder)
        with Weftd(*flags, "--device-layers", "1", path=os.path.join(folder, "weftd")) as d:
            one = d.complete(**text)["token_ids"]
            events = d.stream("/v1/completions", {**text, "return_token_ids": True})
            again = next(events)["choices"][0]["token_ids"]
            d.kill_worker()
            for event in events:
                again += event["choices"][0].get("token_ids", []) if event["choices"] else []
            assert again == one, (again, one)
            assert d.log.count("of 2 layers are in host memory") == 2, d.log


def test_fetched_experts_give_what_a_device_with_all_gives():
    """Fetched experts give the same tokens as resident ones, also in a stream whose worker is killed and behind a
    cached prefix."""
    model = synth("tiny-moe", "--arch", "qwen3moe", "--shape", "tiny,n_expert=8,n_used=2,n_ff=64", "--format", "Q8_0")
    flags = ("--backend", "cuda", "--kv-memory", "64M", "--max-context", "2048", "--threads", "1")
    text = {"prompt": "Once upon a time there was a fox", "max_tokens": 24, "ignore_eos": True, "temperature": 0}
    with tempfile.TemporaryDirectory(prefix="weft-device-") as folder:
        copy_daemon(folder)
        start = dict(model=model, path=os.path.join(folder, "weftd"))
        with Weftd(*flags, **start) as d:
            one = d.complete(**text, logits_digest=True)
        with Weftd(*flags, "--host-experts", "2", "--fetch-experts", "yes", **start) as d:
            wait_placed(d, 16)
            for _ in range(2):
                again = d.complete(**text, logits_digest=True)
                assert (again["token_ids"], again["digests"]) == (one["token_ids"], one["digests"])
            events = d.stream("/v1/completions", {**text, "return_token_ids": True})
            several = next(events)["choices"][0]["token_ids"]
            d.kill_worker()
            for event in events:
                several += event["choices"][0].get("token_ids", []) if event["choices"] else []
            assert several == one["token_ids"], (several, one)
            assert d.log.count("the device fetches those that are picked") == 2, d.log


def test_compressed_keys_and_states_outlive_their_worker_and_their_daemon():
    """A stream of DeepSeek continues after its worker is killed, and a restarted daemon finds windows and compressed
    keys on disk."""
    prompt = random_tokens(71, 180)
    flags = ("--backend", "cuda", "--kv-memory", "64M", "--max-context", "512", "--threads", "1", "--speculation", "off")
    text = {"prompt": prompt, "max_tokens": 12, "ignore_eos": True, "temperature": 0}
    with tempfile.TemporaryDirectory(prefix="weft-device-") as folder:
        copy_daemon(folder)
        start = dict(model=golden("deepseek4"), path=os.path.join(folder, "weftd"))
        flags += ("--kv-disk", folder, "--kv-disk-size", "64M")
        with Weftd(*flags, **start) as d:
            one = d.complete(**text, logits_digest=True)
            wait_until("a snapshot on the disk", lambda: d.stats()["worker"]["disk_saved_snapshots"] > 0)
            events = d.stream("/v1/completions", {**text, "return_token_ids": True})
            again = next(events)["choices"][0]["token_ids"]
            d.kill_worker()
            for event in events:
                again += event["choices"][0].get("token_ids", []) if event["choices"] else []
            assert again == one["token_ids"], (again, one)
            wait_until("a snapshot from the disk", lambda: d.stats()["worker"]["disk_loaded_snapshots"] > 0)
        with Weftd(*flags, **start) as d:
            back = d.complete(**text, logits_digest=True)
            assert (back["token_ids"], back["digests"]) == (one["token_ids"], one["digests"])
            assert back["usage"]["prompt_tokens_details"]["cached_tokens"] > 100, back["usage"]


BITS = 40  # engine/picks.c: offset of the placement; one word a layer of up to 32 experts


def wait_placed(d, n):
    """Waits until the host holds this many experts."""
    wait_until(f"{n} experts of the host", lambda: host_experts(d) == n)


def host_experts(d):
    return next(int(float(line.rsplit(" ", 1)[1])) for line in d.request("GET", "/metrics")[2].splitlines()
                if line.startswith("weft_host_experts{") or line.startswith("weft_host_experts "))


def test_experts_stay_where_they_are_until_the_model_is_loaded_anew():
    model = synth("tiny-moe", "--arch", "qwen3moe", "--shape", "tiny,n_expert=8,n_used=2,n_ff=64", "--format", "Q8_0")
    with tempfile.TemporaryDirectory(prefix="weft-device-") as folder:
        copy_daemon(folder)
        state = pathlib.Path(folder) / "state"
        state.mkdir()
        start = dict(model=model, path=os.path.join(folder, "weftd"), env={"STATE_DIRECTORY": str(state)})
        flags = ("--backend", "cuda", "--kv-memory", "64M", "--max-context", "2048", "--host-experts", "1", "--threads", "1")
        with Weftd(*flags, **start) as d:
            wait_placed(d, 8)
            # A replacement worker finds the placement of the experts unchanged, whatever the options are.
            worker = d.worker_pid()
            for path, target, _ in open_files(worker):
                if "weft-experts" in target:
                    with open(path, "r+b") as file:
                        file.seek(BITS)
                        file.write(struct.pack("<2I", 0b101, 0b1))
            d.kill_worker(worker)
            wait_placed(d, 3)
            kept, = state.glob("experts-*")
            wait_until("what it left", lambda: kept.read_bytes()[BITS:BITS + 8] == struct.pack("<2I", 0b101, 0b1))
        # On the CPU, picks are counted and kept as well.
        with Weftd("--backend", "cpu", model=model, env=start["env"]) as d:
            d.complete("a", max_tokens=200, ignore_eos=True)
        assert sum(struct.unpack_from("<16Q", kept.read_bytes(), kept.stat().st_size - 128)) >= 128 * 2 * 2
        with Weftd(*flags, **start) as d:
            wait_placed(d, 8)
            assert "8 of 16 experts, in 1 of 2 layers, are in host memory" in d.log, d.log


# pairs of the page of measurements: a form, or how a model is stored that is not quantised, and a model of the test data
PLAIN = (("plain", "llama-gqa"), ("plain", "llama-f16"), ("plain", "llama-bf16"))
OF_LLAMA = tuple((form, "llama-gqa") for form in hf_quantise.FORMS)
# They become tiles of Q5_0, G4, Q4_0, BF16, NVFP4 and MXFP4.
OF_TILES = ("awq", "awq-groups-of-64", "gptq-sym", "fp8-block", "nvfp4-modelopt", "mxfp4")
OF_EACH = tuple((form, name) for name in PAIRED if name != "llama-gqa" for form in OF_TILES)
# The device refuses the heads of 12 values of olmo2 and granite.
IN_BF16 = tuple(("bf16", name) for name in PUBLISHED_IN_BF16 if name not in ("olmo2", "granite"))
ON_DEVICE = (*PLAIN, *OF_LLAMA, ("fp8-channel", "lfm2moe"), ("gpt-oss", "gpt-oss"), *OF_EACH, *IN_BF16)


def pair_of(form, name, where):
    """Writes a folder and a GGUF file of the same numbers. Returns their paths."""
    if form == "plain":
        return folder_of(name, where), golden(name)
    if form == "bf16":
        return in_bf16(name, where)
    return quantised(form, name, where)


def test_folders_have_the_bits_of_a_gguf_file():
    flags = ("--backend", "cuda", "--kv-memory", "16M", "--max-context", "512", "--threads", "1", "--speculation", "off")
    few = (("plain", "llama-bf16"), ("awq", "deepseek2-v3"), ("gptq-sym", "phi3"), ("fp8-block", "qwen35moe-mtp"), ("gptq-act-order", "llama-gqa"),
           ("awq-groups-of-64", "lfm2moe"), ("mxfp4", "nemotron-h-moe-mtp"), ("nvfp4-modelopt", "lfm2moe"), ("fp8-block", "mistral4"), ("gpt-oss", "gpt-oss"))
    with tempfile.TemporaryDirectory(prefix="weft-device-") as daemon:
        copy_daemon(daemon)
        for pair in every(ON_DEVICE, few):
            with tempfile.TemporaryDirectory() as where:
                results = []
                for path in pair_of(*pair, where):
                    with Weftd(*flags, path=os.path.join(daemon, "weftd"), model=path) as d:
                        results.append([ask(d, r, 8) for r in REQUESTS[:2]])
                        assert " worker_ready " in d.log and "backend=cuda" in d.log, d.log
                assert results[0] == results[1], pair


def code_shapes(folder):
    """Returns rows and columns of the matrices of AWQ."""
    for path in pathlib.Path(folder).glob("*.safetensors"):
        data = path.read_bytes()
        for name, t in json.loads(data[8:8 + int.from_bytes(data[:8], "little")]).items():
            if name.endswith(".qweight"):
                yield t["shape"][1] * 8, t["shape"][0]


def test_groups_of_4_bit_codes_have_tiles_of_their_own():
    """The self-test, which reads rows of the folder, too, finds nothing wrong. The GGUF file has the same numbers in Q5_0,
    whose tiles leave less memory for pages."""
    def in_tiles(rows, columns, tile):
        return -(-rows // 16 * columns // 64 * tile // 512) * 512

    with tempfile.TemporaryDirectory(prefix="weft-device-") as daemon, tempfile.TemporaryDirectory() as where:
        copy_daemon(daemon)
        shutil.copy(program("weft-gguf"), daemon)
        folder, file = quantised("awq-groups-of-64", "llama-gqa", where)
        own, five = (json.loads(subprocess.run([os.path.join(daemon, "weft-gguf"), "info", "--json", "--devices", "0", path],
                                               check=True, capture_output=True, text=True).stdout)["fit"] for path in (folder, file))
        saved = sum(in_tiles(rows, columns, 704) - in_tiles(rows, columns, 560) for rows, columns in code_shapes(folder) if columns % 64 == 0)
        assert saved // own["page_bytes"] <= own["n_pages"] - five["n_pages"] <= saved // own["page_bytes"] + 1, (own, five, saved)
        assert saved > own["page_bytes"]
        with Weftd("--backend", "cuda", "--kv-memory", "16M", "--max-context", "512", path=os.path.join(daemon, "weftd"), model=folder,
                   env={"WEFT_CUDA_CHECK": "1"}) as d:
            assert "backend=cuda" in d.log and "other bits" not in d.log, d.log


def test_block_drafters_in_folders_change_no_bit():
    flags = ("--backend", "cuda", "--kv-memory", "16M", "--max-context", "512", "--threads", "1")
    few = (("qwen35-dflash", "awq"), ("qwen35-dflash2", "fp8-block"))
    model = golden("qwen35-mtp")
    with tempfile.TemporaryDirectory(prefix="weft-device-") as daemon:
        copy_daemon(daemon)
        path = os.path.join(daemon, "weftd")
        with Weftd(*flags, "--speculation", "off", path=path, model=model) as d:
            should = [ask(d, r, 8) for r in REQUESTS[:2]]
        for name, form in every([*itertools.product(("qwen35-dflash", "qwen35-dflash2"), PAIRED_FORMS)], few):
            with tempfile.TemporaryDirectory() as where:
                drafter = quantised(form, name, where)[0]
                with Weftd(*flags, *ANY_TIME, "--draft-sources", "mtp", "--draft-model", drafter, path=path, model=model) as d:
                    assert [ask(d, r, 8) for r in REQUESTS[:2]] == should, (name, form)
                    wait_until("a draft", lambda: d.stats()["worker"]["drafts"]["mtp"]["drafted"])


main(globals())
