#!/usr/bin/env python3
"""Measures weft beside llama.cpp over many models: prompt, decode and batched decode of each, interleaved pairs.

usage: compare_breadth.py --llama DIR [--build DIR] [--threads N] [--pairs N] [--json FILE] CASE...

DIR holds llama-bench and llama-batched-bench. A case is NAME=FILE.gguf,KEY=VALUE,... with the keys
  p=N     tokens of a prompt (0: none)
  n=N     tokens to decode with one stream (0: none)
  d=N     tokens of context before both
  b=A:B   sequences decoded together, 32 tokens each (none)
  kv=T    f16, q8_0 or q4_0
Several cases are measured one after the other. --json adds the cases to those that FILE has.
"""
import argparse
import json
import math
import os
import pathlib
import platform
import subprocess
import tempfile
import time

BATCH_TOKENS = 32


def output(command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


def parse_case(text):
    name, _, rest = text.partition("=")
    model, *pairs = rest.split(",")
    case = {"name": name, "model": model, "p": 0, "n": 0, "d": 0, "b": [], "kv": "f16"}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in case or key in ("name", "model"):
            raise SystemExit(f"{text}: what is {key}?")
        case[key] = [int(v) for v in value.split(":")] if key == "b" else value if key == "kv" else int(value)
    return case


def run_weft(a, case):
    """{row: tokens/s}"""
    rows = {}

    def bench(*flags):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            output([a.build / "weft-bench", "engine", "--model", case["model"], "--threads", a.threads, "--reps", 1]
                   + ["--kv", case["kv"], "--no-bandwidth", "--json", file.name, *flags])
            return json.load(open(file.name))["results"]

    if case["p"] or case["n"]:
        for r in bench("-p", case["p"], "-n", case["n"], "-d", case["d"]):
            rows["prompt" if r["test"] == "prefill" else "decode"] = r["tokens_per_s"]["mean"]
    if case["b"]:
        sizes = ",".join(str(b) for b in case["b"])
        for r in bench("-p", 0, "-n", BATCH_TOKENS, "--batch", sizes):
            rows["batch%d" % r["seqs"]] = r["tokens_per_s"]["mean"]
    return rows


def run_llama(a, case):
    rows = {}
    model = ["-m", case["model"], "-t", a.threads, "-ctk", case["kv"], "-ctv", case["kv"]]

    if case["kv"] != "f16":
        model += ["-fa", "on"]
    if case["p"] or case["n"]:
        tests = ["-p", case["p"], "-n", case["n"], "-d", case["d"]]
        for r in json.loads(output([a.llama / "llama-bench", *model, "-r", 1, "-o", "json", *tests])):
            rows["prompt" if r["n_prompt"] else "decode"] = r["avg_ts"]
    if case["b"]:
        sizes = ",".join(str(b) for b in case["b"])
        context = max(case["b"]) * (16 + BATCH_TOKENS)
        text = output([a.llama / "llama-batched-bench", *model, "-c", context, "-npp", 16, "-ntg", BATCH_TOKENS]
                      + ["-npl", sizes, "--output-format", "jsonl"])
        for line in text.splitlines():
            if line.startswith("{"):
                r = json.loads(line)
                rows["batch%d" % r["pl"]] = r["speed_tg"]
    return rows


def median(values):
    return sorted(values)[len(values) // 2]


def measure(a, case):
    ours, theirs = [], []
    for i in range(a.pairs):
        for which in (0, 1) if i % 2 == 0 else (1, 0):  # the machine drifts
            (ours, theirs)[which].append((run_weft, run_llama)[which](a, case))
    rows = {}
    for row in ours[0]:
        x, y = [r[row] for r in ours], [r[row] for r in theirs]
        ratio = math.exp(sum(math.log(v / w) for v, w in zip(x, y)) / len(x))
        rows[row] = {"weft": x, "llama": y, "ratio": ratio}
        print(f"{case['name']:24} {row:8} {median(x):10.1f} {median(y):10.1f} {ratio:7.2f}", flush=True)
    return {"model": os.path.basename(case["model"]), **{k: case[k] for k in ("p", "n", "d", "b", "kv")}, "rows": rows}


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--llama", type=pathlib.Path, required=True)
    p.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--json", type=pathlib.Path)
    p.add_argument("case", nargs="+", type=parse_case)
    a = p.parse_args()
    result = {"date": time.strftime("%Y-%m-%d"), "cpu": cpu_name(), "threads": a.threads, "cases": {}}
    if a.json and a.json.exists():
        result["cases"] = json.loads(a.json.read_text())["cases"]
    print(f"{'case':24} {'row':8} {'weft':>10} {'llama.cpp':>10} {'ratio':>7}   ({a.pairs} pairs, {a.threads} threads)")
    for case in a.case:
        result["cases"][case["name"]] = {"threads": a.threads, "pairs": a.pairs, **measure(a, case)}
        if a.json:
            a.json.write_text(json.dumps(result, indent=1) + "\n")


main()
