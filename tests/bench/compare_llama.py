#!/usr/bin/env python3
"""Measures weft beside llama.cpp on the same machine, with the same file and threads: interleaved pairs, the ratio of
each pair, and the lower 95 % bound of their mean (log scale, Student's t).

usage: compare_llama.py --llama DIR --model FILE.gguf [--build DIR] [--threads N] [--pairs N] [--only ROW,...] [--json FILE]

DIR holds llama-bench, llama-batched-bench and llama-server. Rows: decode, prefill, batch8, prefix, gap.
  decode   128 tokens of one stream                          tokens/s
  prefill  a prompt of 512 tokens                            tokens/s
  batch8   64 tokens of each of 8 sequences in one batch     tokens/s
  prefix   8 clients at once, the same 800-token prefix, 48 tokens each, through the server   tokens/s
  gap      4 clients stream while a prompt of 3000 tokens arrives: the longest time between two tokens of a stream
           ratio: llama.cpp's gap / weft's
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


def llama_bench(a, *flags):
    rows = json.loads(output(a.llama / "llama-bench", "-m", a.model, "-t", a.threads, "-r", 1, "-o", "json", *flags))
    return rows[0]["avg_ts"]


def llama_decode(a):
    return llama_bench(a, "-p", 0, "-n", 128)


def llama_prefill(a):
    return llama_bench(a, "-p", 512, "-n", 0)


def llama_batch8(a):
    text = output(
        a.llama / "llama-batched-bench", "-m", a.model, "-t", a.threads, "-c", 4096, "-npp", 16, "-ntg", 64, "-npl", 8, "--output-format", "jsonl"
    )
    return json.loads(text.strip().splitlines()[-1])["speed_tg"]


# -- servers -----------------------------------------------------------------------------------------------


def weft_server(a):
    return Server(
        [a.build / "weftd", "--model", a.model, "--threads", a.threads, "--listen", f"127.0.0.1:{a.port}", "--max-context", 8192, "--kv-pages", 2048], a.port
    )


def llama_server(a):
    """Eight slots of 8192 tokens with its defaults otherwise."""
    return Server(
        [a.llama / "llama-server", "-m", a.model, "-t", a.threads, "-np", 8, "-c", 65536, "--port", a.port, "--no-webui"], a.port
    )


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


def main():
    p = argparse.ArgumentParser(usage=__doc__.replace("%", "%%"))
    p.add_argument("--llama", type=pathlib.Path, required=True)
    p.add_argument("--model", type=pathlib.Path, required=True)
    p.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--pairs", type=int, default=10)
    p.add_argument("--port", type=int, default=18080)
    p.add_argument("--only", default=",".join(ROWS))
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": "tests/bench/compare_llama.py --threads %d --pairs %d --only %s" % (a.threads, a.pairs, a.only),
        "cpu": cpu_name(),
        "threads": a.threads,
        "model": a.model.name,
        "pairs": a.pairs,
        "rows": {},
    }
    print(f"{'row':8} {'weft':>10} {'llama.cpp':>10} {'ratio':>7} {'lower':>7}   ({a.pairs} pairs, {a.threads} threads)")
    for name in a.only.split(","):
        ours, theirs, unit = ROWS[name]
        x, y = [], []
        for i in range(a.pairs):
            # Alternate who goes first: the machine drifts.
            for which in (0, 1) if i % 2 == 0 else (1, 0):
                (x if which == 0 else y).append((ours, theirs)[which](a, i))
            print(f"  {name} pair {i + 1}: {x[-1]:.3f} {y[-1]:.3f}", file=sys.stderr, flush=True)
        mean, low = bound([v / w for v, w in zip(x, y)])
        med = lambda v: sorted(v)[len(v) // 2]
        print(f"{name:8} {med(x):10.2f} {med(y):10.2f} {mean:7.2f} {low:7.2f}   {unit}", flush=True)
        result["rows"][name] = {"unit": unit, "weft": x, "llama": y, "ratio": mean, "lower95": low}
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")


main()
