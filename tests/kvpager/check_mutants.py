#!/usr/bin/env python3
"""Runs unit tests with each of the seeded bugs of what they test (tests/mutants) switched on. A bug that they let pass is
a hole in the tests. TAP.

The first program that finds one is enough; programs come in the order of their arguments. One with slow tests comes
twice, with a filter for each half.

usage: check_mutants.py [--try-first FILE] FILE.edits NAME[:FILTER]=PROGRAM...

FILE has lines "BUG NAME SUITE/TEST": a test that found the bug the last time, which is run before all others. What the
run prints as "## BUG NAME SUITE/TEST" are the lines of today.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import time

LIMIT_S = 60


def words(output):
    """The line that names what is wrong: of the model, of kv_pager_check() or of an assert."""
    for line in output.splitlines():
        if "the model says" in line or "invariant" in line or "Assertion" in line:
            return line.strip()
    return "crashed"


def find(program, pattern, bug=None):
    """What the program's tests of that pattern say about the bug, and which of them fails; None: they pass. Without a bug
    they must."""
    env = os.environ | ({"WEFT_MUTANT": bug} if bug else {})
    try:
        command = [program, "--fail-fast", "--filter", pattern or "*/*"]
        p = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, env=env)
    except subprocess.TimeoutExpired:
        return "does not end", None
    failed = re.search(r"^not ok (?:\d+ )?- (\w+)::(\w+)", p.stdout, re.M)
    return None if p.returncode == 0 else (words(p.stderr + p.stdout), failed and "/".join(failed.groups()))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--try-first", type=pathlib.Path)
    ap.add_argument("edits", type=pathlib.Path)
    ap.add_argument("programs", nargs="+")
    args = ap.parse_args()
    bugs = re.findall(r"^mutant (\w+): (.*)", args.edits.read_text(), re.M)
    known = {}
    for line in args.try_first.read_text().splitlines() if args.try_first else []:
        bug, *test = line.split()
        known[bug] = tuple(test)
    programs = [tuple(re.fullmatch(r"([^=:]+):?([^=]*)=(.*)", arg).groups()) for arg in args.programs]
    first = {name: program for name, _, program in programs}
    failed = not bugs
    # A test that fails anyway finds nothing.
    known = {bug: known[bug] for bug, _ in bugs if bug in known and known[bug][0] in first}
    broken = [(name, test) for name, test in sorted(set(known.values())) if find(first[name], test)]
    print(f"1..{len(bugs)}", flush=True)
    for name, test in broken:
        print(f"Bail out! {name}: {test} fails without a bug", flush=True)
    if broken:
        sys.exit(1)
    for i, (bug, what) in enumerate(bugs, 1):
        found = None
        name, pattern = known.get(bug, (None, None))
        tried = [(name, pattern, first[name])] if name else []
        for name, pattern, program in tried + programs:
            start = time.monotonic()
            found = find(program, pattern, bug)
            print(f"# {name}: {found[0] if found else 'found nothing'} ({time.monotonic() - start:.1f} s)", flush=True)
            if found:
                break
        if found and found[1]:
            print(f"## {bug} {name} {found[1]}", flush=True)
        print(f"{'ok' if found else 'not ok'} {i} - {bug}: {what}", flush=True)
        failed |= not found
    sys.exit(failed)


main()
