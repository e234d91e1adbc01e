#!/usr/bin/env python3
"""Adds up the results of Meson's JUnit files and prints "N passed, N failed, N skipped" as the last line.

usage: count_results.py FILE.xml...
Lists what failed, with the lines of its output that name an error, and what was skipped, with the reason. Exit 1 when anything
failed or nothing passed.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree as tree

MAX_LINES, MAX_CHARS = 20, 300
# What XML 1.0 allows no document to contain. Meson writes the output of tests as it is, and a fuzz test that fails prints
# the bytes of its input.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def read_results(path):
    """The root of a file of results; a character that XML forbids counts as U+FFFD."""
    text = pathlib.Path(path).read_bytes().decode(errors="replace")
    return tree.fromstring(FORBIDDEN.sub("\ufffd", text))


def lines_of(*elements):
    """The output that belongs to these elements, a line each."""
    return [line for e in elements for tag in ("system-out", "system-err") for line in (e.findtext(tag) or "").splitlines()]


def reason(suite, case):
    """Why a test was skipped: the SKIP directive of its line, or of the whole plan; else the last line of its output."""
    lines = lines_of(case, suite)
    name = re.sub(r"^\d+ ", "", case.get("name"))
    told = [line for line in lines if "# SKIP" in line and (name in line or line.startswith("1..0"))]
    if told:
        return told[0].split("# SKIP", 1)[1].strip()
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason was given")


def print_errors(suite):
    lines = [line for line in lines_of(suite) if re.search(r"\bnot ok\b|Error\b|[Aa]ssert|ERROR:|runtime error", line)]
    for line in lines[:MAX_LINES]:
        print(f"         {line[:MAX_CHARS]}")


def main():
    passed = failed = skipped = 0
    for path in sys.argv[1:]:
        for suite in read_results(path).iter("testsuite"):
            if suite.find(".//failure") is not None or suite.find(".//error") is not None:
                print_errors(suite)
            for case in suite.iter("testcase"):
                name = f"{suite.get('name')}: {case.get('name')}"
                if case.find("failure") is not None or case.find("error") is not None:
                    failed += 1
                    print(f"failed   {name}")
                elif case.find("skipped") is not None:
                    skipped += 1
                    print(f"skipped  {name}: {reason(suite, case)[:MAX_CHARS]}")
                else:
                    passed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


sys.exit(main())
