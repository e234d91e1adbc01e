#!/usr/bin/env python3
"""Compares the rates of two builds of weft that run in turns: prompts, decode of 1 and of 8 sequences, and plans.

usage: compare_builds.py --before BUILD --now BUILD --model FILE [--pairs N] [--threads N] [--limit SECONDS] [--json FILE]

Each pair is a run of weft-bench engine and of tests/bench/bench_plan of either build; who goes first alternates. A ratio is
the rate of --now divided by that of --before in the same pair, above 1 where --now is faster; for plans, the time of
--before divided by that of --now, of each row of the table. The first pair is not counted. No pair begins behind the limit.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

PLAN_ROW = re.compile(r"^(.*?) +([0-9.]+) us ")


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit("%s: exit status %d: %s" % (command[0], done.returncode, done.stderr[-500:]))
    return done.stdout


def rates(build, a):
    """Returns the rates of a build by name: tokens in a second, and plans in a second."""
    engine = [build / "weft-bench", "engine", "--model", a.model, "--backend", "cpu", "--threads", a.threads]
    work = ["-p", 512, "-n", 32, "--batch", "1,8", "--reps", 1, "--no-bandwidth", "--json", "-"]
    out = {}
    for r in json.loads(run([*engine, *work]))["results"]:
        out["%s, %d sequences" % (r["test"], r["seqs"])] = r["tokens_per_s"]["mean"]
    plans = [PLAN_ROW.match(line) for line in run([build / "tests/bench/bench_plan", 0.3]).splitlines()]
    for row in plans:
        out["plan: " + row[1]] = 1e6 / float(row[2])
    return out


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--before", type=pathlib.Path, required=True)
    p.add_argument("--now", type=pathlib.Path, required=True)
    p.add_argument("--model", type=pathlib.Path, required=True)
    p.add_argument("--pairs", type=int, default=7)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--limit", type=float, default=280)
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    begin, ratios = time.monotonic(), {}
    for i in range(a.pairs + 1):
        if time.monotonic() - begin > a.limit:
            break
        order = [a.before, a.now] if i % 2 == 0 else [a.now, a.before]
        got = {build: rates(build, a) for build in order}
        for name, rate in got[a.now].items():
            if i > 0:
                ratios.setdefault(name, []).append(rate / got[a.before][name])
        print("pair %d of %d" % (i, a.pairs), file=sys.stderr)
    print("| | median | least | most | pairs |\n|---|--:|--:|--:|--:|")
    for name, r in ratios.items():
        print("| %s | %.3f | %.3f | %.3f | %d |" % (name, statistics.median(r), min(r), max(r), len(r)))
    if a.json:
        a.json.write_text(json.dumps(ratios, indent=1) + "\n")


if __name__ == "__main__":
    main()
