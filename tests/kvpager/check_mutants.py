#!/usr/bin/env python3
"""Runs unit tests with each of the seeded bugs of what they test (tests/mutants) switched on. A bug that they let pass is
a hole in the tests. TAP.

The first test that finds one is enough; tests come in the order of their arguments. A program of slow tests comes twice,
with a filter for each half.

usage: check_mutants.py FILE.edits NAME[:FILTER]=TEST...
"""
import os
import re
import subprocess
import sys
import time

LIMIT_S = 60


def names(edits):
    with open(edits) as file:
        return re.findall(r"^mutant (\w+): (.*)", file.read(), re.M)


def words(output):
    """The line that names what is wrong: of the model, of kv_pager_check() or of an assert."""
    for line in output.splitlines():
        if "the model says" in line or "invariant" in line or "Assertion" in line:
            return line.strip()
    return "crashed"


def find(test, pattern, mutant):
    """What the tests of that pattern say about the bug; None: they pass."""
    env = dict(os.environ, WEFT_MUTANT=mutant)
    try:
        command = [test, "--fail-fast", "--filter", pattern or "*/*"]
        p = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, env=env)
    except subprocess.TimeoutExpired:
        return "does not end"
    return None if p.returncode == 0 else words(p.stderr + p.stdout)


def main():
    mutants = names(sys.argv[1])
    tests = [arg.split("=", 1) for arg in sys.argv[2:]]
    failed = len(mutants) == 0
    print(f"1..{len(mutants)}", flush=True)
    for i, (name, what) in enumerate(mutants, 1):
        found = 0
        for label, test in tests:
            start = time.monotonic()
            label, _, pattern = label.partition(":")
            why = find(test, pattern, name)
            found += why is not None
            print(f"# {label}: {why or 'found nothing'} ({time.monotonic() - start:.1f} s)", flush=True)
            if found:
                break
        print(f"{'ok' if found > 0 else 'not ok'} {i} - {name}: {what}", flush=True)
        failed |= found == 0
    sys.exit(1 if failed else 0)


main()
