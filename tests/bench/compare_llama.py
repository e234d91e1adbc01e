#!/usr/bin/env python3
"""Measures weft beside llama.cpp on the same machine, with the same file and threads: interleaved pairs, the ratio of
each pair, and the lower 95 % bound of their mean (log scale, Student's t).

usage: compare_llama.py --llama DIR --model FILE.gguf [--build DIR] [--threads N] [--pairs N] [--only ROW,...] [--json FILE]
       compare_llama.py --llama DIR --shapes NAME,...|all --models DIR [--check] [...]

DIR holds llama-bench, llama-batched-bench and llama-server. Rows: decode, prefill, batch8, prefix, gap.
  decode   128 tokens of one stream                          tokens/s
  prefill  a prompt of 512 tokens                            tokens/s
  batch8   64 tokens of each of 8 sequences in one batch     tokens/s
  prefix   8 clients at once, the same 800-token prefix, 48 tokens each, through the server   tokens/s
  gap      4 clients stream while a prompt of 3000 tokens arrives: the longest time between two tokens of a stream
           ratio: llama.cpp's gap / weft's
With --shapes the first three rows of each shape instead, with 48 tokens, 512 tokens, and 32 tokens of each of 8 sequences:
models of these sizes with fewer layers, and a vocabulary that is smaller by as much, so that the last matrix keeps its
share. They are made in the folder of --models where it does not have them. --check: how many greedy tokens of llama-server
weft would have chosen, too, for models of these shapes in F32 with fewer experts or a narrower FFN: with quantised weights the
two round activations differently, and random weights tell experts apart by little.
"""
import argparse
import http.client
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

from servers import Server, commit, cpu_name

# Two-sided 90 % quantile of Student's t: the lower end is the one-sided 95 % bound.
T = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 7: 1.89, 8: 1.86, 9: 1.83, 10: 1.81, 11: 1.80, 14: 1.76, 19: 1.73}


