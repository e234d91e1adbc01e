#!/usr/bin/env python3
"""Adds up the results of Meson's JUnit files and prints "N passed, N failed, N skipped" as the last line.

usage: count_results.py FILE.xml...
Lists what failed, with the lines of its output that name an error, and what was skipped. Exit 1 when anything failed or nothing passed.
"""
import re
import sys
import xml.etree.ElementTree as tree

MAX_LINES, MAX_CHARS = 20, 300


def print_errors(suite):
    output = "\n".join(suite.findtext(tag) or "" for tag in ("system-out", "system-err"))
    lines = [line for line in output.splitlines() if re.search(r"\bnot ok\b|Error\b|[Aa]ssert|ERROR:|runtime error", line)]
    for line in lines[:MAX_LINES]:
        print(f"         {line[:MAX_CHARS]}")


def main():
    passed = failed = skipped = 0
    for path in sys.argv[1:]:
        for suite in tree.parse(path).getroot().iter("testsuite"):
            if suite.find(".//failure") is not None or suite.find(".//error") is not None:
                print_errors(suite)
            for case in suite.iter("testcase"):
                name = f"{suite.get('name')}: {case.get('name')}"
                if case.find("failure") is not None or case.find("error") is not None:
                    failed += 1
                    print(f"failed   {name}")
                elif case.find("skipped") is not None:
                    skipped += 1
                    print(f"skipped  {name}")
                else:
                    passed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


sys.exit(main())
