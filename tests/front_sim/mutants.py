#!/usr/bin/env python3
"""Runs weft-front-sim on the front with one seeded bug at a time (tests/mutants/front.edits): each must break a rule.

usage: mutants.py EDITS PROGRAM [--seeds N] [--only NAME] [--try-first FILE]

FILE has lines "NAME SEED": a seed that found the bug the last time. It is tried before all others. What the run prints as
"# NAME SEED" are the lines of today.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("edits", type=pathlib.Path)
    ap.add_argument("program")
    ap.add_argument("--seeds", type=int, default=600, help="at most so many are tried for each bug")
    ap.add_argument("--only")
    ap.add_argument("--try-first", type=pathlib.Path)
    args = ap.parse_args()
    names = re.findall(r"^mutant (\w+): (.+)", args.edits.read_text(), re.M)
    names = [n for n in names if args.only in (None, n[0])]
    known = dict(line.split() for line in args.try_first.read_text().splitlines() if line) if args.try_first else {}
    lost = 0
    print(f"TAP version 13\n1..{len(names)}")
    for i, (name, text) in enumerate(names, 1):
        ranges = [f"{known[name]}-{known[name]}"] if name in known else []
        for seeds in ranges + [f"1-{args.seeds}"]:
            run = subprocess.run(
                [args.program, "--seeds", seeds, "--first"],
                env=os.environ | {"WEFT_MUTANT": name}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                errors="replace",
            )
            said = re.findall(r"^seed .*|^.*Assertion.*", run.stderr, re.M)
            found = run.returncode == 1 and bool(said)
            if found:
                break
        lost += not found
        print(f"{'ok' if found else 'not ok'} {i} - {name}: {text}")
        print(f"# {said[0][:200] if said else 'no seed broke a rule'}", flush=True)
        seed = re.search(r"^seed (\d+)", run.stderr, re.M)
        if found and seed:
            print(f"# {name} {seed[1]}", flush=True)
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
