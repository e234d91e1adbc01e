"""weft-bench engine on small synthetic models: what it measures is counted, not timed."""
import json
import os
import subprocess
import tempfile

from weftd import LIMIT_S, main, program

FOLDER = tempfile.TemporaryDirectory(prefix="weft-bench-")


def path(name):
    return os.path.join(FOLDER.name, name)


def run(*args, code=0):
    p = subprocess.run([program("weft-bench"), "engine", *map(str, args)], capture_output=True, timeout=LIMIT_S, text=True)
    assert p.returncode == code, (args, p.returncode, p.stdout, p.stderr)
    return p.stdout, p.stderr


def model(arch="qwen3", shape="tiny"):
    file = path(f"{arch}.gguf")
    if not os.path.exists(file):
        subprocess.run([program("weft-synth"), "--arch", arch, "--shape", shape, "--n-vocab", "512",
                        "--format", "Q4_0", "-o", file], check=True)
    return file


def measure(*args):
    run("--backend", "reference", "--no-bandwidth", "--json", path("r.json"), *args)
    with open(path("r.json")) as f:
        return json.load(f)


def test_every_wanted_test_is_run_and_reported():
    d = measure("--model", model(), "-p", 40, "-n", 5, "-d", 33, "--batch", "1,3", "--reps", 2, "--rows", 16)
    assert [(r["test"], r["seqs"], r["tokens"], r["depth"]) for r in d["results"]] == [
        ("prefill", 1, 40, 0), ("decode", 1, 5, 33), ("decode", 3, 5, 33)]
    for r in d["results"]:
        assert r["tokens_per_s"]["n"] == 2 and r["tokens_per_s"]["min"] > 0
    single = d["results"][1]
    assert abs(single["gb_per_s"] - d["bytes_per_step"] * single["tokens_per_s"]["mean"] * 1e-9) < 1e-6
    assert "share_of_limit" not in single
    assert [r["test"] for r in measure("--model", model(), "-p", 0, "-n", 3)["results"]] == ["decode"]
    assert [r["test"] for r in measure("--model", model(), "-p", 9, "-n", 0)["results"]] == ["prefill"]


def test_a_step_reads_all_weights_but_an_embedding_table_of_its_own():
    d = measure("--model", model("llama"), "-p", 4, "-n", 0, "--reps", 1)
    assert d["weight_bytes"] - d["bytes_per_step"] == 512 * 256 // 32 * 18 - 256 // 32 * 18
    tied = path("tied.gguf")
    subprocess.run([program("weft-synth"), "--shape", "tiny,tied=1", "--format", "Q8_0", "-o", tied], check=True)
    d = measure("--model", tied, "-p", 4, "-n", 0, "--reps", 1)
    assert d["weight_bytes"] == d["bytes_per_step"]


def test_memory_is_measured_and_decode_set_beside_it():
    out, _ = run("--model", model(), "--backend", "reference", "-p", 0, "-n", 2, "--reps", 1, "--json", path("m.json"))
    d = json.load(open(path("m.json")))
    r = d["results"][0]
    assert d["read_gb_per_s"] > 0 and abs(r["share_of_limit"] - r["gb_per_s"] / d["read_gb_per_s"]) < 1e-6
    assert "GB/s read by" in out and "of limit" in out


def write(name, value):
    with open(path(name), "w") as f:
        json.dump(value, f)
    return path(name)


def small_model():
    """So small that many short replays are quick; 272 tokens."""
    file = path("small.gguf")
    if not os.path.exists(file):
        shape = "n_layer=2,n_embd=64,n_head=2,n_kv=1,head_dim=32,n_ff=64,n_vocab=272"
        subprocess.run([program("weft-synth"), "--shape", shape, "--format", "Q8_0", "-o", file], check=True)
    return file


def replay(value, *args):
    return measure("--model", small_model(), "--replay", write("t.json", value), "--reps", 1, *args)


def greedy(prompt, before):
    """The token that greedy sampling puts after @prompt and the forced output @before: the one on which the record and
    the engine agree. Halves the candidates again and again, 64 in a batch."""
    def agreeing(low, high):
        d = replay({"requests": [{"prompt": prompt, "output": [*before, t]} for t in range(low, high)]}, "--batch", 64)
        assert d["replayed_tokens"] == (high - low) * (len(before) + 1)
        return d["greedy_agrees"]

    low, high = 0, 272
    inner = (agreeing(0, 272) - 1) // 272  # tokens of @before that agree, in each request
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if agreeing(low, middle) > inner * (middle - low) else (middle, high)
    return low


def test_replay_forces_the_record_and_counts_agreement():
    prompt = [5, 9, 200, 17, 42, 8]
    first = greedy(prompt, [])
    other = (first + 1) % 272
    # What follows a forced token is what follows it as part of the prompt, whether it was the greedy one or not.
    after = {}
    for begin in (first, other):
        after[begin] = greedy(prompt, [begin])
        assert after[begin] == greedy([*prompt, begin], [])
    assert after[first] != after[other], "this model cannot tell the two apart: take another"
    d = replay({"prompt": prompt, "output": [first, after[first]]})
    assert (d["replayed_tokens"], d["greedy_agrees"]) == (2, 2)
    d = replay({"prompt": prompt, "output": [other, after[other]]})
    assert (d["replayed_tokens"], d["greedy_agrees"]) == (2, 1)
    tests = [(r["test"], r["seqs"], r["tokens"]) for r in d["results"]]
    assert tests == [("replay prefill", 1, 6), ("replay decode", 1, 2)], tests


def test_replay_takes_text_and_requests_of_many_lengths():
    d = replay({"requests": [{"prompt": "the answer " * n, "output": " the" * (9 - n)} for n in range(1, 9)]}, "--batch", 3)
    assert d["replayed_tokens"] == d["results"][1]["tokens"] == 36 and d["results"][1]["seqs"] == 3


def test_bad_transcripts_and_arguments_are_refused():
    for value in ([], {}, {"requests": []}, {"prompt": [1]}, {"prompt": [1], "output": []}, {"prompt": [512], "output": [1]},
                  {"prompt": [-1], "output": [1]}, {"prompt": [1.5], "output": [1]}, {"prompt": 3, "output": [1]},
                  {"requests": [{"prompt": [1], "output": [1]}, 7]}):
        _, err = run("--model", model(), "--replay", write("t.json", value), "--backend", "reference", code=1)
        assert err.startswith("weft-bench: ") and err.count("\n") == 1, (value, err)
    for args in ((), ("--model",), ("--model", "x", "--batch", "0"), ("--model", "x", "--batch", "1,x"),
                 ("--model", "x", "--kv", "f8"), ("--model", "x", "-p", "0", "-n", "0"), ("--model", "x", "y"),
                 ("--model", "x", "--reps", "0")):
        _, err = run(*args, code=64)
        assert err.startswith("weft-bench: ") and err.count("\n") == 1, (args, err)
    for args in (("--model", path("absent")), ("--model", model(), "--backend", "abacus"),
                 ("--model", model(), "-p", 100000), ("--model", model(), "--replay", path("absent"))):
        _, err = run(*args, code=1)
        assert err.startswith("weft-bench: ") and err.count("\n") == 1, (args, err)
    assert run("--help")[0].startswith("usage: weft-bench engine")


main(globals())
