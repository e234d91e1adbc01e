#!/usr/bin/env python3
"""What agents see while their models are loaded, unloaded, swapped and killed: requests, lost ones, waits.

Real daemons, tiny models: what is measured is the handing over, not the loading of gigabytes. Each agent has a
conversation that grows by what it was answered, with one model at a time; half of them stream. Every answer is compared
with the one that the same request got when nothing else happened. A fourth file comes and goes meanwhile. It is run
without the disk tier and with it, where a model that was unloaded finds again what it had.

    models_load.py BUILD [--seconds 60] [--agents 8] [--out FILE.json]
"""
import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build")
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--agents", type=int, default=8)
parser.add_argument("--out", help="the figures as a file, as in tests/bench/results")
arguments = parser.parse_args()
os.environ["WEFT_BUILD"] = arguments.build
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "e2e"))
from weftd import Weftd, parallel, random_tokens, synth  # noqa: E402

MODELS = "abc"
PROMPTS = 6
TURNS = 3
N = 48
FLAGS = ("--backend", "cpu", "--threads", "1", "--max-context", "4096", "--kv-memory", "16M")


def body_of(model, prompt):
    return {"model": model, "prompt": prompt, "max_tokens": N, "ignore_eos": True, "temperature": 0, "return_token_ids": True}


def ask(d, model, prompt, streams):
    """The tokens of the answer, the milliseconds to the first of them, tokens of the prompt and those from the cache."""
    start = time.monotonic()
    first = None
    tokens = []
    if not streams:
        status, _, value = d.request("POST", "/v1/completions", body_of(model, prompt))
        if status != 200:
            raise AssertionError((status, value))
        usage = value["usage"]
        return value["choices"][0]["token_ids"], (time.monotonic() - start) * 1e3, (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])
    for chunk in d.stream("/v1/completions", body_of(model, prompt)):
        if "error" in chunk:
            raise AssertionError(chunk)
        first = first or time.monotonic()
        for choice in chunk["choices"]:
            tokens += choice.get("token_ids") or []
    return tokens, (first - start) * 1e3, (0, 0)


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
                got, ms, used = ask(d, model, prompt, number % 2)
                wrong = got != should[model, seed][turn]
                problem = f"{model}: other tokens" if wrong else None
            except (AssertionError, OSError) as error:
                problem, ms, used = repr(error), 0, (0, 0)
            with record.lock:
                record.count["requests"] += 1
                record.waits.append(ms)
                record.count["prompt_tokens"] += used[0]
                record.count["cached_tokens"] += used[1]
                if problem:
                    record.lost.append(problem)
            if problem:
                break
            prompt = prompt + got + random_tokens(seed + 1000, 20)


def operator(d, record, folder, end):
    r = random.Random(0)
    killed = collections.defaultdict(lambda: -1e9)
    while time.monotonic() < end:
        what, model = r.choice(["load", "unload", "swap", "swap", "kill", "file"]), r.choice(MODELS)
        status = 200
        if what == "file":
            extra = pathlib.Path(folder, "extra.gguf")
            what = "file goes" if extra.exists() else "file comes"
            if extra.exists():
                extra.unlink()
            else:
                part = extra.with_suffix(".part")
                part.write_bytes(pathlib.Path(folder, model + ".gguf").read_bytes())
                part.rename(extra)
            d.request("GET", "/v1/models")
        elif what == "kill":
            entries = d.admin_request("GET", "/models")[1]["models"]
            pids = {m["id"]: m["worker"]["pid"] for m in entries if m["state"] == "loaded" and m["worker"]["pid"]}
            # A request that is there at three deaths is taken for their cause, and fails: not what is measured here.
            pids = {m: pid for m, pid in pids.items() if time.monotonic() - killed[m] > 3}
            if not pids:
                continue
            model = r.choice(list(pids))
            killed[model] = time.monotonic()
            try:
                os.kill(pids[model], 9)
            except ProcessLookupError:  # it was just unloaded
                continue
        else:
            file = f"?file={folder}/{model}.gguf" if what == "swap" else ""
            status, _ = d.admin_request("POST", f"/models/{model}/{what}{file}")
        record.count[what if status == 200 else what + " refused"] += 1
        time.sleep(r.random() * 0.4)


def measure(folder, flags):
    """The figures of one daemon."""
    with Weftd("--models-dir", folder, *FLAGS, *flags, model="") as d:
        should = {(m, seed): conversation(d, m, seed) for m in MODELS for seed in range(PROMPTS)}
        record = Record()
        end = time.monotonic() + arguments.seconds
        parallel([lambda i=i: agent(d, record, should, i, end) for i in range(arguments.agents)] + [lambda: operator(d, record, folder, end)])
        entries = d.admin_request("GET", "/models")[1]["models"]
        front = d.stats()["front"]
    waits = sorted(record.waits)
    return {
        **record.count,
        "lost": len(record.lost),
        "examples": record.lost[:3],
        "loads": sum(m["loads"] for m in entries),
        "resumed": front["resumed"],
        "first_token_ms": {p: round(waits[min(int(len(waits) * p / 100), len(waits) - 1)], 1) for p in (50, 90, 99, 100)},
    }


def cpu():
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else "unknown"


def main():
    with tempfile.TemporaryDirectory(prefix="weft-models-") as folder, tempfile.TemporaryDirectory() as disk:
        for i, name in enumerate(MODELS):
            model = synth(f"tiny-of-many-{i}", "--arch", "qwen3", "--shape", "tiny,context=131072", "--format", "Q4_K_M", "--seed", str(40 + i))
            pathlib.Path(folder, name + ".gguf").write_bytes(pathlib.Path(model).read_bytes())
        rows = {
            "without kv-disk": measure(folder, ("--models-memory", "120M")),
            "with kv-disk": measure(folder, ("--models-memory", "150M", "--kv-disk", disk, "--kv-disk-size", "64M")),
        }
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=pathlib.Path(__file__).parent)
    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit.stdout.strip(),
        "command": f"tests/bench/models_load.py BUILD --seconds {arguments.seconds:g} --agents {arguments.agents}",
        "cpu": cpu(),
        "threads": 1,
        "model": "weft-synth --arch qwen3 --shape tiny,context=131072 --format Q4_K_M --seed 40, 41, 42",
        "rows": rows,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.out:
        pathlib.Path(arguments.out).write_text(text + "\n")
    sys.exit(1 if any(row["lost"] for row in rows.values()) else 0)


main()
