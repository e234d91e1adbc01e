#!/usr/bin/env python3
"""Compares the CPU seconds of weft and llama.cpp for the same work with one thread, on a machine that others use, too.

usage: compare_cpu.py --llama DIR --models DIR [--build DIR] [--shape NAME] [--only FORMAT/WORK,...] [--limit SECONDS]
                      [--json FILE]

DIR of --llama holds llama-bench and llama-batched-bench; --models is a folder for files with random weights, which
weft-synth makes there where they are missing. Work: prompt (512 tokens), decode (64 tokens of one stream), eight (32
tokens of each of 8 sequences). A measurement is the difference between a run with two lots of work and a run with one
lot, so that loading and warming up do not count; both programs take turns, and who goes first alternates. Rounds over
all rows follow each other until the next measurement would end after the limit. One thread does not spin while it waits
for another. At the end a table in Markdown has the medians and the ratio of each pair.
"""
import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

from servers import commit, cpu_name

WORK = {"prompt": "prompt of 512 tokens", "decode": "64 tokens of one stream", "eight": "32 tokens of each of 8 streams"}
WEFT = {"prompt": ["-p", 512, "-n", 0], "decode": ["-p", 0, "-n", 64, "--batch", 1], "eight": ["-p", 0, "-n", 32, "--batch", 8]}
LLAMA = {"prompt": ["-p", 512, "-n", 0], "decode": ["-p", 0, "-n", 64]}
ROWS = "F16/prompt,F16/decode,Q4_K_M/prompt,Q4_K_M/decode,Q4_K_M/eight"


def run(command):
    """Returns the CPU seconds of a program that succeeds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit("%s: exit status %d: %s" % (command[0], done.returncode, done.stderr[-500:]))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def model(a, format):
    path = a.models / f"{a.shape.replace(',', '-')}-{format}.gguf"  # llama-bench takes a list
    if not path.exists():
        run([a.build / "weft-synth", "--shape", a.shape, "--format", format, "-o", path])
    return path


def weft(a, path, work, lots):
    command = [a.build / "weft-bench", "engine", "--model", path, "--backend", "cpu", "--threads", 1, "--no-bandwidth", "--reps", lots]
    return run([*command, *WEFT[work]])


def llama(a, path, work, lots):
    if work == "eight":
        command = [a.llama / "llama-batched-bench", "-t", 1, "-tb", 1, "-c", 4096, "-npp", 1, "-npl", 8, "-ntg", 32 * lots]
        return run([*command, "-m", path])
    return run([a.llama / "llama-bench", "-m", path, "-t", 1, "-r", lots, *LLAMA[work]])


def pair(a, row, first):
    """Returns the CPU seconds of one lot: weft's, llama.cpp's. @first: the program that begins."""
    format, work = row.split("/")
    path, seconds = model(a, format), {}
    for program in (first, llama if first is weft else weft):
        seconds[program] = program(a, path, work, 2) - program(a, path, work, 1)
    return seconds[weft], seconds[llama]


def measure(a, rows):
    """Returns {row: [(weft's seconds, llama.cpp's), ...]}."""
    pairs, takes, begin = {row: [] for row in rows}, {}, time.monotonic()
    for i in range(100):
        for row in rows:
            at = time.monotonic()
            if at - begin + takes.get(row, 0) > a.limit:
                return pairs
            ours, theirs = pair(a, row, weft if i % 2 == 0 else llama)
            takes[row] = time.monotonic() - at
            if ours <= 0 or theirs <= 0:
                print(f"{row}: too short to be measured", flush=True)
                continue
            pairs[row].append((round(ours, 3), round(theirs, 3)))
            print(f"{row}: weft {ours:.2f} s, llama.cpp {theirs:.2f} s, {theirs / ours:.2f}", flush=True)
    return pairs


def table(pairs):
    yield "| | weft, CPU s | llama.cpp, CPU s | median ratio | ratios |"
    yield "|---|---|---|---|---|"
    for row, found in pairs.items():
        format, work = row.split("/")
        if not found:
            yield f"| {format}, {WORK[work]} | not measured | | | |"
            continue
        ours, theirs = (statistics.median(side) for side in zip(*found))
        ratios = [t / w for w, t in found]
        yield (f"| {format}, {WORK[work]} | {ours:.2f} | {theirs:.2f} | {statistics.median(ratios):.2f} | "
               + ", ".join(f"{r:.2f}" for r in ratios) + " |")


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--llama", type=pathlib.Path, required=True)
    p.add_argument("--models", type=pathlib.Path, required=True)
    p.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    p.add_argument("--shape", default="qwen3-0.6b")
    p.add_argument("--only", default=ROWS)
    p.add_argument("--limit", type=float, default=480)
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    a.models.mkdir(parents=True, exist_ok=True)
    rows = a.only.split(",")
    for row in rows:
        model(a, row.split("/")[0])
    pairs = measure(a, rows)
    print("\n".join(["", *table(pairs)]))
    if a.json:
        result = {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "cpu": cpu_name(), "shape": a.shape,
                  "unit": "CPU seconds on one thread: weft, llama.cpp", "rows": pairs}
        a.json.write_text(json.dumps(result, indent=1) + "\n")


main()