def output(*command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


# -- engines without HTTP ---------------------------------------------------------------------------------


def weft_engine(a, *flags):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        output(a.build / "weft-bench", "engine", "--model", a.model, "--threads", a.threads, "--reps", 1, "--json", file.name, *flags)
        return json.load(open(file.name))


def weft_result(a, kind, *flags):
    return next(r for r in weft_engine(a, *flags)["results"] if r["test"] == kind)["tokens_per_s"]["mean"]


def weft_decode(a):
    return weft_result(a, "decode", "-p", 0, "-n", 128, "--batch", 1, "--no-bandwidth")


def weft_prefill(a):
    return weft_result(a, "prefill", "-p", 512, "-n", 0, "--no-bandwidth")


def weft_batch8(a):
    return weft_result(a, "decode", "-p", 0, "-n", 64, "--batch", 8, "--no-bandwidth")


def llama_rows(a, *flags):
    return json.loads(output(a.llama / "llama-bench", "-m", a.model, "-t", a.threads, "-r", 1, "-o", "json", *flags))


def llama_bench(a, *flags):
    return llama_rows(a, *flags)[0]["avg_ts"]


def llama_decode(a):
    return llama_bench(a, "-p", 0, "-n", 128)


def llama_prefill(a):
    return llama_bench(a, "-p", 512, "-n", 0)


def llama_batch8(a, n=64):
    text = output(
        a.llama / "llama-batched-bench", "-m", a.model, "-t", a.threads, "-c", 4096, "-npp", 16, "-ntg", n, "-npl", 8, "--output-format", "jsonl"
    )
    return json.loads(text.strip().splitlines()[-1])["speed_tg"]


# -- shapes ------------------------------------------------------------------------------------------------

# What is cut, the vocabulary, and the format that people have the model in; what is cut more for --check.
SHAPES = {
    "qwen3.6-27b": ("n_layer=4", 15520, "Q4_K_M", "n_ff=1024"),
    "qwen3.6-35b-a3b": ("n_layer=4", 24832, "Q4_K_M", "n_expert=16"),
    "gpt-oss-20b": ("n_layer=4", 33536, "MXFP4_MOE", "n_layer=2,n_expert=8"),
    "gemma-4-26b-a4b": ("n_layer=4,period=4", 34944, "Q4_K_M", "n_expert=16"),
    "glm-4.7-flash": ("n_layer=5", 16480, "Q4_K_M", "n_expert=8"),
    "devstral-24b": ("n_layer=4", 13120, "Q4_K_M", "n_ff=2048"),
    "minimax-m2.7": ("n_layer=4,n_expert=64", 12928, "Q4_K_M", "n_expert=16"),
    "muse-glimmer-30b": ("n_layer=4", 15552, "Q4_K_M", "n_ff=2048"),
    "step-3.5-flash": ("n_layer=5,n_lead=1,n_expert=64", 14336, "Q4_K_M", "n_expert=8"),
    "qwen3.8-flash-next": ("n_layer=4,n_expert=128,n_table=100000", 20704, "Q4_K_M", "n_expert=16"),
    "ling-3.0-flash": ("n_layer=6,n_lead=1,n_expert=64,n_mtp=0", 22448, "Q4_K_M", "n_expert=16"),
    "deepseek-v4-flash": ("n_layer=5,n_expert=32", 15040, "Q4_K_M", "n_expert=8"),
}


def shape_model(a, name, check=False):
    path = a.models / f"{name}{'-check' if check else ''}.gguf"
    cut, n_vocab, form, more = SHAPES[name]
    if not path.exists():
        shape = f"{name},{cut},n_vocab={n_vocab}" + (f",{more},n_vocab=4096" if check else "")
        output(a.build / "weft-synth", "--shape", shape, "--format", "F32" if check else form, "-o", path)
    return path


def replay(a, requests, *flags):
    """The result of weft-bench for recorded requests, [(prompt, output)] in token ids."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"requests": [{"prompt": p, "output": o} for p, o in requests]}, file)
        file.flush()
        return weft_engine(a, "--no-bandwidth", "--replay", file.name, *flags)


def weft_shape(a, seed):
    """{row: tokens/s}. Like llama-batched-bench's, the tokens of the 8 sequences are random: so are the experts."""
    r = random.Random(seed)
    rows = weft_engine(a, "-p", 512, "-n", 48, "--batch", 1, "--no-bandwidth")["results"]
    ids = [r.choices(range(4096), k=16 + 33) for _ in range(8)]
    rows += replay(a, [(x[:16], x[16:]) for x in ids], "--batch", 8)["results"]
    speed = {x["test"]: x["tokens_per_s"]["mean"] for x in rows}
    return {"decode": speed["decode"], "prefill": speed["prefill"], "batch8": speed["replay decode"]}


def llama_shape(a, _):
    prefill, decode = llama_rows(a, "-p", 512, "-n", 48)
    return {"decode": decode["avg_ts"], "prefill": prefill["avg_ts"], "batch8": llama_batch8(a, 32)}


def same_tokens(a):
    """(how many, of how many) greedy tokens of llama-server weft would have chosen, each behind those before it."""
    r, requests = random.Random(1), []
    with llama_server(a, "-c", 2048, "-np", 1) as s:
        for _ in range(4):
            prompt = r.choices(range(4096), k=40)
            body = {"prompt": prompt, "n_predict": 24, "temperature": 0, "return_tokens": True, "ignore_eos": True}
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=900)
            c.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            requests.append((prompt, json.loads(c.getresponse().read())["tokens"]))
    done = replay(a, requests)
    return done["greedy_agrees"], sum(len(o) for _, o in requests)


# -- servers -----------------------------------------------------------------------------------------------


def weft_server(a):
    return Server(
        [a.build / "weftd", "--model", a.model, "--threads", a.threads, "--listen", f"127.0.0.1:{a.port}", "--max-context", 8192, "--kv-pages", 2048], a.port
    )


def llama_server(a, *flags):
    """Eight slots of 8192 tokens with its defaults otherwise."""
    flags = flags or ("-np", 8, "-c", 65536)
    return Server([a.llama / "llama-server", "-m", a.model, "-t", a.threads, *flags, "--port", a.port, "--no-webui"], a.port)


