#!/usr/bin/env python3
"""Runs the pager's tests on copies of the pager with one deliberate bug each (kvpager/mutant.h). A bug that all tests let pass
is a hole in the tests. TAP.

usage: check_mutants.py mutant.h NAME=TEST... [-- NAME=TEST...]...   (one group per mutant, in the order of mutant.h)
"""
import re
import subprocess
import sys
import time

LIMIT_S = 60


def groups(args):
    group = []
    for arg in args:
        if arg == "--":
            yield group
            group = []
        else:
            group.append(arg.split("=", 1))
    yield group


def names(header):
    with open(header) as file:
        return re.findall(r"^\s+MUTANT_(\w+)(?: = 1)?,\s+/\* (.*?) \*/", file.read(), re.M)


def words(output):
    """The line that names what is wrong: of the model, of kv_pager_check() or of an assert."""
    for line in output.splitlines():
        if "the model says" in line or "invariant" in line or "Assertion" in line:
            return line.strip()
    return "crashed"


def find(test):
    """What the test says about the bug; None: it passes."""
    try:
        p = subprocess.run([test, "--fail-fast"], capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return "does not end"
    return None if p.returncode == 0 else words(p.stderr + p.stdout)


def main():
    mutants = names(sys.argv[1])
    runs = list(groups(sys.argv[2:]))
    failed = len(mutants) != len(runs)
    print(f"1..{len(mutants)}", flush=True)
    for i, ((name, what), tests) in enumerate(zip(mutants, runs), 1):
        found = 0
        for label, test in tests:
            start = time.monotonic()
            why = find(test)
            found += why is not None
            print(f"# {label}: {why or 'found nothing'} ({time.monotonic() - start:.1f} s)", flush=True)
        print(f"{'ok' if found == len(tests) else 'not ok'} {i} - {name.lower()}: {what}", flush=True)
        failed |= found < len(tests)
    sys.exit(1 if failed else 0)


main()
