#!/usr/bin/env python3
"""Measures weft beside llama.cpp on architectures of which only a header is at hand (tests/data/headers): models of these
widths with random weights, fewer layers, experts and tokens.

usage: compare_headers.py --llama DIR --models DIR [--only NAME,...] [--pairs N] [--prompt N] [--tokens N] [--json FILE]

DIR of --llama has llama-bench; --models is a folder for the files, which are made where they are missing. Both programs
run on one thread of one processor, and what counts is the fastest of their repetitions by their own clocks, so the
machine must be quiet. Models have three times the layers of the table. Of a prompt's time, that of a model with the
layers of the table is taken off: what is left is the time of whole layers, since llama.cpp computes the FFN of the last
layer only for the rows whose logits are wanted. Decode is the whole model, more than a processor's cache holds. Who
goes first alternates from pair to pair.
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import time

import header_model
from servers import commit, cpu_name

N_VOCAB = 4096
# layers, and experts where there are fewer than in the file
MODELS = {"smollm3-3b": (2, 0), "glm-4-32b-0414": (1, 0), "command-r7b": (1, 0), "starcoder2-7b": (1, 0),
          "olmoe-1b-7b": (1, 0), "ling-mini-2.0": (2, 64), "hunyuan-a13b": (1, 8), "seed-oss-36b": (1, 0),
          "granite-4.0-h-tiny": (6, 16), "falcon-h1-1.5b": (2, 0)}


def model(folder, name, times):
    n_layer, n_expert = MODELS[name]
    path = folder / f"{name}-{times * n_layer}.gguf"
    if not path.exists():
        header_model.make(path, name, times * n_layer, n_expert, N_VOCAB)
    return path


REPS = 4


def output(command):
    """Returns what a program that succeeds prints, as JSON."""
    r = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert r.returncode == 0, (command, r.stderr[-2000:])
    return json.loads(r.stdout)


def weft(a, path, n_prompt, n_tokens):
    """Returns the seconds of the fastest repetition."""
    r = output([a.build / "weft-bench", "engine", "--model", path, "--backend", "cpu", "--threads", 1, "--batch", 1,
                "--no-bandwidth", "-p", n_prompt, "-n", n_tokens, "--reps", REPS, "--json", "-"])
    return (n_prompt + n_tokens) / r["results"][0]["tokens_per_s"]["max"]


def llama(a, path, n_prompt, n_tokens):
    """Returns the seconds of the fastest repetition."""
    r = output([a.llama / "llama-bench", "-m", path, "-t", 1, "-p", n_prompt, "-n", n_tokens, "-r", REPS, "-o", "json"])
    return min(r[0]["samples_ns"]) / 1e9


def measure(a, name):
    """Returns {row: [[tokens/s of weft, of llama.cpp], ...]} of the layers of the table."""
    one, three, rows = model(a.models, name, 1), model(a.models, name, 3), {"prompt": [], "decode": []}
    for i in range(a.pairs):
        for row, n_prompt, n_tokens in (("prompt", a.prompt, 0), ("decode", 0, a.tokens)):
            pair = {}
            for program in (weft, llama) if i % 2 == 0 else (llama, weft):
                took = program(a, three, n_prompt, n_tokens)
                if row == "prompt":
                    took = (took - program(a, one, n_prompt, n_tokens)) * 1.5
                pair[program] = (n_prompt + n_tokens) / took
            rows[row].append([round(pair[weft], 2), round(pair[llama], 2)])
    return rows


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--llama", type=pathlib.Path, required=True)
    p.add_argument("--models", type=pathlib.Path, required=True)
    p.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    p.add_argument("--only", default=",".join(MODELS))
    p.add_argument("--pairs", type=int, default=1)
    p.add_argument("--prompt", type=int, default=64)
    p.add_argument("--tokens", type=int, default=16)
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    result = {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "cpu": cpu_name(), "pairs": a.pairs,
              "prompt": a.prompt, "tokens": a.tokens, "unit": "tokens/s of the larger model on one thread: weft, llama.cpp", "models": {}}
    for name in a.only.split(","):
        rows = result["models"][name] = measure(a, name)
        for row, pairs in rows.items():
            ratio = math.exp(sum(math.log(w / t) for w, t in pairs) / len(pairs))
            print(f"{name:20} {row:7} {ratio:6.2f}   {pairs}", flush=True)
        if a.json:
            a.json.write_text(json.dumps(result, indent=1) + "\n")


main()