def stream(port, prompt, n, times):
    """Appends to @times the arrival of every chunk that carries text or a token."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    body = {"prompt": prompt, "max_tokens": n, "stream": True, "temperature": 0, "ignore_eos": True}
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = c.getresponse()
    assert response.status == 200, response.read()
    for line in response:
        if line.startswith(b"data: {"):
            times.append(time.monotonic())


def words(seed, n):
    """About @n tokens of text."""
    r = random.Random(seed)
    return [r.randrange(300, 140000) for _ in range(n)]


def run_prefix(server, a, seed):
    """Prompts are token ids, so that both servers compute the same number of tokens."""
    with server(a) as s:
        warm = []
        stream(s.port, words(seed + 999, 16), 4, warm)
        shared = words(seed, 800)
        times = [[] for _ in range(8)]
        threads = [
            threading.Thread(target=stream, args=(s.port, shared + words(seed + 1 + i, 16), 48, times[i])) for i in range(8)
        ]
        start = time.monotonic()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return 8 * 48 / (max(t[-1] for t in times) - start)


def run_gap(server, a, seed):
    with server(a) as s:
        times = [[] for _ in range(4)]
        # Long enough that all four still stream when the prompt has been computed.
        threads = [threading.Thread(target=stream, args=(s.port, words(seed + i, 32), 400, times[i])) for i in range(4)]
        for t in threads:
            t.start()
        while any(len(t) < 8 for t in times):
            time.sleep(0.05)
        arrival = time.monotonic()
        late = []
        stream(s.port, words(seed + 50, 3000), 2, late)
        for t in threads:
            t.join()
        gaps = [b - x for t in times for x, b in zip(t, t[1:]) if b > arrival and x < late[-1]]
        return 1 / max(gaps)


ROWS = {
    "decode": (lambda a, i: weft_decode(a), lambda a, i: llama_decode(a), "tokens/s"),
    "prefill": (lambda a, i: weft_prefill(a), lambda a, i: llama_prefill(a), "tokens/s"),
    "batch8": (lambda a, i: weft_batch8(a), lambda a, i: llama_batch8(a), "tokens/s"),
    "prefix": (lambda a, i: run_prefix(weft_server, a, 100 * i), lambda a, i: run_prefix(llama_server, a, 100 * i), "tokens/s"),
    "gap": (lambda a, i: run_gap(weft_server, a, 100 * i), lambda a, i: run_gap(llama_server, a, 100 * i), "1/s"),
}


def bound(ratios):
    """(geometric mean, lower 95 % bound)"""
    logs = [math.log(r) for r in ratios]
    n = len(logs)
    mean = sum(logs) / n
    if n < 2:
        return math.exp(mean), float("nan")
    sd = math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1))
    t = T.get(n - 1, 1.9 if n < 20 else 1.7)
    return math.exp(mean), math.exp(mean - t * sd / math.sqrt(n))


def alternate(pairs, name, ours, theirs):
    """(ours, theirs): the values of each pair. Who goes first alternates: the machine drifts."""
    x, y = [], []
    for i in range(pairs):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            (x if which == 0 else y).append((ours, theirs)[which](i))
        print(f"  {name} pair {i + 1}: {x[-1]} {y[-1]}", file=sys.stderr, flush=True)
    return x, y


def report(result, name, unit, x, y):
    mean, low = bound([v / w for v, w in zip(x, y)])
    med = lambda v: sorted(v)[len(v) // 2]
    print(f"{name:24} {med(x):10.2f} {med(y):10.2f} {mean:7.2f} {low:7.2f}   {unit}", flush=True)
    result["rows"][name] = {"unit": unit, "weft": x, "llama": y, "ratio": mean, "lower95": low}


def compare_shapes(a, result):
    for name in list(SHAPES) if a.shapes == "all" else a.shapes.split(","):
        a.model = shape_model(a, name)
        x, y = alternate(a.pairs, name, lambda i: weft_shape(a, i), lambda i: llama_shape(a, i))
        for row in x[0]:
            report(result, f"{name} {row}", "tokens/s", [v[row] for v in x], [v[row] for v in y])
        if a.check:
            a.model = shape_model(a, name, check=True)
            result["rows"][f"{name} same"] = same = same_tokens(a)
            print(f"{name + ' same':24} {same[0]:10} {same[1]:10}", flush=True)


def compare_rows(a, result):
    for name in a.only.split(","):
        ours, theirs, unit = ROWS[name]
        report(result, name, unit, *alternate(a.pairs, name, lambda i: ours(a, i), lambda i: theirs(a, i)))


def main():
    p = argparse.ArgumentParser(usage=__doc__.replace("%", "%%"))
    p.add_argument("--llama", type=pathlib.Path, required=True)
    p.add_argument("--model", type=pathlib.Path)
    p.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--pairs", type=int, default=10)
    p.add_argument("--port", type=int, default=18080)
    p.add_argument("--only", default=",".join(ROWS))
    p.add_argument("--shapes")
    p.add_argument("--models", type=pathlib.Path)
    p.add_argument("--check", action="store_true")
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    if (a.model is None) == (a.shapes is None) or (a.shapes and not a.models):
        p.error("either --model, or --shapes with --models")
    what = f"--shapes {a.shapes}" if a.shapes else f"--only {a.only}"
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": "tests/bench/compare_llama.py --threads %d --pairs %d %s" % (a.threads, a.pairs, what),
        "cpu": cpu_name(),
        "threads": a.threads,
        "model": a.shapes or a.model.name,
        "pairs": a.pairs,
        "rows": {},
    }
    print(f"{'row':24} {'weft':>10} {'llama.cpp':>10} {'ratio':>7} {'lower':>7}   ({a.pairs} pairs, {a.threads} threads)")
    (compare_shapes if a.shapes else compare_rows)(a, result)
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")


main()
