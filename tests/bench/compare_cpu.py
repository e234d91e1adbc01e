#!/usr/bin/env python3
"""Compares the CPU seconds of weft and llama.cpp for the same work with one thread, on a machine that others use, too.

usage: compare_cpu.py --llama DIR --model FILE.gguf [--build DIR] [--rounds N] [--only ROW,...]

DIR holds llama-bench and llama-batched-bench. A row is the difference between a run with two lots of work and a run with
one lot, so that loading and warming up do not count; both programs take turns. Rows: prompt (512 tokens), decode (64
tokens of one stream), eight (32 tokens of each of 8 sequences). One thread does not spin while it waits for another.
"""
import argparse
import pathlib
import resource
import statistics
import subprocess

WEFT = {"prompt": ["-p", 512, "-n", 0], "decode": ["-p", 0, "-n", 64, "--batch", 1], "eight": ["-p", 0, "-n", 32, "--batch", 8]}
LLAMA = {"prompt": ["-p", 512, "-n", 0], "decode": ["-p", 0, "-n", 64]}


def cpu_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(c) for c in command], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def weft(a, row, lots):
    command = [a.build / "weft-bench", "engine", "--model", a.model, "--threads", 1, "--no-bandwidth", "--reps", lots]
    return cpu_seconds([*command, *WEFT[row]])


def llama(a, row, lots):
    if row == "eight":
        command = [a.llama / "llama-batched-bench", "-t", 1, "-tb", 1, "-c", 4096, "-npp", 1, "-npl", 8, "-ntg", 32 * lots]
        return cpu_seconds([*command, "-m", a.model])
    return cpu_seconds([a.llama / "llama-bench", "-m", a.model, "-t", 1, "-r", lots, *LLAMA[row]])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--llama", type=pathlib.Path, required=True)
    p.add_argument("--model", type=pathlib.Path, required=True)
    p.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--only", default="prompt,decode,eight")
    a = p.parse_args()
    for row in a.only.split(","):
        ratios = []
        for _ in range(a.rounds):
            ours, theirs = (f(a, row, 2) - f(a, row, 1) for f in (weft, llama))
            ratios.append(theirs / ours)
            print(f"{a.model.name} {row}: weft {ours:.2f} s, llama.cpp {theirs:.2f} s, {ratios[-1]:.2f}", flush=True)
        print(f"{a.model.name} {row}: median {statistics.median(ratios):.2f} of {a.rounds}", flush=True)


main()
