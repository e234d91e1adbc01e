#!/usr/bin/env python3
"""What agents see while their models are loaded, unloaded, swapped and killed: requests, lost ones, waits.

Real daemons, tiny models: what is measured is the handing over, not the loading of gigabytes. Each agent has a
conversation that grows by what it was answered, with one model at a time; half of them stream. Every answer is compared
with the one that the same request got when nothing else happened.

    models_load.py BUILD [--seconds 60] [--agents 8]
"""
import argparse
import collections
import json
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build")
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--agents", type=int, default=8)
arguments = parser.parse_args()
os.environ["WEFT_BUILD"] = arguments.build
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "e2e"))
from weftd import Weftd, parallel, random_tokens, synth  # noqa: E402

MODELS = "abc"
PROMPTS = 6
TURNS = 3
N = 48
FLAGS = ("--backend", "cpu", "--threads", "1", "--max-context", "4096", "--kv-memory", "16M", "--models-memory", "120M")


def body_of(model, prompt):
    return {"model": model, "prompt": prompt, "max_tokens": N, "ignore_eos": True, "temperature": 0, "return_token_ids": True}


def ask(d, model, prompt, streams):
    """The tokens of the answer and the milliseconds to the first of them."""
    start = time.monotonic()
    first = None
    tokens = []
    if not streams:
        status, _, value = d.request("POST", "/v1/completions", body_of(model, prompt))
        if status != 200:
            raise AssertionError((status, value))
        return value["choices"][0]["token_ids"], (time.monotonic() - start) * 1e3
    for chunk in d.stream("/v1/completions", body_of(model, prompt)):
        if "error" in chunk:
            raise AssertionError(chunk)
        first = first or time.monotonic()
        for choice in chunk["choices"]:
            tokens += choice.get("token_ids") or []
    return tokens, (first - start) * 1e3


def conversation(d, model, seed):
    """The answers of a conversation: each turn goes on with what was said."""
    prompt = random_tokens(seed, 60)
    answers = []
    for _ in range(TURNS):
        answers.append(ask(d, model, prompt, False)[0])
        prompt = prompt + answers[-1] + random_tokens(seed + 1000, 20)
    return answers


class Record:
    def __init__(self):
        self.lock = threading.Lock()
        self.count = collections.Counter()
        self.lost = []
        self.waits = []


def agent(d, record, should, number, end):
    r = random.Random(number)
    while time.monotonic() < end:
        model, seed = r.choice(MODELS), r.randrange(PROMPTS)
        prompt = random_tokens(seed, 60)
        for turn in range(TURNS):
            try:
                got, ms = ask(d, model, prompt, number % 2)
                wrong = got != should[model, seed][turn]
                problem = f"{model}: other tokens" if wrong else None
            except (AssertionError, OSError) as error:
                problem, ms = repr(error), 0
            with record.lock:
                record.count["requests"] += 1
                record.waits.append(ms)
                if problem:
                    record.lost.append(problem)
            if problem:
                break
            prompt = prompt + got + random_tokens(seed + 1000, 20)


def operator(d, record, folder, end):
    r = random.Random(0)
    while time.monotonic() < end:
        what, model = r.choice(["load", "unload", "swap", "swap", "kill"]), r.choice(MODELS)
        if what == "kill":
            entries = d.admin_request("GET", "/models")[1]["models"]
            pids = [m["worker"]["pid"] for m in entries if m["state"] == "ready" and m["worker"]["pid"]]
            if not pids:
                continue
            os.kill(r.choice(pids), 9)
            status = 200
        else:
            file = f"?file={folder}/{model}.gguf" if what == "swap" else ""
            status, _ = d.admin_request("POST", f"/models/{model}/{what}{file}")
        record.count[what if status == 200 else what + " refused"] += 1
        time.sleep(r.random() * 0.4)


def main():
    with tempfile.TemporaryDirectory(prefix="weft-models-") as folder:
        for i, name in enumerate(MODELS):
            model = synth(f"tiny-of-many-{i}", "--arch", "qwen3", "--shape", "tiny,context=131072", "--format", "Q4_K_M", "--seed", str(40 + i))
            pathlib.Path(folder, name + ".gguf").write_bytes(pathlib.Path(model).read_bytes())
        with Weftd("--models-dir", folder, *FLAGS, model="") as d:
            should = {(m, seed): conversation(d, m, seed) for m in MODELS for seed in range(PROMPTS)}
            record = Record()
            end = time.monotonic() + arguments.seconds
            parallel([lambda i=i: agent(d, record, should, i, end) for i in range(arguments.agents)] + [lambda: operator(d, record, folder, end)])
            entries = d.admin_request("GET", "/models")[1]["models"]
            front = d.stats()["front"]
    waits = sorted(record.waits)
    print(json.dumps({
        **record.count,
        "lost": len(record.lost),
        "examples": record.lost[:3],
        "worker_starts": sum(m["loads"] for m in entries),
        "resumed": front["resumed"],
        "first_token_ms": {p: round(waits[min(int(len(waits) * p / 100), len(waits) - 1)], 1) for p in (50, 90, 99, 100)},
    }, indent=2))
    sys.exit(1 if record.lost else 0)


main()
